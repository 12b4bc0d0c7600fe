"""Rows to token samples: what is trained is exactly what serving shows, or it is refused by name.

For a trained assistant turn k: A = the prompt serving sends for `messages[:k]`, B = the conversation up to and with the
turn. B must begin with A; what follows, cut after its first stop token, is the completion. A and the completion are
tokenised apart, as serving does; the completion is trained, A is not. Turns share a sample while the tokens allow it.
"""

import datetime
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engine.failure import Failure
from engine.render.plain import begun, joined, plain_prompt, plain_text
from engine.render.sample import CannotRender, Note, Rendered, Sample, Span, SpanKind
from engine.render.template import ChatTemplate
from engine.render.tokens import Encoder, completion_kinds
from engine.render.turns import TurnReader
from engine.rows.model import Message, Row

TrainOn = Literal["all_turns", "last_turn"]


class Renderer:
    """Renders rows with one tokenizer and its own chat template."""

    def __init__(self, tokenizer: Any, stop_ids: Collection[int], *, frozen_date: datetime.date | None = None) -> None:
        """`stop_ids`: `generation_config.eos_token_id` (all) plus `tokenizer.eos_token_id`; Failure without any.

        `frozen_date`: what templates that ask for the date are told; today when None.
        """
        self.tokenizer = tokenizer
        self.stop_ids = frozenset(int(stop) for stop in stop_ids if stop is not None)
        if not self.stop_ids:
            advice = ["Set eos_token_id in the model's generation_config.json."]
            raise Failure("no_stop_ids", "The model names no token that ends an answer.", advice)
        self.frozen_date = frozen_date or datetime.datetime.now(tz=datetime.UTC).date()
        self.template = ChatTemplate(tokenizer, self.frozen_date)
        self.encoder = Encoder(tokenizer)
        texts = (self.encoder.text_of(stop) for stop in sorted(self.stop_ids))
        self.turns = TurnReader(self.template, [text for text in texts if text])

    @property
    def has_template(self) -> bool:
        """Whether the tokenizer brings a chat template."""
        return bool(self.tokenizer.chat_template)

    @property
    def end_id(self) -> int:
        """The token that ends plain text."""
        eos = self.tokenizer.eos_token_id
        return int(eos) if eos is not None else min(self.stop_ids)

    def render(self, row: Row, train_on: TrainOn = "all_turns") -> Rendered:
        """Samples of a `chat` or `text` row, with what was refused and what to know.

        Raises Failure for rows of another kind, and for conversations when there is no chat template.
        """
        if row.kind == "text":
            return Rendered([plain_text(self.tokenizer, row.text, self.end_id)])
        if row.kind != "chat":
            advice = ["Choose a method that learns from such rows."]
            raise Failure("wrong_kind", f"Row {row.number} is a {row.kind} row, not a chat or text row.", advice)
        if not self.has_template:
            return Rendered([joined(self.tokenizer, row, self.end_id)])
        messages = [self.template.split(message) for message in row.messages]
        return self._conversation(messages, row.tools, trained_turns(messages, train_on))

    def prompt_ids(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, shape: str = "prompt_completion"
    ) -> NDArray[np.int32]:
        """What serving sends to have `messages` answered, int32. Raises Failure when the template refuses them.

        `shape`: form of the row, for models without a chat template.
        """
        if not self.has_template:
            return begun(self.tokenizer, plain_prompt(messages, shape), self.end_id)
        try:
            text = self.template.render([self.template.split(one) for one in messages], tools or [], cue=True)
        except CannotRender as error:
            raise Failure(error.code, error.message) from error
        return self.encoder.encode(text).ids

    def _conversation(self, messages: list[Message], tools: list[dict[str, Any]], turns: list[int]) -> Rendered:
        """One sample while each turn's prompt goes on where the sample ends, else a new one."""
        out = Rendered()
        open_sample: _Open | None = None
        text, rewritten = "", False
        for k in turns:
            try:
                turn = self.turns.read(messages, k, tools)
                completion = self.encoder.encode_completion(turn.completion, turn.pieces)
                if not len(completion.ids) or int(completion.ids[-1]) not in self.stop_ids:
                    message = f"The turn's end “{turn.completion[turn.stop_start :]}” is not one stop token."
                    raise CannotRender("no_stop_token", message, turn.prompt, turn.prompt + turn.completion)
            except CannotRender as error:
                out.refusals.append(error.at(k))
                continue
            prompt = self.encoder.encode(turn.prompt)
            kinds: list[SpanKind] = ["cue" if start >= turn.cue_start else "prompt" for start in prompt.starts.tolist()]
            if open_sample is None or not open_sample.continues_in(prompt.ids):
                if open_sample is not None:
                    out.samples.append(open_sample.close())
                    rewritten = rewritten or not turn.prompt.startswith(text)
                open_sample = _Open()
            text = turn.prompt + turn.completion
            open_sample.add(prompt.ids, kinds, k, trained=False)
            open_sample.add(completion.ids, completion_kinds(completion, turn.pieces), k, trained=True)
        if open_sample is not None:
            out.samples.append(open_sample.close())
        if any(one["role"] != "assistant" and self.encoder.has_marker(one.get("content") or "") for one in messages):
            message = "The text before an answer spells a control token, and serving will read it as one."
            out.warnings.append(Note("control_token_in_prompt", message))
        if len(out.samples) > 1:
            why = "The chat template changes earlier turns" if rewritten else "Tokens join across the border of a turn"
            message = f"{why}, so the conversation became {len(out.samples)} samples."
            out.warnings.append(Note("history_rewritten" if rewritten else "retokenised", message))
        return out


class _Open:
    """A sample that may still grow."""

    def __init__(self) -> None:
        self.ids = np.zeros(0, np.int32)
        self.trained = np.zeros(0, np.bool_)
        self.spans: list[Span] = []

    def continues_in(self, prompt: NDArray[np.int32]) -> bool:
        """Whether the next prompt begins with all of this sample."""
        return len(prompt) >= len(self.ids) and np.array_equal(prompt[: len(self.ids)], self.ids)

    def add(self, ids: NDArray[np.int32], kinds: list[SpanKind], turn: int, *, trained: bool) -> None:
        """Append tokens; of a prompt (not trained) only what the sample does not have yet."""
        skip = 0 if trained else len(self.ids)
        ids, kinds = ids[skip:], kinds[skip:]
        base = len(self.ids)
        start = 0
        for at in range(1, len(kinds) + 1):
            if at == len(kinds) or kinds[at] != kinds[start]:
                role = "context" if kinds[start] == "prompt" else "assistant"
                self.spans.append(Span(kinds[start], role, turn, base + start, base + at))
                start = at
        self.ids = np.concatenate([self.ids, ids])
        self.trained = np.concatenate([self.trained, np.full(len(ids), trained)])

    def close(self) -> Sample:
        """The finished sample."""
        return Sample(self.ids, self.trained, self.spans)


def trained_turns(messages: list[Message], train_on: TrainOn) -> list[int]:
    """Indices of the assistant turns that are learned: those without weight 0, all or the last of them."""
    turns = [k for k, one in enumerate(messages) if one["role"] == "assistant" and one.get("weight", 1) != 0]
    return turns if train_on == "all_turns" else turns[-1:]
