"""The smallest change that makes a run fit: settings and values, the least harm first. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.spec import RunSpec

SHORTEST, SMALLEST_RANK = 256, 4


@dataclass(frozen=True)
class Change:
    """One setting by its dotted name, the value to give it, and what that does, in a few words."""

    setting: str
    value: Any
    effect: str

    def applied(self, spec: RunSpec) -> RunSpec:
        """The spec with it."""
        section, _, leaf = self.setting.partition(".")
        inner = getattr(spec, section).model_copy(update={leaf: self.value})
        return spec.model_copy(update={section: inner})

    def told(self) -> dict[str, Any]:
        """As JSON: `{"setting", "value", "effect"}`."""
        return {"setting": self.setting, "value": self.value, "effect": self.effect}


Step = tuple[Change, ...]


def steps(spec: RunSpec, *, can_recompute: bool = True, narrow: bool = True) -> Iterator[Step]:
    """What could be changed, in the order of harm: each step one or two settings that belong together.

    Recompute and a smaller micro-batch train the same; a shorter maximum cuts rows, a smaller rank learns less.
    `narrow`: bfloat16 is not in use yet.
    """
    training = spec.training
    size, rounds = training.per_device_train_batch_size, training.gradient_accumulation_steps
    if not training.gradient_checkpointing and can_recompute:
        yield (Change("training.gradient_checkpointing", True, "the same training, about a quarter slower"),)
    while size > 1:
        smaller = size // 2
        rounds = -(-rounds * size // smaller)
        size = smaller
        yield (
            Change("training.per_device_train_batch_size", size, "smaller micro-batches"),
            Change("training.gradient_accumulation_steps", rounds, "more of them, so that a step sees as many rows"),
        )
    if narrow:
        yield (Change("training.dtype", "bfloat16", "half the bytes, slower where it is emulated"),)
    length = spec.data.limit
    while length // 2 >= SHORTEST:
        length //= 2
        yield (Change("data.max_length", length, "longer rows are cut at their end"),)
    rank = spec.lora.r
    while rank // 2 >= SMALLEST_RANK:
        rank //= 2
        yield (Change("lora.r", rank, "a smaller adapter learns less"),)


def smallest(spec: RunSpec, fits: Callable[[RunSpec], bool], possible: Iterator[Step]) -> list[Change] | None:
    """The changes that make it fit: one alone where one is enough, the least harmful, else as many as it takes.

    [] when it fits already, None when nothing helps.
    """
    if fits(spec):
        return []
    found = list(possible)
    for step in found:
        if fits(_with(spec, step)):
            return list(step)
    together: dict[str, Change] = {}
    for step in found:
        together |= {change.setting: change for change in step}
        if fits(_with(spec, tuple(together.values()))):
            return list(together.values())
    return None


def _with(spec: RunSpec, changes: Step) -> RunSpec:
    for change in changes:
        spec = change.applied(spec)
    return spec
