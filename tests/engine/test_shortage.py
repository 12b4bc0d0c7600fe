"""What a run says when memory ran out: what was asked, what was there, and settings that really help."""

import pytest
import torch

from engine.events import DeviceMemory
from engine.shortage import bytes_asked, out_of_memory, would_help
from engine.spec import RunSpec, settings

THERE = DeviceMemory(device="cuda:0", allocated=20 * 2**30, reserved=22 * 2**30, peak=23 * 2**30, total=24 * 2**30)


def spec(**sections):
    return RunSpec.model_validate({"model": "m", "data": {"dataset": "d"}, **sections})


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 24 GiB", int(2.5 * 2**30)),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12", 2**33),
        ("out of memory", 0),
    ],
)
def test_what_was_asked_for_is_read_from_the_allocators_own_words(said, asked):
    assert bytes_asked(said) == asked


def test_the_failure_tells_what_was_asked_and_what_was_there():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.")
    failure = out_of_memory(spec(), torch.bfloat16, error, THERE)
    assert "2.50 GiB more were asked for; the run held 20.00 GiB of 24.00 GiB" in failure.message
    assert failure.advice == [change.effect for change in failure.changes]
    assert len(failure.changes) == 3


def test_the_total_batch_stays_as_it_was():
    training = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}
    changes = would_help(spec(training=training), torch.bfloat16)
    (batch,) = [change.settings for change in changes if "training.per_device_train_batch_size" in change.settings]
    assert batch == {"training.per_device_train_batch_size": 1, "training.gradient_accumulation_steps": 12}


@pytest.mark.parametrize("training", [{}, {"full_finetuning": True}, {"quantization": "nf4"}, {"dtype": "float32"}])
def test_every_change_names_settings_that_exist_with_values_that_they_take(training):
    before = spec(training=training)
    known = settings(before)
    for change in would_help(before, torch.float32 if training else torch.bfloat16):
        for name, value in change.settings.items():
            assert known[name] != value
            section, _, leaf = name.partition(".")
            tree = before.model_dump(mode="json")
            tree[section][leaf] = value
            RunSpec.model_validate(tree)


def test_where_nothing_is_left_to_change_a_smaller_model_is_advised():
    training = {"gradient_checkpointing": True, "quantization": "nf4"}
    small = spec(
        data={"dataset": "d", "max_length": 256}, training=training, lora={"r": 8}, optimizer={"optim": "adamw_bf16"}
    )
    failure = out_of_memory(small, torch.bfloat16, MemoryError(), THERE)
    assert failure.changes == []
    assert failure.advice == ["Choose a smaller base model."]
