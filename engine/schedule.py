"""Learning rate and intervals as pure functions of the step: nothing to save, resume is exact."""

import math
from collections.abc import Callable

from engine.spec import Optimizer


def share_of(value: float, total: int) -> int:
    """Steps meant by a setting that is a share of all steps below 1 and a number of steps from 1 on; at least 1."""
    return max(1, round(value * total) if value < 1 else int(value))


def warmup(value: float, total: int) -> int:
    """Warm-up steps; a share is rounded up, and there are never more than all steps."""
    return min(total, math.ceil(value * total) if value < 1 else int(value))


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _constant(progress: float) -> float:
    return 1.0


_SHAPES: dict[str, Callable[[float], float]] = {"linear": _linear, "cosine": _cosine, "constant": _constant}


def learning_rate(settings: Optimizer, step: int, total: int) -> float:
    """Rate of optimizer step `step` (from 1) of `total`: a linear rise, then linear, cosine or constant.

    As transformers', but the first step of a warm-up of w steps has 1/w of the peak, not 0: no step is wasted.
    """
    rising = warmup(settings.warmup_steps, total)
    if step <= rising:
        return settings.learning_rate * step / rising
    progress = (step - 1 - rising) / max(1, total - rising)
    return settings.learning_rate * _SHAPES[settings.lr_scheduler_type](progress)
