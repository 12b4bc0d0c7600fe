"""A row as what training reads: documents, cut at a maximum length or left out, counted, and stored compactly."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from engine.batches import Samples
from engine.render.pair import Pair
from engine.render.sample import Sample


@dataclass(frozen=True, eq=False)
class Document:
    """`ids` int32 and `trained` bool of equal length; `answers`: tokens of each answer that it ends in, if it does.

    Answers follow their common prompt and do not see each other; without any it is one text. `label`: whether its one
    answer is a good one, where it is rated.
    """

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    answers: tuple[int, ...] = ()
    label: bool | None = None

    @property
    def length(self) -> int:
        """Tokens of its longest text: the prompt with one answer."""
        return len(self.ids) - sum(self.answers) + max(self.answers, default=0)

    @property
    def needed(self) -> int:
        """Tokens before the first that is trained."""
        return int(self.trained.argmax()) if self.trained.any() else len(self.ids)

    def cut(self, limit: int) -> "Document | None":
        """Every text cut at `limit` tokens; None when there is nothing left to learn."""
        if self.length > limit:
            return self._shorter(limit)
        return self if self.trained.any() else None

    def _shorter(self, limit: int) -> "Document | None":
        prompt = len(self.ids) - sum(self.answers)
        if not self.answers:
            return Document(self.ids[:limit], self.trained[:limit]) if self.trained[:limit].any() else None
        if prompt >= limit:
            return None
        ends = np.cumsum([prompt, *self.answers])
        kept = tuple(min(answer, limit - prompt) for answer in self.answers)
        places = [range(prompt), *(range(end, end + answer) for end, answer in zip(ends.tolist(), kept, strict=False))]
        index = np.concatenate([np.asarray(place, dtype=np.int64) for place in places])
        return Document(self.ids[index], self.trained[index], kept, self.label)


def documents_of(samples: Iterable[Sample], label: bool | None = None) -> list[Document]:
    """One document per sample; with a label, what is trained of it is its one answer."""
    if label is None:
        return [Document(sample.ids, sample.trained) for sample in samples]
    return [
        Document(sample.ids, sample.trained, (len(sample.ids) - int(sample.trained.argmax()),), label)
        for sample in samples
    ]


def document_of(pair: Pair) -> Document:
    """Both answers after their prompt, which is there once."""
    at, sides = pair.prompt_length, (pair.chosen, pair.rejected)
    ids = np.concatenate([pair.prompt, *(side.ids[at:] for side in sides)])
    trained = np.concatenate([np.zeros(at, dtype=np.bool_), *(side.trained[at:] for side in sides)])
    return Document(ids, trained, tuple(len(side.ids) - at for side in sides))


@dataclass
class Cutter:
    """Brings rows to a maximum length and counts what that does to them.

    `drop`: a row with a longer document is left out whole, not cut.
    """

    limit: int
    drop: bool = False
    truncated: int = 0  # rows
    dropped: int = 0  # rows
    empty: int = 0  # rows of which nothing is left to learn
    needed: int = 0  # tokens of the shortest prompt that fills the window

    def take(self, documents: Sequence[Document]) -> list[Document]:
        """What is kept of a row."""
        longer = any(one.length > self.limit for one in documents)
        if longer and self.drop:
            self.dropped += 1
            return []
        kept = [one for one in (document.cut(self.limit) for document in documents) if one]
        self.truncated += longer
        if not kept:
            self.leave_out(min(one.needed for one in documents))
        return kept

    def leave_out(self, needed: int) -> None:
        """Count a row whose prompt of `needed` tokens fills the window."""
        self.empty += 1
        self.needed = min(self.needed or needed, needed)


@dataclass
class Store:
    """Documents while they are collected: flat and compact."""

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    trained: bytearray = field(default_factory=bytearray)
    offsets: "array[int]" = field(default_factory=lambda: array("q", [0]))
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    answers: list[tuple[int, ...]] = field(default_factory=list)
    labels: list[bool | None] = field(default_factory=list)
    row_count: int = 0

    def add(self, row: int, documents: Sequence[Document]) -> None:
        """Append the documents of one row, unless there are none."""
        for one in documents:
            self.ids.frombytes(one.ids.astype(np.int32).tobytes())
            self.trained += one.trained.tobytes()
            self.offsets.append(len(self.ids))
            self.rows.append(row)
            self.answers.append(one.answers)
            self.labels.append(one.label)
        self.row_count += bool(documents)

    def samples(self) -> Samples:
        """What was collected, without a copy."""
        return Samples(
            ids=np.frombuffer(self.ids, dtype=np.int32),
            trained=np.frombuffer(self.trained, dtype=np.bool_),
            offsets=np.frombuffer(self.offsets, dtype=np.int64),
            rows=np.frombuffer(self.rows, dtype=np.int64),
            answers=np.array(self.answers, dtype=np.int64) if any(self.answers) else None,
            labels=None if not self.labels or None in self.labels else np.array(self.labels, dtype=np.bool_),
        )

    def lengths(self) -> NDArray[np.int64]:
        """Of every document its longest text."""
        offsets = np.frombuffer(self.offsets, dtype=np.int64)
        whole = offsets[1:] - offsets[:-1]
        if not any(self.answers):
            return whole
        answers = np.array(self.answers, dtype=np.int64)
        return np.asarray(whole - answers.sum(axis=1) + answers.max(axis=1), dtype=np.int64)

    def cut(self, cutter: Cutter) -> "Store":
        """A store of what is kept."""
        kept = Store()
        for row, documents in self._rows():
            kept.add(row, cutter.take(documents))
        return kept

    def _rows(self) -> Iterator[tuple[int, list[Document]]]:
        """Every row with its documents."""
        all_ = self.samples()
        for row, group in groupby(range(len(self.rows)), key=lambda at: self.rows[at]):
            places = [(at, slice(self.offsets[at], self.offsets[at + 1])) for at in group]
            yield (
                row,
                [
                    Document(all_.ids[place], all_.trained[place], self.answers[at], self.labels[at])
                    for at, place in places
                ],
            )
