"""Which samples share a sequence: best-fit decreasing over all of them at once. Numpy only."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Packs:
    """Which samples share a sequence: `members` int64 (samples), pack after pack; `starts` int64 (packs + 1)."""

    members: Ints
    starts: Ints

    @classmethod
    def singles(cls, order: Ints) -> "Packs":
        """Every sample by itself."""
        return cls(order, np.arange(len(order) + 1))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[list[int]]:
        return (self.members[start:end].tolist() for start, end in pairwise(self.starts.tolist()))

    def between(self, first: int, last: int) -> list[list[int]]:
        """The sample indices of the packs from `first` up to before `last`; fewer at the end."""
        return [self.members[start:end].tolist() for start, end in pairwise(self.starts[first : last + 1].tolist())]

    def reordered(self, order: Ints) -> "Packs":
        """The same packs in another order."""
        sizes = np.diff(self.starts)[order]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        return Packs(self.members[np.repeat(self.starts[order] - starts[:-1], sizes) + np.arange(starts[-1])], starts)


def best_fit(lengths: Sequence[int] | Ints, limit: int, order: Sequence[int] | Ints) -> Packs:
    """Best-fit-decreasing over all samples: packs of at most `limit` tokens, O(n log n).

    Longest first, each sample goes into the pack with the least room that it fits in. `order` is a permutation of the
    samples that decides among equal lengths; the number of packs depends on the lengths only. Samples of one length
    move in bulk, so that a million take about a second. Raises ValueError when a sample is longer than `limit`.
    """
    sizes = np.asarray(lengths)
    if not len(sizes):
        return Packs.singles(np.zeros(0, dtype=np.int64))
    if int(sizes.max()) > limit:
        raise ValueError(f"a sample of {int(sizes.max())} tokens does not fit in {limit}")
    ranked = np.asarray(order, dtype=np.int64)
    ranked = ranked[np.argsort(-sizes[ranked], kind="stable")]
    pack_of = _assign(sizes[ranked], limit)
    by_pack = np.argsort(pack_of, kind="stable")
    return Packs(ranked[by_pack], np.concatenate(([0], np.cumsum(np.bincount(pack_of)))))


def _assign(sizes: Ints, limit: int) -> Ints:
    """The pack of each sample; `sizes` never grow."""
    pack_of = np.empty(len(sizes), dtype=np.int64)
    rooms = _Rooms()
    packs = 0
    borders = [0, *(np.flatnonzero(np.diff(sizes)) + 1).tolist(), len(sizes)]
    for at, end in pairwise(borders):
        size = int(sizes[at])
        while at < end:
            room = rooms.least(size)
            each = (room or limit) // size  # samples of this size that one pack takes, one after another
            wanted = -(-(end - at) // each)
            if room:
                taken = rooms.take(room, wanted)
            else:
                taken = np.arange(packs, packs + wanted)
                packs += wanted
            filled = min(end - at, each * len(taken))
            pack_of[at : at + filled] = np.repeat(taken, each)[:filled]
            at += filled
            last = filled - each * (len(taken) - 1)  # in the last pack, which may be left with more room
            rooms.put((room or limit) - size * each, taken[:-1])
            rooms.put((room or limit) - size * last, taken[-1:])
    return pack_of


class _Rooms:
    """Packs by the room that is left in them."""

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._packs: dict[int, list[Ints]] = {}

    def least(self, size: int) -> int:
        """The least room of at least `size`; 0 when no pack has it."""
        at = bisect_left(self._sorted, size)
        return self._sorted[at] if at < len(self._sorted) else 0

    def take(self, room: int, wanted: int) -> Ints:
        """At least one and at most `wanted` packs out of those with `room`."""
        chunks = self._packs[room]
        chunk = chunks.pop()
        if len(chunk) > wanted:
            chunks.append(chunk[wanted:])
        elif not chunks:
            del self._packs[room], self._sorted[bisect_left(self._sorted, room)]
        return chunk[:wanted]

    def put(self, room: int, packs: Ints) -> None:
        """Remember that these packs have `room` left."""
        if not room or not len(packs):
            return
        if room not in self._packs:
            self._packs[room] = []
            insort(self._sorted, room)
        self._packs[room].append(packs)
