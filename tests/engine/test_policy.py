"""What GRPO learns from given answers and advantages: loss and gradients of a small model are those of TRL."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from engine import rollouts
from engine.losses import policy
from engine.prompts import Prompt
from engine.rewards import Grade
from engine.rollouts import Answer, Group
from engine.sampling import Draw
from engine.spec import GRPO
from tests.engine.runs import pieces
from tests.engine.trl_losses import Scored, alone, padded

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]
ADVANTAGES = [[0.5, -1.0, 0.5], [2.0, -0.3, -1.7]]
TEMPERATURE = 0.7


def moved(trainer, by):
    """The adapter changed a little, the same way each time."""
    torch.manual_seed(int(100 * by))
    with torch.no_grad():
        for value in trainer.built.parameters().values():
            value.add_(torch.randn_like(value), alpha=by)


def theirs(trainer, groups, batch, settings):
    """TRL's own loss."""
    answers = [answer for group in groups for answer in group.answers]
    prompts = padded([group.prompt.ids for group in groups for _ in group.answers], side="left")
    completions = padded([answer.sampled.ids for answer in answers])
    lengths = [len(answer.sampled.ids) for answer in answers]
    inputs = {
        **dict(zip(("prompt_ids", "prompt_mask"), prompts, strict=True)),
        **dict(zip(("completion_ids", "completion_mask"), completions, strict=True)),
        "advantages": torch.tensor([answer.advantage for answer in answers]),
        "old_per_token_logps": padded([answer.sampled.logprobs for answer in answers])[0],
        "num_items_in_batch": torch.tensor(float(sum(lengths))),
    }
    if batch.drawn.reference_N is not None:
        inputs["ref_per_token_logps"] = padded(torch.from_numpy(batch.drawn.reference_N).split(lengths))[0]
    own = alone(
        GRPOTrainer,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        loss_type=settings.loss_type,
        importance_sampling_level=settings.importance_sampling_level,
        beta=settings.beta,
        epsilon_low=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        max_completion_length=settings.max_completion_length,
    )
    return own._compute_loss(Scored(trainer.built.model, TEMPERATURE), inputs), own._metrics["train"]


@pytest.mark.parametrize("beta", [0.0, 0.2])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_loss_and_gradients_are_those_of_trl(make_run, loss_type, level, beta):
    settings = GRPO(loss_type=loss_type, importance_sampling_level=level, beta=beta, max_completion_length=12)
    _, _, trainer = pieces(make_run(method=settings.model_dump()))
    moved(trainer, 0.05)
    sampled = trainer.sample_groups(PROMPTS, [[1, 2, 3], [4, 5, 6]], Draw(TEMPERATURE), 12)
    moved(trainer, 0.02)
    groups = [
        Group(Prompt(at, ids, [], "", {}), [Answer(one, "", Grade(0.0, {})) for one in group]).compared(advantages)
        for at, (ids, group, advantages) in enumerate(zip(PROMPTS, sampled, ADVANTAGES, strict=True))
    ]
    batch = rollouts.gather(groups, TEMPERATURE, mask_truncated=False)
    if beta:
        near = batch.drawn.logprobs_N + np.random.default_rng(0).normal(0, 0.2, batch.trained_tokens)
        batch = replace(batch, drawn=replace(batch.drawn, reference_N=near.astype(np.float32)))
    trainer.forward_backward(batch, partial(policy, settings=settings, answers=6, tokens=batch.trained_tokens))
    ours = {name: value.grad.clone() for name, value in trainer.built.parameters().items()}
    done = trainer.optim_step(0.0)
    trainer.built.model.set_attn_implementation("eager")
    loss, told = theirs(trainer, groups, batch, settings)
    loss.backward()
    assert done.loss == pytest.approx(loss.item(), abs=1e-4)
    for name, value in trainer.built.parameters().items():
        torch.testing.assert_close(ours[name], value.grad, atol=1e-4, rtol=1e-4, msg=name)
    if level == "token":
        assert done.metrics["clip_ratio"] == pytest.approx(told["clip_ratio/region_mean"][0], abs=1e-4) != 0
    if beta:
        assert done.metrics["kl"] == pytest.approx(told["kl"][0], abs=1e-4)
