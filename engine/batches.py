"""Which tokens a step sees: packing and order as a pure function of (seed, step). Numpy only.

A micro-batch is always one flat, padding-free sequence of documents, so nothing downstream knows padding. A document
is one sample; documents never see each other (positions restart at 0, `cu_seqlens` marks the borders). A document may
end in several answers to the same prompt: each goes on from the prompt and sees none of the others, so the prompt is
computed once for all of them.
"""

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from engine.packing import Packs, best_fit
from engine.prompts import Questions

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Samples:
    """Tokenised samples, compact: one flat array of ids, one of flags, and where each sample starts.

    `ids` int32 (all tokens), `trained` bool (all tokens), `offsets` int64 (samples + 1), `rows` int64 (samples): the
    row of the file, from 1, that a sample came from. `trained` marks *targets*; the first token of a sample never is.
    `answers` int64 (samples, A): tokens of each of the A answers that a sample ends in, after their common prompt; A is
    0 where a sample is one text. `reference` float32 (samples, A): log-probability of each answer under the weights
    that the run started from, where the method compares with them. `labels` bool (samples): whether the answer is a
    good one, where answers are rated; `others`: the same prompts with answers to others. `questions`: the rows as
    prompts to be answered, where the method samples answers.
    """

    ids: NDArray[np.int32]
    trained: Bools
    offsets: Ints
    rows: Ints
    answers: Ints | None = None
    reference: Floats | None = None
    labels: Bools | None = None
    others: "Samples | None" = None
    questions: Questions | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each sample."""
        return np.diff(self.offsets)

    @property
    def total_tokens(self) -> int:
        """All tokens."""
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens with a loss."""
        return int(self.trained.sum())


@dataclass(frozen=True, eq=False)
class Drawn:
    """Where answers in a micro-batch come from when the model itself wrote them.

    `logprobs_N` float32: of each target when it was drawn, at `temperature` and over the tokens that were kept then;
    `kept` int32 and `kept_offsets`: those tokens, target after target, None where all were. `advantages_A` float32: of
    each answer. `reference_N` float32: each target's log-probability under the weights at the run's start, over the
    same tokens, where the method compares with them.
    """

    temperature: float
    logprobs_N: Floats
    advantages_A: Floats
    kept: NDArray[np.int32] | None
    kept_offsets: Ints
    reference_N: Floats | None = None


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One forward pass: documents one after another, no padding.

    `ids_T`, `position_ids_T` int64 and `trained_T` bool have one entry per token. `trained_T[t]` says that token t is a
    target, predicted from the token before it *in the same text* (never true for a document's first token). `lengths`:
    tokens per document; `rows`: its row in the file, from 1. `answers`: tokens of each answer that a document ends in,
    empty for documents of one text; `reference_DA`, `labels_D`: see `Samples`; `drawn`: how the answers were sampled.
    `idle`: texts of one token to compute besides, which train nothing, so that a device keeps in step with others.
    """

    ids_T: Ints
    position_ids_T: Ints
    trained_T: Bools
    lengths: list[int]
    rows: list[int]
    answers: list[tuple[int, ...]] = field(default_factory=list)
    reference_DA: Floats | None = None
    labels_D: Bools | None = None
    drawn: Drawn | None = None
    idle: int = 0

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Document borders, int32, documents + 1 entries from 0 to T: what variable-length attention takes."""
        return np.concatenate(([0], np.cumsum(self.lengths))).astype(np.int32)

    @property
    def trained_tokens(self) -> int:
        """Targets in this micro-batch."""
        return int(self.trained_T.sum())

    @property
    def tokens(self) -> int:
        """All tokens in this micro-batch."""
        return len(self.ids_T)

    @property
    def sources_N(self) -> Ints:
        """Index of the token that predicts each target: the one before it; for an answer's first, the prompt's last."""
        before_T = np.arange(-1, self.tokens - 1)
        for prompt_end, starts, _ in self._answers():
            before_T[starts] = prompt_end - 1
        return before_T[self.trained_T]

    @property
    def answers_N(self) -> Ints:
        """Which answer each target is of, counted through the micro-batch from 0; -1 outside answers."""
        answer_T = np.full(self.tokens, -1)
        count = 0
        for _, starts, lengths in self._answers():
            for start, length in zip(starts, lengths, strict=True):
                answer_T[start : start + length] = count
                count += 1
        return answer_T[self.trained_T]

    @property
    def texts(self) -> int:
        """How many forward passes it takes where texts run one by one."""
        return self.idle + sum(1 for _ in texts(self.lengths, self.answers))

    def filled(self, lengths: Sequence[int]) -> "MicroBatch":
        """The same with more documents of these lengths behind, which belong to no row and train nothing."""
        if not lengths:
            return self
        more = sum(lengths)
        return replace(
            self,
            ids_T=np.concatenate([self.ids_T, np.zeros(more, np.int64)]),
            position_ids_T=np.concatenate([self.position_ids_T, positions(lengths)]),
            trained_T=np.concatenate([self.trained_T, np.zeros(more, np.bool_)]),
            lengths=[*self.lengths, *lengths],
            answers=[*self.answers, *([()] * len(lengths))] if self.answers else [],
            idle=0,
        )

    def _answers(self) -> Iterator[tuple[int, list[int], tuple[int, ...]]]:
        """Of each document with answers: where its prompt ends, where its answers start, and their lengths."""
        ends = np.cumsum(self.lengths).tolist()
        for end, lengths in zip(ends, self.answers, strict=False):
            prompt_end = end - sum(lengths)
            yield prompt_end, [prompt_end + sum(lengths[:at]) for at in range(len(lengths))], lengths


NOTHING = MicroBatch(
    ids_T=np.zeros(1, np.int64),
    position_ids_T=np.zeros(1, np.int64),
    trained_T=np.zeros(1, np.bool_),
    lengths=[1],
    rows=[],
)
"""A micro-batch that trains nothing, for a device that must keep in step with others."""


class Plan:
    """All batches of a run. `step` is pure: the same samples, settings, seed and step give the same tokens."""

    def __init__(
        self,
        samples: Samples,
        *,
        max_length: int,
        packing: bool,
        batch_size: int = 1,
        accumulation: int = 1,
        seed: int = 0,
    ) -> None:
        """`batch_size`: sequences per micro-batch; `accumulation`: micro-batches per step. No samples: ValueError."""
        if not len(samples):
            raise ValueError("no samples to make batches of")
        self.samples = samples
        self.max_length = max_length
        self.packing = packing
        self.batch_size = batch_size
        self.accumulation = accumulation
        self.seed = seed
        self.repeats = 1
        self._lengths = samples.lengths
        self._sequences = lru_cache(maxsize=2)(self._shuffled)
        self.sequences = len(self._sequences(0))

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps per pass over all samples; the last one of an epoch may be smaller, never empty."""
        return math.ceil(self.sequences / (self.batch_size * self.accumulation)) * self.repeats

    def total_steps(self, epochs: float, max_steps: int = -1) -> int:
        """Steps of the whole run: `max_steps` when positive, else as many as `epochs` passes take (at least 1)."""
        return max_steps if max_steps > 0 else max(1, math.ceil(round(epochs * self.steps_per_epoch, 6)))

    def epoch(self, step: int) -> float:
        """Passes made after `step` steps."""
        return step / self.steps_per_epoch

    def step(self, step: int) -> list[MicroBatch]:
        """The micro-batches of `step`, which counts from 1: `accumulation` of them (fewer at the end of an epoch)."""
        if step < 1:
            raise ValueError("steps count from 1")
        epoch, at = divmod((step - 1) // self.repeats, self.steps_per_epoch // self.repeats)
        per_step = self.batch_size * self.accumulation
        mine = self._sequences(epoch).between(at * per_step, (at + 1) * per_step)
        chunks = (mine[first : first + self.batch_size] for first in range(0, len(mine), self.batch_size))
        return [gather(self.samples, [index for sequence in chunk for index in sequence]) for chunk in chunks]

    def indices(self, steps: int) -> Ints:
        """The samples that the first `steps` steps see, in file order."""
        epochs, rest = divmod(math.ceil(steps / self.repeats), self.steps_per_epoch // self.repeats)
        if epochs:
            return np.arange(len(self.samples))
        seen = self._sequences(0).between(0, rest * self.batch_size * self.accumulation)
        return np.unique([index for sequence in seen for index in sequence])

    def repeated(self, times: int) -> "Plan":
        """The same batches, each serving `times` steps in a row."""
        again = copy(self)
        again.repeats = times
        return again

    def of(self, samples: Samples) -> "Plan":
        """The same batches of other samples: of these, or of what is known of them besides."""
        other = copy(self)
        other.samples = samples
        return other

    def _shuffled(self, epoch: int) -> Packs:
        """The sequences of an epoch in training order."""
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(len(self.samples))
        if not self.packing:
            return Packs.singles(order)
        packs = best_fit(self._lengths, self.max_length, order)
        return packs.reordered(random.permutation(len(packs)))


def in_order(samples: Samples, max_length: int) -> Iterator[MicroBatch]:
    """All samples once, in file order, as micro-batches of at most `max_length` tokens: for evaluation."""
    return (gather(samples, chunk) for chunk in chunks(samples, np.arange(len(samples)), max_length))


def chunks(samples: Samples, indices: Ints, max_length: int) -> Iterator[list[int]]:
    """These samples in this order, as many at a time as fit into `max_length` tokens, at least one."""
    waiting: list[int] = []
    tokens = 0
    for index, length in zip(indices.tolist(), samples.lengths[indices].tolist(), strict=True):
        if waiting and tokens + length > max_length:
            yield waiting
            waiting, tokens = [], 0
        waiting.append(index)
        tokens += length
    if waiting:
        yield waiting


def gather(samples: Samples, indices: Sequence[int]) -> MicroBatch:
    """These samples as one flat micro-batch, in this order."""
    bounds = [(int(samples.offsets[index]), int(samples.offsets[index + 1])) for index in indices]
    lengths = [end - start for start, end in bounds]
    answers = [] if samples.answers is None else [tuple(samples.answers[index].tolist()) for index in indices]
    return MicroBatch(
        ids_T=np.concatenate([samples.ids[start:end] for start, end in bounds]).astype(np.int64),
        position_ids_T=positions(lengths, answers),
        trained_T=np.concatenate([samples.trained[start:end] for start, end in bounds]),
        lengths=lengths,
        rows=[int(samples.rows[index]) for index in indices],
        answers=answers,
        reference_DA=None if samples.reference is None else samples.reference[list(indices)],
        labels_D=None if samples.labels is None else samples.labels[list(indices)],
    )


def positions(lengths: Sequence[int], answers: Sequence[Sequence[int]] = ()) -> Ints:
    """Position of each token in its text: from 0 in a document, and every answer goes on from its prompt's end."""
    parts: list[Ints] = []
    for at, length in enumerate(lengths):
        mine = answers[at] if answers else ()
        prompt = length - sum(mine)
        parts += [np.arange(prompt), *(np.arange(prompt, prompt + answer) for answer in mine)]
    return np.concatenate(parts).astype(np.int64)


def texts(lengths: Sequence[int], answers: Sequence[Sequence[int]] = ()) -> Iterator[tuple[list[int], int]]:
    """Every text of a flat sequence by itself: the indices of its tokens, and how many of them, at its end, are new.

    A prompt with answers is a text per answer, the prompt being new in the first: models that cannot run documents
    packed run these, and the new tokens of all of them are the flat sequence.
    """
    end = 0
    for at, length in enumerate(lengths):
        start, end = end, end + length
        mine = answers[at] if answers else ()
        prompt = list(range(start, end - sum(mine)))
        if not mine:
            yield prompt, length
        at_answer = end - sum(mine)
        for number, answer in enumerate(mine):
            own = list(range(at_answer, at_answer + answer))
            yield prompt + own, answer if number else len(prompt) + answer
            at_answer += answer
