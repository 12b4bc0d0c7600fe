"""Made-up rows for every method, always the same: what the cells of the table learn from. Tokens are random numbers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine.batches import Ints, Samples
from engine.prompts import Prompt, Questions, Reader

DOCUMENTS = (13, 17, 18, 5, 43, 20, 1, 27, 31, 17, 9, 11, 28, 48, 2, 37, 8)
PAIRS = ((9, 7, 12), (3, 20, 5), (14, 6, 6), (1, 9, 30), (22, 3, 8), (6, 11, 1), (17, 15, 14), (2, 4, 25))
RATED = ((9, 7), (3, 20), (14, 6), (1, 9), (22, 3), (6, 11), (17, 15), (2, 25))
PROMPTS = (5, 11, 3, 17, 8, 1, 9, 14)
VOCABULARY = 256
LOGPROB = -5.5  # of a token, about what a random model thinks


class Spoken:
    """A tokenizer as far as answers are read: a token says its number."""

    all_special_tokens: Sequence[str] = ()

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """The numbers with spaces between."""
        return " ".join(map(str, ids))


def documents() -> Samples:
    """Documents of many lengths, a fifth to nine tenths of each trained."""
    random = np.random.default_rng(11)
    offsets = _offsets(DOCUMENTS)
    share = np.repeat(random.uniform(0.2, 0.9, len(DOCUMENTS)), DOCUMENTS)
    trained = random.random(offsets[-1]) < share
    trained[offsets[:-1]] = False
    ids = random.integers(0, VOCABULARY, offsets[-1], dtype=np.int32)
    return Samples(ids, trained, offsets, _rows(DOCUMENTS))


def pairs() -> Samples:
    """Prompts with two answers each, and what a reference thinks of them."""
    return _answered(PAIRS, LOGPROB, seed=12)


def rated() -> Samples:
    """Prompts with an answer each, every third a bad one; and answers to others, which the model has drifted to."""
    good = np.arange(len(RATED)) % 3 != 0
    others = _answered([(prompt, RATED[at - 1][1]) for at, (prompt, _) in enumerate(RATED)], 2 * LOGPROB, seed=15)
    return replace(_answered(RATED, LOGPROB, seed=14), labels=good, others=others)


def _answered(each: Sequence[tuple[int, ...]], logprob: float, seed: int) -> Samples:
    """A sample for each (tokens of a prompt, of its answers), with a reference that thinks so of a token."""
    random = np.random.default_rng(seed)
    lengths = [sum(parts) for parts in each]
    offsets = _offsets(lengths)
    answers = np.array([parts[1:] for parts in each], dtype=np.int64)
    trained = np.concatenate([np.arange(sum(parts)) >= parts[0] for parts in each])
    ids = random.integers(0, VOCABULARY, offsets[-1], dtype=np.int32)
    reference = (answers * logprob + random.normal(0, 2, answers.shape)).astype(np.float32)
    return Samples(ids, trained, offsets, _rows(each), answers=answers, reference=reference)


def prompts() -> Samples:
    """Prompts to be answered."""
    random = np.random.default_rng(13)
    offsets, rows = _offsets(PROMPTS), _rows(PROMPTS)
    ids = random.integers(0, VOCABULARY, offsets[-1], dtype=np.int32)
    asked = {
        int(row): Prompt(int(row), ids[start:end].tolist(), [], "", {})
        for row, start, end in zip(rows, offsets[:-1], offsets[1:], strict=True)
    }
    trained = np.zeros(len(ids), dtype=np.bool_)
    return Samples(ids, trained, offsets, rows, questions=Questions(asked, Reader(Spoken())))


ROWS = {"sft": documents, "dpo": pairs, "kto": rated, "grpo": prompts}


def _offsets(lengths: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _rows(each: Sequence[Any]) -> Ints:
    return np.arange(1, len(each) + 1, dtype=np.int64)
