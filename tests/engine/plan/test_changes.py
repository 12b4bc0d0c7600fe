"""The smallest change: least harm first, one alone where one is enough."""

import torch

from engine.failure import Change
from engine.plan import changes
from engine.spec import RunSpec


def spec(**training: object) -> RunSpec:
    told = {"per_device_train_batch_size": 4, **training}
    return RunSpec.model_validate({"model": "m", "data": {"dataset": "d", "max_length": 2048}, "training": told})


def names(found: list[Change] | None) -> list[list[str]]:
    return [list(change.settings) for change in found or []]


def cost(one: RunSpec) -> float:
    """Something like memory: falls with everything that is changed."""
    training = one.training
    kept = 1 if training.gradient_checkpointing else 4
    return one.data.limit * training.per_device_train_batch_size * kept + one.lora.r


def test_what_fits_needs_no_change() -> None:
    assert changes.smallest(spec(), lambda _: True, changes.steps(spec(), torch.float32)) == []


def test_recompute_comes_first() -> None:
    found = changes.smallest(spec(), lambda one: cost(one) < 9000, changes.steps(spec(), torch.float32))
    assert names(found) == [["training.gradient_checkpointing"]]


def test_a_smaller_micro_batch_keeps_the_rows_of_a_step() -> None:
    found = changes.smallest(
        spec(gradient_checkpointing=True), lambda one: cost(one) < 4200, changes.steps(spec(), torch.float32)
    )
    assert names(found) == [["training.per_device_train_batch_size", "training.gradient_accumulation_steps"]]
    assert changes.applied(spec(), found or []).training.per_device_train_batch_size == 2
    assert changes.applied(spec(), found or []).training.gradient_accumulation_steps == 2


def test_several_changes_together_where_one_is_not_enough() -> None:
    found = changes.smallest(spec(), lambda one: cost(one) < 1100, changes.steps(spec(), torch.float32))
    assert [one[0] for one in names(found)] == [
        "training.gradient_checkpointing",
        "training.per_device_train_batch_size",
        "optimizer.optim",
        "training.dtype",
        "data.max_length",
    ]
    better = changes.applied(spec(), found or [])
    assert (better.data.max_length, better.training.per_device_train_batch_size) == (1024, 1)


def test_nothing_helps_when_nothing_helps() -> None:
    assert changes.smallest(spec(), lambda _: False, changes.steps(spec(), torch.float32)) is None


def test_what_is_so_already_is_not_proposed() -> None:
    plain = spec(gradient_checkpointing=True, per_device_train_batch_size=1)
    proposed = names(list(changes.steps(plain, torch.bfloat16)))
    settings = {name for step in proposed for name in step}
    assert {"data.max_length", "lora.r"} <= settings
    assert not {"training.gradient_checkpointing", "training.per_device_train_batch_size", "training.dtype"} & settings
    assert [step for step in proposed if step == ["data.max_length"]] == [["data.max_length"]] * 3  # 1024, 512, 256


def test_a_change_is_told_as_settings() -> None:
    told = [changes.told(change) for change in changes.steps(spec(), torch.float32)]
    assert told[0]["settings"] == {"training.gradient_checkpointing": True}
    assert told[0]["effect"].startswith("Turn on Recompute activations")
