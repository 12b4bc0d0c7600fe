"""Rows to token samples: what is trained is exactly what serving shows, or it is refused by name.

For a trained assistant turn k: A = the prompt serving sends for `messages[:k]`, B = the conversation up to and with the
turn. B must begin with A; what follows, cut after its first stop token, is the completion. A and the completion are
tokenised apart, as serving does; the completion is trained, A is not. Turns share a sample while the tokens allow it.
"""

import datetime
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engine.failure import Failure
from engine.render.bridge import Bridge, offered
from engine.render.conversation import Conversation
from engine.render.levels import Levels
from engine.render.limits import Limits
from engine.render.patterns import Patterns
from engine.render.plain import asked, begun, joined, plain_prompt, plain_text
from engine.render.sample import CannotRender, Refusal, Rendered, without_reasoning, without_spans
from engine.render.template import ChatTemplate, Variables
from engine.render.tokens import Encoder
from engine.render.told import blamed, row_notes
from engine.render.turns import TurnReader
from engine.rows.model import Message, Row

TrainOn = Literal["all_turns", "last_turn"]


class Renderer:
    """Renders rows with one tokenizer and its own chat template."""

    def __init__(
        self,
        tokenizer: Any,
        stop_ids: Collection[int],
        *,
        frozen_date: datetime.date | None = None,
        level: Variables | None = None,
        bridge: Bridge | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`stop_ids`: `generation_config.eos_token_id` (all) plus `tokenizer.eos_token_id`; Failure without any.

        `frozen_date`: what templates that ask for the date are told; today when None. `level`: what the template is
        told in every row, such as `{"enable_thinking": False}`; None finds for each turn the level that it fits.
        `bridge`: the `offered_bridge`, once a person has agreed to it.
        """
        self.tokenizer = tokenizer
        self.stop_ids = frozenset(int(stop) for stop in stop_ids if stop is not None)
        if not self.stop_ids:
            advice = ["Set eos_token_id in the model's generation_config.json."]
            raise Failure("no_stop_ids", "The model names no token that ends an answer.", advice)
        self.frozen_date = frozen_date or datetime.datetime.now(tz=datetime.UTC).date()
        self.level: Variables = dict(level or {})
        self.train_on: TrainOn = "all_turns"
        self.train_reasoning = True
        self.template = ChatTemplate(tokenizer, self.frozen_date, limits)
        self.template.bridged = bridge is not None
        self.encoder = Encoder(tokenizer)
        texts = (self.encoder.text_of(stop) for stop in sorted(self.stop_ids))
        self.turns = TurnReader(self.template, [text for text in texts if text], self.encoder.markers, bridge)
        self.patterns = Patterns(self.turns, self.encoder, self.stop_ids)

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer brings a chat template."""
        return bool(self.tokenizer.chat_template)

    @property
    def levels(self) -> Levels:
        """What the template can be told, the default first; found by rendering when first asked."""
        return self.turns.levels if self.has_template else Levels()

    @property
    def offered_bridge(self) -> Bridge | None:
        """What would let the template's rows follow its prompt, for a person to confirm; None when they do already."""
        if not self.has_template or any(one.thinks or one.frame is not None for one in self.levels.levels):
            return None
        return offered(self.template)

    @property
    def end_id(self) -> int:
        """The token that ends plain text."""
        eos = self.tokenizer.eos_token_id
        return int(eos) if eos is not None else min(self.stop_ids)

    def render(self, row: Row, train_on: TrainOn | None = None, *, level: Variables | None = None) -> Rendered:
        """Samples of a row, with what was refused and what to know; a `prompt` row trains nothing.

        The template is told what it is told in every row, over that what the row itself says, over that `level`.
        `train_on` None: as the renderer is set. Raises Failure for preference rows, for conversations when there is no
        chat template, and for a template that does not end.
        """
        if row.kind == "text":
            return Rendered([plain_text(self.tokenizer, row.text, self.end_id)])
        if row.kind == "preference":
            advice = ["Choose a method that learns from such rows."]
            raise Failure("wrong_kind", f"Row {row.number} is a {row.kind} row, not a chat or text row.", advice)
        if not self.has_template:
            alone = asked if row.kind == "prompt" else joined
            return Rendered([alone(self.tokenizer, row, self.end_id)])
        rendered = self._rendered(row, train_on or self._train_on(row), level or {})
        if self.train_reasoning:
            return rendered
        return replace(rendered, samples=[without_reasoning(sample) for sample in rendered.samples])

    def tokens(self, row: Row) -> Rendered:
        """The same as `render`, sooner and without spans."""
        if row.kind in ("chat", "rated") and self.has_template and not row.tools and not row.chat_template_kwargs:
            messages = [self.template.split(message) for message in row.messages]
            found = self.patterns.render(messages, trained_turns(messages, self._train_on(row)), self.level)
            if found is not None:
                return found
        return without_spans(self.render(row))

    def _train_on(self, row: Row) -> TrainOn:
        """A rating is of the last answer."""
        return "last_turn" if row.kind == "rated" else self.train_on

    def _rendered(self, row: Row, train_on: TrainOn, level: Variables) -> Rendered:
        """A row through the chat template."""
        messages = [self.template.split(message) for message in row.messages or row.prompt]
        turns = [len(messages)] if row.kind == "prompt" else trained_turns(messages, train_on)
        own = row.chat_template_kwargs
        if taken := sorted(self.template.reserved & own.keys()):
            message = f"The row sets {taken[0]}, which is no variable of a chat template."
            return Rendered(refusals=[Refusal("level_refused", message, turn) for turn in turns])
        rendered = self._converse(row, messages, turns, {**self.level, **own, **level})
        if not own:
            return rendered
        rendered.warnings.extend(row_notes(self.levels, own))
        if all(one.code != "template_refuses" for one in rendered.refusals):
            return rendered
        without = self._converse(row, messages, turns, {**self.level, **level})
        return blamed(rendered, own, set(turns) - {one.turn for one in without.refusals})

    def _converse(self, row: Row, messages: list[Message], turns: list[int], told: Variables) -> Rendered:
        work = Conversation(self.turns, self.encoder, self.stop_ids, messages, row.tools, told)
        return work.ask() if row.kind == "prompt" else work.render(turns)

    def prompt_ids(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        shape: str = "prompt_completion",
        *,
        level: Variables | None = None,
    ) -> NDArray[np.int32]:
        """What serving sends to have `messages` answered, int32. Raises Failure when the template refuses them.

        `shape`: form of the row, for models without a chat template.
        """
        if not self.has_template:
            return begun(self.tokenizer, plain_prompt(messages, shape), self.end_id)
        told = {**self.level, **(level or {})}
        try:
            split = [self.template.split(one) for one in messages]
            text = self.template.render(split, tools or [], cue=True, variables=told)
        except CannotRender as error:
            raise Failure(error.code, error.message) from error
        return self.encoder.encode(text).ids


def trained_turns(messages: list[Message], train_on: TrainOn) -> list[int]:
    """Indices of the assistant turns that are learned: those without weight 0, all or the last of them."""
    turns = [k for k, one in enumerate(messages) if one["role"] == "assistant" and one.get("weight", 1) != 0]
    return turns if train_on == "all_turns" else turns[-1:]
