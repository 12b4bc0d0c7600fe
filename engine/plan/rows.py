"""What a plan needs to know of the data: rows, their lengths, and how many steps they make. Numpy only."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.packing import best_fit
from engine.spec import RunSpec

MOST_PACKED = 200_000  # rows that are packed to count their sequences; of more, the tokens are divided
FILLED = 0.97  # share of a packed sequence that is tokens, where it is not counted


@dataclass(frozen=True)
class Rows:
    """Usable rows of a dataset: how many, and [length in tokens, rows of it] of those that were rendered.

    `tokens`: of all samples of the rendered rows, where a row can be several.
    """

    usable: int
    lengths: Sequence[tuple[int, int]]
    tokens: int
    suggested: int

    @classmethod
    def of(cls, usable: int, survey: Mapping[str, Any] | None) -> "Rows | None":
        """From the numbers of `engine.inspect_data.survey_file`; rows that were not rendered are only counted."""
        if not survey or not survey.get("rendered") or "cuts" not in survey:
            return cls(usable, (), 0, 0) if usable else None
        cuts = survey["cuts"]
        pairs = [(int(length), int(rows)) for length, rows in cuts["longest"]]
        total = int(cuts["total"][-1]) or sum(length * rows for length, rows in pairs)
        return cls(usable, pairs, total, int(survey["lengths"].get("suggested", 0)))

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max((length for length, _ in self.lengths), default=0)

    def sequences(self, spec: RunSpec, max_length: int) -> float:
        """Sequences of an epoch: packed as the run will pack them, or one a row."""
        rendered = sum(rows for _, rows in self.lengths)
        if not spec.packing or not rendered:
            return (1.0 - spec.data.eval_fraction) * self.usable
        training = (1.0 - spec.data.eval_fraction) * self.usable / rendered
        kept = [(min(length, max_length), rows) for length, rows in self.lengths if length]
        whole = sum(length * rows for length, rows in self.lengths)
        samples = max(1.0, self.tokens / max(whole, 1))  # tokens of a row's samples to those of its longest
        if rendered > MOST_PACKED or samples > 1.01:
            tokens = samples * sum(length * rows for length, rows in kept)
            return training * tokens / (FILLED * max_length)
        lengths = np.repeat([length for length, _ in kept], [rows for _, rows in kept])
        return training * len(best_fit(lengths, max_length, np.arange(len(lengths))))

    def filled(self, spec: RunSpec, max_length: int) -> int:
        """Tokens of the largest sequence that there will be."""
        if not self.lengths:
            return max_length
        total = sum(min(length, max_length) * rows for length, rows in self.lengths)
        return max(1, min(max_length, total if spec.packing else self.longest))


def steps(spec: RunSpec, sequences: float) -> int:
    """Optimizer steps of the run."""
    training = spec.training
    if training.max_steps > 0:
        return training.max_steps
    each = training.per_device_train_batch_size * training.gradient_accumulation_steps
    an_epoch = max(1, math.ceil(sequences / each))
    return max(1, math.ceil(round(training.num_train_epochs * an_epoch, 6)))
