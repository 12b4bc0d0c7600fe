"""Preference: answers share a prompt and never see each other, losses are the published ones, runs resume exactly."""

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.batches import gather, texts
from engine.build import build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.events import Eval, Phase, Step
from engine.losses import per_answer, preference
from engine.spec import DPO, RunSpec
from engine.train import train
from engine.trainer import Trainer
from tests.engine.runs import ask_at, on_rows, said


@pytest.fixture(scope="module")
def pair_file(tmp_path_factory):
    """24 pairs of equal length whose better answer follows a pattern that can be learned."""
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [
        {"prompt": f"say {word}{'!' * count}", "chosen": f"{word} yes" * count, "rejected": f"{word} not" * (4 - count)}
        for word in ("sun", "rain", "owl", "tea", "salt", "bread", "ink", "moss")
        for count in (1, 2, 3)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def make_pairs(make_run, pair_file):
    return on_rows(make_run, pair_file, steps=8, batch=3, type="dpo")


def pieces(run):
    """(spec, samples, trainer) of a run folder."""
    spec = run.read_spec()
    tokenizer = load_tokenizer(spec)
    stops = stop_ids(spec, tokenizer)
    return spec, prepare(spec, tokenizer, stops, lambda event: None).train, Trainer(build(spec), spec.optimizer, stops)


def perturb(trainer):
    """An adapter that does something, as after some steps."""
    for name, value in trainer.built.parameters().items():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.1)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "mamba2"])
def test_an_answer_after_a_shared_prompt_is_computed_as_if_it_stood_alone(make_pairs, family):
    targets = ["in_proj"] if family == "mamba2" else "all-linear"
    _, samples, trainer = pieces(make_pairs(family=family, lora={"target_modules": targets}))
    perturb(trainer)
    batch = gather(samples, [3, 0, 5])
    assert bool(trainer.built.alone) == (family == "mamba2")
    sums, tokens = per_answer(trainer.logprobs(batch), batch)
    assert tokens.tolist() == [list(answers) for answers in batch.answers]
    expected = []
    for at, _ in texts(batch.lengths, batch.answers):
        ids = torch.from_numpy(batch.ids_T[at])
        trained = torch.from_numpy(batch.trained_T[at])
        logits = trainer.built.model(input_ids=ids[None]).logits[0].float().log_softmax(-1)
        expected.append(logits[:-1].gather(1, ids[1:, None]).squeeze(1)[trained[1:]].sum())
    torch.testing.assert_close(sums.flatten(), torch.stack(expected), atol=2e-3, rtol=1e-4)


def plain_loss(model, batch, settings, reference):
    """The published losses on full logits of padded rows, the chosen ones first: (loss, rewards) with gradients."""
    rows = [torch.from_numpy(batch.ids_T[at]) for at, _ in texts(batch.lengths, batch.answers)]
    masks = [torch.from_numpy(batch.trained_T[at]) for at, _ in texts(batch.lengths, batch.answers)]
    rows, masks = rows[::2] + rows[1::2], masks[::2] + masks[1::2]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence(masks, batch_first=True)[:, 1:]
    seen = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True)
    logits = model(input_ids=ids, attention_mask=seen).logits[:, :-1].float()
    tokens = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    chosen, rejected = (tokens * mask).sum(1).chunk(2)
    chosen_count, rejected_count = mask.sum(1).chunk(2)
    if settings.loss_type == "orpo":
        chosen, rejected = chosen / chosen_count, rejected / rejected_count
        odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
        return (-chosen - settings.beta * F.logsigmoid(odds)).mean()
    chosen, rejected = chosen - reference[:, 0], rejected - reference[:, 1]
    if settings.loss_type == "sigmoid":
        return -F.logsigmoid(settings.beta * (chosen - rejected)).mean()
    return ((chosen / chosen_count - rejected / rejected_count - 1 / (2 * settings.beta)) ** 2).mean()


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo", "orpo"])
def test_loss_and_gradients_are_those_of_the_published_formula(make_pairs, loss_type):
    settings = DPO(loss_type=loss_type, beta=0.3)
    _, samples, trainer = pieces(make_pairs())
    perturb(trainer)
    batch = gather(samples, [1, 4, 9, 2])
    with trainer.reference_model():
        reference = per_answer(trainer.logprobs(batch), batch)[0]
    batch = replace_reference(batch, reference.numpy())
    trainer.forward_backward(batch, partial(preference, settings=settings, pairs=4))
    ours = {name: value.grad.clone() for name, value in trainer.built.parameters().items()}
    done = trainer.optim_step(0.0)
    trainer.built.model.set_attn_implementation("eager")
    expected = plain_loss(trainer.built.model, batch, settings, reference)
    expected.backward()
    assert done.loss == pytest.approx(expected.item(), abs=1e-4)
    for name, value in trainer.built.parameters().items():
        torch.testing.assert_close(ours[name], value.grad, atol=1e-4, rtol=1e-4, msg=name)
    assert done.metrics["rewards/margins"] == pytest.approx(
        done.metrics["rewards/chosen"] - done.metrics["rewards/rejected"], abs=1e-4
    )


def replace_reference(batch, reference):
    return type(batch)(**{**vars(batch), "reference_DA": reference})


def test_pairs_that_tie_count_half(make_pairs):
    _, samples, _ = pieces(make_pairs())
    batch = replace_reference(gather(samples, [0, 1]), np.zeros((2, 2), dtype=np.float32))
    _, measured = preference(torch.zeros(batch.trained_tokens), batch, DPO(), pairs=2)
    assert float(measured["rewards/accuracies"]) == 0.5


def test_a_run_learns_to_prefer_and_a_resumed_one_ends_bit_for_bit_the_same(make_pairs, unproven, monkeypatch):
    settings = {
        "training": {"max_steps": 12},
        "lora": {"lora_dropout": 0.05},
        "data": {"eval_fraction": 0.2},
        "saving": {"sample_prompts": 1, "eval_steps": 12, "save_steps": 12},
    }
    straight, paused = make_pairs("straight", **settings), make_pairs("paused", **settings)
    assert train(straight.path) == 0
    ask_at(monkeypatch, paused, 7, "pause")
    assert train(paused.path) == 0
    assert train(paused.path) == 0
    assert [step.loss for step in said(paused, Step)] == [step.loss for step in said(straight, Step)]
    saved = "adapter_model.safetensors"
    assert (paused.adapter / saved).read_bytes() == (straight.adapter / saved).read_bytes()
    assert len([phase for phase in said(paused, Phase) if phase.phase == "reference" and phase.done == 24]) == 1
    steps, evals = said(straight, Step), said(straight, Eval)
    assert steps[0].loss == pytest.approx(math.log(2), abs=0.01)
    assert steps[0].metrics["rewards/margins"] == pytest.approx(0.0, abs=0.01)
    assert evals[-1].metrics["rewards/accuracies"] > 0.7
    assert evals[-1].loss < math.log(2)
    assert set(steps[0].metrics) == set(evals[0].metrics)


def test_a_prompt_and_each_answer_fit_into_the_maximum_length(make_pairs):
    _, samples, _ = pieces(make_pairs(data={"max_length": 44}))
    prompts = samples.lengths - samples.answers.sum(1)
    assert (prompts + samples.answers.max(1)).max() == 44
    assert (samples.answers.min(1) > 0).all()


def test_the_settings_of_a_method_are_its_own():
    spec = RunSpec.model_validate({"model": "m", "data": {"dataset": "d"}, "method": {"type": "dpo", "beta": 0.5}})
    assert spec.method == DPO(beta=0.5)
    with pytest.raises(ValueError, match="train_on"):
        RunSpec.model_validate({**spec.model_dump(), "method": {"type": "dpo", "train_on": "last_turn"}})
