"""What could be set otherwise so that a run needs less memory, and which of it is enough. Pure, and free of torch."""

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Any

from engine.failure import Change
from engine.spec import RunSpec

SHORTEST = 256  # tokens below which a shorter maximum is no help
SMALLEST_RANK = 4


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


def steps(spec: RunSpec, *, can_recompute: bool = True, narrow: bool = True, quantise: str = "") -> Iterator[Change]:
    """Everything that could be changed, in the order of harm, each halving once more what the one before it did.

    Recompute and smaller micro-batches train the same; a shorter maximum cuts rows, a smaller rank learns less.
    `narrow`: bfloat16 would be something new; `quantise`: how the frozen base could be held in fewer bits here.
    """
    training = spec.training
    size, rounds = training.per_device_train_batch_size, training.gradient_accumulation_steps
    if not training.gradient_checkpointing and can_recompute:
        yield _change("Recompute activations: the same training, about a quarter slower.", gradient_checkpointing=True)
    while size > 1:
        smaller = size // 2
        rounds = -(-rounds * size // smaller)
        size = smaller
        effect = f"Batch size {size} with gradient accumulation {rounds}: the same training in smaller pieces."
        yield _change(effect, per_device_train_batch_size=size, gradient_accumulation_steps=rounds)
    if training.full_finetuning:
        yield _change("An adapter instead of all weights: its gradients are a hundredth.", full_finetuning=False)
    if narrow:
        yield _change("Precision bfloat16: half the bytes, slower where it is emulated.", dtype="bfloat16")
    if quantise and training.quantization == "none" and not training.full_finetuning:
        yield _change("The frozen base in fewer bits: a little less exact, slower.", quantization=quantise)
    length = spec.data.max_length or 0
    while length // 2 >= SHORTEST:
        length //= 2
        yield Change({"data.max_length": length}, f"Maximum length {length}: longer rows are cut.")
    rank = 0 if training.full_finetuning else spec.lora.r
    while rank // 2 >= SMALLEST_RANK:
        rank //= 2
        yield Change({"lora.r": rank}, f"Rank {rank}: a smaller adapter, which learns less.")


def _change(effect: str, **settings: str | bool | int) -> Change:
    return Change({f"training.{name}": value for name, value in settings.items()}, effect)


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
