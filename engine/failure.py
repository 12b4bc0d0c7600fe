"""The one error the engine raises on purpose: what went wrong, where, and what to do about it."""

from collections.abc import Iterable


class Failure(Exception):
    """A run, file or model that cannot go on for a reason a person can act on.

    `code` is a stable short name for programs, `message` one or two sentences for a person (what and where),
    `advice` what to try, most promising first.
    """

    def __init__(self, code: str, message: str, advice: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.advice: list[str] = list(advice)

    def __str__(self) -> str:
        """The message and the advice on one line each, as a terminal or log shows them."""
        return "\n".join([self.message, *(f"- {line}" for line in self.advice)])
