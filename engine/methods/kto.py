"""Kahneman-Tversky optimisation: learn from answers that are each marked as good or bad, without pairs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from engine import evaluation
from engine.batches import MicroBatch, Plan, Samples, in_order
from engine.evaluation import Evaluated
from engine.losses import drift, rating
from engine.method import KTO, settings_of
from engine.schedule import learning_rate
from engine.spec import RunSpec
from engine.trainer import Stepped, Trainer


def kto(trainer: Trainer, spec: RunSpec, plan: Plan) -> Iterator[Stepped]:
    """Steps from the trainer's own to the plan's last; the loss is the mean over each step's rows."""
    total = plan.total_steps(spec.training.num_train_epochs, spec.training.max_steps)
    others = plan.of(others_of(plan.samples))
    for step in range(trainer.step + 1, total + 1):
        batches = plan.step(step)
        labels = [label for batch in batches if batch.labels_D is not None for label in batch.labels_D.tolist()]
        kl = drifted(trainer, others.step(step), len(labels))
        loss = partial(rating, settings=settings_of(spec.method, KTO), kl=kl, **counted(labels))
        for batch in trainer.share(batches):
            trainer.forward_backward(batch, loss)
        done = trainer.optim_step(learning_rate(spec.optimizer, step, total))
        yield replace(done, metrics=done.metrics | {"kl": kl})


def held_out(trainer: Trainer, spec: RunSpec, samples: Samples) -> Evaluated:
    """Loss and rewards on the held-out rows."""
    kl = drifted(trainer, in_order(others_of(samples), spec.data.limit), len(samples))
    labels = [] if samples.labels is None else samples.labels.tolist()
    loss = partial(rating, settings=settings_of(spec.method, KTO), kl=kl, **counted(labels))
    found = evaluation.under(loss, trainer, in_order(samples, spec.data.limit))
    return replace(found, metrics=found.metrics | {"kl": kl})


def drifted(trainer: Trainer, batches: Iterable[MicroBatch], rows: int) -> float:
    """The KL to the start, estimated on prompts with answers to others; at least 0."""
    return max(0.0, evaluation.under(partial(drift, rows=rows), trainer, batches).loss)


def counted(labels: Sequence[bool]) -> dict[str, Any]:
    """How many rows are good, and how many bad."""
    return {"good": sum(labels), "bad": len(labels) - sum(labels)}


def others_of(samples: Samples) -> Samples:
    """The same prompts with answers to others. Raises TypeError where they were not made."""
    if samples.others is None:
        raise TypeError("these samples have no answers to others")
    return samples.others
