"""Text to ids, and from places in the text to places in the ids."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.render.sample import SpanKind
from engine.render.turns import Piece


@dataclass(frozen=True, eq=False)
class Encoded:
    """`ids` int32; `starts`, `ends` int64: characters of the text that each token covers."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Encoder:
    """Encodes rendered text with nothing added: the template has written every special token that belongs there."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.markers = sorted((marker for marker in tokenizer.get_added_vocab() if marker), key=len, reverse=True)
        self._first = {marker[0] for marker in self.markers}

    def has_marker(self, text: str) -> bool:
        """Whether the text spells one of the tokenizer's control tokens."""
        return any(first in text for first in self._first) and any(marker in text for marker in self.markers)

    def text_of(self, token_id: int) -> str:
        """A token as it stands in text; '' for an id that the tokenizer does not have."""
        token = self.tokenizer.convert_ids_to_tokens(token_id)
        if token is None or token in self.markers:
            return token or ""
        return str(self.tokenizer.decode([token_id]))

    def encode(self, text: str, *, as_text: bool = False) -> Encoded:
        """Ids and places. `as_text`: markers in it are spelled out as ordinary text, not as control tokens."""
        if not text:
            return Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64))
        options = {"add_special_tokens": False, "split_special_tokens": as_text, "verbose": False}
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        found = self.tokenizer(text, return_offsets_mapping=fast, **options)
        ids = np.asarray(found["input_ids"], dtype=np.int32)
        places = np.asarray(found["offset_mapping"] if fast else [(0, len(text))] * len(ids), dtype=np.int64)
        return Encoded(ids, places.reshape(-1, 2)[:, 0], places.reshape(-1, 2)[:, 1])

    def encode_completion(self, text: str, pieces: list[Piece]) -> Encoded:
        """A completion. A person's own text that spells a marker (`<|im_end|>`) never becomes the control token."""
        marked = [piece for piece in pieces if self.has_marker(text[piece.start : piece.end])]
        if not marked:
            return self.encode(text)
        parts: list[Encoded] = []
        at = 0
        for piece in marked:
            parts += [_moved(self.encode(text[at : piece.start]), at)]
            parts += [_moved(self.encode(text[piece.start : piece.end], as_text=True), piece.start)]
            at = piece.end
        parts.append(_moved(self.encode(text[at:]), at))
        return Encoded(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "starts", "ends")))


def _moved(part: Encoded, by: int) -> Encoded:
    return Encoded(part.ids, part.starts + by, part.ends + by)


def completion_kinds(encoded: Encoded, pieces: list[Piece]) -> list[SpanKind]:
    """The kind of each token: whose text it touches, else `frame`; the last one is the stop."""
    kinds: list[SpanKind] = ["frame"] * len(encoded.ids)
    for piece in pieces:
        touched = (encoded.starts < piece.end) & (encoded.ends > piece.start)
        for index in np.flatnonzero(touched).tolist():
            kinds[index] = piece.kind
    if kinds:
        kinds[-1] = "stop"
    return kinds
