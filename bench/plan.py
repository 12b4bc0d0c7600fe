"""`python -m bench.plan`: peaks of memory of real runs on the CPU, beside what was planned for them.

Each configuration is a run of its own in a process of its own, with three steps and nothing else; its peak is the one
that the run's own events tell. The rows are the engine's own source code as text, packed. With `--answers` it is GRPO
on one question often, few and many answers, short and long, with held-out prompts and without.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from engine import events
from engine.events import Started, Step
from engine.plan.choice import plan
from engine.plan.here import here
from engine.plan.planner import Planner
from engine.plan.rows import Rows
from engine.plan.twin import read_config
from engine.rundir import RunDir
from engine.spec import RunSpec

ROW = 500  # characters
LENGTHS = (256, 512, 1024, 2048)
QUESTION = "Tell me the whole story of how the sea came to be salty, as long as you can."
QUESTIONS = 200
HOT = 5.0  # a temperature at which answers do not end
LETTERS = "qkyAgm"  # rewarded each, so that answers of any length are told apart and something is learned
MIB = 2**20


@dataclass(frozen=True)
class Asked:
    """A GRPO run: prompts of a step, answers to each of at most so many tokens, how often a prompt says its question.

    `held_out`: prompts of an evaluation, of which there is one after each step.
    """

    prompts: int
    answers: int
    tokens: int
    repeats: int
    held_out: int

    def __str__(self) -> str:
        """As the table names it."""
        long = "a long" if self.repeats > 1 else "a short"
        held = f", {self.held_out} held out" if self.held_out else ""
        return f"{self.prompts} x {self.answers} answers of {self.tokens} to {long} prompt{held}"


ASKED = (
    Asked(prompts=8, answers=8, tokens=8, repeats=1, held_out=0),
    Asked(prompts=2, answers=4, tokens=8, repeats=1, held_out=0),
    Asked(prompts=4, answers=16, tokens=32, repeats=8, held_out=0),
    Asked(prompts=2, answers=4, tokens=32, repeats=8, held_out=16),
    Asked(prompts=16, answers=4, tokens=32, repeats=1, held_out=16),
)


@dataclass(frozen=True)
class Measured:
    """One configuration: its largest step, or longest answer, in tokens; bytes at most, measured and planned for it."""

    what: str
    dtype: str
    recompute: bool
    tokens: int
    measured: int
    planned: int

    @property
    def off(self) -> float:
        """How far the plan is from the measurement, as a share of it."""
        return self.planned / self.measured - 1


def write_rows(path: Path) -> None:
    """Text rows from the engine's source."""
    text = "".join(one.read_text(encoding="utf-8") for one in sorted(Path(events.__file__).parent.rglob("*.py")))
    rows = (text[at : at + ROW] for at in range(0, len(text), ROW))
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")


def spec_of(model: str, rows: Path, dtype: str, length: int, recompute: bool) -> RunSpec:
    """Three steps of one packed sequence each."""
    training = {"max_steps": 3, "dtype": dtype, "gradient_checkpointing": recompute, "device": "cpu"}
    data = {"dataset": str(rows), "max_length": length, "eval_fraction": 0.0}
    saving = {"sample_prompts": 0, "save_steps": 1}
    return RunSpec.model_validate({"model": model, "data": data, "training": training, "saving": saving})


def grpo_of(model: str, rows: Path, dtype: str, asked: Asked, recompute: bool) -> RunSpec:
    """Three steps, and an evaluation after each where any prompt is held out."""
    spec = spec_of(model, rows, dtype, 1024, recompute).model_dump()
    how = {"type": "grpo", "rewards": {f"regex:{letter}": 1.0 for letter in LETTERS}, "temperature": HOT}
    how |= {"num_generations": asked.answers, "max_completion_length": asked.tokens}
    spec["training"] |= {"gradient_accumulation_steps": asked.prompts}
    spec["data"] |= {"eval_fraction": asked.held_out / QUESTIONS}
    spec["saving"] |= {"eval_steps": 1}
    return RunSpec.model_validate({**spec, "method": how})


def write_prompts(path: Path, repeats: int) -> None:
    """The same question, said so often in a prompt."""
    row = {"prompt": " ".join([QUESTION] * repeats), "answer": "e"}
    path.write_text(f"{json.dumps(row)}\n" * QUESTIONS, encoding="utf-8")


def run(spec: RunSpec, folder: Path) -> tuple[int, int]:
    """(tokens of the largest step, peak bytes) of a run in a process of its own."""
    run_dir = RunDir(folder)
    run_dir.write_spec(spec)
    command = [sys.executable, "-P", "-m", "engine", "train", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    steps = [event for _, event in events.read(run_dir.events) if isinstance(event, Step)]
    return max(step.tokens for step in steps), max(step.memory[0].peak for step in steps)


def measure(model: str, dtype: str, lengths: Sequence[int], recompute: bool) -> Iterator[Measured]:
    """Packed rows of every length, one after the other."""
    planner = Planner(read_config(model))
    with tempfile.TemporaryDirectory(prefix="atelier-") as scratch:
        rows = Path(scratch) / "rows.jsonl"
        write_rows(rows)
        for length in lengths:
            tokens, peak = run(spec_of(model, rows, dtype, length, recompute), Path(scratch) / str(length))
            known = spec_of(model, rows, dtype, tokens, recompute)
            planned = plan(known, here(known), planner=planner).chosen.needs.total
            yield Measured("packed rows", dtype, recompute, tokens, peak, planned)


def measure_answers(model: str, dtype: str, every: Sequence[Asked], recompute: bool) -> Iterator[Measured]:
    """GRPO runs, one after the other."""
    planner = Planner(read_config(model))
    for asked in every:
        with tempfile.TemporaryDirectory(prefix="atelier-") as scratch:
            rows, folder = Path(scratch) / "rows.jsonl", Path(scratch) / "run"
            write_prompts(rows, asked.repeats)
            spec = grpo_of(model, rows, dtype, asked, recompute)
            _, peak = run(spec, folder)
            prompt = prompt_tokens(folder)
            known = Rows(QUESTIONS, [(prompt, QUESTIONS)], prompt * QUESTIONS, prompt)
            planned = plan(spec, here(spec), known, planner=planner).chosen.needs.total
            yield Measured(str(asked), dtype, recompute, prompt + asked.tokens, peak, planned)


def prompt_tokens(folder: Path) -> int:
    """Of one prompt of a run whose prompts are all the same."""
    began = next(event for _, event in events.read(RunDir(folder).events) if isinstance(event, Started))
    return began.total_tokens // began.train_rows


def main() -> int:
    """Print the table; with --json the rows as JSON lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="folder of the starter model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--lengths", type=int, nargs="*", help="maximum lengths, in tokens")
    parser.add_argument("--recompute", action="store_true", help="recompute activations")
    parser.add_argument("--answers", action="store_true", help="GRPO runs instead of packed rows")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    every = (
        measure_answers(asked.model, asked.dtype, ASKED, asked.recompute)
        if asked.answers
        else measure(asked.model, asked.dtype, asked.lengths or LENGTHS, asked.recompute)
    )
    for found in every:
        recompute = "recompute" if found.recompute else "         "
        line = f"{found.what}, {found.tokens:6,} tokens {recompute} {found.measured / MIB:8,.0f} MiB measured"
        shown = (
            json.dumps(asdict(found)) if asked.json else f"{line} {found.planned / MIB:8,.0f} planned {found.off:+.0%}"
        )
        print(shown, flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
