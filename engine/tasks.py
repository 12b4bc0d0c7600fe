"""Rows out of reasoning-gym: procedural tasks with answers, as prompts that the reward `reasoning_task` can judge."""

import json
import sys
from pathlib import Path
from typing import Any

import reasoning_gym

MOST_TRIES = 5  # draws per wanted row before a task counts as used up


def rows_of(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Up to `count` different questions of a task. ValueError for a task that reasoning-gym does not have."""
    made = reasoning_gym.create_dataset(task, size=count * MOST_TRIES, seed=seed)
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
    except ValueError as error:
        advice = ["The tasks are listed in the documentation of reasoning-gym."]
        answer = {"error": {"code": "unknown_task", "message": f"{error}", "advice": advice}}
        sys.stdout.write(json.dumps(answer) + "\n")
        return 1
    out.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")
    sys.stdout.write(json.dumps({"rows": len(rows)}) + "\n")
    return 0
