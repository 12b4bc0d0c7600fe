"""What a person sets about rendering: reasoning level, bridge, what is trained; and the renderer that follows it."""

import datetime
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.failure import Failure
from engine.render.levels import Level, Levels
from engine.render.renderer import Renderer, TrainOn
from engine.render.template import Variables
from engine.render.tokenizer import load
from engine.spec import SFT, RunSpec


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """`level` by name ("": as in the data); `bridge`: a person has agreed to the one that the template is offered."""

    level: str = ""
    bridge: bool = False
    train_on: TrainOn = "all_turns"
    train_reasoning: bool = True


AS_IN_DATA = RenderSettings()


def settings_of(spec: RunSpec) -> RenderSettings:
    """What a run sets; methods other than supervised fine-tuning train whole answers."""
    told = RenderSettings(spec.data.reasoning_level, spec.data.bridge)
    if not isinstance(spec.method, SFT):
        return told
    return RenderSettings(told.level, told.bridge, spec.method.train_on, spec.method.train_reasoning)


def open_renderer(model: Path, settings: RenderSettings = AS_IN_DATA) -> Renderer:
    """A renderer for a model folder, see `renderer_for`."""
    return renderer_for(*load(model), settings)


def renderer_for(
    tokenizer: Any,
    stop_ids: Collection[int],
    settings: RenderSettings = AS_IN_DATA,
    *,
    date: datetime.date | None = None,
) -> Renderer:
    """A renderer that follows `settings`, its template told `date` (None: today).

    Raises Failure for a level that the template does not have, and for a template that does not end.
    """
    renderer = Renderer(tokenizer, stop_ids, frozen_date=date)
    if settings.bridge and renderer.offered_bridge:
        renderer = Renderer(tokenizer, stop_ids, frozen_date=date, bridge=renderer.offered_bridge)
    renderer.level = level_named(renderer.levels, settings.level)
    renderer.train_on, renderer.train_reasoning = settings.train_on, settings.train_reasoning
    return renderer


def level_named(levels: Levels, text: str) -> Variables:
    """What the template is told for `enable_thinking=False`, `low` or `default`; {} for "". Raises Failure."""
    if not text:
        return {}
    known = [*levels.levels, *levels.history]
    for level in known:
        settings = [level.variables, *level.alike]
        names = [level.name, *(Level(one).name for one in level.alike)]
        values = [str(one) for setting in settings if len(setting) == 1 for one in setting.values()]
        if text in names or (text in values and text not in ("True", "False")):
            return level.told
    pairs = [part.split("=", 1) for part in text.split(",")]
    if all(len(pair) == 2 for pair in pairs):
        told = {name.strip(): _value(value.strip()) for name, value in pairs}
        accepted = {name for level in known for name in level.variables} | set(levels.other)
        if told.keys() <= accepted:
            return told
    message = f"This model has no level “{text}”."
    raise Failure("bad_level", message, [f"Its levels are: {', '.join(level.name for level in levels.levels)}."])


def _value(text: str) -> Any:
    """`true`, `False` and numbers as such, anything else as text."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return text
