"""A conversation to samples: turn after turn, and what a person should know about it."""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.render.history import read_prompt
from engine.render.levels import Level
from engine.render.sample import CannotRender, Note, Rendered, Sample, Span
from engine.render.template import Variables
from engine.render.tokens import KINDS, ROLES, Encoded, Encoder, completion_kinds, prompt_kinds, prompt_roles
from engine.render.told import level_notes
from engine.render.turns import Turn, TurnReader
from engine.rows.model import Message


class Conversation:
    """One row: a sample grows while each turn's prompt goes on where it ends, else a new one begins."""

    def __init__(
        self,
        reader: TurnReader,
        encoder: Encoder,
        stop_ids: frozenset[int],
        messages: list[Message],
        tools: list[dict[str, Any]],
        level: Variables,
    ) -> None:
        self.reader = reader
        self.encoder = encoder
        self.stop_ids = stop_ids
        self.messages = messages
        self.tools = tools
        self.level = level
        self.out = Rendered()
        self.open: _Open | None = None
        self.text = ""  # of the open sample
        self.rewritten = False

    def render(self, turns: list[int]) -> Rendered:
        """All samples, refusals and notes."""
        for k in turns:
            try:
                self._turn(k)
            except CannotRender as error:
                self.out.refusals.append(error.at(k))
        if self.open is not None:
            self.out.samples.append(self.open.close())
        self._notes(turns)
        return self.out

    def ask(self) -> Rendered:
        """The whole conversation as what serving sends to have it answered: one sample in which nothing is trained."""
        k, level = len(self.messages), Level(dict(self.level))
        try:
            text = self.reader.template.render(self.messages, self.tools, cue=True, variables=level.variables)
        except CannotRender as error:
            self.out.refusals.append(error.at(k))
            return self.out
        prompt, open_ = self.encoder.encode(text), _Open(level)
        self._show(open_, k, text, prompt, self.reader.cue_start(self.messages, self.tools, text, level))
        self.out.samples.append(open_.close())
        self._begin_notes(prompt)
        self._marker_notes(k)
        return self.out

    def _show(self, into: "_Open", k: int, text: str, prompt: Encoded, cue_start: int) -> None:
        """Put the prompt of turn `k` into a sample, and note what it leaves out."""
        places, lost = read_prompt(self.messages, k, self.tools, text)
        roles = prompt_roles(prompt, places, cue_start)
        into.add(prompt.ids, prompt_kinds(prompt, cue_start), roles, k, trained=False)
        for note in lost:
            self._note(note)

    def _turn(self, k: int) -> None:
        """Add one turn. Raises CannotRender."""
        encoder, stop_ids = self.encoder, self.stop_ids
        turn = self.reader.read(self.messages, k, self.tools, self.level)
        prompt = encoder.encode(turn.prompt)
        completion = encoder.encode_after(turn.prompt, prompt.ids, turn.completion, turn.pieces)
        whole = turn.prompt + turn.completion
        if not len(completion.ids) or int(completion.ids[-1]) not in stop_ids:
            message = f"The turn's end “{turn.completion[turn.stop_start :]}” is not one stop token."
            raise CannotRender("no_stop_token", message, turn.prompt, whole)
        if not stop_ids.isdisjoint(completion.ids[:-1].tolist()):
            message = "A stop token stands inside this turn, so serving would end the answer before its end."
            raise CannotRender("stops_early", message, turn.prompt, whole)
        level = turn.level
        if self.open is None or self.open.level.key != level.key or not self.open.continues_in(prompt.ids):
            if self.open is not None:
                self.out.samples.append(self.open.close())
                self.rewritten = self.rewritten or not turn.prompt.startswith(self.text)
            self.open = _Open(level)
        self.text = whole
        self._show(self.open, k, turn.prompt, prompt, turn.cue_start)
        own = np.full(len(completion.ids), ROLES.index("assistant"), dtype=np.uint8)
        self.open.add(completion.ids, completion_kinds(completion, turn.pieces), own, k, trained=True)
        self._turn_notes(k, turn, prompt)

    def _note(self, note: Note) -> None:
        """Say something once."""
        if note.code not in {one.code for one in self.out.warnings}:
            self.out.warnings.append(note)

    def _turn_notes(self, k: int, turn: Turn, prompt: Encoded) -> None:
        """What to know about one turn."""
        encoder = self.encoder
        thinks = bool((self.messages[k].get("reasoning_content") or "").strip())
        if any(encoder.has_marker(turn.completion[piece.start : piece.end]) for piece in turn.pieces):
            message = f"Turn {k + 1} spells a control token; it is learned as ordinary text."
            self._note(Note("control_token_in_answer", message))
        for note in level_notes(self.reader.levels, self.level, turn, k, thinks=thinks):
            self._note(note)
        self._begin_notes(prompt)

    def _begin_notes(self, prompt: Encoded) -> None:
        """Whether the sequence begins as the tokenizer begins one."""
        begin, bos = self.encoder.begin, self.encoder.tokenizer.bos_token_id
        if begin is not None and begin not in self.stop_ids and prompt.ids[0] != begin:
            message = "The tokenizer begins every text with a token that the chat template does not write."
            self._note(Note("no_bos", message))
        if bos is not None and prompt.ids[:2].tolist() == [bos, bos]:
            self._note(Note("many_bos", "The chat template writes the token that begins a text twice."))

    def _marker_notes(self, k: int) -> None:
        """Whether text before turn `k` is more than text."""
        texts = (one.get("content") or "" for one in self.messages[:k] if one["role"] != "assistant")
        if any(map(self.encoder.has_marker, texts)):
            message = "The text before an answer spells a control token, and serving will read it as one."
            self._note(Note("control_token_in_prompt", message))

    def _notes(self, turns: list[int]) -> None:
        """What to know about the row."""
        self._marker_notes(turns[-1] if turns else 0)
        if turns and turns[-1] + 1 < len(self.messages):
            message = f"Nothing after turn {turns[-1] + 1}, the last that is learned, is used."
            self._note(Note("after_last_turn", message))
        samples = len(self.out.samples)
        if samples > 1:
            why = "The chat template changes earlier turns" if self.rewritten else "Tokens join across a turn's border"
            code = "history_rewritten" if self.rewritten else "retokenised"
            self._note(Note(code, f"{why}, so the conversation became {samples} samples."))


class _Open:
    """A sample that may still grow."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.ids = np.zeros(0, np.int32)
        self.trained = np.zeros(0, np.bool_)
        self.spans: list[Span] = []

    def continues_in(self, prompt: NDArray[np.int32]) -> bool:
        """Whether the next prompt begins with all of this sample, and asks something after it."""
        return len(prompt) > len(self.ids) and np.array_equal(prompt[: len(self.ids)], self.ids)

    def add(
        self, ids: NDArray[np.int32], kinds: NDArray[np.uint8], roles: NDArray[np.uint8], turn: int, *, trained: bool
    ) -> None:
        """Append tokens; of a prompt (not trained) only what the sample does not have yet."""
        skip, base = 0 if trained else len(self.ids), len(self.ids)
        ids, kinds, roles = ids[skip:], kinds[skip:], roles[skip:]
        both = kinds * len(ROLES) + roles
        edges = np.flatnonzero(both[1:] != both[:-1]) + 1
        for start, end in itertools.pairwise([0, *edges.tolist(), len(kinds)]):
            if start < end:
                self.spans.append(Span(KINDS[kinds[start]], ROLES[roles[start]], turn, base + start, base + end))
        self.ids = np.concatenate([self.ids, ids])
        self.trained = np.concatenate([self.trained, np.full(len(ids), trained)])

    def close(self) -> Sample:
        """The finished sample."""
        return Sample(self.ids, self.trained, self.spans, dict(self.level.variables))
