"""Two sides measured in turn in one process, so that whatever else the machine does falls on both."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STARTER_ROWS = Path(__file__).parents[1] / "studio" / "starter_data" / "starter-chat.jsonl"
WARM_UP = 2  # rounds that are not counted


def alternate(ours: Callable[[], None], theirs: Callable[[], None], rounds: int) -> dict[str, Any]:
    """Seconds of each side's calls, median first; the ratio is theirs by ours, the median over the pairs.

    Which side begins changes from round to round.
    """
    taken: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(rounds + WARM_UP):
        sides = [("ours", ours), ("theirs", theirs)]
        for name, side in sides if number % 2 else reversed(sides):
            began = time.perf_counter()
            side()
            taken[name].append(time.perf_counter() - began)
    kept = {name: seconds[WARM_UP:] for name, seconds in taken.items()}
    ratios = [theirs / ours for ours, theirs in zip(kept["ours"], kept["theirs"], strict=True)]
    return {
        "pairs": rounds,
        "ours_seconds": round(statistics.median(kept["ours"]), 3),
        "theirs_seconds": round(statistics.median(kept["theirs"]), 3),
        "ratio": round(statistics.median(ratios), 2),
        "ratio_lowest": round(min(ratios), 2),
        "ratio_highest": round(max(ratios), 2),
    }


def sentences() -> list[str]:
    """Real sentences to make rows of."""
    chats = [json.loads(line)["messages"] for line in STARTER_ROWS.read_text(encoding="utf-8").splitlines()]
    return [turn["content"] for chat in chats for turn in chat if turn["role"] != "system"]


def say(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the figures."""
    lines = [json.dumps(found, indent=2)] if as_json else [f"{name:<24} {value}" for name, value in found.items()]
    sys.stdout.write("\n".join(lines) + "\n")
