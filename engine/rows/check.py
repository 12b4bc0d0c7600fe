"""Reads a whole dataset once: what kind it is, which rows can be used, and everything that is wrong with the others."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from engine.rows.declared import AS_SEEN, Declared, check_names
from engine.rows.files import read
from engine.rows.model import Format, Kind, Message, Problem, Row, cut
from engine.rows.shapes import HOLDS, fits, normalise

KINDS: tuple[Kind, ...] = get_args(Kind)
SHOWN_TEXT = 2_000
SHOWN_ITEMS = 50
MOST_COLUMNS = 200


class Remark(BaseModel):
    """Something that a person should know of `rows` rows."""

    code: str
    rows: int
    message: str


class Report(BaseModel):
    """What a dataset file holds. Counts are exact; `problems` and the previews are the first ones only."""

    kind: Kind | None = None  # None: no usable row
    rows: int = 0
    usable: int = 0
    columns: list[str] = []
    problems: list[Problem] = []
    problem_counts: dict[str, int] = {}  # by code; a row may have several
    preview: list[dict[str, Any]] = []  # rows as the file has them, long text cut
    messages_preview: list[dict[str, Any]] = []  # the first usable rows, normalised
    characters: int = 0  # of the usable rows
    longest: int = 0  # characters of the longest usable row
    turns: int = 0  # messages of the usable rows
    shapes: dict[str, int] = {}  # usable rows by the form they are written in
    warnings: list[Remark] = []

    @property
    def bad(self) -> int:
        """Rows that cannot be used."""
        return self.rows - self.usable

    @property
    def summary(self) -> str:
        """One sentence: how many rows can be used, and the first reason when some cannot."""
        if not self.rows:
            return "The file has no rows."
        if not self.problems:
            return f"{self.usable} of {self.rows} rows usable."
        first = self.problems[0]
        return f"{self.usable} of {self.rows} rows usable. First problem, {first.place}: {first.message}"


@dataclass
class _Seen:
    """What is remembered of the rows of one kind until the kind of the whole file is known."""

    count: int = 0
    characters: int = 0
    longest: int = 0
    turns: int = 0
    places: list[tuple[int, int | None]] = field(default_factory=list)
    preview: list[dict[str, Any]] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)


def check(
    path: Path, format: Format, problem_limit: int = 200, preview: int = 20, *, declared: Declared = AS_SEEN
) -> Report:
    """Read every row once, in bounded memory.

    Raises Failure when the file as a whole cannot be read, or when something is declared that no column can hold.
    """
    check_names(declared.columns, HOLDS)
    report, said = Report(), Disagreements(declared)
    seen = {kind: _Seen() for kind in KINDS}
    counts: Counter[str] = Counter()
    problems: list[Problem] = []
    columns: dict[str, None] = {}
    for raw in read(path, format):
        report.rows += 1
        if raw.value is not None:
            if len(columns) < MOST_COLUMNS:
                columns |= dict.fromkeys(str(key) for key in raw.value)
            if len(report.preview) < preview:
                report.preview.append(shown(raw.value))
        found = [raw.problem] if raw.problem or raw.value is None else normalise(raw.value, declared)
        if raw.value is not None and declared:
            said.take(raw.number, raw.value, found)
        if isinstance(found, Row):
            _remember(seen[found.kind], replace(found, number=raw.number, line=raw.line), problem_limit, preview)
            continue
        placed = [problem.at(raw.number, raw.line) for problem in found if problem]
        counts.update(problem.code for problem in placed)
        problems += placed[: problem_limit - len(problems)]
    report.columns = list(columns)[:MOST_COLUMNS]
    report.warnings = said.remarks()
    _conclude(report, seen, counts, problems, problem_limit)
    return report


class Disagreements:
    """Rows that do not have what is declared, or that by what they hold are of another kind."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.rows: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def take(self, number: int, value: dict[str, Any], found: Row | Sequence[Problem | None]) -> None:
        """Compare one row, read as `found`, with what it seems to be."""
        if not fits(value, self.declared):
            missing = self.declared.missing(value)
            lacks = f"the column “{cut(missing, 40)}”" if missing else f"what {self.declared.kind} rows hold"
            self._note("not_as_declared", f"Declared, but not there: {lacks}; read {_as_seen(found)}.", number)
            return
        seen = normalise(value)
        if isinstance(found, Row) and isinstance(seen, Row) and seen.kind != found.kind:
            message = f"Read as {found.kind} rows, as declared; by their columns they are {seen.kind} rows"
            self._note("declared_otherwise", f"{message} ({seen.shape}).", number)

    def _note(self, code: str, message: str, number: int) -> None:
        self.rows[code] += 1
        self.first.setdefault(code, f"{message} First in row {number}.")

    def remarks(self) -> list[Remark]:
        """What was noted, once for each code."""
        return [Remark(code=code, rows=rows, message=self.first[code]) for code, rows in self.rows.items()]


def _as_seen(found: Row | Sequence[Problem | None]) -> str:
    return f"as {found.kind} by its content" if isinstance(found, Row) else "by its content, which is no usable row"


def _remember(seen: _Seen, row: Row, places: int, preview: int) -> None:
    """Count a row of one kind."""
    seen.count += 1
    characters = characters_of(row)
    seen.characters += characters
    seen.longest = max(seen.longest, characters)
    seen.turns += len(turns_of(row))
    seen.shapes[row.shape] += 1
    if len(seen.places) < places:
        seen.places.append((row.number, row.line))
    if len(seen.preview) < preview:
        seen.preview.append(shown(as_dict(row)))


def _conclude(
    report: Report, seen: dict[Kind, _Seen], counts: Counter[str], problems: list[Problem], limit: int
) -> None:
    """The majority decides the kind; rows of the others become problems."""
    kind = majority({kind: one.count for kind, one in seen.items()})
    if kind is not None:
        mine = seen[kind]
        report.kind, report.usable, report.characters = kind, mine.count, mine.characters
        report.longest, report.turns = mine.longest, mine.turns
        report.shapes, report.messages_preview = dict(mine.shapes), mine.preview
        for other, theirs in seen.items():
            if other != kind and theirs.count:
                counts["other_kind"] += theirs.count
                problems += [other_kind(kind, other).at(row, line) for row, line in theirs.places]
    problems.sort(key=lambda problem: problem.row)
    report.problems = problems[:limit]
    report.problem_counts = dict(counts)


def majority(counts: dict[Kind, int]) -> Kind | None:
    """The kind that most rows have; on a tie the earlier one in KINDS; None without rows."""
    kind = max(counts, key=lambda one: counts[one])
    return kind if counts[kind] else None


def other_kind(kind: Kind, found: Kind) -> Problem:
    """A usable row of the wrong kind."""
    message = f"This is a {found} row among {kind} rows."
    return Problem(code="other_kind", message=message, fix="Keep rows of different kinds in different files.")


def usable(path: Path, format: Format, kind: Kind | None = None, declared: Declared = AS_SEEN) -> Iterator[Row]:
    """The usable rows of a file, of its majority kind (found by a first pass) or of `kind`."""
    wanted = kind or check(path, format, problem_limit=1, preview=0, declared=declared).kind
    for raw in read(path, format):
        if raw.value is None:
            continue
        row = normalise(raw.value, declared)
        if isinstance(row, Row) and row.kind == wanted:
            yield replace(row, number=raw.number, line=raw.line)


def turns_of(row: Row) -> list[Message]:
    """All messages of a row, of whatever kind it is."""
    return row.messages + row.prompt + row.chosen + row.rejected


def characters_of(row: Row) -> int:
    """Text of a row, roughly what becomes tokens."""
    turns = turns_of(row)
    text = sum(len(turn.get("content") or "") + len(turn.get("reasoning_content") or "") for turn in turns)
    calls = sum(len(json.dumps(turn["tool_calls"])) for turn in turns if "tool_calls" in turn)
    return text + calls + len(row.text) + (len(json.dumps(row.tools)) if row.tools else 0)


def as_dict(row: Row) -> dict[str, Any]:
    """A normalised row as JSON, without what is empty."""
    return {one.name: value for one in fields(row) if (value := getattr(row, one.name)) or value is False}


def shown(value: Any, depth: int = 0) -> Any:
    """A value as JSON that is safe to store and show: long text and lists cut, other types as text."""
    if isinstance(value, str):
        text = value if len(value) <= SHOWN_TEXT else value[: SHOWN_TEXT - 1] + "…"
        return text.replace("\x00", "\ufffd").encode("utf-8", errors="replace").decode("utf-8")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if depth > 20:
        return "…"
    if isinstance(value, dict):
        return {shown(str(key), depth): shown(item, depth + 1) for key, item in list(value.items())[:MOST_COLUMNS]}
    if isinstance(value, list | tuple):
        return [shown(item, depth + 1) for item in value[:SHOWN_ITEMS]]
    return shown(str(value), depth)
