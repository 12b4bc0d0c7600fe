"""Packed documents never see each other, in every family: packed = alone = transformers' own eager attention."""

from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.batches import Samples, gather
from engine.build import build
from engine.losses import imitation
from engine.spec import RunSpec
from engine.trainer import Trainer
from tests.engine.models import FAMILIES

PACKED = [family for family in FAMILIES if family != "mamba2"]


@pytest.fixture
def documents():
    """Three documents of 9, 14 and 3 tokens: longer and shorter than the windows of 5."""
    random = np.random.default_rng(0)
    lengths = [9, 14, 3]
    trained = random.random(sum(lengths)) < 0.6
    offsets = np.cumsum([0, *lengths])
    trained[offsets[:-1]] = False
    trained[offsets[1:] - 1] = True
    return Samples(random.integers(0, 256, sum(lengths)).astype(np.int32), trained, offsets, np.arange(1, 4))


@pytest.fixture
def trainer_of(tiny_model):
    def make(family, **lora):
        spec = RunSpec(
            model=str(tiny_model(family)),
            data={"dataset": "x"},
            training={"dtype": "float32", "device": "cpu"},
            lora=lora,
        )
        return Trainer(build(spec), spec.optimizer, [257])

    return make


def disturb(trainer):
    """Give the adapter an effect."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in trainer.built.parameters().values():
            value.add_(torch.randn(value.shape, generator=generator) * 0.1)


def gradients(trainer, batches):
    total = sum(batch.trained_tokens for batch in batches)
    for batch in batches:
        trainer.forward_backward(batch, partial(imitation, trained_tokens=total))
    found = {name: value.grad.clone() for name, value in trainer.built.parameters().items()}
    return trainer.optim_step(0.0).loss, found


@pytest.mark.parametrize("family", list(FAMILIES))
def test_P02_packed_rows_give_what_transformers_gives_for_each_alone(family, tiny_model, trainer_of, documents):
    trainer = trainer_of(family, target_modules=["in_proj"] if family == "mamba2" else "all-linear")
    found = trainer.logprobs(gather(documents, [0, 1, 2]))
    stock = AutoModelForCausalLM.from_pretrained(
        tiny_model(family), dtype=torch.float32, **({} if family == "mamba2" else {"attn_implementation": "eager"})
    )
    expected = []
    for index in range(3):
        one = gather(documents, [index])
        ids = torch.from_numpy(one.ids_T)
        with torch.no_grad():
            scores = stock(input_ids=ids[None]).logits[0].float().log_softmax(-1)
        at = torch.from_numpy(one.trained_T.nonzero()[0])
        expected.append(scores[at - 1].gather(1, ids[at, None]).squeeze(1))
    torch.testing.assert_close(found, torch.cat(expected), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", PACKED)
def test_P02_packed_loss_and_gradients_are_the_sum_of_the_rows_alone(family, trainer_of, documents):
    trainer = trainer_of(family)
    disturb(trainer)
    assert trainer.built.alone == ""
    loss, packed = gradients(trainer, [gather(documents, [0, 1, 2])])
    alone_loss, alone = gradients(trainer, [gather(documents, [index]) for index in range(3)])
    assert loss == pytest.approx(alone_loss, abs=1e-5)
    for name, value in packed.items():
        torch.testing.assert_close(value, alone[name], atol=1e-6, rtol=1e-4, msg=name)


def test_a_model_that_mixes_tokens_outside_attention_runs_one_document_at_a_time(trainer_of):
    assert trainer_of("mamba2", target_modules=["in_proj"]).built.alone


def test_the_order_of_documents_does_not_matter(trainer_of, documents):
    trainer = trainer_of("gemma3_text")
    disturb(trainer)
    first = trainer.logprobs(gather(documents, [0, 1, 2])).sum()
    second = trainer.logprobs(gather(documents, [2, 0, 1])).sum()
    torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-5)
