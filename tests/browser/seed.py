"""A database in which every state of every page occurs, with names that try to break out."""

import json
import math
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

from engine.rows import Declared
from engine.rows.check import check
from engine.spec import Data, LoRA, Optimizer, RunSpec
from studio.context import Studio
from studio.db.tables import Dataset, Model, Preview, Run, RunEvent, Worker, now
from studio.previews import Way
from tests.browser import tokens

HOSTILE = "<script>alert('x')</script> {{name}} ${value} ../../etc"
GIB = 1024**3
DONE, DONE_TOO, RUNNING, PREPARING, QUEUED = (f"run-{number:016x}" for number in range(1, 6))
FAILED, PAUSED, CANCELLED, HOSTILE_RUN, OF_GONE = (f"run-{number:016x}" for number in range(6, 11))
CHATS, PAIRS, HOSTILE_ROWS, USELESS, CHECKING, ODD, GONE = (f"file-{number:016x}" for number in range(1, 8))
STARTER = "smollm2-135m-instruct"
FACTS = {
    "architecture": "LlamaForCausalLM",
    "parameters": 134515008,
    "context_length": 8192,
    "bytes": 269_000_000,
    "dtype": "BF16",
}
STARTED = {
    "device": "cpu",
    "dtype": "bfloat16",
    "train_rows": 270,
    "eval_rows": 28,
    "trained_tokens": 12818,
    "total_tokens": 24256,
    "trainable_parameters": 4884480,
    "total_parameters": 139399488,
}
OUT_OF_MEMORY = {
    "code": "out_of_memory",
    "message": "The GPU ran out of memory at step 13: 23.4 of 24 GiB were in use.",
    "advice": ["Set Maximum length to 1,024 (now 4,096).", "Turn on Recompute activations."],
    "exit_code": 1,
    "changes": [
        {"settings": {"data.max_length": 1024}, "effect": "Set Maximum length to 1,024 (now 4,096)."},
        {"settings": {"training.gradient_checkpointing": True}, "effect": "Turn on Recompute activations."},
    ],
}


def fill(studio: Studio) -> None:
    """Put everything in."""
    folder = studio.settings.data_dir / "sources"
    folder.mkdir()
    with studio.session() as session:
        session.add_all([*_datasets(folder), *_models(folder), _worker()])
        session.flush()
        session.add_all(previews())
    for run, events in _runs():
        with studio.session() as session:
            session.add(run)
            session.flush()
            session.add_all(events)


def previews() -> list[Preview]:
    """One with tokens of every kind, one that failed, one that is on its way."""
    rows, survey = tokens.rows(HOSTILE), tokens.survey(298)
    why = "The chat template did not end within 5 seconds. Use the chat template that the model was published with."
    later = now() + timedelta(days=1)  # it is not tried again meanwhile
    said = Way(declared=Declared("chat", {"prompt": "frage", "completion": "antwort"})).key
    odd = {"rows": rows[:1], "survey": survey | {"usable": 1, "rendered": 1}}
    both = {"rows": tokens.pairs(), "survey": survey | {"kind": "preference", "bridge": None}}
    return [
        Preview(dataset_id=ODD, model_id=STARTER, way=said, row=1, status="ready", **odd),
        Preview(dataset_id=PAIRS, model_id=STARTER, way="{}", row=1, status="ready", **both),
        Preview(dataset_id=CHATS, model_id=STARTER, way="{}", row=1, status="ready", rows=rows, survey=survey),
        Preview(dataset_id=CHATS, model_id="qwen", way="{}", row=1, status="failed", error=why, asked_at=later),
        Preview(dataset_id=HOSTILE_ROWS, model_id=STARTER, way="{}", row=1, status="waiting"),
    ]


def _datasets(folder: Path) -> list[Dataset]:
    question = {"role": "user", "content": "How do I return shoes?"}
    answer = {"role": "assistant", "content": '{"intent": "return", "reply": "Put them in the box; we collect them."}'}
    chats = [json.dumps({"messages": [question, answer]}) for _ in range(298)]
    chats[11:11] = ['{"messages": []}', '{"messages": [{"role": "user"']
    pair = {"prompt": "Write a haiku", "chosen": "Soft rain on old stone", "rejected": "Haikus are short poems."}
    files = {
        (CHATS, "Support answers as JSON"): "\n".join(chats),
        (PAIRS, "Haiku taste"): "\n".join(json.dumps(pair) for _ in range(200)),
        (HOSTILE_ROWS, HOSTILE): json.dumps({"prompt": HOSTILE, "completion": HOSTILE}),
        (ODD, "fragen.jsonl"): json.dumps({"frage": "Wie?", "antwort": "So."}),
        (USELESS, "export-2026.jsonl"): "\n".join('{"foo": 1}' for _ in range(9)),
    }
    found = []
    for (dataset_id, name), text in files.items():
        path = folder / f"{dataset_id}.jsonl"
        path.write_text(text, encoding="utf-8")
        found.append(_dataset(dataset_id, name, path))
    waiting = {"format": "parquet", "sha256": "", "bytes": 120_400_000}
    return [
        *found,
        Dataset(id=GONE, name="last year", filename="x.jsonl", status="deleted", **waiting | {"format": "jsonl"}),
        Dataset(id=CHECKING, name="being checked.parquet", filename="x.parquet", status="checking", **waiting),
    ]


def _dataset(dataset_id: str, name: str, path: Path) -> Dataset:
    report = check(path, "jsonl")
    return Dataset(
        id=dataset_id,
        name=name,
        filename=path.name,
        format="jsonl",
        sha256="ab" * 32,
        bytes=path.stat().st_size,
        status="ready" if report.usable else "unusable",
        kind=report.kind or "",
        rows=report.rows,
        usable=report.usable,
        report=report.model_dump(mode="json"),
        error="" if report.usable else report.summary,
    )


def _models(folder: Path) -> list[Model]:
    common = {"status": "ready", "facts": FACTS}
    large = FACTS | {"parameters": 1720574976}
    lost = {"status": "unusable", "facts": {"trainable": False}, "error": "The folder holds GGUF files."}
    return [
        Model(id=STARTER, name="SmolLM2 135M Instruct", source="starter", path=str(folder), **common),
        Model(id="qwen", name="Qwen3 1.7B", source="folder", path=f"{folder}/", **common | {"facts": large}),
        Model(
            id="hub/large", name="hub/large", source="hub", status="fetching", progress=0.42, facts={"cached": False}
        ),
        Model(id="gguf", name=HOSTILE, source="folder", **lost),
    ]


def _worker() -> Worker:
    devices = [{"name": "cpu", "kind": "cpu", "total_bytes": 24 * GIB, "used_bytes": 5 * GIB}]
    return Worker(id="w", host="here", queue="runs", seen_at=now() + timedelta(days=1), devices=devices)


def _runs() -> list[tuple[Run, list[RunEvent]]]:
    return [
        _run(DONE, "support-json, higher rate", "succeeded", 75, 75, learning_rate=5e-4),
        _run(DONE_TOO, "support-json, rank 64", "succeeded", 75, 75, r=64),
        _run(RUNNING, "support-json", "running", 75, 48, phase="training", seconds_left=52.0),
        _run(PREPARING, "loading", "preparing", 0, 0, phase="loading_model"),
        _run(QUEUED, "waiting for its turn", "queued", 0, 0),
        _run(
            FAILED,
            "too long for this GPU",
            "failed",
            75,
            12,
            error=OUT_OF_MEMORY,
            log_tail="Traceback\nOutOfMemoryError",
        ),
        _run(PAUSED, "paused overnight", "paused", 200, 80),
        _run(CANCELLED, "never mind", "cancelled", 75, 20),
        _run(OF_GONE, "from last year", "succeeded", 75, 75, dataset=GONE),
        _run(HOSTILE_RUN, f"{HOSTILE} {'long name ' * 20}"[:300], "succeeded", 1000, 1000, dataset=HOSTILE_ROWS),
    ]


def _run(run_id: str, name: str, status: str, total: int, done: int, **more: Any) -> tuple[Run, list[RunEvent]]:
    spec = RunSpec(
        name=name,
        model=STARTER,
        data=Data(dataset=more.pop("dataset", CHATS)),
        lora=LoRA(r=more.pop("r", 16)),
        optimizer=Optimizer(learning_rate=more.pop("learning_rate", 2e-4)),
    )
    said = [
        RunEvent(run_id=run_id, offset=200 * (i + 1), time=0.0, **event)
        for i, event in enumerate(_events(random.Random(run_id), total, done, status))
    ]
    losses = [event.data["loss"] for event in said if event.kind == "step" and event.data["loss"]]
    evals = [event.data["loss"] for event in said if event.kind == "eval"]
    begun = now() - timedelta(minutes=6)
    run = Run(
        id=run_id,
        name=name,
        status=status,
        spec=spec.model_dump(mode="json"),
        dataset_id=spec.data.dataset,
        model_id=spec.model,
        method="sft",
        queued_at=begun,
        started_at=None if status == "queued" else begun,
        finished_at=begun + timedelta(seconds=150) if status in ("succeeded", "failed", "cancelled") else None,
        step=done,
        total_steps=total,
        planned_memory=int(2.4 * GIB) if done else None,
        loss=losses[-1] if losses else None,
        eval_loss=evals[-1] if evals else None,
        best_eval_loss=min(evals, default=None),
        events_offset=200 * len(said),
    )
    run.log_tail = "\n".join(f"step {step} of {total}" for step in range(1, done + 1))
    for field, value in more.items():
        setattr(run, field, value)
    return run, said


def _events(noise: random.Random, total: int, done: int, status: str) -> list[dict[str, Any]]:
    pace_of_fall = noise.uniform(4, 8)
    used = {"device": "cpu", "allocated": 2 * GIB, "reserved": 2 * GIB, "peak": int(2.2 * GIB), "total": 24 * GIB}
    events: list[dict[str, Any]] = []

    def say(kind: str, step: int | None, **data: Any) -> None:
        events.append({"kind": kind, "step": step, "data": {"kind": kind, "time": 0.0, "step": step, **data}})

    if done:
        say("started", None, **STARTED, total_steps=total)
    for step in range(1, done + 1):
        falling = math.exp(-pace_of_fall * step / total)
        measured = {
            "loss": 0.4 + 2.6 * falling + noise.gauss(0, 0.03),
            "grad_norm": 0.6 + falling,
            "learning_rate": 2e-4 * (1 - step / total),
        }
        lost = status == "running" and step in (30, 31, 33)
        say(
            "step",
            step,
            epoch=3 * step / total,
            seconds=1.8,
            tokens_per_second=285 + noise.gauss(0, 9),
            memory=[used],
            metrics={"rewards/margins": 1 - falling + noise.gauss(0, 0.02)} if status == "succeeded" else {},
            **(measured | ({"loss": None} if lost else {})),
        )
        if lost:
            say(
                "warning",
                None,
                code="not_finite",
                message=f"Step {step}: the loss is not a number; nothing was changed.",
            )
        if step % max(total // 10, 1) == 0:
            say("eval", step, loss=0.45 + 2.3 * falling, tokens=900, best=True)
    if status == "succeeded":
        prompt = [{"role": "user", "content": f"How do I return shoes? {HOSTILE}"}]
        say(
            "sample",
            done,
            prompt=prompt,
            expected="{}",
            base_answer="You will need to contact the shop.\n\n1. Pack",
            answer=HOSTILE,
        )
        say("saved", done, what="adapter", path="adapter", bytes=19_600_000)
    return events
