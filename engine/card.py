"""The model card: what an adapter was made from, how, and how the training went."""

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from engine.data import Prepared
from engine.events import Eval, Step
from engine.render.levels import Level
from engine.spec import RunSpec, settings

CURVE_ROWS = 12


@dataclass
class History:
    """The steps and evaluations of a run so far, from its own events; `offered` is the step of the saved weights."""

    steps: list[Step] = field(default_factory=list)
    evals: list[Eval] = field(default_factory=list)
    offered: int = 0


def versions() -> dict[str, str]:
    """Versions of what computed the result."""
    found = {"python": platform.python_version()}
    for package in ("atelier", "torch", "transformers", "peft", "safetensors"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a source folder
            continue
    return found


def portable(spec: RunSpec, base: str) -> RunSpec:
    """The spec as it may leave this machine: `base` for the model, and of local paths the last component only."""
    data = spec.data.model_copy(update={"dataset": last_component(spec.data.dataset)})
    before = last_component(spec.adapter_from)
    return spec.model_copy(update={"model": base, "data": data, "adapter_from": before})


def last_component(path: str) -> str:
    """The last component of a local path, of whichever system it is."""
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1]


def model_card(spec: RunSpec, base: str, prepared: Prepared, history: History) -> str:
    """README.md of the result's folder; `spec` already portable."""
    whole = spec.training.full_finetuning
    title = _inline(spec.name) or f"{last_component(base)}, fine-tuned"
    return "\n".join(
        [
            "---",
            *([f"base_model: {base}"] if re.fullmatch(r"[\w.-]+/[\w.-]+", base) else []),
            f"library_name: {'transformers' if whole else 'peft'}",
            "pipeline_tag: text-generation",
            "tags:",
            *([] if whole else ["- lora"]),
            f"- {spec.method.type}",
            "- atelier",
            "---",
            "",
            f"# {title}",
            "",
            f"`{base}` with all its weights trained by Atelier ({spec.method.type}). It loads with transformers:"
            if whole
            else f"A LoRA adapter for `{base}`, trained with Atelier ({spec.method.type}). It loads with PEFT:",
            "",
            *(_usage_of_model() if whole else _usage(base)),
            "## Data",
            "",
            *_table(("", "number"), _data_rows(spec, prepared)),
            "## Loss",
            "",
            *_curve(history),
            "## Settings",
            "",
            *_table(
                ("setting", "value"), [(f"`{name}`", f"`{_inline(value)}`") for name, value in settings(spec).items()]
            ),
            "## Versions",
            "",
            *_table(("package", "version"), list(versions().items())),
        ]
    )


def _inline(value: Any) -> str:
    """A value on one line, with nothing that Markdown or HTML would act on."""
    return re.sub(r"[`|<>\[\]#*\\\s]+", " ", str(value)).strip()


def _usage(base: str) -> list[str]:
    return [
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f'model = AutoModelForCausalLM.from_pretrained("{base}")',
        'model = PeftModel.from_pretrained(model, "path/to/this/folder")',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        "```",
        "",
    ]


def _usage_of_model() -> list[str]:
    return [
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        "```",
        "",
    ]


def _table(head: tuple[str, str], rows: Sequence[tuple[Any, Any]]) -> list[str]:
    return [f"| {head[0]} | {head[1]} |", "| --- | --- |", *(f"| {left} | {right} |" for left, right in rows), ""]


def _data_rows(spec: RunSpec, prepared: Prepared) -> list[tuple[str, Any]]:
    counts, told = prepared.counts, prepared.serving
    return [
        ("file", f"`{_inline(spec.data.dataset)}`"),
        ("SHA-256", f"`{spec.data.sha256}`" if spec.data.sha256 else "not recorded"),
        ("rows trained on", counts.train_rows),
        ("rows held out", counts.eval_rows),
        ("rows left out", counts.bad_rows + counts.refused_rows + counts.dropped_rows + counts.nothing_to_learn_rows),
        ("of these, longer than the maximum length", counts.dropped_rows),
        ("rows cut at the maximum length", counts.truncated_rows),
        ("trained tokens per epoch", counts.trained_tokens),
        ("told to the chat template", f"`{_inline(Level(told.level).name)}`"),
        ("date told to the chat template", told.date or "none"),
    ]


def _curve(history: History) -> list[str]:
    """A dozen points of the loss curve, each with the latest eval loss at that step."""
    steps = history.steps
    if not steps:
        return ["No steps were recorded.", ""]
    loss = next((event.loss for event in history.evals if event.step == history.offered), None)
    measured = "" if loss is None else f", where the eval loss was {loss:.4f}"
    offered = f"The weights are those of step {history.offered} of {steps[-1].step}{measured}."
    last = len(steps) - 1
    chosen = sorted({round(index * last / (CURVE_ROWS - 1)) for index in range(CURVE_ROWS)})
    lines = [offered, "", "| step | loss | eval loss |", "| --- | --- | --- |"]
    for index in chosen:
        step = steps[index]
        past = [event.loss for event in history.evals if event.step <= step.step and event.loss is not None]
        lines.append(f"| {step.step} | {_number(step.loss)} | {_number(past[-1] if past else None)} |")
    return [*lines, ""]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
