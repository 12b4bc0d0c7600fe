"""Layouts that a number of devices and a model allow, for what the spec leaves open."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from engine.failure import Failure
from engine.plan.degrees import Degrees
from engine.plan.memory import Model
from engine.spec import Layout


def possible(layout: Layout, devices: int, model: Model, config: Any, *, packed: bool) -> list[Degrees]:
    """Every layout on exactly this many devices. Raises Failure when the spec's own degrees allow none.

    `packed`: documents run in one sequence, which devices can share.
    """
    allowed = (one for one in _products(layout, devices) if _allowed(one, model, config))
    found = [one for one in allowed if packed or one.context == 1]
    if not found:
        asked = {axis: ways for axis, ways in layout.model_dump().items() if ways != "auto"}
        words = ", ".join(f"{axis} {ways}" for axis, ways in asked.items()) or "auto"
        raise Failure(
            "layout_impossible",
            f"The layout {words} is not possible on {devices} devices with this model.",
            ["Set the axes of the layout to auto.", "data x shard x tensor x context is the number of devices."],
        )
    return found


def _products(layout: Layout, devices: int) -> Iterator[Degrees]:
    ways = [one for one in range(1, devices + 1) if devices % one == 0]
    choices = [ways if (asked := getattr(layout, axis)) == "auto" else [asked] for axis in ("data", "shard", "tensor")]
    context = ways if layout.context == "auto" else [layout.context]
    for data, shard, tensor, ring in product(*choices, context):
        copy = shard * tensor * ring
        if data * copy != devices:
            continue
        experts = ways if layout.expert == "auto" else [layout.expert]
        yield from (Degrees(data, shard, tensor, expert, ring) for expert in experts if copy % expert == 0)


def _allowed(degrees: Degrees, model: Model, config: Any) -> bool:
    """Whether the model can be split like this."""
    experts, _ = model.parameters.experts
    heads = getattr(config.get_text_config(), "num_attention_heads", None) or 1
    split = degrees.tensor * degrees.context
    return (
        experts % degrees.expert == 0
        and (degrees.tensor == 1 or bool(model.sliced))
        and heads % split == 0
        and (degrees.expert % degrees.tensor == 0 or degrees.expert == 1)
    )
