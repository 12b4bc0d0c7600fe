"""A rendered row: tokens that know where they come from, and what could not be rendered."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SpanKind = Literal["prompt", "cue", "reasoning", "answer", "tool_call", "frame", "stop"]
"""`prompt`: what serving sends; `cue`: its end, which opens the assistant's turn; `frame`: text that the model must
write and that is nobody's own (`</think>`); the others say it themselves."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `end` (exclusive) of a sample.

    `role`: whose text they are (`system`, `user`, `assistant`, `tool`, or `template` for what no message owns).
    `turn`: index of the assistant turn they are of or lead to.
    """

    kind: SpanKind
    role: str
    turn: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Sample:
    """One training sequence: `ids` int32 and `trained` bool of equal length; `spans` cover every token, in order.

    `level`: what the template was told besides the conversation; serving must be told the same.
    """

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    spans: list[Span]
    level: Mapping[str, Any] = field(default_factory=dict)


def without_reasoning(sample: Sample) -> Sample:
    """The same tokens, with reasoning and what the template puts around it read, not learned.

    What stands between reasoning and a tool call also opens the call, so it stays learned.
    """
    trained = sample.trained.copy()
    kinds: list[str] = ["", *(span.kind for span in sample.spans), ""]
    for before, kind, after, span in zip(kinds, kinds[1:], kinds[2:], sample.spans, strict=False):
        around = kind == "frame" and (after == "reasoning" or (before == "reasoning" and after == "answer"))
        if kind == "reasoning" or around:
            trained[span.start : span.end] = False
    return replace(sample, trained=trained)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A turn that is not trained because the template cannot render it faithfully; the two texts show why."""

    code: str
    message: str
    turn: int
    prompt: str = ""  # end of what serving would send
    rendered: str = ""  # end of the conversation with the turn


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a rendered row that a person should know."""

    code: str
    message: str


@dataclass(frozen=True)
class Rendered:
    """What became of one row."""

    samples: list[Sample] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def without_spans(rendered: Rendered) -> Rendered:
    """The same row without saying whose each token is: less to keep and to send."""
    return replace(rendered, samples=[replace(sample, spans=[]) for sample in rendered.samples])


class CannotRender(Exception):
    """Raised while a turn is rendered; becomes its Refusal."""

    def __init__(self, code: str, message: str, prompt: str = "", rendered: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.prompt = prompt
        self.rendered = rendered

    def at(self, turn: int) -> Refusal:
        """The refusal of this turn."""
        return Refusal(self.code, self.message, turn, self.prompt[-400:], self.rendered[-400:])
