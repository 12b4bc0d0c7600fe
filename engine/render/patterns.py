"""The tokens of plain conversations, put together without rendering: each text is tokenised in its place.

A pattern is what conversations of one shape become: for every learned turn the pieces of its prompt that are new and
those of its completion, between the control tokens at which text can be tokenised apart. It is worked out from the
skeletons of the shape's renderings, and made only where one sample holds the whole conversation, every turn goes on
from the first level that is tried, and nothing stands before an answer. A conversation that does not fit its pattern
(a text that spells a control token, or joins tokens with the words before it) takes the long way.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.render.conversation import Conversation
from engine.render.sample import Note, Rendered, Sample
from engine.render.template import Variables
from engine.render.tokens import Encoder
from engine.render.traced import Guard, Part, Traced, word
from engine.render.turns import TurnReader
from engine.rows.model import Message

PLAIN = frozenset(("role", "content", "weight"))
SEEN_FIRST = 3  # conversations of a shape that take the long way before a pattern is made
COMPARED = 2  # uses of a pattern that are compared with the long way
MOST_SHAPES = 1_000

Ids = NDArray[np.int32]
Chunk = tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class _Piece:
    """A chunk between control tokens; `ids` when no text of the row is in it."""

    parts: Chunk
    ids: Ids | None

    def encoded(self, texts: list[str], encoder: Encoder) -> Ids:
        """Its tokens with these texts."""
        return self.ids if self.ids is not None else encoder.ids(_filled(self.parts, texts))


@dataclass(frozen=True, eq=False)
class _Turn:
    """New pieces of the prompt, pieces of the completion; `join`: where they meet in the prompt of the next turn."""

    prompt: list[_Piece]
    completion: list[_Piece]
    join: Chunk


@dataclass(eq=False)
class Pattern:
    """What conversations of one shape become. `uses`: how often it was filled."""

    turns: list[_Turn]
    guards: list[Guard]
    stop_ids: frozenset[int]
    level: Mapping[str, Any]
    warnings: list[Note]
    uses: int = 0

    def filled(self, texts: list[str], encoder: Encoder) -> Rendered | None:
        """The sample of a conversation with these texts, without spans; None when it does not fit."""
        for guard, text in zip(self.guards, texts, strict=True):
            if text.isspace() or not guard.passes(text):
                return None
        found: list[Ids] = []
        lengths: list[int] = []
        for at, turn in enumerate(self.turns):
            asked = [piece.encoded(texts, encoder) for piece in turn.prompt]
            said = [piece.encoded(texts, encoder) for piece in turn.completion]
            if at + 1 < len(self.turns) and turn.join:
                both = encoder.ids(_filled(turn.join, texts))
                if not np.array_equal(both, np.concatenate([asked[-1], said[0]])):
                    return None
            if any(not self.stop_ids.isdisjoint(ids.tolist()) for ids in said[:-1]):
                return None
            found += asked + said
            lengths += [sum(map(len, asked)), sum(map(len, said))]
        trained = np.tile([False, True], len(self.turns)).repeat(lengths)
        return Rendered([Sample(np.concatenate(found), trained, [], dict(self.level))], list(self.warnings))


class Patterns:
    """Those of one renderer, made when a shape comes again."""

    def __init__(self, reader: TurnReader, encoder: Encoder, stop_ids: frozenset[int]) -> None:
        self.reader = reader
        self.encoder = encoder
        self.stop_ids = stop_ids
        self.known: dict[tuple[Any, ...], int | Pattern] = {}  # a number: how often it was seen, below 0: has none
        self.possible = encoder.border is not None

    def render(self, messages: list[Message], turns: list[int], told: Variables) -> Rendered | None:
        """The tokens of a conversation without tools, its `turns` learned; None: it has to take the long way."""
        if not self.possible or not all(message.keys() <= PLAIN and "content" in message for message in messages):
            return None
        variables = json.dumps(dict(told), sort_keys=True, default=str) if told else ""
        shape = (variables, *turns, *[(message["role"], *message) for message in messages])
        known = self.known.get(shape, 0)
        if not isinstance(known, Pattern):
            if len(self.known) >= MOST_SHAPES:
                self.known.clear()
            if known == SEEN_FIRST:
                self.known[shape] = self._made(messages, turns, told) or -1
            elif known >= 0:
                self.known[shape] = known + 1
            return None
        found = known.filled([message["content"] for message in messages], self.encoder)
        if found is not None and known.uses < COMPARED:
            known.uses += 1
            self.possible = _same(found, self._long(messages, turns, told))
        return found if self.possible else None

    def _long(self, messages: list[Message], turns: list[int], told: Variables) -> Rendered:
        return Conversation(self.reader, self.encoder, self.stop_ids, messages, [], told).render(turns)

    def _made(self, messages: list[Message], turns: list[int], told: Variables) -> Pattern | None:
        """The pattern of this shape; None when it has none."""
        guards = [Guard() for _ in messages]
        texts = [word(slot) for slot in range(len(messages))]
        words = [{**message, "content": text} for message, text in zip(messages, texts, strict=True)]
        read = self._turns(words, turns, told, guards)
        rendered = self._long(words, turns, told) if read else Rendered()
        if not read or rendered.refusals or len(rendered.samples) != 1:
            return None
        made = Pattern(read, guards, self.stop_ids, rendered.samples[0].level, rendered.warnings)
        found = made.filled(texts, self.encoder)
        return made if found is not None and _same(found, rendered) else None

    def _turns(
        self, messages: list[Message], turns: list[int], told: Variables, guards: list[Guard]
    ) -> list[_Turn] | None:
        """The pieces of every turn; what the texts must be like goes to `guards`."""
        before: Chunk = ()
        found: list[_Turn] = []
        for k in turns:
            level = self.reader.candidates(messages[k], told)[0]
            asked = self.reader.skeletons.of(messages[:k], cue=True, variables=level.variables) if k else None
            said = self.reader.skeletons.of(messages[: k + 1], cue=False, variables=level.variables)
            new = _after(asked.parts, before) if asked else None
            rest = _after(said.parts, asked.parts) if asked and said else None
            completion = self._completion(rest, k) if rest else None
            if asked is None or said is None or not new or completion is None:
                return None
            if {part for part in asked.parts if isinstance(part, int)} != set(range(k)):
                return None  # the template leaves a text out
            for guard, *others in zip(guards, asked.guards, strict=False):
                _add(guard, others)
            for guard, *others in zip(guards, said.guards, strict=False):
                _add(guard, others)
            before = _merged((*asked.parts, *completion))
            found.append(self._turn(new, completion))
        if not found or found[0].prompt[0].ids is None:
            return None  # whether the sample begins as the tokenizer begins one depends on the text
        whole = Traced.of(before, guards)
        if isinstance(whole, Traced):
            for marker in self.encoder.special:
                whole.only_in_words(marker)
        return found

    def _completion(self, rest: Chunk, k: int) -> Chunk | None:
        """What the model writes: the answer, with nothing but white space before it, to the stop; None: otherwise."""
        blank, *after = rest if isinstance(rest[0], str) else ("", *rest)
        if len(after) < 2 or after[0] != k or not isinstance(after[1], str) or str(blank).strip():
            return None
        ends = [(at, -len(stop), stop) for stop in self.reader.stops if (at := after[1].find(stop)) >= 0]
        if not ends:
            return None
        at, _, stop = min(ends)
        border = self.encoder.border
        if border is None or not border.fullmatch(stop):
            return None
        return _merged((blank, k, after[1][: at + len(stop)]))

    def _turn(self, prompt: Chunk, completion: Chunk) -> _Turn:
        asked, said = self._pieces(prompt), self._pieces(completion)
        border, last = self.encoder.border, asked[-1].parts
        apart = border is not None and isinstance(last[-1], str) and border.fullmatch(last[-1])
        return _Turn(asked, said, () if apart else _merged((*last, *said[0].parts)))

    def _pieces(self, parts: Chunk) -> list[_Piece]:
        """The chunks between control tokens, and these."""
        border = self.encoder.border
        assert border is not None
        chunks: list[list[Part]] = [[]]
        for part in parts:
            if isinstance(part, int):
                chunks[-1].append(part)
                continue
            for at, text in enumerate(border.split(part)):
                if at % 2:
                    chunks += [[text], []]
                elif text:
                    chunks[-1].append(text)
        return [self._piece(tuple(chunk)) for chunk in chunks if chunk]

    def _piece(self, parts: Chunk) -> _Piece:
        plain = all(isinstance(part, str) for part in parts)
        return _Piece(parts, self.encoder.ids(_filled(parts, [])) if plain else None)


def _filled(parts: Chunk, texts: list[str]) -> str:
    return "".join([part if isinstance(part, str) else texts[part] for part in parts])


def _merged(parts: Iterable[Part]) -> Chunk:
    """The same text, with words that follow one another in one part."""
    found = Traced.of(parts, [])
    return found.parts if isinstance(found, Traced) else (found,)


def _after(whole: Chunk, start: Chunk) -> Chunk | None:
    """What follows `start` in `whole`; None when it does not begin with it."""
    rest = list(whole)
    for at, part in enumerate(start):
        first = rest.pop(0) if rest else None
        if first == part:
            continue
        last = at == len(start) - 1
        if not (last and isinstance(first, str) and isinstance(part, str) and first.startswith(part)):
            return None
        rest.insert(0, first[len(part) :])
    return tuple(rest)


def _add(guard: Guard, others: Iterable[Guard]) -> None:
    for other in others:
        guard.absent |= other.absent
        guard.first |= other.first
        guard.last |= other.last


def _same(found: Rendered, long: Rendered) -> bool:
    """Whether two ways made the same of a conversation, apart from spans."""
    return (
        (found.warnings, found.refusals) == (long.warnings, long.refusals)
        and len(found.samples) == len(long.samples)
        and all(
            np.array_equal(one.ids, other.ids)
            and np.array_equal(one.trained, other.trained)
            and dict(one.level) == dict(other.level)
            for one, other in zip(found.samples, long.samples, strict=True)
        )
    )
