"""Supervised fine-tuning: imitate the trained tokens."""

from collections.abc import Iterator
from functools import partial

from engine import evaluation
from engine.batches import Plan, Samples, in_order
from engine.evaluation import Evaluated
from engine.losses import imitation
from engine.schedule import learning_rate
from engine.spec import RunSpec
from engine.trainer import Stepped, Trainer


def sft(trainer: Trainer, spec: RunSpec, plan: Plan) -> Iterator[Stepped]:
    """Steps from the trainer's own to the plan's last; the loss is the mean over each step's trained tokens."""
    total = plan.total_steps(spec.training.num_train_epochs, spec.training.max_steps)
    for step in range(trainer.step + 1, total + 1):
        batches = plan.step(step)
        loss = partial(imitation, trained_tokens=sum(batch.trained_tokens for batch in batches))
        for batch in trainer.share(batches):
            trainer.forward_backward(batch, loss)
        yield trainer.optim_step(learning_rate(spec.optimizer, step, total))


def held_out(trainer: Trainer, spec: RunSpec, samples: Samples) -> Evaluated:
    """Mean loss over the trained tokens of the held-out rows."""
    loss = partial(imitation, trained_tokens=samples.trained_tokens)
    return evaluation.under(loss, trainer, in_order(samples, spec.data.limit))
