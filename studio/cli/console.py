"""What the terminal shows: tables, JSON, and errors as sentences. Text is never taken as markup."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic_core import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.failure import Failure
from studio.errors import StudioError

out = Console(highlight=False, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)


def plain(text: object) -> str:
    """Text without the control characters with which it could steer the terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for character in str(text)
    )


def say(text: object, style: str = "") -> None:
    """One line of output."""
    out.print(Text(plain(text), style=style))


def say_json(value: Any) -> None:
    """JSON for programs: no colours, no line breaks of the terminal's."""
    out.file.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """Rows under headings, or one sentence when there are none."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(plain("" if value is None else value)) for value in row))
    if shown.row_count:
        out.print(shown)
    else:
        say(empty)


def explain(error: StudioError | Failure | ValidationError) -> None:
    """An error on stderr: what, and what to do."""
    if isinstance(error, ValidationError):
        lines = faults(error.errors())
    elif isinstance(error, Failure):
        lines = [error.message, *(f"  {line}" for line in error.advice)]
    else:
        lines = [f"{error.param}: {error.message}" if error.param else error.message]
        lines += [f"  {error.advice}"] if error.advice else []
    for number, line in enumerate(lines):
        err.print(Text(plain(line), style="red" if number == 0 else ""))


def faults(errors: Sequence[Any]) -> list[str]:
    """Validation errors as lines, each with its dotted field."""
    lines = ["The spec is not valid:"]
    for error in errors:
        field = ".".join(str(part) for part in error["loc"])
        text = "there is no such setting" if error["type"] == "extra_forbidden" else str(error["msg"])
        lines.append(f"  {field}: {text.removeprefix('Value error, ')}")
    return lines


def run_and_explain(command: Callable[[], Any]) -> int:
    """Run, and turn errors that a person can act on into sentences; the exit status."""
    try:
        command()
    except (StudioError, Failure, ValidationError) as error:
        explain(error)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
