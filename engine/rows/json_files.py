"""JSON Lines, and JSON as an array or an object with one list, read piece by piece."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from engine.failure import Failure
from engine.rows.model import Problem, RawRow, cut, name_of_type

MAX_ROW_BYTES = 8 << 20
CHUNK = 1 << 18
NOT_SPACE = re.compile(r"[^ \t\r\n]")
ROW_LISTS = ("messages", "conversations", "conversation", "chosen", "rejected", "prompt", "tools")
"""A list under one of these names belongs to a row: an object that has one is a row, not a holder of rows."""


def too_large(row: int, line: int | None) -> Problem:
    """A row above the size limit."""
    message = f"The row is larger than {MAX_ROW_BYTES >> 20} MiB."
    return Problem(row=row, line=line, code="row_too_large", message=message, fix="Split it into several rows.")


def not_object(row: int, line: int | None, value: object) -> Problem:
    """A row that is JSON, but has no columns."""
    message = f"The row is {name_of_type(value)}, not an object with columns."
    return Problem(row=row, line=line, code="not_object", message=message, fix='Write it as {"messages": [...]}.')


def read_jsonl(path: Path) -> Iterator[RawRow]:
    """One row per line that is not blank; a byte order mark is dropped."""
    number = 0
    with path.open("rb") as file:
        for line_number, line in enumerate(_lines(file.readline), start=1):
            if line_number == 1 and line is not None:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line is not None and not line.strip():
                continue
            number += 1
            if line is None:
                yield RawRow(number, line_number, None, too_large(number, line_number))
            else:
                yield _parsed(number, line_number, line)


def _lines(readline: Any) -> Iterator[bytes | None]:
    """Lines of at most MAX_ROW_BYTES; None stands for a longer one, whose rest is skipped."""
    while line := readline(MAX_ROW_BYTES + 1):
        if len(line) <= MAX_ROW_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = readline(MAX_ROW_BYTES)
        yield None


def _parsed(number: int, line_number: int, line: bytes) -> RawRow:
    """One line as a row."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        text = line[max(0, error.start - 20) : error.start + 20].decode("cp1252", errors="replace")
        message = f"The line is not UTF-8, near “{cut(text)}”."
        problem = Problem(row=number, line=line_number, code="not_utf8", message=message, fix="Save the file as UTF-8.")
        return RawRow(number, line_number, None, problem)
    except (ValueError, RecursionError) as error:
        return RawRow(number, line_number, None, broken(number, line_number, error))
    if not isinstance(value, dict):
        return RawRow(number, line_number, None, not_object(number, line_number, value))
    return RawRow(number, line_number, value)


def broken(row: int, line: int | None, error: ValueError | RecursionError) -> Problem:
    """A row that is not JSON."""
    why = "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        why = f"{error.msg} at character {error.pos + 1}"
    elif isinstance(error, ValueError):
        why = cut(error)
    fix = 'Correct the row; quotes inside text are written \\".'
    return Problem(row=row, line=line, code="broken_json", message=f"Not valid JSON: {why}.", fix=fix)


class _Buffer:
    """A window on a JSON text that is never held whole."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.text = ""
        self.at = 0  # where reading goes on in `text`
        self.line = 1
        self.ended = False
        self.decoder = json.JSONDecoder()

    def more(self) -> bool:
        """Read on; what is left is at least doubled. False at the end of the file."""
        left = self.text[self.at :]
        piece = self.file.read(max(CHUNK, len(left)))
        self.ended = not piece
        self.text, self.at = left + piece, 0
        return not self.ended

    def advance(self, to: int) -> None:
        """Go on at `to`."""
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def peek(self) -> str:
        """The next character that is not white space, or '' at the end."""
        while True:
            found = NOT_SPACE.search(self.text, self.at)
            self.advance(found.start() if found else len(self.text))
            if found or not self.more():
                return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> str:
        """Consume one character; ValueError when it is another."""
        found = self.peek()
        if not found or found not in expected:
            wanted = " or ".join(f"“{one}”" for one in expected)
            raise ValueError(f"expected {wanted}, found {f'“{found}”' if found else 'the end of the file'}")
        self.advance(self.at + 1)
        return found

    def value(self) -> Any:
        """The next JSON value; ValueError when it is broken or longer than the limit."""
        self.peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
                if end < len(self.text) or self.ended:  # else a number might go on
                    self.advance(end)
                    return value
            except ValueError:
                if self.ended:
                    raise
            if len(self.text) - self.at > MAX_ROW_BYTES:
                raise ValueError(f"the row is broken, or larger than {MAX_ROW_BYTES >> 20} MiB")
            self.more()


def read_json(path: Path) -> Iterator[RawRow]:
    """The rows of `[row, ...]`, of an object with one list of rows, or of an object that is itself one row.

    After broken JSON nothing can be told apart any more: that row is a problem that says so, and reading ends.
    """
    # surrogateescape keeps bytes that are not UTF-8 visible, so that only the rows that have them are set aside
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        buffer = _Buffer(file)
        number, ended_early = 0, False
        for row in _array(buffer) if buffer.peek() == "[" else _object(buffer, path.name):
            number, ended_early = row.number, row.problem is not None and row.problem.code == "broken_json"
            yield row
        if not ended_early and buffer.peek():
            problem = _lost(number + 1, buffer.line, ValueError("there is more text after the end of the list"))
            yield RawRow(number + 1, buffer.line, None, problem)


def _array(buffer: _Buffer) -> Iterator[RawRow]:
    """Rows of an array, streamed."""
    number = 0
    try:
        buffer.take("[")
        if buffer.peek() == "]":
            buffer.take("]")
            return
        while True:
            buffer.peek()
            line = buffer.line
            value = buffer.value()
            number += 1
            problem = None if isinstance(value, dict) else not_object(number, line, value)
            yield RawRow(number, line, None if problem else value, problem)
            if buffer.take(",]") == "]":
                return
    except (ValueError, RecursionError) as error:
        number += 1
        yield RawRow(number, buffer.line, None, _lost(number, buffer.line, error))


def _lost(row: int, line: int, error: ValueError | RecursionError) -> Problem:
    """Broken JSON inside an array: the last row that is told apart."""
    why = error.msg if isinstance(error, json.JSONDecodeError) else error  # its position is that of the window
    problem = broken(row, line, ValueError(why) if isinstance(error, ValueError) else error)
    return problem.model_copy(update={"message": problem.message + " Nothing after it could be read."})


def _object(buffer: _Buffer, name: str) -> Iterator[RawRow]:
    """Rows of an object: those of its one list, or the object itself."""
    row: dict[str, Any] = {}
    lists: list[str] = []
    for key in _keys(buffer, name):
        if buffer.peek() != "[" or key in ROW_LISTS or any(known in row for known in ROW_LISTS):
            row[key] = _value(buffer, name)
            continue
        lists.append(key)
        if len(lists) > 1:
            message = f"{name} holds two lists, “{cut(lists[0])}” and “{cut(key)}”: which one are the rows?"
            raise Failure("several_lists", message, ["Keep only the list of rows, as [row, row, ...]."])
        yield from _array(buffer)
    if not lists:
        yield RawRow(1, 1, row)


def _keys(buffer: _Buffer, name: str) -> Iterator[str]:
    """The keys of an object, with the buffer left at each value."""
    try:
        buffer.take("{")
        while buffer.peek() != "}":
            key = buffer.value()
            buffer.take(":")
            yield str(key)
            if buffer.peek() != "}":
                buffer.take(",")
        buffer.take("}")
    except (ValueError, RecursionError) as error:
        problem = broken(0, buffer.line, error)
        raise Failure("broken_json", f"{name}, line {buffer.line}: {problem.message}", [problem.fix]) from error


def _value(buffer: _Buffer, name: str) -> Any:
    """One value of an object, or Failure."""
    try:
        return buffer.value()
    except (ValueError, RecursionError) as error:
        problem = broken(0, buffer.line, error)
        raise Failure("broken_json", f"{name}, line {buffer.line}: {problem.message}", [problem.fix]) from error
