"""Rewards of the extra `rl`: equality of mathematics, fit with a JSON schema, and the scores of reasoning-gym."""

import json
from typing import Any

import jsonschema
import reasoning_gym
from math_verify import parse, verify

from engine.rewards.case import Case
from engine.rewards.plain import json_text


def math_equal(case: Case, _: str) -> float | None:
    """The answer means the same mathematics as the expected one (math-verify; its own timeouts are off, ours hold)."""
    if not case.expected:
        return None
    gold, found = (parse(text, parsing_timeout=None, raise_on_error=True) for text in (case.expected, case.answer))
    return float(verify(gold, found, timeout_seconds=None, raise_on_error=True))


def json_schema(case: Case, schema: str) -> float | None:
    """The answer is JSON that fits the schema (after the colon, or the row's `schema`)."""
    wanted: Any = json.loads(schema) if schema else case.metadata.get("schema")
    if wanted is None:
        return None
    try:
        jsonschema.validate(
            json.loads(json_text(case.answer)), json.loads(wanted) if isinstance(wanted, str) else wanted
        )
    except (ValueError, jsonschema.ValidationError):
        return 0.0
    return 1.0


def reasoning_task(case: Case, _: str) -> float | None:
    """What the reasoning-gym task that made the row (its `source_dataset`) thinks of the answer."""
    task = case.metadata.get("source_dataset")
    if not task:
        return None
    entry = {"question": "", "answer": case.expected, "metadata": dict(case.metadata)}
    return float(reasoning_gym.get_score_answer_fn(str(task))(case.answer.strip(), entry))
