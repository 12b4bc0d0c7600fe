"""`python -m bench.prepare`: rows to training samples, against TRL's own preparation with `assistant_only_loss`.

Both get the same chat rows, the same tokenizer (the starter model's with Qwen2.5's ChatML template, as TRL ships it)
and the same number of processes, in turn: A B A B. Ours is timed from the file: read and checked, read again, rendered
with provenance, cut. TRL is timed from rows that its library has loaded already: template swapped for the one it trains
with, tokenised, labelled, cut. `--memory` measures instead how much memory a large file takes.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet

from engine.data import prepare
from engine.inspect_data import survey_file
from engine.render.settings import RenderSettings, renderer_for
from engine.render.tokenizer import load
from engine.spec import RunSpec

COMMON = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word
but not what all were we when your can said there use an each which she do how their if will up other about
out many then them these so some her would make like him into time has look two more write go see number no
way could people my than first water been call who oil its now find long down day did get come made may
part
"""
WORDS = COMMON.split()
MAX_LENGTH = 1024
TEMPLATE = "qwen2_5.jinja"


def sentence(random: random.Random, least: int, most: int) -> str:
    """Common words."""
    return " ".join(random.choices(WORDS, k=random.randint(least, most))).capitalize() + "."


def row(random: random.Random) -> dict[str, Any]:
    """A conversation of one to three questions and answers, every third one with a system text."""
    messages = [{"role": "system", "content": sentence(random, 8, 16)}] if random.random() < 1 / 3 else []
    for _ in range(random.choice((1, 1, 2, 3))):
        messages.append({"role": "user", "content": sentence(random, 5, 60)})
        messages.append({"role": "assistant", "content": sentence(random, 10, 120)})
    return {"messages": messages}


def write(path: Path, rows: int) -> None:
    """The same rows each time, as JSONL or Parquet, never all in memory."""
    chance = random.Random(7)
    if path.suffix == ".jsonl":
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row(chance)) + "\n" for _ in range(rows))
        return
    schema = pyarrow.Table.from_pylist([row(chance)]).schema
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 10_000):
            batch = [row(chance) for _ in range(min(10_000, rows - start))]
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))


def tokenizer_of(model: Path) -> tuple[Any, list[int]]:
    """The model's tokenizer with the template that TRL knows how to train, and its stop tokens."""
    import trl  # noqa: PLC0415 - the other side is loaded only when it is asked for

    tokenizer, stops = load(model)
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / TEMPLATE).read_text(encoding="utf-8")
    return tokenizer, stops


def ours(path: Path, tokenizer: Any, stops: list[int]) -> Callable[[], tuple[int, int]]:
    """Prepares the file; (tokens, trained tokens)."""
    spec = RunSpec.model_validate(
        {"model": "m", "data": {"dataset": str(path), "max_length": MAX_LENGTH, "eval_fraction": 0.0}}
    )

    def go() -> tuple[int, int]:
        counts = prepare(spec, tokenizer, stops, lambda event: None).counts
        return counts.total_tokens, counts.trained_tokens

    return go


def theirs(path: Path, tokenizer: Any, processes: int) -> Callable[[], tuple[int, int]]:
    """TRL's SFTTrainer prepares rows that are loaded already; (tokens, trained tokens)."""
    import datasets  # noqa: PLC0415
    from trl.chat_template_utils import get_training_chat_template  # noqa: PLC0415
    from trl.trainer.sft_config import SFTConfig  # noqa: PLC0415
    from trl.trainer.sft_trainer import SFTTrainer  # noqa: PLC0415

    datasets.disable_caching()
    datasets.disable_progress_bars()
    scratch = tempfile.mkdtemp(prefix="atelier-bench-")
    rows = datasets.load_dataset("json", data_files=str(path), cache_dir=scratch, split="train")
    asked = SFTConfig(
        output_dir=scratch,
        assistant_only_loss=True,
        max_length=MAX_LENGTH,
        packing=False,
        dataset_num_proc=processes,
        use_cpu=True,
        bf16=False,
    )
    chat_template = get_training_chat_template(tokenizer)
    trainer: Any = SimpleNamespace(_tokenizer=tokenizer, chat_template=chat_template, completion_only_loss=False)

    def go() -> tuple[int, int]:
        made = SFTTrainer._prepare_dataset(trainer, rows, tokenizer, asked, False, None, "train")
        table = made.with_format("arrow")[:]
        labels = table["labels"].combine_chunks().flatten()
        return len(labels), len(labels) - labels.to_numpy().tolist().count(-100)

    return go


@dataclass(frozen=True)
class Taken:
    """Seconds by the clock and of the processors, and the tokens that came out: all, and trained."""

    seconds: float
    cpu_seconds: float
    tokens: tuple[int, int]


def timed(work: Callable[[], tuple[int, int]], processes: int) -> Taken:
    """One preparation in a process of its own, which starts with nothing warmed up, on so many cores."""
    here, there = multiprocessing.get_context("fork").Pipe()

    def go() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processes])
        began, used = time.perf_counter(), cpu_seconds()
        tokens = work()
        there.send(Taken(time.perf_counter() - began, cpu_seconds() - used, tokens))

    process = multiprocessing.get_context("fork").Process(target=go)
    process.start()
    there.close()
    answer: Taken = here.recv()
    process.join()
    return answer


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def against_trl(model: Path, rows: int, processes: int, rounds: int) -> dict[str, Any]:
    """Rows per second of both, alternating; medians, and the ratio."""
    tokenizer, stops = tokenizer_of(model)
    with tempfile.TemporaryDirectory(prefix="atelier-bench-") as folder:
        path = Path(folder) / "rows.jsonl"
        write(path, rows)
        sides = {"atelier": ours(path, tokenizer, stops), "trl": theirs(path, tokenizer, processes)}
        taken: dict[str, list[Taken]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, work in sides.items():
                taken[name].append(timed(work, processes))
                sys.stderr.write(f"{name}: {rows / taken[name][-1].seconds:.0f} rows/s\n")
    clock = {name: statistics.median(one.seconds for one in found) for name, found in taken.items()}
    cpu = {name: statistics.median(one.cpu_seconds for one in found) for name, found in taken.items()}
    return {
        "rows": rows,
        "processes": processes,
        "seconds": {name: [round(one.seconds, 2) for one in found] for name, found in taken.items()},
        "cpu_seconds": {name: [round(one.cpu_seconds, 2) for one in found] for name, found in taken.items()},
        "rows_per_second": {name: round(rows / seconds) for name, seconds in clock.items()},
        "tokens": {name: dict(zip(("all", "trained"), found[0].tokens, strict=True)) for name, found in taken.items()},
        "ratio": round(clock["trl"] / clock["atelier"], 2),
        "cpu_ratio": round(cpu["trl"] / cpu["atelier"], 2),
    }


def memory(model: Path, rows: int, suffix: str) -> dict[str, Any]:
    """Peak resident memory of checking and of preparing a file: of the process, and of its largest helper."""
    tokenizer, stops = load(model)
    found: dict[str, Any] = {"rows": rows, "format": suffix.removeprefix(".")}
    with tempfile.TemporaryDirectory(prefix="atelier-bench-") as folder:
        path = Path(folder) / f"rows{suffix}"
        write(path, rows)
        found["file_mib"] = path.stat().st_size >> 20
        found["before_mib"] = peak(resource.RUSAGE_SELF)
        began = time.perf_counter()
        survey_file(path, renderer_for(tokenizer, stops, RenderSettings()))
        found["check"] = {"seconds": round(time.perf_counter() - began, 1), "peak_mib": peak(resource.RUSAGE_SELF)}
        began = time.perf_counter()
        total, _ = ours(path, tokenizer, stops)()
        found["prepare"] = {"seconds": round(time.perf_counter() - began, 1), "peak_mib": peak(resource.RUSAGE_SELF)}
        found["helper_peak_mib"] = peak(resource.RUSAGE_CHILDREN)
        found["samples_mib"] = total * 5 >> 20  # four bytes of id and one of flag per token
    return found


def peak(whose: int) -> int:
    """MiB."""
    return resource.getrusage(whose).ru_maxrss >> 10


def main() -> None:
    """Measure and print."""
    asked = argparse.ArgumentParser(prog="python -m bench.prepare", description=(__doc__ or "").split("\n")[0])
    asked.add_argument("--model", type=Path, required=True, help="folder of the starter model")
    asked.add_argument("--against", choices=["trl"], default="trl")
    asked.add_argument("--rows", type=int, default=20_000)
    asked.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--memory", choices=[".jsonl", ".parquet"], help="measure memory with a file of this kind")
    asked.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    given = asked.parse_args()
    if given.memory:
        found = memory(given.model, given.rows, given.memory)
    else:
        found = against_trl(given.model, given.rows, given.processes, given.rounds)
    if given.json:
        print(json.dumps(found))  # noqa: T201
        return
    for name, value in found.items():
        print(f"{name:16} {value}")  # noqa: T201


if __name__ == "__main__":
    main()
