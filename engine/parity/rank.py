"""One process of a parity launch: trains every cell with the others; the first one compares and says the result.

Each cell has a process of its own, forked when the libraries are loaded: groups, their threads, and what torch
remembers of them end with it. Meeting again in one process, a fast one may find the address that a slow one has just
left.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine import lifeline
from engine.build import quieten
from engine.layout.mesh import PATIENCE, join, leave
from engine.parity.cells import Cell
from engine.parity.trace import Trace, trace


def main(folder: Path) -> int:
    """Train the cells listed in the folder; one line each is added to `found.jsonl` there. 1 when a cell failed."""
    quieten()
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    torch.set_num_threads(1)
    for number, told in enumerate(json.loads((folder / "cells.json").read_text(encoding="utf-8"))):
        child = os.fork()
        if not child:
            lifeline.hold(grace_seconds=0)
            _meet(number)
            _train(told, folder)
            sys.stderr.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            return 1
    return 0


def _meet(number: int) -> None:
    """Meet the processes of the same cell, under names of its own in the launch's store."""
    store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    own = dist.PrefixStore(f"cell {number}", store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=own, rank=rank, world_size=world, timeout=PATIENCE)


def _train(told: dict[str, Any], folder: Path) -> None:
    cell = Cell.of(told)
    mesh = join(cell.degrees, torch.device("cpu"))
    began = time.perf_counter()
    state = folder / f"state-{cell.reference}"
    state.mkdir(exist_ok=True)
    save, resume = (state if cell.checkpoint == what else None for what in ("saved", "resumed"))
    found = trace(cell.spec(folder), mesh, cell.micro_batches, lift=cell.lifted, save=save, resume=resume)
    if mesh.main:
        distance = found.distance(Trace.load(folder / f"{cell.reference}.safetensors"))
        with (folder / "found.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": told, **distance, "seconds": time.perf_counter() - began}) + "\n")
    leave()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
