"""Two sides measured in turn in one process, so that whatever else the machine does falls on both."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peak import peak_bytes

STARTER_ROWS = Path(__file__).parents[1] / "studio" / "starter_data" / "starter-chat.jsonl"
WARM_UP = 2  # rounds that are not counted

Step = Callable[[], None]


def alternate(ours: Step, theirs: Step, rounds: int) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Match:
    """What is measured for one prompt length: a step of each side, built when it is asked for, and what differs."""

    ours: Callable[[], Step]
    theirs: Callable[[], Step]
    difference: Callable[[], Mapping[str, float]] | None = None


def main(module: str, about: str | None, words: Mapping[str, int], match: Callable[[str, Path, int], Match]) -> None:
    """The command line of a benchmark against TRL: parse, measure, print.

    `words`: of a prompt, by the name of its length; `match(model, rows, words)` writes the rows and gives both sides.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--against", choices=["trl"], default="trl")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--prompt", choices=[*words], action="append")
    parser.add_argument("--model", help="model folder; default: the starter model, converted first")
    parser.add_argument("--side", choices=["ours", "theirs"], help="only this side, for its memory")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = asked.model or starter_model(Path(scratch))
        found: dict[str, Any] = {}
        for prompt in asked.prompt or words:
            sides = match(model, Path(scratch) / f"{prompt}.jsonl", words[prompt])
            if asked.side:
                step = sides.ours() if asked.side == "ours" else sides.theirs()
                sys.stdout.write(f"{peak_of_steps(step):.2f}\n")
                return
            apart = {"difference": sides.difference()} if sides.difference else {}
            found[prompt] = alternate(sides.ours(), sides.theirs(), asked.rounds) | apart | peaks(module, prompt, model)
        say(found, as_json=asked.json)


def starter_model(folder: Path) -> str:
    """The starter model, converted into `folder` by a process of its own, whose memory counts nowhere."""
    model = str(folder / "model")
    subprocess.run([sys.executable, "-m", "engine", "convert-starter", model], check=True, stdout=subprocess.DEVNULL)
    return model


def peaks(module: str, prompt: str, model: str) -> dict[str, float]:
    """Peak memory (GiB) of each side alone, in a process that makes a few steps."""
    found = {}
    for side in ("ours", "theirs"):
        command = [sys.executable, "-m", module, "--side", side, "--prompt", prompt, "--model", model]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[f"{side}_peak_gib"] = float(done.stdout.splitlines()[-1])
    return found


def peak_of_steps(step: Step, steps: int = 4) -> float:
    """The most memory (GiB) that this process has held after so many steps of one side."""
    for _ in range(steps):
        step()
    return peak_bytes() / 2**30


def sentences() -> list[str]:
    """Real sentences to make rows of."""
    chats = [json.loads(line)["messages"] for line in STARTER_ROWS.read_text(encoding="utf-8").splitlines()]
    return [turn["content"] for chat in chats for turn in chat if turn["role"] != "system"]


def say(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the figures."""
    lines = [json.dumps(found, indent=2)] if as_json else [f"{name:<24} {value}" for name, value in found.items()]
    sys.stdout.write("\n".join(lines) + "\n")
