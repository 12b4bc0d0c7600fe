"""Losses: pure functions of log-probabilities."""

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batches import MicroBatch
from engine.spec import DPO


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


def per_answer(logprobs_N: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probability and trained tokens of each answer: two (documents, answers), float32."""
    shape = (len(batch.answers), len(batch.answers[0]))
    answers_N = torch.from_numpy(batch.answers_N).to(logprobs_N.device)
    empty = logprobs_N.new_zeros(shape[0] * shape[1])
    sums, tokens = (empty.index_add(0, answers_N, each) for each in (logprobs_N, torch.ones_like(logprobs_N)))
    return sums.view(shape), tokens.view(shape)
