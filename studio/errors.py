"""Errors that a person reads: what happened, where, and what to do. Each carries its HTTP status and a code.

StudioError
|- NotFound          404  no such run, dataset, model
|- Invalid           400  a value that cannot be used; `param` names the setting
|- Conflict          409  the thing is in a state that does not allow it
|- TooLarge          413  an upload above the limit
`- Unavailable       503  database, queue or hub out of reach
"""


class StudioError(Exception):
    """Base of everything that pages, API and CLI show as a message instead of a traceback."""

    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param
        self.advice = advice


class NotFound(StudioError):
    """There is nothing of that id."""

    status = 404
    code = "not_found"


class Invalid(StudioError):
    """A value cannot be used."""

    status = 400
    code = "invalid_value"


class Conflict(StudioError):
    """The thing is in a state that does not allow this."""

    status = 409
    code = "conflict"


class TooLarge(StudioError):
    """An upload above the limit."""

    status = 413
    code = "too_large"


class Unavailable(StudioError):
    """Database, queue or hub out of reach."""

    status = 503
    code = "unavailable"
