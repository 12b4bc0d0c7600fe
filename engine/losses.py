"""Losses: pure functions of log-probabilities."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batches import Drawn, MicroBatch
from engine.spec import DPO, GRPO, KTO


def imitation(logprobs_N: Tensor, batch: MicroBatch, trained_tokens: int) -> Tensor:
    """Negative log-likelihood of a micro-batch's trained tokens, divided by those of the *whole* optimizer step.

    Dividing by the step's count, not the micro-batch's, makes the sum over micro-batches the mean over the step's
    tokens however they are spread. `batch` is unused here; preference and policy losses need its documents.
    """
    del batch
    return -logprobs_N.sum() / trained_tokens


def preference(logprobs_N: Tensor, batch: MicroBatch, settings: DPO, pairs: int) -> tuple[Tensor, dict[str, Tensor]]:
    """How far each first answer is preferred to the second, over the `pairs` of the whole optimizer step.

    sigmoid: -log sigmoid(beta * margin), DPO (Rafailov et al. 2023, eq. 7), the margin being that of the log-ratios to
    the reference. ipo: (margin per token - 1 / (2 beta))^2 (Azar et al. 2023, eq. 17, in the normalised form of its
    authors). orpo: -log p(chosen) per token - beta * log sigmoid(log odds ratio), no reference (Hong et al. 2024, eq.
    6-7). Rewards are the implicit ones; where they tie the accuracy counts a half.
    """
    sums_P2, tokens_P2 = per_answer(logprobs_N, batch)
    if settings.loss_type == "orpo":
        scores_P2 = sums_P2 / tokens_P2
        odds_P2 = scores_P2 - torch.log1p(-scores_P2.exp())
        losses_P = -scores_P2[:, 0] - settings.beta * F.logsigmoid(odds_P2[:, 0] - odds_P2[:, 1])
    else:
        scores_P2 = sums_P2 - torch.as_tensor(batch.reference_DA, device=sums_P2.device)
        if settings.loss_type == "sigmoid":
            losses_P = -F.logsigmoid(settings.beta * (scores_P2[:, 0] - scores_P2[:, 1]))
        else:
            mean_P2 = scores_P2 / tokens_P2
            losses_P = (mean_P2[:, 0] - mean_P2[:, 1] - 1 / (2 * settings.beta)).square()
    rewards_P2 = settings.beta * scores_P2.detach()
    margins_P = rewards_P2[:, 0] - rewards_P2[:, 1]
    measured = {
        "rewards/chosen": rewards_P2[:, 0],
        "rewards/rejected": rewards_P2[:, 1],
        "rewards/margins": margins_P,
        "rewards/accuracies": (margins_P.sign() + 1) / 2,
        "logps/chosen": sums_P2[:, 0].detach(),
        "logps/rejected": sums_P2[:, 1].detach(),
    }
    return losses_P.sum() / pairs, {name: values_P.sum() / pairs for name, values_P in measured.items()}


def drift(logprobs_N: Tensor, batch: MicroBatch, rows: int) -> Tensor:
    """How much likelier answers are than at the run's start, over the `rows` of a whole step, nats."""
    sums_DA, _ = per_answer(logprobs_N, batch)
    return (sums_DA - torch.as_tensor(batch.reference_DA, device=sums_DA.device)).sum() / rows


def rating(
    logprobs_N: Tensor, batch: MicroBatch, settings: KTO, kl: float, good: int, bad: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Make good answers likelier and bad ones less likely, as far as people feel gains and losses.

    Weight * (1 - sigmoid(beta * (log-ratio to the reference - kl))), with the sign turned for bad answers, mean over
    the `good` and `bad` rows of the whole optimizer step (Ethayarajh et al. 2024, eq. 7 and 8). `kl` is where neither
    gain nor loss is felt: how far the model has drifted, at least 0. What is measured of good answers, or bad ones, is
    not a number in a step without any.
    """
    sums_D = per_answer(logprobs_N, batch)[0][:, 0]
    good_D = torch.as_tensor(batch.labels_D, device=sums_D.device)
    ratios_D = sums_D - torch.as_tensor(batch.reference_DA, device=sums_D.device)[:, 0]
    gains_D = torch.where(good_D, ratios_D - kl, kl - ratios_D)
    weights_D = torch.where(good_D, settings.desirable_weight, settings.undesirable_weight)
    losses_D = weights_D * (1 - (settings.beta * gains_D).sigmoid())
    rewards_D, sums_D = settings.beta * ratios_D.detach(), sums_D.detach()
    measured = {
        "rewards/chosen": rewards_D[good_D].sum() / good,
        "rewards/rejected": rewards_D[~good_D].sum() / bad,
        "logps/chosen": sums_D[good_D].sum() / good,
        "logps/rejected": sums_D[~good_D].sum() / bad,
    }
    measured["rewards/margins"] = measured["rewards/chosen"] - measured["rewards/rejected"]
    return losses_D.sum() / (good + bad), measured


def policy(
    logprobs_N: Tensor, batch: MicroBatch, settings: GRPO, answers: int, tokens: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Make answers with an advantage likelier, within a clipped ratio to what they were sampled from.

    `answers` and `tokens` are those of the whole optimizer step. The ratio's two sides are normalised over the same
    kept tokens. GRPO (Shao et al. 2024), GSPO's sequence level (Zheng et al. 2025), and how a step's tokens are
    weighted: grpo gives every answer, dapo (Yu et al. 2025) every token, the same weight; dr_grpo (Liu et al. 2025)
    divides by the longest possible answer. KL to the start is the unbiased positive estimate (Schulman 2020).
    """
    drawn = cast(Drawn, batch.drawn)
    device = logprobs_N.device
    answers_N = torch.from_numpy(batch.answers_N).to(device)
    advantages_N = torch.from_numpy(drawn.advantages_A).to(device)[answers_N]
    counts_A = torch.bincount(answers_N, minlength=len(drawn.advantages_A)).clamp(min=1)
    log_ratio_N = logprobs_N - torch.from_numpy(drawn.logprobs_N).to(device)
    if settings.importance_sampling_level == "sequence":
        sums_A = log_ratio_N.new_zeros(len(counts_A)).index_add(0, answers_N, log_ratio_N)
        log_ratio_N = (sums_A / counts_A)[answers_N]
    ratio_N = log_ratio_N.exp()
    clipped_N = ratio_N.clamp(1 - settings.epsilon, 1 + settings.epsilon_high)
    losses_N = -torch.minimum(ratio_N * advantages_N, clipped_N * advantages_N)
    weights = {
        "grpo": 1.0 / (counts_A[answers_N] * answers),
        "dapo": torch.full_like(ratio_N, 1.0 / max(1, tokens)),
        "dr_grpo": torch.full_like(ratio_N, 1.0 / (answers * settings.max_completion_length)),
    }
    measured = {
        "ratio": ratio_N,
        "clip_ratio": ((ratio_N * advantages_N) > (clipped_N * advantages_N)).float(),
        "logps/difference": log_ratio_N.abs(),
    }
    if drawn.reference_N is not None:
        apart_N = torch.from_numpy(drawn.reference_N).to(device) - logprobs_N
        kl_N = apart_N.exp() - apart_N - 1
        losses_N = losses_N + settings.beta * kl_N
        measured["kl"] = kl_N
    loss = (losses_N * weights[settings.loss_type]).sum()
    return loss, {name: values_N.detach().sum() / max(1, tokens) for name, values_N in measured.items()}


def per_answer(logprobs_N: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probability and trained tokens of each answer: two (documents, answers), float32."""
    shape = (len(batch.answers), len(batch.answers[0]))
    answers_N = torch.from_numpy(batch.answers_N).to(logprobs_N.device)
    empty = logprobs_N.new_zeros(shape[0] * shape[1])
    sums, tokens = (empty.index_add(0, answers_N, each) for each in (logprobs_N, torch.ones_like(logprobs_N)))
    return sums.view(shape), tokens.view(shape)
