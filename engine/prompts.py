"""Prompts to sample answers to, and how to read what comes back."""

from bisect import bisect_left
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
class Completion:
    """What a model wrote, as it is read. `reasoning`: '' without any, None when it was begun and never closed.

    `reasoning_tokens`: up to the end of what closes it, 0 without any, None where the template knows no reasoning.
    """

    answer: str
    reasoning: str | None
    reasoning_tokens: int | None


@dataclass(frozen=True)
class Reader:
    """Reads what a model wrote. `opening` and `closing` stand around its reasoning; empty where there is none.

    `cue`: how a prompt ends that has opened a thought itself; `closes`: the tokens that stand between a thought and
    the answer.
    """

    tokenizer: Any
    opening: str = ""
    closing: str = ""
    cue: str = ""
    closes: tuple[int, ...] = ()

    def read(self, prompt: Sequence[int], ids: Sequence[int]) -> Completion:
        """The completion `ids` of a prompt."""
        text = self._text(ids)
        before, closed, after = text.partition(self.closing) if self.closing else ("", "", text)
        if closed:
            until = bisect_left(range(len(ids)), True, key=lambda end: self.closing in self._text(ids[:end]))
            return Completion(self._plain(after), before.replace(self.opening, "", 1).strip(), until)
        if self.is_open(prompt, ids):
            return Completion("", None, len(ids))
        return Completion(self._plain(text), "", 0 if self.closing else None)

    def is_open(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Whether a thought was begun, in the prompt or after it, and not closed yet."""
        text = self._text(ids)
        if not self.closing or self.closing in text:
            return False
        return bool(self.opening and self.opening in text) or self._begun(prompt)

    def _begun(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt has opened a thought: no token is shorter than a byte, so its last few tell."""
        return bool(self.cue) and self._text(prompt[-len(self.cue.encode()) :]).endswith(self.cue)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

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
