"""One assistant turn: what serving sends before it, what the model must write, and which part of that is whose."""

import json
from dataclasses import dataclass
from typing import Any

from engine.render.sample import CannotRender, SpanKind
from engine.render.template import ChatTemplate
from engine.rows.model import Message

OWN_ANSWER, OWN_THOUGHT = "zqownanswerqz", "zqownthoughtqz"


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `start` to `end` of a completion, by kind."""

    kind: SpanKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """`prompt` is what serving sends, from `cue_start` on its cue; `completion` ends with the stop, at `stop_start`."""

    prompt: str
    cue_start: int
    completion: str
    pieces: list[Piece]  # own text, in order, not overlapping
    stop_start: int


class TurnReader:
    """Reads turns out of rendered differences; one per run, as it remembers what the template's cues look like."""

    def __init__(self, template: ChatTemplate, stops: list[str]) -> None:
        """`stops`: the texts of the stop tokens."""
        self.template = template
        self.stops = sorted(stops, key=len, reverse=True)
        self._cues: dict[str, str] = {}

    def read(self, messages: list[Message], k: int, tools: list[dict[str, Any]]) -> Turn:
        """Turn `k` (an assistant's) after `messages[:k]`. Raises CannotRender."""
        if k == 0:
            raise CannotRender("assistant_first", "The conversation starts with this turn, so nothing asks for it.")
        prompt = self.template.render(messages[:k], tools, cue=True)
        whole = self.template.render(messages[: k + 1], tools, cue=False)
        if not whole.startswith(prompt):
            why = "What serving sends before this turn is not how the conversation with it begins"
            raise CannotRender("cue_not_in_rows", f"{why}.", prompt, whole)
        rest = whole[len(prompt) :]
        pieces = self._own(messages, k, tools, prompt, rest)
        if not pieces:
            raise CannotRender("nothing_to_say", "This turn has no text of its own.", prompt, whole)
        after = pieces[-1].end
        found = [(at, -len(stop), stop) for stop in self.stops if (at := rest.find(stop, after)) >= 0]
        if found:
            at, _, stop = min(found)
            rest = rest[: at + len(stop)]
        else:
            at, rest = self._stop_of_next(messages, k, tools, prompt, rest)
        return Turn(prompt, self._cue_start(messages[:k], tools, prompt), rest, pieces, at)

    def _cue_start(self, before: list[Message], tools: list[dict[str, Any]], prompt: str) -> int:
        """Where the generation prompt begins in `prompt`."""
        role = before[-1]["role"]
        cue = self._cues.get(role)
        if cue is None:
            try:
                without = self.template.render(before, tools, cue=False)
            except CannotRender:
                without = ""
            cue = prompt[len(without) :] if without and prompt.startswith(without) else ""
            self._cues[role] = cue
        return len(prompt) - len(cue) if prompt.endswith(cue) else len(prompt)

    def _stop_of_next(
        self, messages: list[Message], k: int, tools: list[dict[str, Any]], prompt: str, rest: str
    ) -> tuple[int, str]:
        """The stop of a template that closes a turn with the header of the next: (where it starts, completion)."""
        calls = messages[k].get("tool_calls")
        follow: Message = {"role": "user", "content": "zqnextqz"}
        if calls:
            follow = {"role": "tool", "name": calls[0]["function"]["name"], "content": "zqnextqz"}
            follow |= {"tool_call_id": calls[0]["id"]} if "id" in calls[0] else {}
        longer = self.template.render([*messages[: k + 1], follow], tools, cue=False)
        header = longer[len(prompt) + len(rest) :] if longer.startswith(prompt + rest) else ""
        if not header and not calls:  # the next turn changes this one (its reasoning is dropped): ask a plain one
            plain: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": OWN_ANSWER}]
            header = self.template.render([*plain, follow], [], cue=False).partition(OWN_ANSWER)[2]
        blank = len(header) - len(header.lstrip())
        for stop in self.stops:
            if header.startswith(stop, blank):
                return len(rest) + blank, rest + header[: blank + len(stop)]
        message = f"Nothing ends this turn: none of the stop tokens ({', '.join(self.stops)}) follows its text."
        raise CannotRender("no_stop_token", message, prompt, prompt + rest)

    def _own(self, messages: list[Message], k: int, tools: list[dict[str, Any]], prompt: str, rest: str) -> list[Piece]:
        """The turn's own text in `rest`. Raises CannotRender when any of it is missing."""
        message = messages[k]
        thought, answer = message.get("reasoning_content") or "", message.get("content") or ""
        pieces: list[Piece] = []
        after, clear = 0, True
        for kind, text, code in (
            ("reasoning", thought, "reasoning_not_rendered"),
            ("answer", answer, "answer_not_rendered"),
        ):
            if not text.strip():
                continue
            place = locate(text, rest, after)
            if place is None:
                what = "reasoning" if kind == "reasoning" else "text"
                raise CannotRender(code, f"The chat template does not show the {what} of this turn.", prompt, rest)
            clear = clear and rest.find(rest[place[0] : place[1]], place[0] + 1) < 0
            pieces.append(Piece("reasoning" if kind == "reasoning" else "answer", *place))
            after = place[1]
        if not clear:
            pieces = self._by_sentinel(messages, k, tools, prompt, rest, pieces) or pieces
        if message.get("tool_calls"):
            pieces.append(locate_calls(message["tool_calls"], rest, pieces, prompt))
        return sorted(pieces, key=lambda piece: piece.start)

    def _by_sentinel(
        self,
        messages: list[Message],
        k: int,
        tools: list[dict[str, Any]],
        prompt: str,
        rest: str,
        pieces: list[Piece],
    ) -> list[Piece]:
        """Exact places of text that occurs more than once: render stand-ins, put the text back, compare."""
        stand_ins = {"reasoning": ("reasoning_content", OWN_THOUGHT), "answer": ("content", OWN_ANSWER)}
        changed = dict(messages[k])
        for piece in pieces:
            field, word = stand_ins[piece.kind]
            changed[field] = word
        try:
            whole = self.template.render([*messages[:k], changed], tools, cue=False)
        except CannotRender:
            return []
        if not whole.startswith(prompt):
            return []
        built, exact = whole[len(prompt) :], []
        for piece in pieces:
            text, word = rest[piece.start : piece.end], stand_ins[piece.kind][1]
            if built.count(word) != 1:
                return []
            at = built.index(word)
            built = built[:at] + text + built[at + len(word) :]
            exact.append(Piece(piece.kind, at, at + len(text)))
        return exact if built == rest else []


def locate(text: str, rest: str, after: int = 0) -> tuple[int, int] | None:
    """Where `text` stands in `rest`, also trimmed or escaped as templates do; None when it does not."""
    escaped = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    for form in (text, text.strip("\n"), text.lstrip(), text.rstrip(), text.strip(), *escaped):
        at = rest.find(form, after)
        if at >= 0:
            return at, at + len(form)
    return None


def locate_calls(calls: list[dict[str, Any]], rest: str, others: list[Piece], prompt: str) -> Piece:
    """From the first to the last name or argument of the calls. Raises CannotRender when one does not show."""
    masked = rest
    for piece in others:
        masked = masked[: piece.start] + "\x00" * (piece.end - piece.start) + masked[piece.end :]
    places = []
    for call in calls:
        for word in [call["function"]["name"], *leaves(call["function"]["arguments"])]:
            place = locate(word, masked)
            if place is None:
                message = f"The chat template does not show this turn's tool call “{call['function']['name']}”."
                raise CannotRender("tool_call_not_rendered", message, prompt, rest)
            places.append(place)
    start, end = min(place[0] for place in places), max(place[1] for place in places)
    for piece in others:  # own text of another kind inside the range wins
        if start < piece.end <= end and piece.start <= start:
            start = piece.end
        if start <= piece.start < end:
            end = piece.start if any(place[1] <= piece.start for place in places) else end
    return Piece("tool_call", start, end)


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
