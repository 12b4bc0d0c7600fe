"""What will be learned, around the tokens: the page of rows, what is asked of the person, the file in numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from studio.db.tables import Dataset, Model, Preview
from studio.previews import Way
from studio.ui import figures
from studio.ui.chrome import meter, note
from studio.ui.html import Child, Html, el, many
from studio.ui.status import BUSY
from studio.ui.texts import text
from studio.ui.views import rows, tokens

BY_DEFAULT = "level_by_default"  # the engine's remark that a level cannot be seen in a row
LONGEST_PROMPT = 60  # characters of what a level writes into the prompt


def nothing() -> Html:
    """What a row looks like, while there is no dataset."""
    body = el(
        "div",
        el("p", text("learn.empty")),
        el("p", text("learn.empty_help"), cls="quiet small", style="margin-top:14px"),
        el("pre", text("learn.example"), cls="log", style="margin-top:6px"),
        el("p", text("learn.example_csv"), cls="quiet small", style="margin-top:8px"),
    )
    return el("div", el("h2", text("learn.title"), style="margin-bottom:6px"), body)


def rows_of(dataset: Dataset | None, model: Model | None = None, page: Preview | None = None, row: int = 1) -> Html:
    """A page of rows as tokens, or the first rows as a chat until those are known."""
    if dataset is None:
        return nothing()
    if page is not None and page.rows:
        said = failed(page) if page.status == "failed" else None
        return el("div", tokens.learned(page, dataset.rows, row), said, cls="stack-8")
    chats = (dataset.report or {}).get("messages_preview") or []
    if chats and row <= 1:
        return el("div", rows.learned(chats, dataset.rows), reading(model, page), cls="stack-8")
    if page is not None:
        at = text("learn.row", at=figures.count(row), of=figures.count(dataset.rows))
        head = el("div", el("h2", text("learn.title")), el("span", at, cls="pager-at"), cls="pager-head")
        return el("div", head, reading(model, page), cls="stack-8")
    waiting = text("learn.wait") if dataset.status in BUSY else text("train.unusable")
    return el("div", el("h2", text("learn.title")), el("div", waiting, cls="empty plain"))


def reading(model: Model | None, page: Preview | None) -> Child:
    """That the tokens are on their way, or why they are not."""
    if model is None or page is None:
        return None
    if page.status == "failed":
        return failed(page)
    return el("div", meter(None), el("p", text("learn.reading", model=model.name), cls="quiet small"), role="status")


def failed(page: Preview) -> Html:
    """Why there are no tokens to see."""
    return note("warn", text("learn.failed"), page.error)


def numbers(dataset: Dataset | None, first: Preview | None, max_length: int | None, *, drop: bool = False) -> Html:
    """The dataset in numbers, as these settings leave it; nothing until it is known."""
    if dataset is None or first is None:
        return many()
    return tokens.survey(first, dataset, max_length, drop=drop, unsaid=(BY_DEFAULT,))


def asks(first: Preview | None, way: Way, levels: Sequence[Mapping[str, Any]]) -> Html:
    """What only a person can decide: to close a thought that the prompt opens, and a level that no row tells."""
    survey = (first.survey if first is not None else None) or {}
    made = [bridge(survey["bridge"], agreed=way.bridge)] if survey.get("bridge") else []
    open_ = next((one for one in survey.get("warnings") or () if one["code"] == BY_DEFAULT), None)
    if open_ is not None and not way.level:
        made.append(choose_level(open_, levels))
    return el("div", made, cls="stack-8 asks") if made else many()


def bridge(offered: Mapping[str, str], *, agreed: bool) -> Html:
    """The offer to write what closes an opened thought, with the text itself; or that it was agreed to."""
    shown = [el("code", offered[name].replace("\n", tokens.NEWLINE), cls="piece") for name in ("opens", "closes")]
    if agreed:
        button = el("button", text("learn.unbridge"), type="button", cls="plain", data_action="unbridge")
        return note("good", text("learn.bridged"), shown[1], button)
    button = el("button", text("learn.bridge_agree"), type="button", cls="action", data_action="bridge")
    told = el("p", text("learn.bridge_opens"), " ", shown[0], " ", text("learn.bridge_closes"), " ", shown[1])
    return note("warn", text("learn.bridge"), told, el("div", button, cls="actions"))


def choose_level(remark: Mapping[str, Any], levels: Sequence[Mapping[str, Any]]) -> Html:
    """How many rows were given the template's own level, and the levels to choose from."""
    key = "learn.level_open_one" if remark["rows"] == 1 else "learn.level_open"
    buttons = [
        el("button", level["name"], type="button", cls="action", data_action="level", data_id=level["name"])
        for level in levels
    ]
    title = text(key, n=figures.count(remark["rows"]))
    return note("warn", title, el("p", text("learn.level_choose")), el("div", buttons, cls="actions"))


def level_words(level: Mapping[str, Any]) -> str:
    """A level and what it does: whether the answer begins with reasoning, and what the prompt says of it."""
    said = " ".join(str(level.get("prompt_text") or "").split())
    said = said if len(said) <= LONGEST_PROMPT else said[: LONGEST_PROMPT - 1] + "…"
    does = [text("learn.level_thinks" if level.get("thinks") else "learn.level_answers")]
    does += [text("learn.level_says", said=said)] if said else []
    return text("learn.level_words", name=level["name"], does=", ".join(does))
