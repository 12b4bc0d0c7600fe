"""The table: references in this process, the cells in launches of as many processes as they need, and the results."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from engine.layout.degrees import Degrees
from engine.layout.mesh import Mesh
from engine.parity.cells import Cell
from engine.parity.families import make_twin, publish_in_float8
from engine.parity.trace import trace

PARTS = ("losses", "norms", "gradients", "weights")
LAUNCH = "import sys; from engine.ranks import launch; sys.exit(launch(sys.argv[2:], int(sys.argv[1])))"


@dataclass(frozen=True)
class Row:
    """One cell's result: the largest difference of each part to one process, and the seconds it took."""

    cell: Cell
    distance: dict[str, float]
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether every part is within the cell's tolerance; NaN never is."""
        return all(self.distance[part] <= self.cell.tolerance for part in PARTS)


def rows(cells: Iterable[Cell]) -> Iterator[Row]:
    """Train every possible cell; one launch for all cells of the same number of processes.

    Raises CalledProcessError when a launch fails.
    """
    wanted = [cell for cell in dict.fromkeys(cells) if cell.possible]
    with tempfile.TemporaryDirectory(prefix="atelier-parity-") as name:
        folder = Path(name)
        for model, cell in {cell.model: cell for cell in wanted}.items():
            make_twin(cell.family, folder / model)
            if cell.base == "fp8":
                publish_in_float8(folder / model)
        for cell in {cell.reference: cell for cell in wanted}.values():
            alone = replace(cell, degrees=Degrees(), recompute=False, checkpoint="")
            trace(alone.spec(folder), Mesh(), cell.micro_batches).save(folder / f"{cell.reference}.safetensors")
        for processes in sorted({cell.degrees.processes for cell in wanted}, reverse=True):
            yield from _launched([cell for cell in wanted if cell.degrees.processes == processes], processes, folder)


def _launched(cells: list[Cell], processes: int, folder: Path) -> Iterator[Row]:
    (folder / "cells.json").write_text(json.dumps([cell.told() for cell in cells]), encoding="utf-8")
    found = folder / "found.jsonl"
    found.unlink(missing_ok=True)
    program = ["-m", "engine.parity.rank", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(processes), *program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.exists():
        for line in found.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            yield Row(Cell.of(told["cell"]), {part: told[part] for part in PARTS}, told["seconds"])
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise subprocess.CalledProcessError(done.returncode, program)


def markdown(found: Iterable[Row]) -> str:
    """The table as text: one line a layout, one column a family, the largest difference of any part in each.

    `-` is a family that cannot be split like that; what was not trained is blank.
    """
    cells = list(found)
    families = list(dict.fromkeys(row.cell.family for row in cells))
    worst: dict[str, dict[str, str]] = {}
    for row in cells:
        rest = {family: "" if replace(row.cell, family=family).possible else "-" for family in families}
        largest = max(row.distance[part] for part in PARTS)
        shown = f"{largest:.0e}" + ("" if row.equal else " !")
        worst.setdefault(row.cell.layout, rest)[row.cell.family] = shown
    lines = ["| layout | " + " | ".join(families) + " |", "|---|" + "---|" * len(families)]
    lines += [f"| {' | '.join([layout, *of.values()])} |" for layout, of in worst.items()]
    return "\n".join(lines)
