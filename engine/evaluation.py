"""Held-out rows under a loss: what each method measures between its steps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from engine.batches import MicroBatch
from engine.trainer import Loss, Trainer


@dataclass(frozen=True)
class Evaluated:
    """Means over the held-out rows: the loss (NaN without any trained token) and the method's own measurements."""

    loss: float
    tokens: int
    metrics: dict[str, float] = field(default_factory=dict)


def under(loss: Loss, trainer: Trainer, batches: Iterable[MicroBatch]) -> Evaluated:
    """The sum of all batches' shares; nothing is learned."""
    total, tokens, metrics = 0.0, 0, dict[str, float]()
    for batch in trainer.share(batch for batch in batches if batch.trained_tokens):
        with torch.no_grad():
            logprobs_N = trainer.logprobs(batch)
            found = loss(logprobs_N, batch) if batch.trained_tokens else logprobs_N.sum()
        value, measured = found if isinstance(found, tuple) else (found, {})
        total += float(value)
        tokens += batch.trained_tokens
        for name, share in measured.items():
            metrics[name] = metrics.get(name, 0.0) + float(share)
    sums = trainer.total({"loss": total, "tokens": tokens, **metrics})
    total, tokens = sums.pop("loss"), int(sums.pop("tokens"))
    return Evaluated(total if tokens else math.nan, tokens, sums)
