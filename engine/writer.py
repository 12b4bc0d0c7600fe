"""Files written beside the training: one thing at a time, in one background thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


class Writer:
    """Has one thing written at a time; whoever asks for it next gets its path, or what its writing raised."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._begun: Future[Path] | None = None

    def begin(self, write: Callable[[], Path]) -> None:
        """Let the thread write. What was begun before must have been asked for until it was `finished`."""
        if self._begun is not None:
            raise RuntimeError("two writes at once")
        self._begun = self._thread.submit(write)

    def finished(self, *, wait: bool) -> Path | None:
        """The path that was written, once; None while it is being written (unless `wait`) and when nothing was begun.

        Raises what the writing raised.
        """
        if self._begun is None or not (wait or self._begun.done()):
            return None
        begun, self._begun = self._begun, None
        return begun.result()
