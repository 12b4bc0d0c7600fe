"""Text to ids, and from places in the text to places in the ids."""

import itertools
import re
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from engine.render.history import Place
from engine.render.own import Piece
from engine.render.sample import SpanKind

KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
ROLES = ("template", "system", "user", "assistant", "tool")
MOST_CHUNKS, MOST_CHARACTERS = 20_000, 8_000_000  # remembered at a time
PROBES = (("", "a"), ("a", "a"), ("a ", " a"), (" a", "\n\na"), ("a\n", "\na "), ("é", "漢"), ("1", "2"), ("\n", " "))


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
        added = tokenizer.added_tokens_decoder.values()
        self.special = {str(token.content) for token in added if token.special}
        self._seen: dict[str, Encoded] = {}
        self._held = 0
        self._backend = _backend(tokenizer)
        self.border = self._find_border()
        begun = tokenizer("", verbose=False)["input_ids"]
        bos = tokenizer.bos_token_id
        self.begin: int | None = int(bos) if bos is not None and bos in begun[:1] else None  # what begins any text

    def has_marker(self, text: str) -> bool:
        """Whether the text spells one of the tokenizer's control tokens."""
        return any(marker in text for marker in self.special)

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
        if as_text or self.border is None:
            return self._tokenise([text], as_text=as_text)[0]
        return self._in_chunks([chunk for chunk in self.border.split(text) if chunk])

    def ids(self, text: str) -> NDArray[np.int32]:
        """The ids of a chunk that lies between control tokens, without their places."""
        if self._backend is None:
            return self._tokenise([text])[0].ids
        self._backend.encode_special_tokens = False
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def _tokenise(self, texts: list[str], *, as_text: bool = False) -> list[Encoded]:
        """Each text by itself, as the tokenizer does it."""
        if self._backend is not None and not as_text:
            self._backend.encode_special_tokens = False  # the tokenizer leaves it as it was last asked
            # one by one: the few chunks of a row are done before a pool of threads has woken up
            found = (self._backend.encode(text, add_special_tokens=False) for text in texts)
            return [_encoded(one.ids, one.offsets) for one in found]
        options = {"add_special_tokens": False, "split_special_tokens": as_text, "verbose": False}
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        said = self.tokenizer(texts, return_offsets_mapping=fast, **options)
        made = []
        for at, text in enumerate(texts):
            ids = said["input_ids"][at]
            made.append(_encoded(ids, said["offset_mapping"][at] if fast else [(0, len(text))] * len(ids)))
        return made

    def _in_chunks(self, chunks: list[str]) -> Encoded:
        """The text put together from its chunks; those seen before (the history of the turn before) are remembered."""
        new = list(dict.fromkeys(chunk for chunk in chunks if chunk not in self._seen))
        if len(self._seen) > MOST_CHUNKS or self._held > MOST_CHARACTERS:
            self._seen.clear()
            self._held, new = 0, list(dict.fromkeys(chunks))
        if new:
            self._seen.update(zip(new, self._tokenise(new), strict=True))
            self._held += sum(map(len, new))
        parts = [self._seen[chunk] for chunk in chunks]
        begins = list(itertools.accumulate(map(len, chunks[:-1]), initial=0))
        begins_T = np.array(begins).repeat([len(part.ids) for part in parts])
        starts_T = np.concatenate([part.starts for part in parts]) + begins_T
        ends_T = np.concatenate([part.ends for part in parts]) + begins_T
        return Encoded(np.concatenate([part.ids for part in parts]), starts_T, ends_T)

    def _find_border(self) -> re.Pattern[str] | None:
        """Control tokens that nothing joins across, so that the text between two can be tokenised by itself.

        None when this tokenizer does not work that way (one that puts a space before each text, for example).
        """
        added = [token for token in self.tokenizer.added_tokens_decoder.values() if token.special and token.content]
        plain = [str(token.content) for token in added if not (token.lstrip or token.rstrip or token.single_word)]
        if not plain or not getattr(self.tokenizer, "is_fast", False):
            return None
        border = re.compile(f"({'|'.join(re.escape(one) for one in sorted(plain, key=len, reverse=True))})")
        for marker in dict.fromkeys((plain[0], plain[-1])):
            for left, right in PROBES:
                texts = [left, marker, right]
                whole, *parts = self._tokenise([left + marker + right, *(text for text in texts if text)])
                if whole.ids.tolist() != np.concatenate([part.ids for part in parts]).tolist():
                    return None
        return border

    def encode_after(self, prompt: str, prompt_ids: NDArray[np.int32], text: str, pieces: list[Piece]) -> Encoded:
        """A completion, tokenised apart from its prompt, as a model writes it after reading that.

        A tokenizer that puts a space before each text would put one into the middle of the conversation; there the
        completion is what follows the prompt's tokens in both together, if these stay as they are.
        """
        if self.border is None and not any(self.has_marker(text[piece.start : piece.end]) for piece in pieces):
            both, start = self.encode(prompt + text), len(prompt_ids)
            if np.array_equal(both.ids[:start], prompt_ids):
                starts, ends = (np.maximum(part[start:] - len(prompt), 0) for part in (both.starts, both.ends))
                return Encoded(both.ids[start:], starts, ends)
        return self.encode_completion(text, pieces)

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


def _backend(tokenizer: Any) -> Tokenizer | None:
    """What a tokenizer without ways of its own does its work with; asked directly it is faster by a third."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return None
    kind: Any = type(tokenizer)
    own = [
        name
        for name in ("__call__", "_encode_plus")
        if getattr(kind, name) is not getattr(PreTrainedTokenizerFast, name)
    ]
    backend = tokenizer.backend_tokenizer
    return None if own or backend.truncation or backend.padding else backend


def _encoded(ids: list[int], places: list[tuple[int, int]]) -> Encoded:
    pairs = np.array(places, dtype=np.int64).reshape(-1, 2)
    return Encoded(np.array(ids, dtype=np.int32), pairs[:, 0], pairs[:, 1])


def _moved(part: Encoded, by: int) -> Encoded:
    return Encoded(part.ids, part.starts + by, part.ends + by)


def completion_kinds(encoded: Encoded, pieces: list[Piece]) -> NDArray[np.uint8]:
    """The kind of each token, as its place in KINDS: whose text it touches, else `frame`; the last one is the stop."""
    kinds = np.full(len(encoded.ids), KINDS.index("frame"), dtype=np.uint8)
    for piece in pieces:
        kinds[(encoded.starts < piece.end) & (encoded.ends > piece.start)] = KINDS.index(piece.kind)
    kinds[-1:] = KINDS.index("stop")
    return kinds


def prompt_roles(encoded: Encoded, places: list[Place], cue_start: int) -> NDArray[np.uint8]:
    """Whose text each token of a prompt is, as its place in ROLES: the template's own unless it touches a message's."""
    roles = np.zeros(len(encoded.ids), dtype=np.uint8)
    for place in places:
        first, last = np.searchsorted(encoded.ends, place.start, "right"), np.searchsorted(encoded.starts, place.end)
        roles[first:last] = ROLES.index(place.role) if place.role in ROLES else 0
    roles[encoded.starts >= cue_start] = ROLES.index("assistant")
    return roles


def prompt_kinds(encoded: Encoded, cue_start: int) -> NDArray[np.uint8]:
    """The kind of each token of a prompt, as its place in KINDS."""
    return np.where(encoded.starts >= cue_start, KINDS.index("cue"), KINDS.index("prompt")).astype(np.uint8)
