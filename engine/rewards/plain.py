"""Rewards that need nothing but the answer: each is 0 to 1, or None where the row gives nothing to compare with.

The second argument is what stands after the colon in the reward's name in a spec, as in `length:200`.
"""

import json
import re
from fractions import Fraction

from engine.rewards.case import Case

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*)?\.?\d+(?:\s*/\s*[1-9]\d*)?")
FENCE = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n?```\s*$", re.DOTALL)


def exact_match(case: Case, _: str) -> float | None:
    """The answer is the expected one, but for space around it."""
    return float(case.answer.strip() == case.expected.strip()) if case.expected else None


def number_match(case: Case, _: str) -> float | None:
    """The last number in the answer is the last one in the expected answer: 1,000 is 1000.0 and 1/2 is 0.5."""
    expected, found = last_number(case.expected), last_number(case.answer)
    return None if expected is None else float(expected == found)


def last_number(text: str) -> Fraction | None:
    """The last number written in a text, exactly."""
    found = NUMBER.findall(text)
    if not found:
        return None
    top, _, bottom = found[-1].replace(",", "").replace(" ", "").partition("/")
    return Fraction(top) / (Fraction(bottom) if bottom else 1)


def regex(case: Case, pattern: str) -> float | None:
    """The pattern (after the colon, or the row's `pattern`) is found in the answer."""
    pattern = pattern or str(case.metadata.get("pattern") or "")
    return float(re.search(pattern, case.answer) is not None) if pattern else None


def json_valid(case: Case, _: str) -> float:
    """The whole answer is JSON, in a code fence or not."""
    try:
        json.loads(json_text(case.answer))
    except ValueError:
        return 0.0
    return 1.0


def json_text(answer: str) -> str:
    """The answer without a code fence around it."""
    fenced = FENCE.match(answer)
    return fenced.group(1) if fenced else answer


def length(case: Case, limit: str) -> float:
    """1 up to so many tokens (after the colon), falling to 0 at twice as many."""
    most = int(limit or 256)
    return max(0.0, min(1.0, 2.0 - case.tokens / most))


def reasoning_format(case: Case, _: str) -> float:
    """The answer thinks, closes the thought, and then says something."""
    return float(bool((case.reasoning or "").strip()) and bool(case.answer.strip()))


def finished(case: Case, _: str) -> float:
    """The answer ends by itself, within the limit."""
    return float(not case.truncated)
