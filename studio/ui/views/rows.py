"""Rows of a dataset as a person reads them: a conversation, a pair, a text; page by page."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from studio.ui.html import Child, Html, el, many
from studio.ui.texts import text, words

LONGEST = 4000  # characters of one turn that are shown


def pager(title: str, leaves: Sequence[Child], total: int, at: Sequence[int] = (), *, open_at: int = 0) -> Html:
    """One leaf at a time with next and previous, which turn in the browser.

    With `open_at`, the row to open, rows beyond these are there too: turning past an end, or typing a number, hands
    `row` to the page.
    """
    numbers = list(at or range(1, len(leaves) + 1))
    labels = [text("learn.row", at=f"{number:,}", of=f"{total:,}") for number in numbers]
    begin = max((place for place, number in enumerate(numbers) if number <= open_at), default=0)
    first, last = (numbers[0], numbers[-1]) if numbers else (1, 1)
    ends = (first - 1 if open_at and first > 1 else 0, last + 1 if open_at and last < total else 0)
    head = el(
        "div",
        el("h2", title),
        el("span", labels[begin] if labels else "", cls="pager-at", aria_live="polite"),
        turn("\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", -1, "learn.previous", begin > 0, ends[0]),
        turn("\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}", 1, "learn.next", begin < len(leaves) - 1, ends[1]),
        go_to(total) if open_at else None,
        cls="pager-head",
    )
    shown = [
        el("div", leaf, cls="leaf", hidden=place != begin, data_label=labels[place])
        for place, leaf in enumerate(leaves)
    ]
    return el("section", head, shown, cls="pager")


def turn(sign: str, move: int, key: str, more: bool, beyond: int) -> Html:
    """A button that turns to another leaf; where there is none, to the row `beyond`, if any."""
    return el(
        "button",
        sign,
        type="button",
        data_turn=move,
        data_beyond=beyond or None,
        data_action="row" if beyond and not more else None,
        data_id=beyond if beyond and not more else None,
        aria_label=text(key),
        title=text(key),
        disabled=not (more or beyond),
    )


def go_to(total: int) -> Html:
    """A field for the number of a row."""
    name = text("learn.go_to")
    return el(
        "input",
        type="number",
        min=1,
        max=total,
        cls="go-to",
        data_go="row",
        placeholder="#",
        aria_label=name,
        title=name,
    )


def turn_to(row: int) -> Html:
    """A row's number that opens it."""
    return el("button", text("learn.at", row=f"{row:,}"), type="button", cls="link", data_action="row", data_id=row)


def learned(preview: Sequence[Mapping[str, Any]], total: int, title: str = "") -> Html:
    """The first usable rows, with what is learned set apart from what is only read."""
    return pager(
        title or text("learn.title"), [row(one) for one in preview], total, [one.get("number") or 1 for one in preview]
    )


def row(one: Mapping[str, Any]) -> Html:
    """One normalised row."""
    if one.get("text"):
        return el(
            "div", turn_of("assistant", one["text"], mark=text("learn.learned"), who=text("learn.text")), cls="chat"
        )
    prompt = [message(each) for each in one.get("prompt") or ()]
    if one.get("chosen") or one.get("rejected"):
        good = [message(each, mark=text("learn.chosen")) for each in one.get("chosen") or ()]
        bad = [message(each, mark=text("learn.rejected"), cls="rejected") for each in one.get("rejected") or ()]
        return el("div", prompt, good, bad, cls="chat")
    if prompt:
        answer = turn_of("assistant", one["answer"], mark="") if one.get("answer") else None
        return el("div", prompt, answer, cls="chat")
    messages = [message(each) for each in one.get("messages") or ()]
    if messages and "label" in one:
        mark, cls = ("learn.good", "") if one["label"] else ("learn.bad", "rejected")
        messages[-1] = message(one["messages"][-1], mark=text(mark), cls=cls)
    return el("div", messages, cls="chat")


def message(one: Mapping[str, Any], mark: str | None = None, cls: str = "") -> Html:
    """One turn of a conversation; an assistant's turn is what is learned."""
    role = str(one.get("role", ""))
    parts = [str(one["reasoning_content"])] if one.get("reasoning_content") else []
    parts.append(plain(one.get("content")))
    if one.get("tool_calls"):
        parts.append(json.dumps(one["tool_calls"], ensure_ascii=False))
    trained = role == "assistant" and one.get("weight", 1) != 0
    said = "\n\n".join(part for part in parts if part)
    return turn_of(
        role, said, mark=text("learn.learned") if mark is None and trained else mark or "", cls=cls, trained=trained
    )


def turn_of(role: str, said: str, *, mark: str, cls: str = "", trained: bool | None = None, who: str = "") -> Html:
    """A bubble: who, what, and whether it is learned."""
    strong = (role == "assistant" if trained is None else trained) and bool(mark) and cls != "rejected"
    return el(
        "div",
        el("div", el("span", who or words("role", role)), el("span", mark) if mark else None, cls="who"),
        el("div", cut(said), cls="said"),
        cls=" ".join(filter(None, ("turn", cls, "learned" if strong else ""))),
    )


def plain(content: Any) -> str:
    """Content as text; parts that are not text show what they are."""
    if isinstance(content, str) or content is None:
        return content or ""
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text") or f"[{part.get('type')}]") if isinstance(part, dict) else str(part)
            for part in content
        )
    return json.dumps(content, ensure_ascii=False)


def cut(said: str) -> str:
    """Long text without its end."""
    return said if len(said) <= LONGEST else said[:LONGEST] + "…"


def raw(preview: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Html:
    """Rows as the file has them, as a table."""
    head = el("tr", [el("th", column, scope="col") for column in columns])
    body = [el("tr", [el("td", el("div", cell(one.get(column)), cls="cell")) for column in columns]) for one in preview]
    return el("div", el("table", el("thead", head), el("tbody", body)), cls="table-wrap tall", tabindex="0")


def cell(value: Any) -> str:
    """A value of a table as text."""
    return cut(value) if isinstance(value, str) else "" if value is None else cut(json.dumps(value, ensure_ascii=False))


def problems(found: Sequence[Mapping[str, Any]], total: int) -> Html:
    """What is wrong, row by row, and what to do about it."""
    head = el(
        "tr",
        [
            el("th", text(f"column.{name}"), scope="col", cls="num" if name == "row" else None)
            for name in ("row", "problem", "fix")
        ],
    )
    body = [
        el(
            "tr",
            el("td", turn_to(one["row"]) if one["row"] else "", cls="num"),
            el("td", one["message"]),
            el("td", one.get("fix") or ""),
        )
        for one in found
    ]
    more = (
        el("p", text("datasets.problems_more", n=f"{len(found):,}", of=f"{total:,}"), cls="quiet small")
        if total > len(found)
        else None
    )
    return many(el("div", el("table", el("thead", head), el("tbody", body)), cls="table-wrap", tabindex="0"), more)
