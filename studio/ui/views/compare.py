"""Runs side by side: overlaid curves, their figures, and the settings that differ."""

from collections.abc import Mapping, Sequence
from typing import Any

from studio import compare
from studio.db.tables import Run
from studio.ui import charts, figures, form
from studio.ui.chrome import note
from studio.ui.html import Child, Html, el, link
from studio.ui.status import badge, lines, swatch
from studio.ui.texts import text

METRICS = ("loss", "eval_loss", "grad_norm", "learning_rate", "tokens_per_second", "memory")
AXES = ("step", "time", "tokens")
MINUTE = 60.0
Points = Mapping[str, Any]


def chart(found: Sequence[tuple[Run, Points]], metric: str, axis: str, smoothing: float) -> dict[str, Any]:
    """One chart with a line per run; with smoothing the measured line stays behind it, pale."""
    styles = lines([run.id for run, _ in found])
    drawn: list[dict[str, Any]] = []
    said: list[str] = []
    for run, points in found:
        x, y = column(points, metric, axis)
        if not x:
            continue
        colour, dash = styles[run.id]
        name = unique(run, found)
        smooth = smoothing > 0 and metric != "eval_loss"
        if smooth:
            drawn.append(charts.series(f"{name} ", x, y, colour, faint=True))
        drawn.append(
            charts.series(
                name, x, smoothed(y, smoothing) if smooth else y, colour, dash=dash, dots=metric == "eval_loss"
            )
        )
        said.append(charts.fell(name, points["eval"]["step"] if metric == "eval_loss" else points["step"], y))
    unit = {"memory": "GiB", "tokens_per_second": text("unit.tokens")}.get(metric, "")
    word = {"step": "chart.step", "time": "chart.time", "tokens": "chart.tokens"}[axis]
    return charts.build(
        text(f"metric.{metric}"), drawn, " · ".join(filter(None, said)), x=text(word), unit=unit, whole=axis != "time"
    )


def unique(run: Run, found: Sequence[tuple[Run, Points]]) -> str:
    """The run's name, with a piece of its id when another run has the same name."""
    same = sum(other.name == run.name for other, _ in found)
    return f"{run.name} ({run.id[-4:]})" if same > 1 else run.name


def column(points: Points, metric: str, axis: str) -> tuple[list[float], list[float | None]]:
    """Positions and values of a metric along an axis: steps, minutes since the first step, or tokens so far."""
    along = positions(points, axis)
    if metric == "eval_loss":
        at = dict(zip(points["step"], along, strict=True))
        known = [
            (at[step], loss)
            for step, loss in zip(points["eval"]["step"], points["eval"]["loss"], strict=True)
            if step in at
        ]
        return [x for x, _ in known], [y for _, y in known]
    if metric == "memory":
        peaks = [
            [None if value is None else value / charts.GIB for value in device["allocated"]]
            for device in points["memory"]
        ]
        return along, [
            max((value for value in row if value is not None), default=None) for row in zip(*peaks, strict=True)
        ] or [None] * len(along)
    return along, list(points[metric])


def positions(points: Points, axis: str) -> list[float]:
    """Where each step lies on the axis."""
    if axis == "step" or not points["step"]:
        return list(points["step"])
    reached, along = 0.0, []
    for seconds, speed in zip(points["seconds"], points["tokens_per_second"], strict=True):
        reached += (seconds or 0.0) / MINUTE if axis == "time" else (seconds or 0.0) * (speed or 0.0)
        along.append(reached)
    return along


def smoothed(values: Sequence[float | None], weight: float) -> list[float | None]:
    """Exponential moving average, corrected for its start; gaps stay gaps."""
    average, total = 0.0, 0.0
    out: list[float | None] = []
    for value in values:
        if value is None:
            out.append(None)
            continue
        average, total = weight * average + (1 - weight) * value, weight * total + (1 - weight)
        out.append(average / total)
    return out


def figure_table(found: Sequence[tuple[Run, Points]]) -> Html:
    """Status, steps, time, last and best figures of each run."""
    rows: list[tuple[str, list[Child]]] = [
        ("status", [badge(run.status) for run, _ in found]),
        ("last", [figures.small(run.loss) for run, _ in found]),
        (
            "lowest",
            [
                figures.small(min((loss for loss in points["loss"] if loss is not None), default=None))
                for _, points in found
            ],
        ),
        ("eval", [figures.small(run.eval_loss) for run, _ in found]),
        ("best", [figures.small(run.best_eval_loss) for run, _ in found]),
        ("steps", [figures.count(run.step) for run, _ in found]),
        ("time", [figures.duration(sum(second or 0.0 for second in points["seconds"])) for _, points in found]),
    ]
    return table(found, [(text(f"compare.{name}"), cells) for name, cells in rows])


def differences(found: Sequence[tuple[Run, Points]], names: Mapping[str, str]) -> Html:
    """Only the settings that are not the same in all runs."""
    if len(found) < 2:
        return note("busy", text("compare.one"))
    titles = form.titles()
    titles |= {"model": text("column.model"), "data.dataset": text("column.data")}
    told = [
        (titles.get(name, name), [names.get(str(value), figures.value(value)) for value in values])
        for name, values in compare.differences([run for run, _ in found])
        if name not in ("name", "data.sha256")
    ]
    return (
        table(found, [(name, list(values)) for name, values in told])
        if told
        else el("p", text("compare.same"), cls="quiet")
    )


def table(found: Sequence[tuple[Run, Points]], rows: Sequence[tuple[str, Sequence[Child]]]) -> Html:
    """A column a run."""
    styles = lines([run.id for run, _ in found])
    heads = [
        el(
            "th",
            el(
                "span",
                swatch(run.id, styles[run.id][1]),
                " ",
                link(run.name, "/run", id=run.id),
                cls="clip",
                title=run.name,
            ),
            scope="col",
        )
        for run, _ in found
    ]
    body = [
        el("tr", el("th", name, scope="row"), [el("td", cell, cls="left") for cell in cells]) for name, cells in rows
    ]
    return el(
        "div",
        el("table", el("thead", el("tr", el("th", ""), heads)), el("tbody", body)),
        cls="table-wrap",
        tabindex="0",
    )
