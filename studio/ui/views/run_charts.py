"""The charts of one run, in reading order: loss, memory, what its method measures, and how the training goes."""

from typing import Any

import numpy as np

from studio.curves import EVAL, METRICS
from studio.ui import charts, figures
from studio.ui.charts import GIB, Chart, Source
from studio.ui.status import COLOURS, DASHES
from studio.ui.texts import text

LEVELS = ("allocated", "reserved", "peak")
NEAR = 0.5  # share of a device in use from which its size is drawn in


def all_of(source: Source, planned: int | None = None) -> list[Chart]:
    """Every chart; `planned` bytes is what the plan foretold for the fullest device."""
    names = list(source.told.metrics)
    first = [metric(source, "reward"), memory(source, planned), loss(source)] if "reward" in names else []
    return [
        *(first or [loss(source), memory(source, planned)]),
        *(metric(source, name) for name in names if not first or name != "reward"),
        rate(source),
        norm(source),
        speed(source),
    ]


def loss(source: Source) -> Chart:
    """Train and eval loss along the steps; of a method with rewards only what it trains on."""
    train, held = text("chart.train"), text("chart.eval")
    lines = [source.line("loss", train, "var(--line-1)")]
    said = [charts.fell(train, *source.told.line("loss"))]
    if not source.told.mirrored("eval/loss"):
        lines.append(source.line("eval/loss", held, "var(--line-2)", dots=True))
        said.append(charts.fell(held, *source.told.line("eval/loss")))
    return charts.build("loss", text("chart.loss"), lines, " · ".join(filter(None, said)))


def metric(source: Source, name: str) -> Chart:
    """Something that the method measures besides, in training and on held-out rows."""
    train, held = METRICS + name, EVAL + METRICS + name
    there = [key for key in (train, held) if key in source.told]
    names = {train: text("chart.train"), held: text("chart.eval")}
    colours = {train: "var(--line-1)", held: "var(--line-2)"}
    lines = [source.line(key, names[key], colours[key], dots=key == held) for key in there]
    said = [charts.ranged(names[key] if len(there) > 1 else "", source.told.of(key)) for key in there]
    return charts.build(train, charts.called(name), lines, " · ".join(filter(None, said)))


def memory(source: Source, planned: int | None = None) -> Chart:
    """Allocated, reserved and peak per device, GiB; the plan's figure, and what the device has when it is near."""
    lines: list[Chart] = []
    marks: list[dict[str, Any]] = []
    said: list[str] = []
    devices = source.told.devices
    for place, device in enumerate(devices):
        told = {what: source.told.of(f"memory/{device}/{what}") for what in (*LEVELS, "total")}
        for number, what in enumerate(LEVELS):
            if what == "reserved" and np.array_equal(told["reserved"], told["allocated"], equal_nan=True):
                continue
            name, colour, dash = text(f"chart.{what}"), f"var(--line-{number + 1})", ""
            if len(devices) > 1:
                name = text("chart.device", device=device, what=name)
                colour, dash = f"var(--run-{place % COLOURS})", DASHES[number]
            lines.append(source.line(f"memory/{device}/{what}", name, colour, scale=1 / GIB, dash=dash))
        total = np.fmax.reduce(told["total"], initial=0.0)
        if np.fmax.reduce(told["peak"], initial=0.0) > NEAR * total:
            marks.append(mark("chart.total", total))
        said.append(charts.ranged(device, told["allocated"], figures.size))
    marks += [mark("chart.planned", planned)] if planned else []
    several = list({one["label"]: one for one in marks}.values())  # devices of one size share their mark
    return charts.build("memory", text("chart.memory"), lines, " · ".join(said), unit="GiB", zero=True, marks=several)


def mark(key: str, size: float) -> dict[str, Any]:
    """A level of the memory chart, said in words."""
    return {"y": size / GIB, "label": text(key, size=figures.size(size))}


def rate(source: Source) -> Chart:
    """Learning rate along the steps."""
    lines = [source.line("learning_rate", text("chart.rate"), "var(--line-3)")]
    said = charts.ranged("", source.told.of("learning_rate"), figures.scientific)
    return charts.build("learning_rate", text("chart.rate"), lines, said, zero=True)


def norm(source: Source) -> Chart:
    """Gradient norm before clipping."""
    lines = [source.line("grad_norm", text("chart.norm"), "var(--line-4)")]
    return charts.build(
        "grad_norm", text("chart.norm"), lines, charts.ranged("", source.told.of("grad_norm")), zero=True
    )


def speed(source: Source) -> Chart:
    """Tokens per second."""
    lines = [source.line("tokens_per_second", text("chart.speed"), "var(--line-1)")]
    said = charts.ranged("", source.told.of("tokens_per_second"), lambda value: figures.count(value or 0))
    return charts.build("tokens_per_second", text("chart.speed"), lines, said, unit=text("unit.tokens"), zero=True)
