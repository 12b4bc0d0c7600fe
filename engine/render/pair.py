"""A preference row as tokens: two answers to one prompt, each rendered exactly as serving would show and write it."""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from engine.failure import Failure
from engine.render.renderer import Renderer
from engine.render.sample import Note, Refusal, Rendered, Sample
from engine.render.template import Variables
from engine.rows.model import Message, Row


@dataclass(frozen=True, eq=False)
class Pair:
    """Two samples that begin with the same `prompt_length` tokens: what serving sends. None of these is trained.

    What follows them is the answer; its trained tokens are those that the model would have written.
    """

    chosen: Sample
    rejected: Sample
    prompt_length: int

    @property
    def prompt(self) -> NDArray[np.int32]:
        """Ids of the shared prompt."""
        return self.chosen.ids[: self.prompt_length]


@dataclass(frozen=True)
class RenderedPair:
    """What became of one preference row; without a pair, `refusals` say why. Turns count through prompt and answer."""

    pair: Pair | None = None
    warnings: list[Note] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def render_pair(renderer: Renderer, row: Row, *, level: Variables | None = None) -> RenderedPair:
    """Both answers of a `preference` row after one prompt, at one level.

    That is what row and run give, or else the first that both answers can go on from.
    Raises Failure for rows of another kind, and as `Renderer.render` does.
    """
    if row.kind != "preference":
        advice = ["Choose a method that learns from such rows."]
        raise Failure("wrong_kind", f"Row {row.number} is a {row.kind} row, not a preference row.", advice)
    sides = _sides(renderer, row, level)
    if not _one_prompt(sides):
        found = [_spelled(renderer, side.samples[0].level) for side in sides if side.samples]
        shared = (_sides(renderer, row, {**(level or {}), **told}) for told in found if told)
        sides = next((both for both in shared if _one_prompt(both)), sides)
    refusals = [refusal for side in sides for refusal in side.refusals] or _apart(row, sides)
    warnings = list({note.code: note for side in sides for note in side.warnings}.values())
    if refusals:
        return RenderedPair(warnings=warnings, refusals=refusals)
    chosen, rejected = (side.samples[0] for side in sides)
    return RenderedPair(Pair(chosen, rejected, _begins(chosen)), warnings)


def _sides(renderer: Renderer, row: Row, level: Variables | None) -> tuple[Rendered, Rendered]:
    """Each answer as the end of a conversation in which nothing else is trained."""
    before: list[Message] = [{**one, "weight": 0} if one["role"] == "assistant" else one for one in row.prompt]
    chats = (
        replace(row, kind="chat", shape="prompt_completion", messages=before + answer, prompt=[])
        for answer in (row.chosen, row.rejected)
    )
    chosen, rejected = (renderer.render(chat, level=level) for chat in chats)
    return chosen, rejected


def _spelled(renderer: Renderer, level: Variables) -> Variables:
    """A level so that it can be told: the template's default by its own value, where it has one."""
    return level or next((one.told for one in renderer.levels.levels if not one.variables), {})


def _begins(sample: Sample) -> int:
    """Index of the first trained token."""
    return int(sample.trained.argmax())


def _one_prompt(sides: tuple[Rendered, Rendered]) -> bool:
    """Whether each side is one whole sample and both follow the same tokens."""
    if any(side.refusals or len(side.samples) != 1 for side in sides):
        return False
    chosen, rejected = (side.samples[0].ids[: _begins(side.samples[0])] for side in sides)
    return np.array_equal(chosen, rejected)


def _apart(row: Row, sides: tuple[Rendered, Rendered]) -> list[Refusal]:
    """Why two answers that render are no pair."""
    first = len(row.prompt)
    for name, side in zip(("chosen", "rejected"), sides, strict=True):
        if not side.samples:
            return [Refusal("nothing_to_learn", f"No turn of “{name}” is trained: all have weight 0.", first)]
        if len(side.samples) > 1:
            why = f"The chat template changes earlier turns, so “{name}” is no one sequence of tokens."
            return [Refusal("answer_not_one_sample", why, first)]
    if _one_prompt(sides):
        return []
    why = "“chosen” and “rejected” go on from different reasoning levels, and no level fits both."
    return [Refusal("level_conflict", why, first)]
