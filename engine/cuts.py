"""What any maximum length would leave of a dataset, in a few numbers that are worked out once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.render.sample import Sample

EVERY = 64  # tokens from one stored length to the next


@dataclass
class Cuts:
    """Counts by position, over all samples; memory grows with the longest sample, not with the rows."""

    trained: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    all: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    longest: Counter[int] = field(default_factory=Counter)  # rows by the length of their longest sample
    begins: Counter[int] = field(default_factory=Counter)  # rows by the position of their first trained token

    def take(self, samples: Sequence[Sample]) -> None:
        """Count a row."""
        if not samples:
            return
        most = max(len(sample.ids) for sample in samples)
        if most > len(self.all):
            more = most + EVERY - most % EVERY - len(self.all)
            self.all, self.trained = (np.pad(counts, (0, more)) for counts in (self.all, self.trained))
        for sample in samples:
            self.all[: len(sample.ids)] += 1
            self.trained[: len(sample.ids)] += sample.trained
        self.longest[most] += 1
        first = [int(sample.trained.argmax()) for sample in samples if sample.trained.any()]
        self.begins[min(first, default=most)] += 1

    def told(self) -> dict[str, Any]:
        """`total` and `trained`: tokens that a maximum length of n * `every` keeps, from n = 0; others [value, rows].

        Between two lengths the tokens lie nearly on a line; rows that are cut, or keep nothing, are exact.
        """
        total, trained = ([0, *np.cumsum(counts)[EVERY - 1 :: EVERY].tolist()] for counts in (self.all, self.trained))
        by_value = {
            name: [list(pair) for pair in sorted(getattr(self, name).items())] for name in ("longest", "begins")
        }
        return {"every": EVERY, "total": total, "trained": trained, **by_value}
