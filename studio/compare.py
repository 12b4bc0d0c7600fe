"""Where runs differ: their settings side by side."""

from collections.abc import Sequence
from typing import Any

from studio.db.tables import Run

UNINTERESTING = ("version", "name", "data.sha256")


def differences(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """(setting, [its value in each run]) for every setting that is not the same in all; None where a run has none.

    Works on the specs as stored, so that a run made by an older version never breaks the table.
    """
    specs = [_leaves(run.spec) for run in runs]
    names = list(dict.fromkeys(name for spec in specs for name in spec if name not in UNINTERESTING))
    table = [(name, [spec.get(name) for spec in specs]) for name in names]
    return [(name, values) for name, values in table if any(value != values[0] for value in values)]


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        leaves |= _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves
