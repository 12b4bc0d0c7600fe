"""What a run said, for programs: everything it measured as columns, or one curve of it."""

import math
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from studio import curves, packs
from studio.curves import METRICS, Axis, Curves
from studio.errors import NotFound

STEP_COLUMNS = ("step", "epoch", "loss", "learning_rate", "grad_norm", "tokens_per_second", "seconds", "time")
MEMORY_COLUMNS = ("allocated", "reserved", "peak")


def points(session: Session, run_id: str, after: int = 0) -> dict[str, Any]:
    """Columns of equal length, one entry a step, of everything said after byte `after`.

    `step, epoch, loss, learning_rate, grad_norm, tokens_per_second, seconds (of the step), time (seconds since the
    epoch)`; `metrics` holds what the method measures besides, a column for each name; `memory` is a list of `{device,
    total, allocated, reserved, peak}`, bytes, each but the total a column along the steps; `eval` is `{step, loss,
    metrics}`; `next` is the `after` of the next call. None is a gap. A resumed run tells some steps again: the last
    telling counts, so where an answer begins at a step that is already shown, cut there.
    """
    told = Curves(packs.read(session, run_id, "step", after), packs.read(session, run_id, "eval", after))
    columns: dict[str, Any] = {name: curves.numbers(told.of(name)) for name in STEP_COLUMNS}
    columns["step"] = whole(told.step)
    columns["metrics"] = named(told, METRICS)
    columns["memory"] = [
        {"device": device, "total": max(whole(told.of(f"memory/{device}/total")), key=lambda total: total or 0)}
        | {name: whole(told.of(f"memory/{device}/{name}")) for name in MEMORY_COLUMNS}
        for device in told.devices
    ]
    columns["eval"] = {
        "step": whole(told.evals["step"]),
        "loss": curves.numbers(told.of("eval/loss")),
        "metrics": named(told, f"{curves.EVAL}{METRICS}"),
    }
    columns["next"] = int(max([after, *told.steps["offset"][-1:], *told.evals["offset"][-1:]]))
    return columns


def named(told: Curves, prefix: str) -> dict[str, list[float | None]]:
    """The method's own columns, by name."""
    return {name: curves.numbers(told.of(prefix + name)) for name in told.metrics if prefix + name in told}


def whole(values: packs.Numbers) -> list[int | None]:
    """Steps or bytes."""
    return [int(value) if math.isfinite(value) else None for value in values.tolist()]


class Part(BaseModel):
    """Which curve, and how much of it."""

    key: str = Field(max_length=300, description="loss, eval/loss, metrics/<name>, memory/<device>/peak and so on")
    axis: Axis = Field(default="step", description="step; time: minutes since the first step; tokens: tokens so far")
    start: float | None = Field(default=None, allow_inf_nan=False, description="On the axis; empty: its beginning.")
    end: float | None = Field(default=None, allow_inf_nan=False, description="On the axis; empty: its end.")
    points: int = Field(default=1_000, ge=3, le=20_000, description="Most points in the answer.")
    smoothing: float = Field(default=0.0, ge=0, lt=1, description="Weight of the moving average; 0: as measured.")


class Curve(BaseModel):
    """One curve of a run, as far as it was asked for."""

    key: str
    axis: Axis
    x: list[float]
    y: list[float | None] = Field(description="null is a gap")
    points: int = Field(description="Points measured in that part; all of them are here when there are not more.")


def curve(session: Session, run_id: str, part: Part) -> Curve:
    """A part of a curve in as many points as are asked for; NotFound for a key that the run has not measured."""
    told = curves.read(session, run_id)
    if part.key not in told:
        raise NotFound(f"The run has not measured {part.key[:80]!r}.")
    x, y = told.line(part.key, part.axis)
    y = curves.smoothed(y, part.smoothing) if part.smoothing else y
    inside = curves.between(
        x, -math.inf if part.start is None else part.start, math.inf if part.end is None else part.end
    )
    x, y = x[inside], y[inside]
    kept = curves.downsample(x, y, part.points)
    return Curve(key=part.key, axis=part.axis, x=x[kept].tolist(), y=curves.numbers(y[kept]), points=len(x))
