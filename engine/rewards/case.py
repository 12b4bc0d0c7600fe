"""What a reward is told: the prompt, what the row says about it, and one answer to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.rows.model import Message


@dataclass(frozen=True)
class Case:
    """One answer to be judged.

    `expected` is the row's reference answer, '' where it has none; `metadata` what else it says. `answer` is what
    stands after the reasoning, without the token that ends it; `reasoning` is '' where the answer has none, and None
    where it was begun and never closed. `tokens` counts all that was written; `truncated`: the limit ended it.
    """

    answer: str
    expected: str = ""
    prompt: list[Message] = field(default_factory=list)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reasoning: str | None = ""
    tokens: int = 0
    truncated: bool = False
