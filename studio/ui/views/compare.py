"""Runs side by side: overlaid curves, their figures, and the settings that differ."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from studio import compare
from studio.curves import EVAL, METRICS, Axis, Curves
from studio.db.tables import Run
from studio.ui import charts, figures, form
from studio.ui.chrome import note
from studio.ui.html import Child, Html, el, link
from studio.ui.status import badge, lines, swatch
from studio.ui.texts import text, words

FIRST = ("loss", "eval/loss")
LAST = ("grad_norm", "learning_rate", "tokens_per_second", "memory")
METHOD = "method.type"
AXIS_WORDS = {"step": "chart.step", "time": "chart.time", "tokens": "chart.tokens"}
Found = Sequence[tuple[Run, Curves]]


def board(found: Found, axis: Axis, smoothing: float) -> dict[str, Any]:
    """A chart for everything that any of the runs measured, with a line per run, and one legend for all of them."""
    styles = lines([run.id for run, _ in found])
    named = [
        {"key": run.id, "name": unique(run, found), "colour": styles[run.id][0], "dash": styles[run.id][1]}
        for run, _ in found
    ]
    return {"charts": [chart(found, styles, key, axis, smoothing) for key in measured(found)], "lines": named}


def measured(found: Found) -> list[str]:
    """Keys of the curves that there are: losses, what the methods measure, then how the training went."""
    metrics = dict.fromkeys(name for _, told in found for name in told.metrics)
    own = [prefix + name for name in metrics for prefix in (METRICS, EVAL + METRICS)]
    return [key for key in (*FIRST, *own, *LAST) if any(key in told and not told.mirrored(key) for _, told in found)]


def chart(found: Found, styles: Mapping[str, tuple[str, str]], key: str, axis: Axis, smoothing: float) -> charts.Chart:
    """One curve of every run; with smoothing the measured line stays behind it, pale."""
    held = key.startswith(EVAL)
    smooth = 0.0 if held else smoothing
    scale = 1 / charts.GIB if key == "memory" else 1.0
    there = [(run, told) for run, told in found if key in told and not told.mirrored(key)]
    most = charts.share(len(there) * (2 if smooth else 1))
    drawn: list[charts.Chart] = []
    said: list[str] = []
    for run, told in there:
        (colour, dash), name = styles[run.id], unique(run, found)
        source = charts.Source(run.id, told, axis, most)
        if smooth:
            pale = source.line(key, name, colour, scale=scale, faint=True, follows=run.id)
            drawn.append(pale | {"key": f"{run.id} pale"})
        line = source.line(key, name, colour, scale=scale, smooth=smooth)
        drawn.append(line | {"dash": dash, "dots": held, "key": run.id})
        said.append(summary(name, told, key))
    unit = {"memory": "GiB", "tokens_per_second": text("unit.tokens")}.get(key, "")
    words = {"x": text(AXIS_WORDS[axis]), "whole": axis != "time", "unit": unit, "shared": True}
    return charts.build(key, title(key), drawn, " · ".join(filter(None, said)), **words)


def summary(name: str, told: Curves, key: str) -> str:
    """One run's curve in words."""
    if key in FIRST:
        return charts.fell(name, *told.line(key))
    figure = {"memory": figures.size, "learning_rate": figures.scientific}.get(key, figures.small)
    return charts.ranged(name, told.of(key), figure)


def title(key: str) -> str:
    """What a curve is called."""
    if key.startswith(EVAL + METRICS):
        return text("metric.held_out", name=charts.called(key.removeprefix(EVAL + METRICS)))
    return charts.called(key.removeprefix(METRICS)) if key.startswith(METRICS) else text(f"metric.{key}")


def unique(run: Run, found: Found) -> str:
    """The run's name, with a piece of its id when another run has the same name."""
    same = sum(other.name == run.name for other, _ in found)
    return f"{run.name} ({run.id[-4:]})" if same > 1 else run.name


def figure_table(found: Found) -> Html:
    """Status, steps, time, last and best figures of each run."""
    rows: list[tuple[str, list[Child]]] = [
        ("status", [badge(run.status) for run, _ in found]),
        ("last", [figures.small(run.loss) for run, _ in found]),
        (
            "lowest",
            [figures.small(float(np.fmin.reduce(told.of("loss"), initial=math.inf))) for _, told in found],
        ),
        *held_out(found),
        ("steps", [figures.count(run.step) for run, _ in found]),
        ("time", [figures.duration(float(np.nansum(told.of("seconds")))) for _, told in found]),
    ]
    return table(found, [(text(f"compare.{name}"), cells) for name, cells in rows])


def held_out(found: Found) -> list[tuple[str, list[Child]]]:
    """Last and best on held-out rows: the loss, and the reward of runs that have one."""
    rows: list[tuple[str, list[Child]]] = []
    for rewarded, last, best in ((False, "eval", "best"), (True, "reward", "best_reward")):
        mine = [run if (run.method == "grpo") is rewarded else None for run, _ in found]
        if any(mine):
            shown = figures.reward if rewarded else figures.small
            rows.append((last, [shown(run.eval_loss if run else None) for run in mine]))
            rows.append((best, [shown(run.best_eval_loss if run else None) for run in mine]))
    return rows


def differences(found: Found, names: Mapping[str, str]) -> Html:
    """Only the settings that are not the same in all runs; of different methods only which they are."""
    if len(found) < 2:
        return note("busy", text("compare.one"))
    titles = form.titles()
    titles |= {"model": text("column.model"), "data.dataset": text("column.data"), METHOD: text("column.method")}
    methods = {run.method for run, _ in found}
    known = {**names, **{method: words("method", method) for method in methods}}
    told = [
        (titles.get(name) or called(name), [known.get(str(value), figures.value(value)) for value in values])
        for name, values in compare.differences([run for run, _ in found])
        if name not in ("name", "data.sha256")
        and (len(methods) == 1 or name == METHOD or not name.startswith("method."))
    ]
    return (
        table(found, [(name, list(values)) for name, values in told])
        if told
        else el("p", text("compare.same"), cls="quiet")
    )


def called(name: str) -> str:
    """A setting without a title: the weight of a reward, or one of another version."""
    reward = name.removeprefix("method.rewards.")
    return name if reward == name else text("measured.part", name=reward)


def table(found: Found, rows: Sequence[tuple[str, Sequence[Child]]]) -> Html:
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
