"""Datasets as cards, as one page of facts, and as the line that the Train page shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from studio.db.tables import Dataset, Model
from studio.previews import AS_IN_DATA, Way
from studio.ui import figures
from studio.ui.chrome import empty, heading, meter, note
from studio.ui.html import Child, Html, el, link, many, url
from studio.ui.status import BUSY, badge
from studio.ui.texts import text, words
from studio.ui.views import rows


def counted(dataset: Dataset) -> str:
    """300 chats, or 1 chat."""
    kind = words("one", dataset.kind) if dataset.usable == 1 else words("kind", dataset.kind)
    return text("train.rows", rows=figures.count(dataset.usable), kind=kind)


def status_words(dataset: Dataset, *, declared: bool = False) -> str:
    """Its status in words: tasks are made, not downloaded; `declared`: a person has said what the columns hold."""
    if dataset.status == "fetching" and dataset.source == "tasks":
        return text("status.making")
    return text("status.declared" if declared and dataset.status == "unusable" else f"status.{dataset.status}")


def state(dataset: Dataset, *, declared: bool = False) -> Html:
    """The badge of a dataset."""
    shape = "ready" if declared and dataset.status == "unusable" else dataset.status
    return badge(shape, status_words(dataset, declared=declared))


def choice(dataset: Dataset, *, declared: bool = False) -> tuple[str, str]:
    """Label and id for a dropdown."""
    about = counted(dataset) if dataset.status == "ready" else status_words(dataset, declared=declared)
    return text("models.choice", name=dataset.name, facts=about), dataset.id


def aside(dataset: Dataset) -> int:
    """Rows that cannot be used."""
    return max(dataset.rows - dataset.usable, 0)


def line(dataset: Dataset | None, *, declared: bool = False) -> Html:
    """What the check found, in one line: for the Data card of the Train page."""
    if dataset is None:
        return many()
    if dataset.status in BUSY:
        made = "train.making" if dataset.source == "tasks" else "train.fetching"
        word = text(made) if dataset.status == "fetching" else text("train.checking", name=dataset.name)
        return el("div", meter(None), el("p", word, cls="quiet small"), role="status")
    if declared and dataset.status == "unusable":
        return el("p", text("datasets.declared"), cls="words", role="status")
    if dataset.status == "unusable":
        return note("bad", text("train.unusable"), dataset.error, few_problems(dataset))
    bad = aside(dataset)
    if not bad:
        return el("p", el("b", counted(dataset)), " · ", text("train.all_good"), cls="words", role="status")
    words = el("span", text("train.aside_why", n=figures.count(bad)), cls="warned")
    more = link(text("datasets.all_problems"), "/datasets", id=dataset.id)
    return el(
        "details",
        el("summary", el("b", counted(dataset)), " · ", words),
        note("warn", few_problems(dataset), more),
        cls="words",
    )


def few_problems(dataset: Dataset, most: int = 3) -> Child:
    """The first problems as a list: row, reason, fix."""
    found = problems_of(dataset)[:most]
    if not found:
        return None
    return el(
        "ul",
        [
            el("li", f"{text('column.row')} {one['row']:,}: {one['message']} {one.get('fix') or ''}".strip())
            for one in found
        ],
    )


def problems_of(dataset: Dataset) -> list[dict[str, Any]]:
    """Problems as the report holds them."""
    return list((dataset.report or {}).get("problems") or ())


def cards(found: Sequence[Dataset]) -> Html:
    """All datasets."""
    if not found:
        return empty(text("datasets.empty"), text("datasets.empty_help"))
    return el("div", [card(dataset) for dataset in found], cls="grid")


def card(dataset: Dataset) -> Html:
    """One dataset."""
    facts: list[Child] = [el("span", text(f"source.{dataset.source}")), el("span", figures.age(dataset.created_at))]
    if dataset.bytes:
        facts.insert(0, el("span", figures.size(dataset.bytes)))
    return el(
        "article",
        el("div", el("h2", link(dataset.name, "/datasets", id=dataset.id)), state(dataset), cls="tile-head"),
        found_in(dataset),
        el("div", facts, cls="facts-line"),
        el("div", foot(dataset), cls="tile-foot"),
        cls="tile",
    )


def found_in(dataset: Dataset) -> Html:
    """Kind and rows, or what keeps the dataset from being used."""
    if dataset.status in BUSY:
        return meter(None)
    if dataset.status == "unusable":
        return el("div", el("div", dataset.error or text("train.unusable"), cls="clamp"), cls="note bad small")
    bad = aside(dataset)
    return el(
        "div",
        el("b", counted(dataset)),
        el("span", text("train.aside", n=figures.count(bad)) if bad else text("train.all_good")),
        cls="facts-line",
    )


def foot(dataset: Dataset) -> list[Child]:
    """What can be done with it."""
    first = link(text("datasets.train"), "/", dataset=dataset.id) if dataset.status == "ready" else None
    return [first, remove(dataset)]


def remove(dataset: Dataset) -> Html:
    """The delete button, which asks first."""
    return el(
        "button",
        text("datasets.delete"),
        type="button",
        cls="plain push",
        data_action="delete",
        data_id=dataset.id,
        data_confirm=text("datasets.delete_ask", name=dataset.name),
    )


def top(
    dataset: Dataset, model: Model | None = None, way: Way = AS_IN_DATA, survey: Mapping[str, Any] | None = None
) -> Html:
    """Name, status, figures, and what is wrong with the whole of it; `survey`: what was found of the rows read so."""
    told = {"level": way.level, "kind": way.declared.kind or "", "columns": pairs(way.declared.columns)}
    start = url("/", dataset=dataset.id, model=model.id if model else "", **told)
    actions = (
        el("a", text("datasets.train"), cls="action first", href=start)
        if dataset.status == "ready" or way.declared
        else None
    )
    back = link(text("datasets.all"), "/datasets", cls="small")
    parts: list[Child] = [
        el("div", back, style="padding-top:18px"),
        heading(dataset.name, state(dataset, declared=bool(way.declared)), actions),
        figures_of(dataset, survey if way.declared else None),
    ]
    if dataset.status in BUSY:
        parts.append(el("div", line(dataset), cls="card"))
    if dataset.status == "unusable" and not way.declared:
        parts.append(note("bad", text("train.unusable"), dataset.error))
    return el("div", parts, cls="stack-16", data_title=text("title", page=dataset.name))


def pairs(columns: Mapping[str, str]) -> str:
    """A declaration of columns as the settings have it: prompt=question, completion=answer."""
    return ", ".join(f"{holds}={name}" for holds, name in columns.items())


def problems(dataset: Dataset) -> Html:
    """The rows that are set aside, each opened by its number."""
    found = problems_of(dataset)
    if not found:
        return many()
    total = sum(((dataset.report or {}).get("problem_counts") or {}).values())
    return section(text("datasets.problems"), rows.problems(found, total))


def as_in_file(dataset: Dataset) -> Html:
    """The first rows as the file has them."""
    report = dataset.report or {}
    if not report.get("preview"):
        return many()
    table = rows.raw(report["preview"], report.get("columns") or ())
    return el(
        "details", el("summary", text("datasets.raw")), table, cls="as-in-file", open=dataset.status == "unusable"
    )


def section(title: str, body: Child) -> Html:
    """A titled part of the page."""
    return el("section", el("h2", title, style="margin-bottom:8px"), body)


def figures_of(dataset: Dataset, survey: Mapping[str, Any] | None = None) -> Html:
    """Rows, usable, size, kind and origin as figures; of rows read as a person says, what the `survey` found."""
    known = {"kind": dataset.kind, "usable": dataset.usable, **(survey or {})}
    kind, usable = known["kind"] or "", known["usable"]
    pairs = [
        (text("datasets.kind"), words("kind", kind)),
        (text("datasets.rows"), figures.count(dataset.rows)),
        (text("datasets.usable"), figures.count(usable)),
        (text("datasets.aside"), figures.count(max(dataset.rows - usable, 0))),
        (text("datasets.size"), figures.size(dataset.bytes)),
        (text("datasets.source"), text(f"source.{dataset.source}")),
    ]
    return el(
        "div", [el("div", el("span", name), el("b", value), cls="figure") for name, value in pairs], cls="figures plain"
    )
