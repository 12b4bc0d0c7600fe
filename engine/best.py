"""Which step's weights are the best so far by the held-out rows, and whether it is still worth going on."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.checkpoint import fault_of
from engine.events import Eval


def better(loss: float, best: Eval | None) -> bool:
    """Whether a loss is lower than the best one before; one that is not finite never is."""
    return math.isfinite(loss) and (best is None or best.loss is None or loss < best.loss)


def lowest(evals: Iterable[Eval]) -> Eval | None:
    """The evaluation with the lowest loss, the earlier of two equal ones; None when none was finite."""
    measured = [(event.loss, index, event) for index, event in enumerate(evals) if event.loss is not None]
    return min(measured)[2] if measured else None


def still_there(evals: Iterable[Eval], checkpoints: Path) -> Eval | None:
    """The best evaluation whose checkpoint is whole: what a resumed run may still offer."""
    return lowest(event for event in evals if not fault_of(checkpoints / f"step-{event.step}"))


def without_gain(evals: Sequence[Eval]) -> int:
    """How many evaluations in a row, up to the last one, were not better than the best before them."""
    return next((count for count, event in enumerate(reversed(evals)) if event.best), len(evals))
