"""SFT side by side with TRL: `python -m bench.sft --against trl [--length 1024] [--json]`.

Each repetition of each side is a fresh process on the same model, rows and settings, in turns: A B A B. Atelier runs as
the command that the studio uses, TRL as `bench.trl_side`. Steps before WARM_UP are not timed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.rows import write_chats
from engine import events
from engine.events import Step
from engine.rundir import RunDir
from engine.spec import RunSpec
from tests.engine.models import starter_folder

WARM_UP = 2
LEARNING_RATE = 2e-4
LORA: dict[str, Any] = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear"}
TRL: dict[str, dict[str, Any]] = {
    "trl": {},
    "trl-fastest": {"gradient_checkpointing": False, "bf16": False},
}
"""What TRL is told beyond the job: nothing (its defaults recompute activations), and the fastest setting found."""
OURS = {"atelier": False, "atelier-recompute": True}
MATCHING = (("atelier-recompute", "trl"), ("atelier", "trl-fastest"))  # recompute on with on, off with off


@dataclass(frozen=True)
class Job:
    """The same work for every side; `rows` is a JSON Lines file of chats."""

    model: str
    rows: str
    max_length: int
    steps: int
    dtype: str


@dataclass(frozen=True)
class Measured:
    """One process: seconds to the end of its first step, tokens per second after the warm-up, peak bytes, mean loss."""

    first_step: float
    tokens_per_second: float
    peak: int
    mean_loss: float


@dataclass(frozen=True)
class Moment:
    """The end of one step: seconds since the process started, tokens so far, peak bytes so far."""

    seconds: float
    tokens: int
    peak: int


def summary(moments: list[Moment], mean_loss: float) -> Measured:
    """Figures from the ends of a process's steps; at least WARM_UP + 1 of them."""
    warm, end = moments[WARM_UP - 1], moments[-1]
    rate = (end.tokens - warm.tokens) / (end.seconds - warm.seconds)
    return Measured(moments[0].seconds, rate, end.peak, mean_loss)


def ours(job: Job, recompute: bool, folder: Path) -> Measured:
    """`python -m engine train` on a run folder; its events say the rest."""
    run = RunDir(folder)
    spec = {
        "model": job.model,
        "data": {"dataset": job.rows, "max_length": job.max_length, "eval_fraction": 0.0},
        "lora": LORA,
        "optimizer": {"learning_rate": LEARNING_RATE, "warmup_steps": 0},
        "training": {"max_steps": job.steps, "gradient_checkpointing": recompute, "dtype": job.dtype},
        "saving": {"save_steps": job.steps, "sample_prompts": 0},
    }
    run.write_spec(RunSpec.model_validate(spec))
    began = time.time()
    subprocess.run([sys.executable, "-P", "-m", "engine", "train", str(folder)], check=True)
    steps = [event for _, event in events.read(run.events) if isinstance(event, Step)]
    tokens = 0
    moments = []
    for step in steps:
        tokens += step.tokens
        moments.append(Moment(step.time - began, tokens, max(device.peak for device in step.memory)))
    return summary(moments, mean(step.loss for step in steps if step.loss is not None))


def theirs(job: Job, config: dict[str, Any], folder: Path) -> Measured:
    """`bench.trl_side` on the same job."""
    path = folder / "job.json"
    path.write_text(json.dumps({**vars(job), "lora": LORA, "learning_rate": LEARNING_RATE, "config": config}))
    began = time.time()
    command = [sys.executable, "-P", "-m", "bench.trl_side", str(path)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    *steps, last = [json.loads(line) for line in printed.splitlines() if line.startswith(('{"step"', '{"mean_loss"'))]
    moments = [Moment(line["time"] - began, line["tokens"], line["peak"]) for line in steps]
    return summary(moments, last["mean_loss"])


def measure(job: Job, sides: list[str], repeat: int) -> Iterator[tuple[str, Measured]]:
    """Every side once, then every side again, each in a fresh process."""
    for _ in range(repeat):
        for side in sides:
            with tempfile.TemporaryDirectory(prefix="atelier-bench-") as folder:
                one = ours(job, OURS[side], Path(folder)) if side in OURS else theirs(job, TRL[side], Path(folder))
            yield side, one


def report(found: list[tuple[str, Measured]]) -> dict[str, Any]:
    """Medians per side, and the ratios between those that belong together."""
    sides: dict[str, Any] = {}
    for side in dict.fromkeys(name for name, _ in found):
        mine = [one for name, one in found if name == side]
        sides[side] = {
            "tokens_per_second": round(median(one.tokens_per_second for one in mine), 1),
            "peak_mib": round(median(one.peak for one in mine) / 2**20),
            "first_step_seconds": round(median(one.first_step for one in mine), 1),
            "every_tokens_per_second": [round(one.tokens_per_second, 1) for one in mine],
            "mean_loss": round(mine[-1].mean_loss, 4),
        }
    ratios: dict[str, float] = {}
    for side in sides.keys() & OURS.keys():
        for other in sides.keys() & TRL.keys():
            speeds = sides[side]["tokens_per_second"], sides[other]["tokens_per_second"]
            ratios[f"speed {side} / {other}"] = round(speeds[0] / speeds[1], 2)
    for side, other in MATCHING:
        if side in sides and other in sides:
            ratios[f"peak {side} / {other}"] = round(sides[side]["peak_mib"] / sides[other]["peak_mib"], 2)
    return {"sides": sides, "ratios": dict(sorted(ratios.items()))}


def table(made: dict[str, Any]) -> str:
    """The report for a person."""
    lines = [f"{'':20}{'tokens/s':>10}{'peak MiB':>10}{'first step':>12}"]
    for side, one in made["sides"].items():
        speed, peak, first = one["tokens_per_second"], one["peak_mib"], one["first_step_seconds"]
        lines.append(f"{side:20}{speed:10.1f}{peak:10}{first:10.1f} s")
    return "\n".join(lines + [f"{name}: {ratio}" for name, ratio in made["ratios"].items()])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.sft", description=__doc__)
    parser.add_argument("--against", choices=["trl", "nothing"], default="trl")
    parser.add_argument("--length", type=int, default=1024, help="tokens per packed sequence")
    parser.add_argument("--steps", type=int, default=8, help=f"optimizer steps per process, more than {WARM_UP}")
    parser.add_argument("--repeat", type=int, default=2, help="processes per side")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--model", default="", help="a model folder; the starter model if empty")
    parser.add_argument("--sides", nargs="*", choices=[*OURS, *TRL], default=None, help="only these")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    sides = asked.sides or [*OURS, *(TRL if asked.against == "trl" else ())]
    with tempfile.TemporaryDirectory(prefix="atelier-bench-") as folder:
        rows = Path(folder) / "rows.jsonl"
        write_chats(rows, asked.length * (asked.steps + 1), asked.length)
        job = Job(asked.model or str(starter_folder()), str(rows), asked.length, asked.steps, asked.dtype)
        found = []
        for side, one in measure(job, sides, asked.repeat):
            found.append((side, one))
            sys.stderr.write(f"{side}: {one.tokens_per_second:.1f} tokens/s, {one.peak / 2**20:.0f} MiB\n")
    made = report(found)
    made |= {"length": asked.length, "steps": asked.steps, "repeat": asked.repeat, "dtype": asked.dtype}
    print(json.dumps(made) if asked.json else table(made))  # noqa: T201


if __name__ == "__main__":
    main()
