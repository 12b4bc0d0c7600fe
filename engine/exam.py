"""An exam: the prompts of a dataset put to the weights as they are, each answer read, graded and compared."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.batches import MicroBatch, Samples
from engine.failure import Failure
from engine.prompts import Prompt
from engine.rewards import Case, Grader
from engine.rollouts import Answer, Group, advantages, gather, told_apart
from engine.sampling import Draw, Sampled, Thinking
from engine.spec import GRPO
from engine.trainer import Trainer

AT_ONCE = 64  # answers that grow in one batch
MOST_APART = 1.0  # nats a token, on average, between a server that has these weights and the engine


class Exam:
    """The questions in some samples, for one trainer. Raises TypeError for samples that hold no questions."""

    def __init__(self, trainer: Trainer, settings: GRPO, samples: Samples) -> None:
        if samples.questions is None:
            raise TypeError("these samples have no prompts to answer")
        self.trainer = trainer
        self.settings = settings
        self.questions = samples.questions
        self.grader = Grader(settings.rewards)

    def groups(self, rows: Sequence[int], count: int, key: Sequence[int]) -> list[Group]:
        """`count` graded answers to the prompt of each row, some prompts at a time; `key` and row fix what is drawn."""
        how, longest, reader = self.settings, self.settings.max_completion_length, self.questions.reader
        thinking = Thinking(how.thinking_budget, reader.closes, reader.is_open) if how.thinking_budget else None
        draw = Draw(how.temperature, how.top_k, how.top_p, how.min_p, thinking)

        def answered(prompts: Sequence[Prompt]) -> list[Group]:
            seeds = [np.random.SeedSequence([*key, prompt.row]).generate_state(count).tolist() for prompt in prompts]
            sampled = self.trainer.sample_groups([prompt.ids for prompt in prompts], seeds, draw, longest)
            found = zip(prompts, sampled, strict=True)
            return [Group(prompt, [self._graded(prompt, one) for one in group]) for prompt, group in found]

        return self.trainer.spread([self.questions.prompts[row] for row in rows], AT_ONCE // count, answered)

    def compared(self, batches: Sequence[MicroBatch], key: Sequence[int]) -> list[list[Group]]:
        """A group per prompt, batch by batch, in which every answer knows how much better it is than the others."""
        rows = [row for batch in batches for row in batch.rows]
        groups = self.groups(rows, self.settings.num_generations, key)
        if self.trainer.server is not None:
            self._score(groups)
        better_GA = advantages(np.stack([group.rewards for group in groups]), self.settings.scale_rewards)
        told = iter(group.compared(row.tolist()) for group, row in zip(groups, better_GA, strict=True))
        return [[next(told) for _ in batch.rows] for batch in batches]

    def _score(self, groups: Sequence[Group]) -> None:
        """Note what these weights think of answers that a server drew: that is what the ratios compare with.

        Raises Failure when the server thinks so differently that it cannot be sampling from these weights.
        """
        trainer, temperature = self.trainer, self.settings.temperature
        batches = [gather([group], temperature, mask_truncated=False) for group in groups]
        mine = [trainer.logprobs(batch).tolist() for batch in trainer.share(batches)]
        scored = trainer.built.mesh.together(mine, len(batches))
        for group, logprobs in zip(groups, scored, strict=True):
            known = iter(logprobs)
            for answer in group.answers:
                answer.sampled.logprobs = [next(known) for _ in answer.sampled.ids]
        if (apart := told_apart([answer.sampled for group in groups for answer in group.answers])) > MOST_APART:
            message = f"The sampling server's log-probabilities are {apart:.1f} off on average: it has another model."
            raise Failure("sampling_server_differs", message, ["Have it serve the base model of this run."])

    def lessons(self, groups: Sequence[Sequence[Group]]) -> list[MicroBatch]:
        """Micro-batches of the groups that say anything: without a KL term, those whose answers differ in reward."""
        told = [[group for group in batch if self.settings.beta or group.has_signal] for batch in groups]
        masked = self.settings.mask_truncated_completions
        batches = [gather(batch, self.settings.temperature, mask_truncated=masked) for batch in told if batch]
        return [batch for batch in batches if batch.trained_tokens]

    def referred(self, batch: MicroBatch) -> MicroBatch:
        """The batch with what the weights at the run's start think of its answers, where there is a KL term."""
        if not self.settings.beta:
            return batch
        with self.trainer.reference_model():
            known_N = self.trainer.logprobs(batch).cpu().numpy()
        return batch if batch.drawn is None else replace(batch, drawn=replace(batch.drawn, reference_N=known_N))

    def _graded(self, prompt: Prompt, sampled: Sampled) -> Answer:
        """One answer, read and graded."""
        found = self.questions.reader.read(prompt.ids, sampled.ids)
        case = Case(
            answer=found.answer,
            expected=prompt.expected,
            prompt=prompt.messages,
            metadata=prompt.metadata,
            reasoning=found.reasoning,
            tokens=len(sampled.ids),
            truncated=sampled.truncated,
        )
        return Answer(sampled, found.answer, self.grader.grade(case), reasoning_tokens=found.reasoning_tokens)
