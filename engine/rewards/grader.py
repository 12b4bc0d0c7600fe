"""The rewards on offer by name, and a run's own sum of them: one that fails or takes too long is missing."""

import importlib
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import FrameType

from engine.failure import Failure
from engine.rewards import plain
from engine.rewards.case import Case

Reward = Callable[[Case, str], float | None]
GROUP = "atelier.rewards"  # of the entry points by which an installation adds its own
SECONDS = 5.0  # that one reward may take for one answer
PLAIN: dict[str, Reward] = {
    reward.__name__: reward
    for reward in (
        plain.exact_match,
        plain.number_match,
        plain.regex,
        plain.json_valid,
        plain.length,
        plain.reasoning_format,
        plain.finished,
    )
}
EXTRA = ("math_equal", "json_schema", "reasoning_task")  # in engine.rewards.extra, with its libraries


class TooLong(Exception):
    """A reward took longer than SECONDS."""


@dataclass(frozen=True)
class Grade:
    """An answer's reward: the weighted sum of the parts that are there, None without any; `faults` say why."""

    reward: float | None
    parts: dict[str, float | None]
    faults: list[str] = field(default_factory=list)


def known() -> list[str]:
    """Names of all rewards of this installation."""
    return sorted({*PLAIN, *EXTRA, *(one.name for one in entry_points(group=GROUP))})


def unknown(weights: Mapping[str, float]) -> list[str]:
    """The names among these that this installation does not know."""
    names = known()
    return [name for name in weights if name.partition(":")[0] not in names]


class Grader:
    """The rewards of one run."""

    def __init__(self, weights: Mapping[str, float], seconds: float = SECONDS) -> None:
        """`weights` by name, as in a spec. Raises Failure for a name that is not known or cannot be loaded."""
        self.weights = dict(weights)
        self._seconds = seconds
        self._rewards = {name: _found(name.partition(":")[0]) for name in weights}

    def grade(self, case: Case) -> Grade:
        """Every reward of the run for one answer."""
        parts: dict[str, float | None] = {}
        faults: list[str] = []
        for name, reward in self._rewards.items():
            try:
                with _at_most(self._seconds):
                    value = reward(case, name.partition(":")[2])
            except Exception as error:  # noqa: BLE001 - other people's code: whatever it raises is said, and no more
                value = None
                faults.append(f"{name}: {type(error).__name__}: {error}"[:300])
            parts[name] = None if value is None or not math.isfinite(value) else float(value)
        there = [self.weights[name] * value for name, value in parts.items() if value is not None]
        return Grade(sum(there) if there else None, parts, faults)


def _found(name: str) -> Reward:
    """The function of a name."""
    if name in PLAIN:
        return PLAIN[name]
    if name in EXTRA:
        try:
            found: Reward = getattr(importlib.import_module("engine.rewards.extra"), name)
        except ImportError as error:
            message = f"The reward {name} needs libraries that are not installed: {error.name}."
            raise Failure(
                "reward_not_installed", message, ["Install the extra `rl`, or choose another reward."]
            ) from error
        return found
    own = next(iter(entry_points(group=GROUP, name=name)), None)
    if own is None:
        raise Failure("unknown_reward", f"There is no reward {name!r}.", [f"There are {', '.join(known())}."])
    loaded: Reward = own.load()
    return loaded


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong in what takes longer; only in the main thread, where the engine works."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_: int, __: FrameType | None) -> None:
        raise TooLong(f"took longer than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
