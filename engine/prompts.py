"""Prompts to sample answers to, and how to read what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.failure import Failure
from engine.render.renderer import Renderer
from engine.render.sample import Refusal, Rendered
from engine.rows import Row
from engine.rows.model import Message


@dataclass(frozen=True, eq=False)
class Prompt:
    """What serving sends (`ids`), and what the row says about good answers."""

    row: int
    ids: list[int]
    messages: list[dict[str, Any]]
    expected: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Reader:
    """Reads what a model wrote. `opening` and `closing` stand around its reasoning; empty where there is none."""

    tokenizer: Any
    opening: str = ""
    closing: str = ""

    def read(self, ids: Sequence[int]) -> tuple[str, str | None]:
        """(answer, reasoning) of a completion: '' without reasoning, None when it was begun and never closed."""
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        before, closed, after = text.partition(self.closing) if self.closing else ("", "", text)
        if closed:
            return self._plain(after), before.replace(self.opening, "", 1).strip()
        if self.opening and self.opening in text:
            return "", None
        return self._plain(text), ""

    def _plain(self, text: str) -> str:
        """Text without control tokens."""
        for mark in self.tokenizer.all_special_tokens:
            text = text.replace(mark, "")
        return text.strip()


@dataclass(frozen=True, eq=False)
class Questions:
    """The prompts of a dataset by the number of their row, and the reader of their answers."""

    prompts: Mapping[int, Prompt]
    reader: Reader


def asked_of(row: Row) -> tuple[list[Message], str]:
    """A row as what is asked and the expected answer: of a chat, everything before its last answer and that answer."""
    if row.kind == "prompt":
        return row.prompt, row.answer
    last = max(at for at, message in enumerate(row.messages) if message["role"] == "assistant")
    return row.messages[:last], str(row.messages[last].get("content") or "")


def as_prompt(row: Row) -> Row:
    """The prompt row that a method which samples its answers makes of a chat row; any other as it is."""
    if row.kind != "chat":
        return row
    messages, expected = asked_of(row)
    return replace(row, kind="prompt", messages=[], prompt=messages, answer=expected)


def question_of(renderer: Renderer, row: Row) -> Prompt | Rendered:
    """A row as a prompt to sample answers to; rendered as nothing, with the reason, where the template refuses it."""
    messages, expected = asked_of(row)
    try:
        ids = renderer.prompt_ids(messages, row.tools, row.shape, level=row.chat_template_kwargs)
    except Failure as error:
        return Rendered(refusals=[Refusal(error.code, error.message, len(messages))])
    shown = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
    return Prompt(row.number, ids.tolist(), shown, expected, row.metadata)
