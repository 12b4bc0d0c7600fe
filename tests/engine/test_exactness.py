"""The numbers are those of the plain loop: resume, accumulation, recomputing and our own LoRA path change nothing."""

import shutil
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from engine import lora
from engine.events import Step, Warned
from engine.losses import imitation
from engine.methods import METHODS
from engine.schedule import learning_rate
from engine.train import train
from tests.engine.runs import assert_resumes, pieces, said


def go(run, steps=None):
    """The steps of a run and the adapter it ends with."""
    spec, plan, trainer = pieces(run)
    done = []
    for step in METHODS["sft"](trainer, spec, plan):
        done.append(step)
        if step.step == steps:
            break
    return done, {name: value.detach().clone() for name, value in trainer.built.parameters().items()}


def assert_equal(first, second, **tolerance):
    (steps, weights), (other_steps, other_weights) = first, second
    assert len(steps) == len(other_steps)
    for one, other in zip(steps, other_steps, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=tolerance.get("loss", 0))
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=tolerance.get("norm", 0), abs=0)
        assert one.learning_rate == other.learning_rate
    for name, value in weights.items():
        torch.testing.assert_close(
            value, other_weights[name], atol=tolerance.get("weights", 0), rtol=0, msg=f"{name} differs"
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_R01_five_steps_and_five_resumed_are_ten_straight_bit_for_bit(make_run, tmp_path, dtype):
    settings = {"training": {"dtype": dtype, "max_steps": 10}, "lora": {"lora_dropout": 0.1}}
    run = make_run(**settings)
    assert_resumes(run, tmp_path / "state", 5)


def test_R03_a_half_written_newest_checkpoint_is_passed_over_and_the_result_is_the_same(make_run, unproven):
    straight, broken = make_run("straight"), make_run("broken")
    assert train(straight.path) == 0
    assert train(broken.path) == 0
    newest = broken.checkpoints / "step-10"
    weights = newest / "adapter.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    shutil.rmtree(broken.adapter)
    assert train(broken.path) == 0
    (warning,) = said(broken, Warned)
    assert "step-10" in warning.message
    assert "step-5" in warning.message
    resumed = said(broken, Step)[10:]
    expected = said(straight, Step)[5:]
    keys = {"step", "loss", "learning_rate", "grad_norm", "tokens"}
    assert [step.model_dump(include=keys) for step in resumed] == [step.model_dump(include=keys) for step in expected]
    saved = "adapter_model.safetensors"
    assert (broken.adapter / saved).read_bytes() == (straight.adapter / saved).read_bytes()


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "alone"])
def test_M01_accumulating_1_by_32_is_4_by_8_is_8_by_4(make_run, chat_file, tmp_path, packing):
    rows = tmp_path / "many.jsonl"
    rows.write_text("\n".join([chat_file.read_text()] * 4))
    runs = [
        make_run(
            f"run-{size}",
            data={"dataset": str(rows), "packing": packing},
            training={
                "max_steps": 2,
                "per_device_train_batch_size": size,
                "gradient_accumulation_steps": 32 // size,
                "dtype": "float32",
                "device": "cpu",
            },
        )
        for size in (1, 4, 8)
    ]
    first, *others = [go(run) for run in runs]
    for other in others:
        assert_equal(first, other, loss=1e-5, norm=1e-4, weights=2e-4)


def test_recomputing_activations_changes_nothing(make_run):
    plain = go(make_run("plain", training={"max_steps": 4, "dtype": "float32", "device": "cpu"}))
    again = go(
        make_run(
            "again", training={"max_steps": 4, "gradient_checkpointing": True, "dtype": "float32", "device": "cpu"}
        )
    )
    assert_equal(plain, again)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_our_sft_is_a_plain_transformers_and_peft_loop(make_run, family):
    run = make_run(family=family)
    steps, _ = go(run)
    spec, plan, _ = pieces(run)
    assert [step.loss for step in steps] == pytest.approx(plain_loop(spec, plan), abs=1e-4)
    assert steps[-1].loss < steps[0].loss


def plain_loop(spec, plan):
    """One padded-free forward per document through unmodified transformers and PEFT; full logits, cross entropy."""
    model = AutoModelForCausalLM.from_pretrained(spec.model, dtype=torch.float32, attn_implementation="eager")
    model.requires_grad_(False)
    config = LoraConfig(
        r=spec.lora.r, lora_alpha=spec.lora.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    tuned = get_peft_model(model, config)
    lora.seed_adapter(model, spec.training.seed)
    weights = [value for value in tuned.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1.0, weight_decay=0.0)
    losses = []
    total = plan.total_steps(spec.training.num_train_epochs, spec.training.max_steps)
    for step in range(1, total + 1):
        terms = []
        for batch in plan.step(step):
            ids, trained = torch.from_numpy(batch.ids_T), torch.from_numpy(batch.trained_T)
            for tokens, flags in zip(ids.split(batch.lengths), trained.split(batch.lengths), strict=True):
                scores = tuned(input_ids=tokens[None]).logits[0].float()
                terms.append(
                    torch.nn.functional.cross_entropy(scores[:-1][flags[1:]], tokens[1:][flags[1:]], reduction="sum")
                )
        loss = torch.stack(terms).sum() / sum(batch.trained_tokens for batch in plan.step(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, spec.optimizer.max_grad_norm)
        optimizer.param_groups[0]["lr"] = learning_rate(spec.optimizer, step, total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("extra", [{}, {"use_rslora": True}, {"use_dora": True}, {"lora_dropout": 0.2}], ids=str)
def test_every_adapter_kind_learns(make_run, extra):
    steps, _ = go(make_run(lora=extra))
    assert steps[-1].loss < steps[0].loss


def test_the_short_lora_path_is_pefts_own_in_values_and_gradients(make_run):
    _, plan, trainer = pieces(make_run())
    with torch.no_grad():
        for value in trainer.built.parameters().values():
            value.add_(torch.randn_like(value) * 0.1)
    (batch,) = plan.step(1)

    def measure():
        trainer.forward_backward(batch, partial(imitation, trained_tokens=batch.trained_tokens))
        found = {name: value.grad.clone() for name, value in trainer.built.parameters().items()}
        return trainer.optim_step(0.0).loss, found

    loss, ours = measure()
    for module in trainer.built.model.modules():
        if "lora_A" in dict(module.named_children()):
            del module.__dict__["forward"]
    peft_loss, theirs = measure()
    assert loss == pytest.approx(peft_loss, abs=1e-6)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-6, rtol=1e-4, msg=name)


def test_the_adapter_starts_from_its_names_and_the_seed(make_run):
    first, again = (pieces(make_run(name))[2].built.parameters() for name in ("a", "b"))
    other = pieces(make_run("c", training={"seed": 1, "dtype": "float32", "device": "cpu"}))[2].built.parameters()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "lora_A" in name)


def test_the_base_model_is_inside_the_block_and_nothing_loses_its_gradient(make_run):
    _, plan, trainer = pieces(make_run())
    (batch,) = plan.step(1)
    base = trainer.logprobs(batch)
    with torch.no_grad():
        for value in trainer.built.parameters().values():
            value.add_(0.1)
    tuned = trainer.logprobs(batch)
    with trainer.base_model():
        assert torch.equal(trainer.logprobs(batch), base)
    assert torch.equal(trainer.logprobs(batch), tuned)
    assert all(value.requires_grad for value in trainer.built.parameters().values())
