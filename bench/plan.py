"""`python -m bench.plan`: peaks of memory of real runs on the CPU, beside what was planned for them.

Each configuration is a run of its own in a process of its own, with three steps and nothing else; its peak is the one
that the run's own events tell. The rows are the engine's own source code as text, packed. With `--answers` it is GRPO:
eight prompts a step, eight answers of so many tokens each.
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
from engine.plan.twin import read_config
from engine.rundir import RunDir
from engine.spec import RunSpec, at_length

ROW = 500  # characters
LENGTHS = (256, 512, 1024, 2048)
PROMPTS = ANSWERS = 8
HOT = 5.0  # a temperature at which answers do not end
MIB = 2**20


@dataclass(frozen=True)
class Measured:
    """One configuration: its largest step in tokens, and bytes at most, measured and planned for so many tokens."""

    dtype: str
    max_length: int
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


def grpo_of(model: str, rows: Path, dtype: str, tokens: int, recompute: bool) -> RunSpec:
    """Two steps of eight prompts, with eight answers of at most so many tokens to each."""
    spec = spec_of(model, rows, dtype, 1024, recompute)
    how = {"type": "grpo", "rewards": {"regex:q": 1.0}, "num_generations": ANSWERS, "max_completion_length": tokens}
    how |= {"temperature": HOT}
    training = spec.training.model_dump() | {"gradient_accumulation_steps": PROMPTS, "max_steps": 2}
    return RunSpec.model_validate({**spec.model_dump(), "method": how, "training": training})


def write_prompts(path: Path) -> None:
    """The same long question often, which is answered at length."""
    row = {"prompt": "Tell me the whole story of how the sea came to be salty, as long as you can.", "answer": "e"}
    path.write_text(f"{json.dumps(row)}\n" * 40, encoding="utf-8")


def run(spec: RunSpec, folder: Path) -> tuple[int, int]:
    """(tokens of the largest step, peak bytes) of a run in a process of its own."""
    run_dir = RunDir(folder)
    run_dir.write_spec(spec)
    command = [sys.executable, "-P", "-m", "engine", "train", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    steps = [event for _, event in events.read(run_dir.events) if isinstance(event, Step)]
    return max(step.tokens for step in steps), max(step.memory[0].peak for step in steps)


def measure(
    model: str, dtype: str, lengths: Sequence[int], recompute: bool, *, answers: bool = False
) -> Iterator[Measured]:
    """Every length, one after the other; with `answers`, `tokens` are those of a whole answer and its prompt."""
    planner = Planner(read_config(model))
    with tempfile.TemporaryDirectory(prefix="atelier-") as scratch:
        rows = Path(scratch) / "rows.jsonl"
        (write_prompts if answers else write_rows)(rows)
        for length in lengths:
            spec = (grpo_of if answers else spec_of)(model, rows, dtype, length, recompute)
            folder = Path(scratch) / str(length)
            tokens, peak = run(spec, folder)
            if answers:
                prompt = prompt_tokens(folder)
                tokens, known = prompt + length, at_length(spec, prompt)
            else:
                known = spec_of(model, rows, dtype, tokens, recompute)
            planned = plan(known, here(spec), planner=planner).chosen.needs.total
            yield Measured(dtype, length, recompute, tokens, peak, planned)


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
    parser.add_argument("--answers", action="store_true", help="GRPO; the lengths are those of answers")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    for found in measure(asked.model, asked.dtype, asked.lengths or LENGTHS, asked.recompute, answers=asked.answers):
        recompute = "recompute" if found.recompute else "         "
        line = f"{found.tokens:6,} tokens {recompute} {found.measured / MIB:8,.0f} MiB measured"
        shown = (
            json.dumps(asdict(found)) if asked.json else f"{line} {found.planned / MIB:8,.0f} planned {found.off:+.0%}"
        )
        print(shown, flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
