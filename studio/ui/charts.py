"""Line charts as plain data: series, labels, and the sentence that says the same in words. Drawn by assets/chart.js."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from studio.curves import Axis, Curves, downsample, numbers, smoothed
from studio.packs import Numbers
from studio.ui import figures
from studio.ui.html import Html, el, url
from studio.ui.texts import text, words

MOST = 600  # points of a line that are sent; a chart is rarely wider in pixels. Zooming asks for more
CROWD = 3_000  # points of a chart, shared by its lines
LEAST = 200
FIGURES = 6  # of a number that is sent
GIB = 1024**3
Chart = dict[str, Any]


def board(**options: Any) -> gr.HTML:
    """The component for charts side by side; a new value redraws lines and leaves zoom and hidden ones alone.

    Its value is what `sent` makes.
    """
    return gr.HTML(
        "",
        html_template='<div class="board-legend"></div><div class="charts"></div>',
        js_on_load="window.atelierBoard(element, props, watch)",
        apply_default_css=False,
        elem_classes=["sheet"],
        **options,
    )


def sent(board: Mapping[str, Any]) -> str:
    """A board's value: `{"charts": [...]}`, and with `lines` one legend for all: `[{key, name, colour, dash}]`.

    JSON as text, which passes through Gradio's page untouched; numbers in objects would be watched there one by one.
    """
    return json.dumps(board, separators=(",", ":")).replace("<", "\\u003c")


@dataclass(frozen=True)
class Source:
    """What a run measured, along what it is drawn, and in how many points a line."""

    run_id: str
    told: Curves
    axis: Axis = "step"
    most: int = MOST

    def line(self, key: str, name: str, colour: str, *, smooth: float = 0.0, scale: float = 1.0, **more: Any) -> Chart:
        """A curve as one line of a chart, in few points; `ask` is where the chart gets all of a part of it.

        The browser knows it by its `key`, that of the curve unless it is another. More: `dash`, `dots`, `faint`,
        `follows` (the key of the line that it is hidden with).
        """
        x, y = self.told.line(key, self.axis)
        y = smoothed(y, smooth) if smooth else y
        kept = downsample(x, y, self.most)
        asked = {"key": key, "axis": self.axis, "smoothing": f"{smooth:g}" if smooth else ""}
        points = {"x": rounded(x[kept]), "y": rounded(y[kept] * scale), "of": len(x)}
        ask = url(f"/v1/runs/{self.run_id}/curve", **asked)
        return {"key": key, "name": name, "colour": colour, "ask": ask, "scale": scale, **points, **more}


def share(lines: int) -> int:
    """Points that each line of a chart may have."""
    return min(MOST, max(LEAST, CROWD // max(lines, 1)))


def rounded(values: Numbers) -> list[float | None]:
    """Six figures: more than a pixel shows, half the bytes."""
    size = np.nan_to_num(np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values)))))
    up, down = 10.0 ** np.clip(FIGURES - 1 - size, 0, 300), 10.0 ** np.clip(size + 1 - FIGURES, 0, 300)
    return numbers(np.round(values / down * up) / up * down)


def build(key: str, title: str, lines: Sequence[Chart], summary: str = "", **more: Any) -> Chart:
    """A chart's value. More: `x` (word for the axis), `unit`, `marks` [{y, label}], `zero`, `whole`.

    `shared`: the board's legend names its lines and a table has the figures, so its summary is only read aloud.
    """
    words = {name: text(f"chart.{name}") for name in ("reset", "empty", "exact", "part", "wide", "narrow")}
    common = {"x": text("chart.step"), "whole": True, "words": words}
    return (
        {"key": key, "title": title, "series": [one for one in lines if one["x"]], "summary": summary} | common | more
    )


def fell(name: str, steps: Numbers, values: Numbers, figure: Callable[[float | None], str] = figures.small) -> str:
    """First, last and lowest in words, and how often there was no number: for curves that should fall."""
    known = np.isfinite(values)
    if not known.any():
        return ""
    steps, measured = steps[known], values[known]
    low = int(measured.argmin())
    words = text(
        "chart.summary",
        first=figure(measured[0]),
        last=figure(measured[-1]),
        low=figure(measured[low]),
        at=figures.count(steps[low]),
    )
    gaps = len(values) - len(measured)
    missing = text("chart.gaps" if gaps > 1 else "chart.gap", n=figures.count(gaps)) if gaps else ""
    return named(name, f"{words}{missing}")


def called(name: str) -> str:
    """What a quantity is called that a method measures besides the loss; a part of a reward by its own name."""
    known = words("measured", name)
    part = known.removeprefix("rewards/")
    return known if part == known else text("measured.part", name=part)


def named(name: str, words: str) -> str:
    """A summary with the name of its line, where the chart has several."""
    return f"{name}: {words}" if name else words


def ranged(name: str, values: Numbers, figure: Callable[[float | None], str] = figures.small) -> str:
    """Last, lowest and highest in words: for curves that should stay."""
    known = values[np.isfinite(values)]
    if not len(known):
        return ""
    words = text("chart.summary_range", last=figure(known[-1]), low=figure(known.min()), high=figure(known.max()))
    return named(name, words)


def sparkline(values: Sequence[float | None], cls: str = "") -> Html:
    """A curve as small as a word; decoration beside its figure."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return el("span")
    low, span = min(known), (max(known) - min(known)) or 1.0
    spots = [
        f"{100 * i / (len(values) - 1):.1f} {2 + 20 * (1 - (value - low) / span):.1f}"
        for i, value in enumerate(values)
        if value is not None
    ]
    path = el("path", d="M" + "L".join(spots), vector_effect="non-scaling-stroke")
    return el(
        "svg", path, cls=f"spark {cls}".strip(), viewBox="0 0 100 24", preserveAspectRatio="none", aria_hidden="true"
    )
