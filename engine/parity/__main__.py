"""`python -m engine.parity`: the command line."""

import argparse
import json
import sys

import torch

from engine.build import quieten
from engine.parity.cells import METHODS, TOLERANCE, full, quick
from engine.parity.families import FAMILIES
from engine.parity.table import PARTS, markdown, rows


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="python -m engine.parity",
        description="Train tiny twins of model families on every layout, five steps each; compare losses, gradients "
        "and adapter weights with one process. Needs no accelerator: processes of this machine talk over loopback.",
    )
    made.add_argument("--quick", action="store_true", help="each family on one composite layout, each layout on two")
    made.add_argument("--json", action="store_true", help="one JSON line a cell instead of a table")
    made.add_argument("--family", nargs="*", default=list(FAMILIES), choices=list(FAMILIES), help="only these")
    made.add_argument("--method", nargs="*", default=list(METHODS), choices=list(METHODS), help="only these")
    made.add_argument("--layout", nargs="*", help="only these, written like 'shard 2 x tensor 2'")
    return made


def main() -> int:
    """Print the table; 0 when every cell equals one process."""
    asked = parser().parse_args()
    quieten()
    torch.set_num_threads(1)
    cells = (quick if asked.quick else full)(asked.family)
    found = []
    cells = (cell for cell in cells if not asked.layout or str(cell.degrees) in asked.layout)
    for row in rows(cell for cell in cells if cell.method in asked.method):
        found.append(row)
        if asked.json:
            told = {"family": row.cell.family, "layout": row.cell.layout, "equal": row.equal, **row.distance}
            sys.stdout.write(json.dumps({**told, "seconds": row.seconds}) + "\n")
            sys.stdout.flush()
    unequal = [row for row in found if not row.equal]
    if not asked.json:
        sys.stdout.write(f"{markdown(found)}\n\n{len(found)} cells, {len(unequal)} not equal to one process.\n")
        for row in unequal:
            parts = ", ".join(f"{part} {row.distance[part]:.1e}" for part in PARTS)
            sys.stdout.write(f"{row.cell.family} on {row.cell.layout}: {parts}; tolerance {TOLERANCE:.0e}\n")
    return 1 if unequal or not found else 0


if __name__ == "__main__":
    sys.exit(main())
