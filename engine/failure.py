"""The one error the engine raises on purpose: what went wrong, where, and what to do about it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Value = str | int | float | bool


@dataclass(frozen=True)
class Change:
    """Settings of a spec by dotted name with other values, which belong together, and what that does."""

    settings: Mapping[str, Value]
    effect: str


class Failure(Exception):
    """A run, file or model that cannot go on for a reason a person can act on.

    `code` is a stable short name for programs, `message` one or two sentences for a person (what and where),
    `advice` what to try, most promising first; `changes` the same as settings, where a program can make them.
    """

    def __init__(self, code: str, message: str, advice: Iterable[str] = (), changes: Iterable[Change] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.advice: list[str] = list(advice)
        self.changes: list[Change] = list(changes)

    def __str__(self) -> str:
        """The message and the advice on one line each, as a terminal or log shows them."""
        return "\n".join([self.message, *(f"- {line}" for line in self.advice)])
