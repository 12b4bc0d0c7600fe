"""Good defaults are a function of data, model and device: what a person would choose who knows all three."""

from collections.abc import Sequence
from typing import Any

from engine.spec import GRPO, METHODS, Data, Optimizer, RunSpec, Saving, Training
from studio.db.tables import Dataset, Model
from studio.models import facts

CHARACTERS_PER_TOKEN = 4.0  # of common tokenizers on common text
TOKENS_PER_ROW = 10  # what common chat templates put around a conversation
ROOM = 1.5  # a row may be denser than common text
LENGTHS = (512, 1024, 2048, 4096, 8192)  # from 512 on, so that packed sequences keep a device busy
LARGE_MODEL = 3_000_000_000  # parameters from which activations are recomputed
SEQUENCES_PER_STEP = 8
SHORT_ANSWER = 64  # tokens that a CPU samples in seconds
PROMPTS_PER_STEP = 4  # each with a group of answers
LEARNING_RATES = {
    "sft": (2e-4, 1e-4),
    "dpo": (1e-4, 5e-5),
    "kto": (1e-4, 5e-5),
    "grpo": (1e-4, 5e-5),
}  # of small and of large models


def suggest(
    dataset: Dataset, model: Model, devices: Sequence[dict[str, Any]] = (), method: str | None = None
) -> RunSpec:
    """A spec for this dataset and model on these devices (as in `workers.devices`; none known counts as a CPU).

    `method` is taken where it learns from such rows, else the first that does.
    """
    known = facts(model)
    on_cpu = not any(device.get("kind") != "cpu" for device in devices)
    length = suggest_length(dataset, known.context_length, on_cpu)
    large = (known.parameters or 0) >= LARGE_MODEL
    method = suggest_method(dataset, method)
    batch, accumulation = suggest_batch(method, on_cpu, large)
    return RunSpec(
        model=model.id,
        data=Data(
            dataset=dataset.id,
            max_length=length,
            eval_fraction=0.0 if dataset.usable < 10 else 0.1,
            bridge=known.bridge,
        ),
        method=suggest_rewarded(dataset, on_cpu) if method == "grpo" else METHODS[method](),
        optimizer=Optimizer(learning_rate=LEARNING_RATES[method][large]),
        training=Training(
            num_train_epochs=suggest_epochs(dataset.usable, method),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            gradient_checkpointing=large,
        ),
        saving=Saving(sample_prompts=0 if dataset.usable < 10 else 3),
    )


def suggest_method(dataset: Dataset, wanted: str | None = None) -> str:
    """The method that is wanted where it learns from such rows, else the first that does; SFT where none does."""
    fitting = [name for name, section in METHODS.items() if dataset.kind in section.kinds]
    return wanted if wanted in fitting else next(iter(fitting), "sft")


def suggest_rewarded(dataset: Dataset, on_cpu: bool) -> GRPO:
    """Procedural tasks bring their own judge; a CPU samples short answers."""
    judged = {"rewards": {"reasoning_task": 1.0}} if "task" in (dataset.origin or {}) else {}
    return GRPO.model_validate(judged | ({"max_completion_length": SHORT_ANSWER} if on_cpu else {}))


def suggest_batch(method: str, on_cpu: bool, large: bool) -> tuple[int, int]:
    """(sequences or pairs at a time, times a step): packed sequences are long, so one is enough on a CPU."""
    batch = 1 if on_cpu or large else 4
    per_step = 1 if on_cpu and method == "sft" else PROMPTS_PER_STEP if method == "grpo" else SEQUENCES_PER_STEP
    return batch, max(1, per_step // batch)


def suggest_length(dataset: Dataset, context_length: int | None, on_cpu: bool) -> int:
    """The smallest usual length that surely holds the longest row, within what the model and the device allow."""
    report = dataset.report or {}
    longest = report.get("longest") or dataset.bytes / max(1, dataset.usable or dataset.rows)
    tokens = ROOM * longest / CHARACTERS_PER_TOKEN + TOKENS_PER_ROW
    most = min(context_length or LENGTHS[-1], 1024 if on_cpu else LENGTHS[-1])
    fitting = next((length for length in LENGTHS if length >= tokens), LENGTHS[-1])
    return max(16, min(fitting, most))


def suggest_epochs(rows: int, method: str = "sft") -> float:
    """Small sets are seen more often; preferences are learned sooner than answers, and overlearned sooner."""
    if method != "sft":
        return 1.0 if rows >= 1_000 else 2.0
    if rows < 100:
        return 5.0
    return 3.0 if rows < 5_000 else 1.0
