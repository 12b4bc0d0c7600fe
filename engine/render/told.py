"""What the chat template is told, and whether the rows agree with it: every disagreement is said, none decided."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from engine.render.levels import Level, Levels
from engine.render.sample import Note, Rendered
from engine.render.template import Variables
from engine.render.turns import Turn
from engine.rows.model import cut

OFF = ("none", "off")


def row_notes(levels: Levels, told: Variables) -> list[Note]:
    """What to know about the settings of a row: those that the template does not read or know."""
    found: list[Note] = []
    for name, value in told.items():
        if name not in levels.names:
            message = f"The row sets {name}, which this chat template does not read, so it changes nothing."
            found.append(Note("level_not_read", message))
        elif name in levels.variables and value not in (known := known_values(levels, name)):
            listed = ", ".join(map(str, known))
            message = f"The row sets {name}={cut(value, 40)}, which is none of the template's own: {listed}."
            found.append(Note("level_unusual", message))
    return found


def known_values(levels: Levels, name: str) -> list[Any]:
    """The values of a variable that change something or spell out the default, each once."""
    settings = (one for level in levels.levels for one in (level.variables, *level.alike) if name in one)
    return list(dict.fromkeys(one[name] for one in settings))


def blamed(rendered: Rendered, told: Variables, without: Iterable[int]) -> Rendered:
    """The same, where refusals of turns that render `without` the row's settings are laid at their door."""
    fine, names = set(without), Level(told).name
    refusals = [
        replace(one, code="level_refused", message=f"With the row's own {names}: {one.message}")
        if one.turn in fine and one.code == "template_refuses"
        else one
        for one in rendered.refusals
    ]
    return Rendered(rendered.samples, rendered.warnings, refusals)


def level_notes(levels: Levels, told: Variables, turn: Turn, k: int, *, thinks: bool) -> Iterator[Note]:
    """What the level of turn `k` means, unless the template has only one. `thinks`: the turn has reasoning."""
    chosen, level = bool(told.keys() & levels.variables), turn.level
    if not chosen:
        yield from _unchosen(levels, level, k, thinks=thinks)
        return
    before = turn.completion[: turn.pieces[0].start].strip()
    if thinks and is_off(level):
        yield Note("reasoning_despite_level", f"Turn {k + 1} reasons, although {level.name} asks for none.")
    elif not thinks and before and any(one.frame == 0 for one in levels.levels):
        message = f"With {level.name} turn {k + 1} teaches to write “{before}” and to think nothing."
        yield Note("empty_reasoning", message)
    elif not thinks and not is_off(level) and any(one.thinks for one in levels.levels):
        yield Note("no_reasoning_at_level", f"With {level.name} turn {k + 1} teaches to answer without reasoning.")


def _unchosen(levels: Levels, level: Level, k: int, *, thinks: bool) -> Iterator[Note]:
    """A level that the turn cannot tell from others, or one that it does tell and that is not the default."""
    alike = [one for one in levels.levels if one.cue == level.cue]
    if len(alike) > 1 and (thinks or not any(map(is_off, alike))):
        names = ", ".join(one.name for one in alike)
        message = f"How much reasoning turn {k + 1} stands for cannot be seen in it: the level {level.name} was taken."
        yield Note("level_by_default", f"{message} Choose one of: {names}.")
    elif level.variables.keys() & levels.variables:
        message = f"Turn {k + 1} goes on from the prompt with {level.name}, not from the template's default"
        yield Note("level_not_default", f"{message}; tell serving too.")


def is_off(level: Level) -> bool:
    """Whether a level, or the template's default by its own value, asks for no reasoning at all."""
    return any(
        value in OFF or (value is False and "think" in name)
        for one in (level.variables, *level.alike)
        for name, value in one.items()
    )
