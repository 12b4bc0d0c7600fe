"""What a person says of a file's rows: their kind, and which column holds what; content decides where it is silent."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.failure import Failure
from engine.rows.beside import EFFORT, KWARGS, SYSTEMS, THINKING, Columns
from engine.rows.model import Kind, cut

BESIDE = (*SYSTEMS, "tools", "metadata", KWARGS, EFFORT, THINKING)


@dataclass(frozen=True)
class Declared:
    """`columns`: by what they hold, in the words of the usual names (`prompt`, `messages`), the file's own names."""

    kind: Kind | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.kind is not None or bool(self.columns)

    def missing(self, value: Mapping[str, Any]) -> str:
        """The first declared column that a row lacks, or ''."""
        there = {str(key).strip().lower() for key in value}
        return next((name for name in self.columns.values() if name.strip().lower() not in there), "")

    def of(self, value: Mapping[str, Any]) -> Columns:
        """A row's columns as declared: these and what may stand beside them, or all when none is declared."""
        values = {str(key).strip().lower(): item for key, item in value.items()}
        if not self.columns:
            return Columns(values)
        mapped = {holds: values[name.strip().lower()] for holds, name in self.columns.items()}
        beside = {name: values[name] for name in BESIDE if name in values}
        return Columns({**beside, **mapped}, dict(self.columns))


AS_SEEN = Declared()


def check_names(columns: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise Failure for a declaration of something that no column can hold."""
    for holds, name in columns.items():
        if holds in known and name.strip():
            continue
        close = difflib.get_close_matches(holds, known, n=1)
        hint = f"Did you mean “{close[0]}”? " if close else ""
        message = f"“{cut(holds, 40)}” is nothing that a column can be declared to hold."
        if holds in known:
            message = f"The column that holds “{holds}” has no name."
        raise Failure("bad_columns", message, [f"{hint}Write prompt=question, or one of: {', '.join(sorted(known))}."])


def columns_of(pairs: Iterable[str]) -> dict[str, str]:
    """`prompt=question` and the like as a declaration of columns; one without a name is refused where it is used."""
    parts = (pair.partition("=") for pair in pairs)
    return {holds.strip().lower(): name.strip() for holds, _, name in parts}
