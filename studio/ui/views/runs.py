"""The table of runs."""

from collections.abc import Mapping, Sequence

from studio.db.tables import Run
from studio.runs import ACTIVE
from studio.ui import charts, figures
from studio.ui.chrome import empty, meter
from studio.ui.html import Child, Html, el, link, many
from studio.ui.status import badge, colour
from studio.ui.texts import text, words

COLUMNS = ("name", "status", "model", "data", "method", "progress", "loss", "curve", "age")
NUMBERS = frozenset({"loss", "age"})


def table(found: Sequence[Run], names: Mapping[str, str], curves: Mapping[str, Sequence[float | None]]) -> Html:
    """Rows of runs with a box each to select them; `names` of datasets and models by id, `curves` of loss by run."""
    select = el("th", el("span", text("column.select"), cls="sr"), scope="col")
    heads = [el("th", text(f"column.{name}"), scope="col", cls="num" if name in NUMBERS else None) for name in COLUMNS]
    body = [row(run, names, curves.get(run.id, ())) for run in found]
    return many(
        el("div", el("table", el("thead", el("tr", select, heads)), el("tbody", body)), cls="table-wrap stack"),
    )


def row(run: Run, names: Mapping[str, str], curve: Sequence[float | None]) -> Html:
    """One run."""
    box = el("input", type="checkbox", data_run=run.id, aria_label=text("runs.select", name=run.name))
    cells: dict[str, Child] = {
        "name": el("span", link(run.name, "/run", id=run.id), cls="clip", title=run.name),
        "status": badge(run.status),
        "model": el("span", names.get(run.model_id, run.model_id), cls="clip"),
        "data": el("span", names.get(run.dataset_id, text("runs.gone")), cls="clip"),
        "method": words("method", run.method),
        "progress": progress(run),
        "loss": figures.small(run.loss),
        "curve": charts.sparkline(curve, f"run-{colour(run.id)}"),
        "age": figures.age(run.created_at),
    }
    tds = [
        el(
            "td",
            cell,
            cls=" ".join(filter(None, (name, "num" if name in NUMBERS else ""))),
            data_label=None if name in ("name", "status") else text(f"column.{name}"),
        )
        for name, cell in cells.items()
    ]
    return el("tr", el("td", box, cls="pick"), tds)


def progress(run: Run) -> Child:
    """A thin bar and the share that is done."""
    if not run.total_steps:
        return meter(None) if run.status in ACTIVE else text("figure.none")
    share = run.step / run.total_steps
    cls = {"succeeded": "done", "failed": "broken", "running": "", "preparing": ""}.get(run.status, "stopped")
    return many(meter(share, cls), el("span", text("runs.done", percent=round(100 * share)), cls="quiet small"))


def bar() -> Html:
    """How many are selected, and the way to compare them; kept by the browser."""
    return el(
        "div",
        el("span", text("runs.select_none"), data_compare_words=True, aria_live="polite"),
        el("a", text("runs.compare"), cls="action off", aria_disabled="true", tabindex="0"),
        cls="table-bar",
        data_compare=True,
        data_none=text("runs.select_none"),
        data_some=text("runs.select_some", n="{n}"),
    )


def nothing(filtered: bool) -> Html:
    """No runs at all, or none that match."""
    if filtered:
        return empty(text("runs.no_match"), text("runs.no_match_help"))
    return empty(text("runs.empty"), text("runs.empty_help"), el("a", text("run.new"), cls="action first", href="/"))
