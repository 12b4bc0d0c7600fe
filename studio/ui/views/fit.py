"""Will it fit: the memory of a run by part as one bar, its time, and what would make it fit."""

from typing import Any

from studio.db.tables import Plan
from studio.ui import figures, form
from studio.ui.chrome import meter, note
from studio.ui.html import Child, Html, el, many
from studio.ui.texts import text

# Segments of the bar: key of the text, and the parts of the engine's plan in it.
SEGMENTS = (
    ("weights", ("weights",)),
    ("adapter", ("adapter", "gradients")),
    ("optimizer", ("optimizer",)),
    ("activations", ("activations",)),
    ("cache", ("cache",)),
    ("buffers", ("gathered", "head", "dispatch", "reserve")),
)


def panel(plan: Plan | None, *, wanted: bool, reading: bool = False) -> Html:
    """The whole panel; `wanted`: there is something to plan; `reading`: the rows are still being read for it."""
    if plan is None and not reading:
        body: Child = el("p", text("fit.device_none" if wanted else "fit.empty"), cls="quiet small")
    elif plan is not None and plan.status == "failed":
        body = note("warn", text("fit.failed"), plan.error)
    elif plan is None or plan.told is None:
        body = el("div", meter(None), el("p", text("fit.wait"), cls="quiet small"), role="status")
    else:
        body = many(bar(plan.told), legend(plan.told), verdict(plan.told))
    return el("div", el("h2", text("fit.title")), body, cls="fit stack-8")


def sizes(told: dict[str, Any]) -> list[tuple[str, int]]:
    """Bytes of each segment that there is."""
    found = [(name, sum(told["parts"].get(part, 0) for part in parts)) for name, parts in SEGMENTS]
    return [(name, size) for name, size in found if size]


def bar(told: dict[str, Any]) -> Html:
    """The parts to scale; what does not fit reaches beyond the mark of what there is."""
    scale = 100 / max(told["room"], told["peak"])
    parts = [el("i", cls=f"part {name}", style=f"width:{size * scale:.2f}%") for name, size in sizes(told)]
    mark = None if told["fits"] else el("i", cls="limit", style=f"left:{told['room'] * scale:.2f}%")
    words = text("fit.bar", peak=figures.size(told["peak"]), room=figures.size(told["room"]))
    return el("div", parts, mark, cls="stack-bar" + ("" if told["fits"] else " over"), role="img", aria_label=words)


def legend(told: dict[str, Any]) -> Html:
    """Each segment in words, and what stays free."""
    said = [
        el("li", el("i", cls=f"key {name}", aria_hidden="true"), text(f"fit.{name}"), " ", el("b", figures.size(size)))
        for name, size in sizes(told)
    ]
    if told["fits"]:
        free = figures.size(told["room"] - told["peak"])
        said.append(el("li", el("i", cls="key free", aria_hidden="true"), text("fit.free"), " ", el("b", free)))
    return el("ul", said, cls="fit-legend small")


def verdict(told: dict[str, Any]) -> Html:
    """One line: devices, time and steps; or that it does not fit, and what would."""
    line = el("p", summary(told), cls="small", title=" ".join(told["why"]))
    if told["fits"]:
        return line
    over = figures.size(told["peak"] - told["room"])
    changes = told["changes"]
    if changes is None:
        return many(line, note("bad", text("fit.over", over=over), text("fit.hopeless")))
    return many(line, note("bad", text("fit.over", over=over), *(el("p", change["effect"]) for change in changes)))


def summary(told: dict[str, Any]) -> str:
    """1 device · about 3 min · 75 steps."""
    devices = text("fit.device") if told["devices"] == 1 else text("fit.devices", n=told["devices"])
    known = [devices]
    if told["seconds"] is not None:
        known.append(text("fit.time", time=figures.roughly(told["seconds"])))
    if told["steps"] is not None:
        known.append(text("train.steps", n=figures.count(told["steps"])))
    return " · ".join(known)


def remedy(plan: Plan | None) -> str:
    """Label of the button that applies the smallest change; empty when there is none to apply."""
    changes = (plan.told or {}).get("changes") if plan is not None else None
    if not changes:
        return ""
    titles = form.titles()
    values = {name: value for change in changes for name, value in change["settings"].items()}
    shown = ", ".join(
        titles.get(name, name) + ("" if value is True else f" {figures.value(value)}") for name, value in values.items()
    )
    return text("fit.apply", changes=shown)
