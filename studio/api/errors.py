"""Every error of the API in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from studio.errors import StudioError

log = logging.getLogger(__name__)

_CODES = {401: "not_logged_in", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_FIELD = re.compile(r"\w+")
_UNION = re.compile(r"^constrained-|\[")
_MOST_SHOWN = 20  # problems named in one message


def error_response(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """An error as the official clients read it."""
    error = {"message": message, "type": error_type(status), "param": param, "code": code or _CODES.get(status)}
    return JSONResponse({"error": error}, status, headers)


def error_type(status: int) -> str:
    """OpenAI's word for the kind of an error."""
    special = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return special.get(status, "server_error" if status >= 500 else "invalid_request_error")


def dotted(place: Sequence[Any]) -> str:
    """Where a validation error is, as a dotted field name: `("body", "lora", "r")` -> `lora.r`.

    Pydantic names the members of a union too (`literal['auto']`, `constrained-int`); they are no fields.
    """
    parts = [str(part) for part in place]
    if parts and parts[0] in {"body", "query", "path", "header"}:
        parts = parts[1:]
    return ".".join(
        [part for part in parts[:-1] if _FIELD.fullmatch(part)]
        + [part[:100] for part in parts[-1:] if not _UNION.search(part)]
    )


def problems(errors: Sequence[Any]) -> list[tuple[str, str]]:
    """Validation errors as (dotted field, sentence), in order and without repeats."""
    return list(dict.fromkeys((_field(error), _words(error)) for error in errors))


def _field(error: Any) -> str:
    return "" if error["type"] == "json_invalid" else dotted(error["loc"])  # there the place is a character's number


def _words(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "There is no such field"
    if error["type"] == "json_invalid":
        return "The body is not valid JSON"
    if error["type"] == "model_attributes_type":
        return "It must be a JSON object"
    return str(error["msg"]).removeprefix("Value error, ")


def sentence(found: Sequence[tuple[str, str]]) -> str:
    """All problems in one message."""
    shown = "; ".join(f"{field}: {text}" if field else text for field, text in found[:_MOST_SHOWN])
    more = len(found) - _MOST_SHOWN
    return f"{shown}; and {more} more" if more > 0 else shown


def invalid_response(errors: Sequence[Any]) -> JSONResponse:
    """400 that names every field; `param` is the first."""
    found = problems(errors)
    return error_response(400, sentence(found), code="invalid_value", param=(found[0][0] or None) if found else None)


async def on_studio_error(request: Request, error: StudioError) -> JSONResponse:
    """An error that was written for a person."""
    message = f"{error.message} {error.advice}".strip()
    return error_response(error.status, message, code=error.code, param=error.param)


async def on_request_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    """A request whose fields are missing or wrong."""
    return invalid_response(error.errors())


async def on_invalid(request: Request, error: ValidationError) -> JSONResponse:
    """A spec made inside the studio that is not valid."""
    return invalid_response(error.errors())


async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
    """What the framework refuses: no such route, wrong method, body too large."""
    headers = dict(error.headers) if error.headers else None
    return error_response(error.status_code, str(error.detail), headers=headers)


async def on_database_error(request: Request, error: OperationalError) -> JSONResponse:
    """The database is down, locked or full; the details go to the log, not to the client."""
    log.error("database out of reach: %s", error)
    return error_response(503, "The database cannot be reached. Try again in a moment.", code="unavailable")


async def on_unexpected(request: Request, error: Exception) -> JSONResponse:
    """A fault of the studio; the server logs the traceback."""
    return error_response(500, "Something went wrong inside the studio; its log says more.", code="internal_error")


def install(app: FastAPI) -> None:
    """Answer all errors of the app in one shape."""
    app.exception_handler(StudioError)(on_studio_error)
    app.exception_handler(RequestValidationError)(on_request_invalid)
    app.exception_handler(ValidationError)(on_invalid)
    app.exception_handler(HTTPException)(on_http_error)
    app.exception_handler(OperationalError)(on_database_error)
    app.exception_handler(Exception)(on_unexpected)
