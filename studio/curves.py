"""Curves: one measured quantity along steps, time or tokens; whole, or in as few points as a chart can show."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sqlalchemy.orm import Session
from tsdownsample import MinMaxLTTBDownsampler

from studio import packs
from studio.packs import Columns, Numbers

Axis = Literal["step", "time", "tokens"]
Places: TypeAlias = NDArray[np.intp]  # indices of points
AXES: tuple[Axis, ...] = get_args(Axis)
EVAL = "eval/"  # before the name of what was measured on the held-out rows
METRICS = "metrics/"  # before the name of what only this method measures
MINUTE = 60.0
FORGOTTEN = 1e-9  # weight below which a smoothed value does not feel an earlier one


@dataclass(frozen=True)
class Curves:
    """What a run measured: columns along its steps, and along its evaluations.

    A curve's key is its column (`loss`, `grad_norm`, `metrics/rewards/margins`, `memory/cuda:0/peak`), after `eval/`
    where it was measured on held-out rows, or `memory`: bytes in use on the fullest device.
    """

    steps: Columns
    evals: Columns

    @property
    def step(self) -> Numbers:
        """The steps that were told."""
        return self.steps["step"]

    def __contains__(self, key: str) -> bool:
        return bool(self.devices) if key == "memory" else self._place(key)[1] in self._place(key)[0]

    def mirrored(self, key: str) -> bool:
        """Whether a curve only says again what another one says better: an eval loss that is minus a reward."""
        return key == f"{EVAL}loss" and f"{EVAL}{METRICS}reward" in self

    def of(self, key: str) -> Numbers:
        """The values of a curve, NaN for a gap; only gaps where the run did not measure it."""
        if key == "memory":
            used = [self.steps[f"memory/{device}/allocated"] for device in self.devices]
            return np.fmax.reduce(used) if used else np.full(len(self.step), math.nan)
        columns, name = self._place(key)
        return columns[name] if name in columns else np.full(len(columns["step"]), math.nan)

    def line(self, key: str, axis: Axis = "step") -> tuple[Numbers, Numbers]:
        """Positions on the axis (steps, minutes since the first step, or tokens so far) and values."""
        at, values = self._place(key)[0]["step"], self.of(key)
        if axis == "step":
            return at, values
        nearest = np.searchsorted(self.step, at, "right") - 1  # an evaluation follows its step
        return self.reached(axis)[nearest[nearest >= 0]], values[nearest >= 0]

    def reached(self, axis: Axis) -> Numbers:
        """Where each step lies on the axis."""
        if axis == "step":
            return self.step
        told = self.of("seconds") / MINUTE if axis == "time" else self.of("tokens")
        return np.cumsum(np.nan_to_num(told))

    @cached_property
    def devices(self) -> list[str]:
        """Devices whose memory was measured."""
        ends = [name for name in self.steps if name.startswith("memory/") and name.endswith("/allocated")]
        return [name.removeprefix("memory/").removesuffix("/allocated") for name in ends]

    @cached_property
    def metrics(self) -> list[str]:
        """Names of what the method measures besides, in training or on held-out rows."""
        names = [name for columns in (self.steps, self.evals) for name in columns if name.startswith(METRICS)]
        return [name.removeprefix(METRICS) for name in dict.fromkeys(names)]

    def _place(self, key: str) -> tuple[Columns, str]:
        return (self.evals, key.removeprefix(EVAL)) if key.startswith(EVAL) else (self.steps, key)


def read(session: Session, run_id: str) -> Curves:
    """Everything that a run measured so far."""
    return Curves(packs.read(session, run_id, "step"), packs.read(session, run_id, "eval"))


def between(x: Numbers, start: float, end: float) -> slice:
    """The points from one position to another, and one more on either side, so that the line runs on to the edge."""
    low, high = int(np.searchsorted(x, start, "left")), int(np.searchsorted(x, end, "right"))
    return slice(max(low - 1, 0), high + 1)


def downsample(x: ArrayLike, y: ArrayLike, most: int) -> Places:
    """Indices to keep, at most `most`: MinMaxLTTB over the measured points, and one point for every gap between them.

    When the gaps alone would fill the budget, it is halved: half for the curve, half for gaps, evenly chosen.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(y) <= most:
        return np.arange(len(y))
    hole = ~np.isfinite(y)
    starts = np.flatnonzero(hole & ~np.concatenate(([False], hole[:-1])))
    if len(starts) > most // 2:
        starts = starts[np.linspace(0, len(starts) - 1, most // 2).astype(int)]
    solid = np.flatnonzero(~hole)
    wanted = max(3, most - len(starts))
    if len(solid) > wanted:
        sampler: Any = MinMaxLTTBDownsampler
        solid = solid[sampler().downsample(x[solid], y[solid], n_out=wanted)]
    kept: Places = np.union1d(solid, starts)
    return kept


def smoothed(y: Numbers, weight: float) -> Numbers:
    """Exponential moving average, corrected for its start; gaps stay gaps and count for nothing.

    The sum over all earlier values is doubled in reach until the rest weighs nothing: few passes over whole arrays.
    """
    known = np.isfinite(y)
    average = (1 - weight) * y[known]
    reach = 1
    while reach < len(average) and weight**reach > FORGOTTEN:
        average[reach:] += weight**reach * average[:-reach]
        reach *= 2
    out = np.full(len(y), math.nan)
    out[known] = average / (1 - weight ** np.arange(1, len(average) + 1))
    return out


def numbers(values: Numbers) -> list[float | None]:
    """Values as JSON has them: None for a gap."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
