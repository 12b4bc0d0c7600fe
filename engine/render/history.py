"""Whose text is where in a prompt, and which text of the row it leaves out, named so that nobody is surprised."""

from dataclasses import dataclass
from typing import Any

from engine.render.own import leaves, locate
from engine.render.sample import Note
from engine.rows.model import Message

WHAT = {
    "system_text_lost": "the system text",
    "user_text_lost": "a user's text",
    "tool_result_lost": "the result of a tool",
    "earlier_answer_lost": "an earlier answer",
    "earlier_reasoning_lost": "earlier reasoning",
    "earlier_call_lost": "an earlier tool call",
    "tools_lost": "a tool that could be called",
}
BY_ROLE = {"system": "system_text_lost", "user": "user_text_lost", "tool": "tool_result_lost"}


@dataclass(frozen=True, slots=True)
class Place:
    """Characters `start` to `end` of a prompt are a message's own, of the one who has `role`."""

    role: str
    start: int
    end: int


def read_prompt(
    messages: list[Message], k: int, tools: list[dict[str, Any]], prompt: str
) -> tuple[list[Place], list[Note]]:
    """Where the texts of `messages[:k]` stand in the prompt of turn `k`, and a note for every kind that is left out.

    Tools must show, too, but have no place: their text is the template's.
    """
    places: list[Place] = []
    found: dict[str, Note] = {}
    after = 0
    for at, code, text in _texts(messages[:k], tools):
        if not text.strip():
            continue
        place = locate(text, prompt, after) or locate(text, prompt)
        if place is not None:
            if at >= 0:
                places.append(Place(messages[at]["role"], *place))
                after = max(after, place[1])
        elif code not in found:
            where = f" (turn {at + 1})" if at >= 0 else ""
            message = f"The chat template leaves out {WHAT[code]}{where} in what the model sees before turn {k + 1}."
            found[code] = Note(code, message)
    return places, list(found.values())


def _texts(before: list[Message], tools: list[dict[str, Any]]) -> list[tuple[int, str, str]]:
    """(turn or -1, code, text) of everything that ought to show."""
    found: list[tuple[int, str, str]] = []
    for at, one in enumerate(before):
        found.append((at, "earlier_reasoning_lost", one.get("reasoning_content") or ""))
        found.append((at, BY_ROLE.get(one["role"], "earlier_answer_lost"), one.get("content") or ""))
        for call in one.get("tool_calls") or []:
            words = [call["function"]["name"], *leaves(call["function"]["arguments"])]
            found += [(at, "earlier_call_lost", word) for word in words]
    for tool in tools:
        schema = tool.get("function", tool)
        found += [(-1, "tools_lost", str(schema.get(key) or "")) for key in ("name", "description")]
    return found
