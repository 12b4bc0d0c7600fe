"""Rated answers: what a row of them is, the loss of TRL on the same rows, and runs that learn and resume exactly."""

import json

import numpy as np
import pytest
import torch
from trl.trainer.kto_trainer import KTOTrainer

from engine.batches import in_order
from engine.build import load_tokenizer, stop_ids
from engine.data import prepare
from engine.events import Eval, Phase, Step, Warned
from engine.losses import per_answer
from engine.methods import METHODS
from engine.mismatched import mismatched
from engine.rows import normalise
from engine.spec import KTO
from engine.train import train
from tests.engine.runs import ask_at, on_rows, pieces, said
from tests.engine.trl_losses import Scored, alone, padded

WORDS = ("sun", "rain", "owl", "tea", "salt", "bread", "ink", "moss")


@pytest.fixture(scope="module")
def rated_file(tmp_path_factory):
    """48 answers; those that say yes are good."""
    path = tmp_path_factory.mktemp("data") / "rated.jsonl"
    rows = [
        {"prompt": f"say {word}{'!' * count}", "completion": f"{word} {said}" * count, "label": said == "yes"}
        for word in WORDS
        for count in (1, 2, 3)
        for said in ("yes", "not")
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.fixture
def make_rated(make_run, rated_file):
    return on_rows(make_run, rated_file, steps=8, batch=3, type="kto")


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"prompt": "q", "completion": "a", "label": True}, True),
        ({"question": "q", "answer": "a", "label": "false"}, False),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "label": 1}, True),
    ],
)
def test_an_answer_with_a_label_is_a_rated_one(row, label):
    found = normalise(row)
    assert (found.kind, found.label) == ("rated", label)
    assert [one["content"] for one in found.messages] == ["q", "a"]


@pytest.mark.parametrize("label", [None, "positive", 3, 0.5])
def test_a_label_that_is_neither_true_nor_false_rates_nothing(label):
    assert normalise({"prompt": "q", "completion": "a", "label": label}).kind == "chat"


def test_a_rating_without_an_answer_to_rate_is_told():
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "!"}]
    assert normalise({"messages": talk, "label": True})[0].code == "no_answer"


def test_each_prompt_meets_the_answer_of_the_row_before(make_rated):
    spec, plan, _ = pieces(make_rated(data={"eval_fraction": 0.0}))
    samples, others = plan.samples, plan.samples.others
    prompts = [samples.ids[start : end - own] for start, end, own in bounds(samples)]
    answers = [samples.ids[end - own : end] for _, end, own in bounds(samples)]
    for at, (start, end, own) in enumerate(bounds(others)):
        assert np.array_equal(others.ids[start : end - own], prompts[at])
        assert np.array_equal(others.ids[end - own : end], answers[at - 1])
    assert mismatched(samples, 40).lengths.max() == 40
    assert spec.data.limit == 64


def bounds(samples):
    return zip(samples.offsets[:-1].tolist(), samples.offsets[1:].tolist(), samples.answers[:, 0].tolist(), strict=True)


def theirs(model, samples, reference, settings):
    """TRL's own loss, with its mismatched rows, of these samples in one batch; and what it measures."""

    def inputs(of):
        ids, seen = padded([of.ids[start:end].astype(np.int64) for start, end, _ in bounds(of)])
        masks, _ = padded([of.trained[start:end].astype(np.int64) for start, end, _ in bounds(of)])
        return {"input_ids": ids, "attention_mask": seen, "completion_mask": masks}

    own = alone(
        KTOTrainer,
        calculate_KL=True,
        aux_loss_enabled=False,
        precompute_ref_logps=True,
        loss_type="kto",
        beta=settings.beta,
        desirable_weight=settings.desirable_weight,
        undesirable_weight=settings.undesirable_weight,
        _total_train_tokens=0,
        _tp_size=1,
    )
    batch = inputs(samples) | {f"KL_{name}": value for name, value in inputs(samples.others).items()}
    known = {"ref_logps": reference[0][:, 0], "ref_KL_logps": reference[1][:, 0]}
    batch |= {"label": torch.from_numpy(samples.labels)} | known
    return own._compute_loss(Scored(model), batch, return_outputs=False), own._metrics["train"]


def test_loss_and_gradients_are_those_of_trl(make_rated):
    method = {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.7}
    training = {"per_device_train_batch_size": 48, "max_steps": 1}
    spec, plan, trainer = pieces(make_rated(method=method, training=training, data={"eval_fraction": 0.0}))
    samples = plan.samples
    with trainer.reference_model():
        reference = [measured(trainer, each) for each in (samples, samples.others)]
    for name, value in trainer.built.parameters().items():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.2)
    known = [each.numpy() for each in reference]
    others = type(samples)(**{**vars(samples.others), "reference": known[1]})
    plan = plan.of(type(samples)(**{**vars(samples), "reference": known[0], "others": others}))
    kept = {}
    real = trainer.optim_step

    def optim_step(_):
        kept.update({name: value.grad.clone() for name, value in trainer.built.parameters().items()})
        return real(0.0)

    trainer.optim_step = optim_step
    (done,) = METHODS["kto"](trainer, spec, plan)
    trainer.built.model.set_attn_implementation("eager")
    expected, metrics = theirs(trainer.built.model, samples, reference, KTO(**method))
    expected.backward()
    assert done.loss == pytest.approx(expected.item(), abs=1e-4)
    assert done.metrics["kl"] == pytest.approx(metrics["kl"][0], abs=1e-4)
    assert done.metrics["kl"] > 0
    assert done.metrics["rewards/chosen"] == pytest.approx(metrics["rewards/chosen"][0], abs=1e-4)
    assert done.metrics["rewards/rejected"] == pytest.approx(metrics["rewards/rejected"][0], abs=1e-4)
    for name, value in trainer.built.parameters().items():
        torch.testing.assert_close(kept[name], value.grad, atol=1e-4, rtol=1e-4, msg=name)


def measured(trainer, samples):
    return torch.cat([per_answer(trainer.logprobs(batch), batch)[0] for batch in in_order(samples, 256)])


def test_a_run_learns_which_answers_are_good_and_a_resumed_one_ends_bit_for_bit_the_same(
    make_rated, unproven, monkeypatch
):
    settings = {
        "training": {"max_steps": 16},
        "data": {"eval_fraction": 0.2},
        "saving": {"sample_prompts": 1, "eval_steps": 16, "save_steps": 16},
    }
    straight, paused = make_rated("straight", **settings), make_rated("paused", **settings)
    assert train(straight.path) == 0
    ask_at(monkeypatch, paused, 9, "pause")
    assert train(paused.path) == 0
    assert train(paused.path) == 0
    assert [step.loss for step in said(paused, Step)] == [step.loss for step in said(straight, Step)]
    saved = "adapter_model.safetensors"
    assert (paused.adapter / saved).read_bytes() == (straight.adapter / saved).read_bytes()
    (last,) = {phase.done for phase in said(paused, Phase) if phase.phase == "reference" and phase.done == phase.total}
    assert last == 2 * 48
    assert said(straight, Step)[0].loss == pytest.approx(0.5, abs=1e-3)
    (told,) = said(straight, Eval)
    assert told.metrics["rewards/margins"] > 0.2
    assert told.loss < 0.49


def test_far_more_answers_of_one_kind_are_remarked(make_rated, rated_file, tmp_path):
    few = tmp_path / "few.jsonl"
    rows = [row for row in rated_file.read_text().splitlines() if '"label": true' in row or "sun" in row]
    few.write_text("\n".join(rows))
    heard = []
    spec = make_rated(data={"dataset": str(few), "eval_fraction": 0.0}).read_spec()
    tokenizer = load_tokenizer(spec)
    prepare(spec, tokenizer, stop_ids(spec, tokenizer), heard.append)
    (warning,) = [one for one in heard if isinstance(one, Warned)]
    assert warning.code == "unbalanced_labels"
    assert "undesirable_weight 8" in warning.message
