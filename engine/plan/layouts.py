"""Layouts that a number of devices, a model and the rules allow, for what the spec leaves open."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from engine.failure import Failure
from engine.layout.degrees import Degrees
from engine.layout.rules import refusals
from engine.plan.memory import Model
from engine.spec import Layout, RunSpec


def possible(spec: RunSpec, devices: int, model: Model, config: Any, *, packed: bool) -> list[Degrees]:
    """Every layout on exactly this many devices. Raises Failure when the spec's own degrees allow none.

    `packed`: documents run in one sequence, which devices can share.
    """
    known, refused, found = config.to_dict(), [], []
    for degrees in _products(spec.layout, devices):
        against = refusals(spec, known, degrees)
        refused += against
        uncut = (degrees.tensor > 1 and not model.sliced) or (degrees.context > 1 and not packed)
        found += [] if against or uncut else [degrees]
    if found:
        return found
    asked = ", ".join(f"{axis} {ways}" for axis, ways in spec.layout.model_dump().items() if ways != "auto") or "auto"
    why = refused[0].why if refused else "data x shard x tensor x context must be the number of devices."
    raise Failure(
        "layout_impossible",
        f"The layout {asked} is not possible on {devices} devices with this model: {why}",
        [refused[0].advice] if refused else ["Set the axes of the layout to auto."],
    )


def _products(layout: Layout, devices: int) -> Iterator[Degrees]:
    ways = [one for one in range(1, devices + 1) if devices % one == 0]
    choices = [ways if (asked := getattr(layout, axis)) == "auto" else [asked] for axis in ("data", "shard", "tensor")]
    context = ways if layout.context == "auto" else [layout.context]
    for data, shard, tensor, ring in product(*choices, context):
        copy = shard * tensor * ring
        if data * copy != devices:
            continue
        experts = ways if layout.expert == "auto" else [layout.expert]
        spread = (one for one in experts if copy % one == 0 or layout.expert != "auto")
        yield from (Degrees(data=data, shard=shard, tensor=tensor, expert=one, context=ring) for one in spread)
