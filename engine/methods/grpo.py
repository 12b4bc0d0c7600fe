"""Group relative policy optimisation: answers are sampled, rewarded, compared within their group, and learned from."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from engine.batches import Plan, Samples
from engine.evaluation import Evaluated
from engine.exam import Exam
from engine.losses import policy
from engine.method import GRPO, settings_of
from engine.rollouts import Group, mean, measured
from engine.schedule import learning_rate
from engine.spec import RunSpec
from engine.trainer import Stepped, Trainer

EVAL_ANSWERS = 4  # to each held-out prompt


def grpo(trainer: Trainer, spec: RunSpec, plan: Plan) -> Iterator[Stepped]:
    """Steps from the trainer's own to the plan's last; `num_iterations` of them learn from the same answers."""
    settings = settings_of(spec.method, GRPO)
    exam = Exam(trainer, settings, plan.samples)
    total = plan.total_steps(spec.training.num_train_epochs, spec.training.max_steps)
    groups: list[list[Group]] = []
    for step in range(trainer.step + 1, total + 1):
        number, again = divmod(step - 1, settings.num_iterations)
        if not groups or not again:
            groups = exam.compared(plan.step(step), (spec.training.seed, number))
        every = [group for batch in groups for group in batch]
        batches = exam.lessons(groups)
        loss = partial(
            policy,
            settings=settings,
            answers=sum(len(group.answers) for group in every),
            tokens=sum(batch.trained_tokens for batch in batches),
        )
        for batch in trainer.share(batches):
            trainer.forward_backward(exam.referred(batch), loss)
        done = trainer.optim_step(learning_rate(spec.optimizer, step, total))
        yield replace(done, metrics=measured(every) | done.metrics, groups=every)


def held_out(trainer: Trainer, spec: RunSpec, samples: Samples) -> Evaluated:
    """Mean reward on the held-out prompts, the same draws each time; the loss is its negative: less is better."""
    exam = Exam(trainer, settings_of(spec.method, GRPO), samples)
    groups = exam.groups(samples.rows.tolist(), EVAL_ANSWERS, (spec.training.seed,))
    tokens = sum(len(answer.sampled.ids) for group in groups for answer in group.answers)
    return Evaluated(-mean([group.rewards for group in groups]), tokens, measured(groups))
