"""Settings and files of a run: what differs from the defaults first, then facts, and what was saved."""

from typing import Any

from engine.spec import METHODS, Data, RunSpec, settings
from studio.ui import figures, form
from studio.ui.html import Child, Html, el
from studio.ui.texts import text
from studio.ui.views.run import Story

FACTS = (
    "device",
    "hosts",
    "layout",
    "layout_why",
    "dtype",
    "train_rows",
    "eval_rows",
    "bad_rows",
    "truncated_rows",
    "trained_tokens",
    "total_tokens",
    "trainable_parameters",
    "total_parameters",
)


def settings_of(story: Story) -> Html:
    """Every setting with its title: those that differ from the defaults first."""
    titles = form.titles(story.run.method)
    method = METHODS.get(story.run.method, METHODS["sft"])
    defaults = settings(RunSpec(model="", data=Data(dataset=""), method=method()))
    mine = {name: stored(story.run.spec, name, default) for name, default in defaults.items() if name in titles}
    changed: list[Child] = []
    same: list[Child] = []
    for name, value in mine.items():
        differs = value != defaults[name]
        shown = figures.value(value)
        words = text("run.setting_default", value=shown, default=figures.value(defaults[name])) if differs else shown
        (changed if differs else same).extend([el("dt", titles[name]), el("dd", words)])
    top = el("dl", changed, cls="pairs") if changed else el("p", text("run.all_default"), cls="quiet")
    return el(
        "div",
        el("h2", text("run.differs"), cls="group-title"),
        top,
        facts(story),
        el("h2", text("run.as_default"), cls="group-title"),
        el("dl", same, cls="pairs"),
        cls="card",
    )


def stored(spec: dict[str, Any], name: str, default: Any) -> Any:
    """A setting of a stored spec, which an older version may have written."""
    section, _, leaf = name.partition(".")
    inner = spec.get(section)
    return inner.get(leaf, default) if isinstance(inner, dict) else default


def facts(story: Story) -> Child:
    """What was known once model and data were loaded."""
    told = story.started
    if not told:
        return None
    pairs: list[Child] = []
    for name in FACTS:
        if (value := told.get(name)) in (None, "", []):  # not said, or by a version that did not know it
            continue
        shown = figures.count(value) if isinstance(value, int) else figures.value(value)
        pairs += [el("dt", text(f"fact.{name}")), el("dd", shown)]
    for package, version in (told.get("versions") or {}).items():
        pairs += [el("dt", package), el("dd", version)]
    return el("div", el("h2", text("run.facts"), cls="group-title"), el("dl", pairs, cls="pairs"))


def files(story: Story) -> Html:
    """Checkpoints and the adapter, newest first."""
    saved = list(reversed(story.of("saved")))
    if not saved:
        return el("p", text("run.files_none"), cls="empty plain")
    head = el(
        "tr",
        el("th", text("column.file"), scope="col"),
        *[el("th", text(f"column.{name}"), cls="num", scope="col") for name in ("step", "size")],
    )
    body = [
        el(
            "tr",
            el("td", text(f"run.file_{one['what']}"), el("span", f" {one['path']}", cls="quiet mono")),
            el("td", figures.count(one["step"]), cls="num"),
            el("td", figures.size(one["bytes"]), cls="num"),
        )
        for one in saved
    ]
    return el("div", el("table", el("thead", head), el("tbody", body)), cls="table-wrap")
