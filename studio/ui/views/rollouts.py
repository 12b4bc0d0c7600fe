"""Sampled answers of a run as markup: a prompt, its group of answers, what each was worth and how it compares."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from studio.ui import figures
from studio.ui.html import Child, Html, el
from studio.ui.texts import text
from studio.ui.views.rows import cut, message

SHOWN, OPEN = 12, 2  # newest groups on the page, and how many of them unfolded
NUMBERS = ("reward", "advantage", "tokens")  # columns of a group's table
MINUS = "\N{MINUS SIGN}"


def groups(told: Sequence[Mapping[str, Any]]) -> Html:
    """The newest groups, the latest first."""
    latest = list(reversed(told[-SHOWN:]))
    return el("div", [group(each, unfolded=at < OPEN) for at, each in enumerate(latest)], cls="card samples")


def group(each: Mapping[str, Any], *, unfolded: bool) -> Html:
    """One prompt with its answers, the best first."""
    answers = sorted(each["answers"], key=lambda one: -math.inf if one["reward"] is None else one["reward"])
    rewards = [one["reward"] for one in answers if one["reward"] is not None]
    mean = figures.small(sum(rewards) / len(rewards)) if rewards else text("figure.none")
    names, said = [text(f"rollout.{name}") for name in NUMBERS], text("rollout.answer")
    expected = each.get("expected")
    table = el(
        "table",
        el("thead", el("tr", [el("th", name, scope="col", cls="num") for name in names], el("th", said, scope="col"))),
        el("tbody", [row(one) for one in reversed(answers)]),
    )
    return el(
        "details",
        el("summary", text("rollout.head", step=figures.count(each["step"]), answers=len(answers), mean=mean)),
        el("div", [message(turn, mark="") for turn in each.get("prompt") or ()], cls="chat"),
        el("p", text("rollout.expected"), " ", el("b", cut(expected)), cls="small") if expected else None,
        el("div", table, cls="table-wrap stack answers-of-one"),
        cls="sample",
        open=unfolded,
    )


def row(one: Mapping[str, Any]) -> Html:
    """One answer in the table of its group."""
    ended = el("div", text("rollout.cut"), cls="quiet small") if one["truncated"] else None
    thought = one.get("reasoning_tokens")
    reasoned = el("div", text("rollout.reasoning", n=figures.count(thought)), cls="quiet small") if thought else None
    said = cut(one["text"]) or el("span", text("rollout.nothing"), cls="quiet")
    cells = (worth(one), [signed(one["advantage"])], [figures.count(one["tokens"]), reasoned, ended])
    return el(
        "tr",
        [
            el("td", cell, cls="num", data_label=text(f"rollout.{name}"))
            for name, cell in zip(NUMBERS, cells, strict=True)
        ],
        el("td", said, cls="left said"),
    )


def worth(one: Mapping[str, Any]) -> list[Child]:
    """The reward, and its parts where there are several."""
    total = text("figure.none") if one["reward"] is None else figures.small(one["reward"])
    known = {name: value for name, value in (one.get("rewards") or {}).items() if value is not None}
    parts = [el("div", f"{name} {figures.small(value)}", cls="quiet small") for name, value in known.items()]
    return [el("b", total), *(parts if len(known) > 1 else [])]


def signed(number: float | None) -> str:
    """With its sign: how much better than the group."""
    if number is None:
        return text("figure.none")
    return f"{'+' if number > 0 else MINUS if number < 0 else ''}{figures.small(abs(number))}"
