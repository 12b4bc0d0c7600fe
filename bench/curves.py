"""`python -m bench.curves FOUND.jsonl PICTURE.svg`: what `bench.learns --into FOUND.jsonl` found, one panel a task.

A line a seed over the steps of training; controls, which learn nothing, are dashed.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDE, HIGH, MARGIN = 300, 200, 44
TITLES = {
    "add": "Sums: mean reward",
    "gym": "reasoning-gym chain_sum: mean reward",
    "prefer": "DPO: accuracy of the implicit reward",
}
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#555}.grid{stroke:#8884}.line{fill:none;stroke:#2563eb;stroke-width:1.8}"
    ".control{stroke:#888;stroke-dasharray:4 3}"
    "@media(prefers-color-scheme:dark){text{fill:#bbb}.line{stroke:#60a5fa}.control{stroke:#999}}"
)
Found = Mapping[str, Any]


def picture(found: Iterable[Found]) -> str:
    """The SVG of these results."""
    tasks = [(task, list(of)) for task, of in groupby(sorted(found, key=lambda one: str(one["task"])), _task)]
    panels = "".join(_panel(at * (WIDE + MARGIN), task, of) for at, (task, of) in enumerate(tasks))
    size = f"{len(tasks) * (WIDE + MARGIN) + 12} {HIGH + 2 * MARGIN}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"><style>{STYLE}</style>{panels}</svg>\n'


def _task(found: Found) -> str:
    return str(found["task"])


def _panel(left: int, task: str, found: list[Found]) -> str:
    last = max(int(step) for one in found for step in one["curve"])
    lines = "".join(_line(one, last) for one in found)
    grid = "".join(
        f'<path class="grid" d="M0 {HIGH * (1 - y):g}H{WIDE}"/>'
        f'<text x="-6" y="{HIGH * (1 - y) + 4:g}" text-anchor="end">{y:g}</text>'
        for y in (0, 0.25, 0.5, 0.75, 1)
    )
    marks = "".join(
        f'<text x="{WIDE * step / last:g}" y="{HIGH + 16}" text-anchor="middle">{step}</text>'
        for step in range(0, last + 1, 20)
    )
    title = f'<text y="-12">{escape(TITLES[task])}</text>'
    under = "steps (dashed: learning rate of nothing)"
    steps = f'<text x="{WIDE / 2:g}" y="{HIGH + 32}" text-anchor="middle">{under}</text>'
    return f'<g transform="translate({left + MARGIN} {MARGIN - 8})">{title}{grid}{marks}{steps}{lines}</g>'


def _line(found: Found, last: int) -> str:
    points = " ".join(f"{WIDE * int(step) / last:g},{HIGH * (1 - value):g}" for step, value in found["curve"].items())
    return f'<polyline class="line{" control" * bool(found["control"])}" points="{points}"/>'


def main() -> None:
    """Read the results, write the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.curves", description=__doc__)
    parser.add_argument("found", type=Path)
    parser.add_argument("picture", type=Path)
    asked = parser.parse_args()
    found = [json.loads(line) for line in asked.found.read_text(encoding="utf-8").splitlines()]
    asked.picture.write_text(picture(found), encoding="utf-8")


if __name__ == "__main__":
    main()
