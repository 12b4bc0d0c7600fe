"""One process of a parity launch: trains every cell with the others; the first one compares and says the result."""

import json
import sys
import time
import warnings
from pathlib import Path

import torch

from engine import lifeline
from engine.build import quieten
from engine.layout.mesh import join, leave
from engine.parity.cells import Cell
from engine.parity.trace import Trace, trace


def main(folder: Path) -> int:
    """Train the cells listed in the folder; one line each is added to `found.jsonl` there."""
    lifeline.hold(grace_seconds=0)
    quieten()
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    torch.set_num_threads(1)
    for told in json.loads((folder / "cells.json").read_text(encoding="utf-8")):
        cell = Cell.of(told)
        mesh = join(cell.degrees, torch.device("cpu"))
        began = time.perf_counter()
        state = folder / f"state-{cell.reference}"
        state.mkdir(exist_ok=True)
        save, resume = (state if cell.checkpoint == what else None for what in ("saved", "resumed"))
        found = trace(cell.spec(folder), mesh, cell.micro_batches, save, resume)
        if mesh.main:
            distance = found.distance(Trace.load(folder / f"{cell.reference}.safetensors"))
            with (folder / "found.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"cell": told, **distance, "seconds": time.perf_counter() - began}) + "\n")
        leave()  # every group has threads of its own: over many cells they became thousands
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
