"""Line charts as plain data: series, labels, and the sentence that says the same in words. Drawn by assets/chart.js."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from studio.metrics import downsample
from studio.ui import figures
from studio.ui.html import Html, el
from studio.ui.texts import text

MOST = 600  # points of a line that are sent; a chart is rarely wider in pixels
GIB = 1024**3
Numbers = Sequence[float | None]


def chart(value: dict[str, Any] | None = None, **options: Any) -> gr.HTML:
    """The component; a new value redraws the lines and leaves zoom and hidden series alone."""
    return gr.HTML(
        value if value is not None else empty(""),
        html_template='<figure class="chart"></figure>',
        js_on_load="window.atelierChart(element, props, watch)",
        apply_default_css=False,
        elem_classes=["sheet"],
        **options,
    )


def empty(title: str) -> dict[str, Any]:
    """A chart without points."""
    return {"title": title, "series": [], "summary": "", "empty": text("chart.empty")}


def series(name: str, x: Sequence[float], y: Numbers, colour: str, **more: Any) -> dict[str, Any]:
    """One line, downsampled; None is a gap. More: `dash`, `dots`, `faint`, `unit`."""
    kept = downsample(x, y, MOST)
    return {"name": name, "x": [x[i] for i in kept], "y": [rounded(y[i]) for i in kept], "colour": colour, **more}


def rounded(number: float | None) -> float | None:
    """Five figures: enough for a pixel, half the bytes."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.5g}")


def build(title: str, lines: list[dict[str, Any]], summary: str = "", **more: Any) -> dict[str, Any]:
    """A chart's value. More: `x` (word for the axis), `unit`, `marks` [{y, label}], `zero`, `whole`."""
    common = {"x": text("chart.step"), "reset": text("chart.reset"), "empty": text("chart.empty"), "whole": True}
    return {"title": title, "series": lines, "summary": summary, **common, **more}


def fell(
    name: str, steps: Sequence[float], values: Numbers, figure: Callable[[float | None], str] = figures.small
) -> str:
    """First, last and lowest in words: for curves that should fall."""
    known = [(value, step) for value, step in zip(values, steps, strict=True) if value is not None]
    if not known:
        return ""
    low, at = min(known)
    words = text(
        "chart.summary",
        first=figure(known[0][0]),
        last=figure(known[-1][0]),
        low=figure(low),
        at=figures.count(at),
    )
    return named(name, words)


def named(name: str, words: str) -> str:
    """A summary with the name of its line, where the chart has several."""
    return f"{name}: {words}" if name else words


def ranged(name: str, values: Numbers, figure: Callable[[float | None], str] = figures.small) -> str:
    """Last, lowest and highest in words: for curves that should stay."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return named(
        name, text("chart.summary_range", last=figure(known[-1]), low=figure(min(known)), high=figure(max(known)))
    )


def loss(points: Mapping[str, Any]) -> dict[str, Any]:
    """Train and eval loss along the steps."""
    steps, evals = points["step"], points["eval"]
    lines = [series(text("chart.train"), steps, points["loss"], "var(--line-1)")] if steps else []
    if evals["step"]:
        lines.append(series(text("chart.eval"), evals["step"], evals["loss"], "var(--line-2)", dots=True))
    said = (fell(text("chart.train"), steps, points["loss"]), fell(text("chart.eval"), evals["step"], evals["loss"]))
    return build(text("chart.loss"), lines, " · ".join(filter(None, said)))


def memory(points: Mapping[str, Any]) -> dict[str, Any]:
    """Allocated, reserved and peak per device, GiB; what the device has as a line, when it is near."""
    lines, marks, said = [], [], []
    several = len(points["memory"]) > 1
    for device in points["memory"]:
        for number, what in enumerate(("allocated", "reserved", "peak")):
            if what == "reserved" and device["reserved"] == device["allocated"]:
                continue
            word = text(f"chart.{what}")
            name = text("chart.device", device=device["device"], what=word) if several else word
            scaled = [None if value is None else value / GIB for value in device[what]]
            lines.append(series(name, points["step"], scaled, f"var(--line-{number + 1})"))
        peak = max((value for value in device["peak"] if value is not None), default=0)
        if peak > 0.5 * device["total"]:
            marks.append({"y": device["total"] / GIB, "label": text("chart.total", size=figures.size(device["total"]))})
        said.append(ranged(device["device"], device["allocated"], figures.size))
    return build(text("chart.memory"), lines, " · ".join(said), unit="GiB", zero=True, marks=marks)


def rate(points: Mapping[str, Any]) -> dict[str, Any]:
    """Learning rate along the steps."""
    steps, values = points["step"], points["learning_rate"]
    lines = [series(text("chart.rate"), steps, values, "var(--line-3)")] if steps else []
    return build(text("chart.rate"), lines, ranged("", values, figures.scientific), zero=True)


def norm(points: Mapping[str, Any]) -> dict[str, Any]:
    """Gradient norm before clipping."""
    steps, values = points["step"], points["grad_norm"]
    lines = [series(text("chart.norm"), steps, values, "var(--line-4)")] if steps else []
    return build(text("chart.norm"), lines, ranged("", values), zero=True)


def speed(points: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens per second."""
    steps, values = points["step"], points["tokens_per_second"]
    lines = [series(text("chart.speed"), steps, values, "var(--line-1)")] if steps else []
    said = ranged("", values, lambda value: figures.count(value or 0))
    return build(text("chart.speed"), lines, said, unit=text("unit.tokens"), zero=True)


def sparkline(values: Numbers, cls: str = "") -> Html:
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
    line = el("path", d="M" + "L".join(spots), vector_effect="non-scaling-stroke")
    return el(
        "svg", line, cls=f"spark {cls}".strip(), viewBox="0 0 100 24", preserveAspectRatio="none", aria_hidden="true"
    )
