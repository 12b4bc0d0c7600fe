"""`python -m bench.pack`: seconds to pack a million lengths, and how full the sequences get, beside TRL's packing.

TRL packs within batches of 1,000 rows (`dataset.map`); both are also measured on the same smaller number of rows.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
from datasets import Dataset
from trl import pack_dataset

from engine.packing import Ints, best_fit

ROWS = 1_000_000
TRL_ROWS = 50_000


def lengths(kind: str, count: int, limit: int) -> Ints:
    """Tokens per row: log-normal around 350 as chats are, or uniform; never more than `limit`."""
    random = np.random.default_rng(0)
    if kind == "log-normal":
        return np.clip(random.lognormal(np.log(350), 0.9, count).astype(np.int64), 8, limit)
    return random.integers(1, limit + 1, count)


def ours(sizes: Ints, limit: int) -> dict[str, float]:
    """Seconds and fill of the engine's packing over all rows."""
    began = time.perf_counter()
    packs = best_fit(sizes, limit, np.random.default_rng(1).permutation(len(sizes)))
    seconds = time.perf_counter() - began
    return {"rows": len(sizes), "seconds": round(seconds, 2), "fill": fill(sizes, len(packs), limit)}


def theirs(sizes: Ints, limit: int) -> dict[str, float]:
    """The same for TRL."""
    rows = Dataset.from_dict({"input_ids": [np.zeros(size, dtype=np.int32) for size in sizes]})
    began = time.perf_counter()
    packed = pack_dataset(rows, seq_length=limit, strategy="bfd")
    seconds = time.perf_counter() - began
    return {"rows": len(sizes), "seconds": round(seconds, 2), "fill": fill(sizes, len(packed), limit)}


def fill(sizes: Ints, sequences: int, limit: int) -> float:
    """Share of the sequences' room that holds tokens."""
    return round(float(sizes.sum()) / (sequences * limit), 4)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.pack", description=__doc__)
    parser.add_argument("--against", choices=["trl", "nothing"], default="trl")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: list[dict[str, Any]] = []
    for kind, limit in (("log-normal", 2048), ("log-normal", 8192), ("uniform", 4096)):
        one: dict[str, Any] = {"lengths": kind, "limit": limit, "all_rows": ours(lengths(kind, ROWS, limit), limit)}
        if asked.against == "trl":
            few = lengths(kind, TRL_ROWS, limit)
            one |= {"atelier": ours(few, limit), "trl": theirs(few, limit)}
        found.append(one)
    if asked.json:
        print(json.dumps(found))  # noqa: T201
        return
    for one in found:
        for name in ("all_rows", "atelier", "trl"):
            if name in one:
                figures = ", ".join(f"{key} {value}" for key, value in one[name].items())
                print(f"{one['lengths']:10} {one['limit']:5} {name:9} {figures}")  # noqa: T201


if __name__ == "__main__":
    main()
