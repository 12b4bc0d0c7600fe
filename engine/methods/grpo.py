"""Group relative policy optimisation: answers are sampled, rewarded, compared within their group, and learned from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from engine.batches import MicroBatch, Plan, Samples
from engine.evaluation import Evaluated
from engine.losses import policy
from engine.prompts import Prompt, Questions, Reader
from engine.rewards import Case, Grader
from engine.rollouts import Answer, Group, advantages, gather, mean, measured
from engine.sampling import Draw, Sampled
from engine.schedule import learning_rate
from engine.spec import GRPO, RunSpec
from engine.trainer import Stepped, Trainer

EVAL_ANSWERS = 4  # to each held-out prompt
AT_ONCE = 64  # answers that grow in one batch


def grpo(trainer: Trainer, spec: RunSpec, plan: Plan) -> Iterator[Stepped]:
    """Steps from the trainer's own to the plan's last; `num_iterations` of them learn from the same answers."""
    settings = settings_of(spec)
    questions = questions_of(plan.samples)
    judge = Judge(questions.reader, Grader(settings.rewards))
    total = plan.total_steps(spec.training.num_train_epochs, spec.training.max_steps)
    groups: list[list[Group]] = []
    for step in range(trainer.step + 1, total + 1):
        number, again = divmod(step - 1, settings.num_iterations)
        if not groups or not again:
            asked = [[questions.prompts[row] for row in batch.rows] for batch in plan.step(step)]
            groups = collect(trainer, settings, judge, asked, (spec.training.seed, number))
        batches = learnable(trainer, settings, groups)
        loss = partial(
            policy,
            settings=settings,
            answers=sum(len(group.answers) for batch in groups for group in batch),
            tokens=sum(batch.trained_tokens for batch in batches),
        )
        for batch in trainer.share(batches):
            trainer.forward_backward(batch, loss)
        every = [group for batch in groups for group in batch]
        done = trainer.optim_step(learning_rate(spec.optimizer, step, total))
        yield replace(done, metrics=measured(every) | done.metrics, groups=every)


@dataclass(frozen=True)
class Judge:
    """Reads answers and grades them."""

    reader: Reader
    grader: Grader

    def answer(self, prompt: Prompt, sampled: Sampled) -> Answer:
        """One answer as text, with its grade."""
        text, reasoning = self.reader.read(sampled.ids)
        case = Case(
            answer=text,
            expected=prompt.expected,
            prompt=prompt.messages,
            metadata=prompt.metadata,
            reasoning=reasoning,
            tokens=len(sampled.ids),
            truncated=sampled.truncated,
        )
        return Answer(sampled, text, self.grader.grade(case))


def collect(
    trainer: Trainer, settings: GRPO, judge: Judge, asked: Sequence[Sequence[Prompt]], key: tuple[int, ...]
) -> list[list[Group]]:
    """A group of graded answers to every prompt, with advantages over all of them."""
    prompts = [prompt for batch in asked for prompt in batch]
    found = answered(trainer, settings, judge, prompts, settings.num_generations, key)
    better_GA = advantages(np.stack([group.rewards for group in found]), settings.scale_rewards)
    told = iter(
        Group(
            group.prompt,
            [replace(answer, advantage=float(one)) for answer, one in zip(group.answers, row, strict=True)],
        )
        for group, row in zip(found, better_GA, strict=True)
    )
    return [[next(told) for _ in batch] for batch in asked]


def answered(
    trainer: Trainer, settings: GRPO, judge: Judge, prompts: Sequence[Prompt], count: int, key: tuple[int, ...]
) -> list[Group]:
    """`count` graded answers to each prompt, some prompts at a time."""
    draw = Draw(settings.temperature, settings.top_k, settings.top_p, settings.min_p)
    groups = []
    for first in range(0, len(prompts), max(1, AT_ONCE // count)):
        some = prompts[first : first + max(1, AT_ONCE // count)]
        seeds = [np.random.SeedSequence([*key, prompt.row]).generate_state(count).tolist() for prompt in some]
        sampled = trainer.sample_groups([prompt.ids for prompt in some], seeds, draw, settings.max_completion_length)
        groups += [
            Group(prompt, [judge.answer(prompt, one) for one in group])
            for prompt, group in zip(some, sampled, strict=True)
        ]
    return groups


def learnable(trainer: Trainer, settings: GRPO, groups: Sequence[Sequence[Group]]) -> list[MicroBatch]:
    """Micro-batches of the groups that say anything: without a KL term, those whose answers differ in reward."""
    told = [[group for group in batch if settings.beta or group.has_signal] for batch in groups]
    hidden = settings.mask_truncated_completions
    batches = [gather(batch, settings.temperature, mask_truncated=hidden) for batch in told if batch]
    batches = [batch for batch in batches if batch.trained_tokens]
    if not settings.beta:
        return batches
    with trainer.reference_model():
        known = [trainer.logprobs(batch).cpu().numpy() for batch in batches]
    return [
        replace(batch, drawn=replace(batch.drawn, reference_N=reference))
        for batch, reference in zip(batches, known, strict=True)
        if batch.drawn is not None
    ]


def held_out(trainer: Trainer, spec: RunSpec, samples: Samples) -> Evaluated:
    """Mean reward on the held-out prompts, the same draws each time; the loss is its negative: less is better."""
    settings = settings_of(spec)
    questions = questions_of(samples)
    judge = Judge(questions.reader, Grader(settings.rewards))
    prompts = [questions.prompts[row] for row in samples.rows.tolist()]
    groups = answered(trainer, settings, judge, prompts, EVAL_ANSWERS, (spec.training.seed,))
    found = measured(groups)
    tokens = sum(len(answer.sampled.ids) for group in groups for answer in group.answers)
    return Evaluated(-mean([group.rewards for group in groups]), tokens, found)


def questions_of(samples: Samples) -> Questions:
    """The prompts of the samples. Raises TypeError for samples of another method."""
    if samples.questions is None:
        raise TypeError("these samples have no prompts to answer")
    return samples.questions


def settings_of(spec: RunSpec) -> GRPO:
    """The run's method, which is GRPO. Raises TypeError for another."""
    if not isinstance(spec.method, GRPO):
        raise TypeError(f"not a GRPO run: {spec.method.type}")
    return spec.method
