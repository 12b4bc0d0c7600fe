"""Whose text is where: the reasoning, answer and calls of a turn found again in what the template wrote."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.render.sample import CannotRender, SpanKind
from engine.rows.model import Message

OWN_ANSWER, OWN_THOUGHT = "zqownanswerqz", "zqownthoughtqz"
STAND_INS = {"reasoning": ("reasoning_content", OWN_THOUGHT), "answer": ("content", OWN_ANSWER)}


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `start` to `end` of a completion, by kind."""

    kind: SpanKind
    start: int
    end: int


def own_pieces(message: Message, rest: str, source: str, again: Callable[[Message], str | None]) -> list[Piece]:
    """The turn's own text in `rest`, in order. Raises CannotRender when any of it is missing.

    `source`: the template's text, whose own words may be mistaken for the turn's. `again`: what stands in the place of
    `rest` when the turn is changed, or None.
    """
    pieces: list[Piece] = []
    after, clear = 0, True
    for kind, text in (("reasoning", message.get("reasoning_content")), ("answer", message.get("content"))):
        if not text or not text.strip():
            continue
        place = locate(text, rest, after)
        if place is None:
            raise _missing(kind, rest)
        clear = clear and rest.find(rest[place[0] : place[1]], place[0] + 1) < 0 and text.strip() not in source
        pieces.append(Piece("reasoning" if kind == "reasoning" else "answer", *place))
        after = place[1]
    if not clear:
        pieces = _by_stand_ins(message, rest, pieces, again)
    if message.get("tool_calls"):
        pieces.append(locate_calls(message["tool_calls"], rest, pieces))
    return sorted(pieces, key=lambda piece: piece.start)


def _missing(kind: str, rest: str) -> CannotRender:
    what = "reasoning" if kind == "reasoning" else "text"
    return CannotRender(f"{kind}_not_rendered", f"The chat template does not show the {what} of this turn.", "", rest)


def _by_stand_ins(
    message: Message, rest: str, pieces: list[Piece], again: Callable[[Message], str | None]
) -> list[Piece]:
    """Exact places of text that stands there more than once: render stand-ins, put the text back, compare."""
    changed = {**message, **{STAND_INS[piece.kind][0]: STAND_INS[piece.kind][1] for piece in pieces}}
    built = again(changed)
    if built is None:
        return pieces
    exact = []
    for piece in pieces:
        text, word = rest[piece.start : piece.end], STAND_INS[piece.kind][1]
        if word not in built:
            raise _missing(piece.kind, rest)  # what was found is the template's own word
        if built.count(word) > 1:
            return pieces
        at = built.index(word)
        built = built[:at] + text + built[at + len(word) :]
        exact.append(Piece(piece.kind, at, at + len(text)))
    return exact if built == rest else pieces


def locate(text: str, rest: str, after: int = 0) -> tuple[int, int] | None:
    """Where `text` stands in `rest`, also trimmed or escaped as templates do; None when it does not."""
    at = rest.find(text, after)
    if at >= 0:
        return at, at + len(text)
    escaped = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    for form in (text.strip("\n"), text.lstrip(), text.rstrip(), text.strip(), *escaped):
        at = rest.find(form, after)
        if at >= 0:
            return at, at + len(form)
    return None


def locate_calls(calls: list[dict[str, Any]], rest: str, others: list[Piece]) -> Piece:
    """From the first to the last name or argument of the calls. Raises CannotRender when one does not show."""
    masked = rest
    for piece in others:
        masked = masked[: piece.start] + "\x00" * (piece.end - piece.start) + masked[piece.end :]
    places = []
    names = [call["function"]["name"] for call in calls]
    for call in calls:
        if masked.count(call["function"]["name"]) < names.count(call["function"]["name"]):
            raise CannotRender("tool_call_not_rendered", _no_call(call), "", rest)
        for word in [call["function"]["name"], *leaves(call["function"]["arguments"])]:
            place = locate(word, masked)
            if place is None:
                raise CannotRender("tool_call_not_rendered", _no_call(call), "", rest)
            places.append(place)
    start, end = min(place[0] for place in places), max(place[1] for place in places)
    for piece in others:  # own text of another kind inside the range wins
        if start < piece.end <= end and piece.start <= start:
            start = piece.end
        if start <= piece.start < end:
            end = piece.start if any(place[1] <= piece.start for place in places) else end
    return Piece("tool_call", start, end)


def _no_call(call: dict[str, Any]) -> str:
    return f"The chat template does not show this turn's tool call “{call['function']['name']}”."


def leaves(arguments: Any) -> list[str]:
    """The texts inside arguments that must show; numbers and the like may be written in several ways."""
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return [arguments] if arguments.strip() else []
        return leaves(parsed) if isinstance(parsed, dict | list) else [arguments]
    return list(_texts(arguments))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) and value.strip() else []
