"""Direct preference optimisation: prefer the better of two answers, without a reward model and without sampling."""

from collections.abc import Iterator
from functools import partial

from engine import evaluation
from engine.batches import Plan, Samples, in_order
from engine.evaluation import Evaluated
from engine.losses import preference
from engine.method import DPO, settings_of
from engine.schedule import learning_rate
from engine.spec import RunSpec
from engine.trainer import Stepped, Trainer


def dpo(trainer: Trainer, spec: RunSpec, plan: Plan) -> Iterator[Stepped]:
    """Steps from the trainer's own to the plan's last; the loss is the mean over each step's pairs."""
    total = plan.total_steps(spec.training.num_train_epochs, spec.training.max_steps)
    for step in range(trainer.step + 1, total + 1):
        batches = plan.step(step)
        loss = partial(
            preference, settings=settings_of(spec.method, DPO), pairs=sum(len(batch.lengths) for batch in batches)
        )
        for batch in trainer.share(batches):
            trainer.forward_backward(batch, loss)
        yield trainer.optim_step(learning_rate(spec.optimizer, step, total))


def held_out(trainer: Trainer, spec: RunSpec, samples: Samples) -> Evaluated:
    """Loss, rewards, margins and accuracy on the held-out pairs."""
    loss = partial(preference, settings=settings_of(spec.method, DPO), pairs=len(samples))
    return evaluation.under(loss, trainer, in_order(samples, spec.data.limit))
