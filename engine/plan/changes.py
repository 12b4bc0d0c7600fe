"""Which changes of a spec are enough for it to fit: those that help against a shortage, the least harmful first."""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

import torch

from engine.failure import Change
from engine.shortage import would_help
from engine.spec import RunSpec

# By a setting that a change has, from what trains the same to what learns less.
HARM = (
    "training.gradient_checkpointing",
    "training.per_device_train_batch_size",
    "optimizer.optim",
    "training.dtype",
    "training.full_finetuning",
    "training.quantization",
    "data.max_length",
    "lora.r",
)


def applied(spec: RunSpec, changes: Iterable[Change]) -> RunSpec:
    """The spec with these changes, the later ones winning."""
    values = reduce(lambda known, change: known | dict(change.settings), changes, dict[str, Any]())
    tree = spec.model_dump()
    for name, value in values.items():
        section, _, leaf = name.partition(".")
        tree[section][leaf] = value
    return RunSpec.model_validate(tree)


def told(change: Change) -> dict[str, Any]:
    """As JSON: `{"settings": {name: value}, "effect"}`."""
    return {"settings": dict(change.settings), "effect": change.effect}


def steps(spec: RunSpec, dtype: torch.dtype) -> Iterator[Change]:
    """Everything that would help a run in this precision, and what can be halved, halved again and again."""
    for name in HARM:
        now = spec
        while change := next((one for one in would_help(now, dtype) if name in one.settings), None):
            after = applied(now, [change])
            if after == now:  # it was so already
                break
            now = after
            yield change


def smallest(spec: RunSpec, fits: Callable[[RunSpec], bool], possible: Iterable[Change]) -> list[Change] | None:
    """The changes that make it fit: one alone where one is enough, the least harmful, else as many as it takes.

    [] when it fits already, None when nothing helps.
    """
    if fits(spec):
        return []
    found = list(possible)
    for change in found:
        if fits(applied(spec, [change])):
            return [change]
    together: list[Change] = []
    for change in found:  # a later change of the same settings takes the place of the earlier one
        together = [one for one in together if one.settings.keys() != change.settings.keys()] + [change]
        if fits(applied(spec, together)):
            return together
    return None
