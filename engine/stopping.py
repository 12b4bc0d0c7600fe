"""How a run is asked to end before its last step: by a file in its folder, or by a signal."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from engine.rundir import StopReason


class Stopped(Exception):
    """A person or the system asked the run to end; whatever had to be saved is saved."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Signals:
    """SIGTERM and Ctrl-C ask for a pause at the next step; a second one ends the process as usual."""

    asked: StopReason | None = None
    heard: Callable[[], None] | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen inside the block."""
        before = {number: signal.signal(number, self._heard) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, number: int, _: FrameType | None) -> None:
        self.asked = "pause"
        if self.heard is not None:
            self.heard()
        signal.signal(number, signal.SIG_DFL)
