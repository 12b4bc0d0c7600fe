"""Rows out of reasoning-gym: procedural tasks with answers, as prompts that the reward `reasoning_task` can judge."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from engine.failure import Failure

MOST_TRIES = 5  # draws per wanted row before a task counts as used up
LIBRARY = "reasoning_gym"  # of the extra `rl`


def rows_of(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Up to `count` different questions of a task. Raises Failure without the library, or for an unknown task."""
    try:
        library = importlib.import_module(LIBRARY)
    except ImportError as error:
        message = f"Tasks are made by a library that is not installed: {error.name}."
        raise Failure("tasks_not_installed", message, ["Install the extra `rl`, or add a file of prompts."]) from error
    try:
        made = library.create_dataset(task, size=count * MOST_TRIES, seed=seed)
    except ValueError as error:
        advice = ["The tasks are listed in the documentation of reasoning-gym."]
        raise Failure("unknown_task", f"There is no task {task!r}.", advice) from error
    found: dict[str, dict[str, Any]] = {}
    for index in range(count * MOST_TRIES):
        if len(found) == count:
            break
        entry = made[index]
        row = {"prompt": entry["question"], "solution": str(entry["answer"]), "metadata": entry["metadata"]}
        found.setdefault(entry["question"], row)
    return list(found.values())


def main(task: str, count: int, seed: int, out: Path) -> int:
    """Write the rows, and say as JSON how many there are."""
    try:
        rows = rows_of(task, count, seed)
    except Failure as failure:
        answer = {"error": {"code": failure.code, "message": failure.message, "advice": failure.advice}}
        sys.stdout.write(json.dumps(answer) + "\n")
        return 1
    out.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")
    sys.stdout.write(json.dumps({"rows": len(rows)}) + "\n")
    return 0
