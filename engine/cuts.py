"""What any maximum length would leave of a dataset, in a few numbers that are worked out once."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.render.sample import Sample

EVERY = 64  # tokens from one stored length to the next
BARS = 24  # of the histogram
ROUND_UP = 64  # tokens that the suggested length is a multiple of


@dataclass(frozen=True)
class Kept:
    """What a maximum length leaves: tokens, and the rows that it costs something."""

    trained: int
    total: int
    truncated: int  # rows that lose their end
    dropped: int  # rows that are left out for being longer
    empty: int  # rows of which nothing is left to learn


@dataclass
class Cuts:
    """Counts by position, over all samples; memory grows with the longest sample, not with the rows."""

    trained: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    all: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    longest: Counter[int] = field(default_factory=Counter)  # rows by the length of their longest sample
    begins: Counter[int] = field(default_factory=Counter)  # rows by the position of their first trained token
    whole: dict[int, tuple[int, int]] = field(default_factory=dict)  # (tokens, trained ones) of rows, by their longest

    def take(self, samples: Sequence[Sample], shared: int = 0) -> None:
        """Count a row; the `shared` tokens that all of its samples begin with are counted once."""
        if not samples:
            return
        most = max(len(sample.ids) for sample in samples)
        total, trained = self.whole.get(most, (0, 0))
        total += sum(len(sample.ids) for sample in samples) - shared * (len(samples) - 1)
        self.whole[most] = total, trained + sum(int(sample.trained.sum()) for sample in samples)
        if most > len(self.all):
            more = most + EVERY - most % EVERY - len(self.all)
            self.all, self.trained = (np.pad(counts, (0, more)) for counts in (self.all, self.trained))
        for number, sample in enumerate(samples):
            self.all[shared if number else 0 : len(sample.ids)] += 1
            self.trained[: len(sample.ids)] += sample.trained
        self.longest[most] += 1
        first = [int(sample.trained.argmax()) for sample in samples if sample.trained.any()]
        self.begins[min(first, default=most)] += 1

    def kept(self, limit: int, *, drop: bool = False) -> Kept:
        """What is left at a maximum length, exactly; `drop`: longer rows are left out."""
        longer = sum(rows for length, rows in self.longest.items() if length > limit)
        if drop:
            short = [tokens for length, tokens in self.whole.items() if length <= limit]
            return Kept(sum(trained for _, trained in short), sum(total for total, _ in short), 0, longer, 0)
        empty = sum(rows for first, rows in self.begins.items() if first >= limit)
        return Kept(int(self.trained[:limit].sum()), int(self.all[:limit].sum()), longer, 0, empty)

    def told(self) -> dict[str, Any]:
        """`total` and `trained`: tokens that a maximum length of n * `every` keeps, from n = 0; others [value, rows].

        `whole`: [longest, tokens, trained tokens] of the rows whose longest sample has that length.
        Between two lengths the tokens lie nearly on a line; rows that are cut, or keep nothing, are exact.
        """
        total, trained = ([0, *np.cumsum(counts)[EVERY - 1 :: EVERY].tolist()] for counts in (self.all, self.trained))
        by_value = {
            name: [list(pair) for pair in sorted(getattr(self, name).items())] for name in ("longest", "begins")
        }
        whole = [[length, *tokens] for length, tokens in sorted(self.whole.items())]
        return {"every": EVERY, "total": total, "trained": trained, **by_value, "whole": whole}


def suggested_length(values: Sequence[int] | NDArray[np.int64]) -> int:
    """The least multiple of 64 that keeps 99 of 100 documents of these lengths (at least one) whole."""
    ordered = np.sort(np.asarray(values))
    return math.ceil(int(ordered[math.ceil(len(ordered) * 0.99) - 1]) / ROUND_UP) * ROUND_UP


def lengths(values: Sequence[int]) -> dict[str, Any]:
    """Percentiles, a histogram of equal bars (`to` is exclusive), and the length that keeps 99 of 100 samples whole."""
    if not values:
        return {"p50": 0, "p95": 0, "p99": 0, "max": 0, "suggested": 0, "histogram": []}
    ordered = np.sort(np.asarray(values))
    p50, p95, p99 = (int(ordered[math.ceil(len(ordered) * share) - 1]) for share in (0.5, 0.95, 0.99))
    width = math.ceil((int(ordered[-1]) + 1) / BARS)
    counts = np.bincount(ordered // width)
    bars = [{"from": at * width, "to": (at + 1) * width, "count": int(count)} for at, count in enumerate(counts)]
    return {
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "max": int(ordered[-1]),
        "suggested": suggested_length(values),
        "histogram": bars,
    }
