"""Losses: pure functions of log-probabilities."""

from torch import Tensor

from engine.batches import MicroBatch


def imitation(logprobs_N: Tensor, batch: MicroBatch, trained_tokens: int) -> Tensor:
    """Negative log-likelihood of a micro-batch's trained tokens, divided by those of the *whole* optimizer step.

    Dividing by the step's count, not the micro-batch's, makes the sum over micro-batches the mean over the step's
    tokens however they are spread. `batch` is unused here; preference and policy losses need its documents.
    """
    del batch
    return -logprobs_N.sum() / trained_tokens
