"""Bounds on what a chat template may use: it is code from a stranger, and it must end."""

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from engine.failure import Failure

STATM = "/proc/self/statm"
GIB = 1 << 30
TICK = 0.01  # seconds of processor time from one try to end a rendering to the next
MOST_CHANCES = 100
ADVICE = [
    "Use the chat template that the model was published with.",
    "If it is that one, shorten the longest rows of the dataset.",
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one rendering may take: `seconds` of processor time, `memory` bytes above what is in use, `characters`."""

    seconds: float = 5.0
    memory: int = 2 * GIB
    characters: int = 64_000_000


@contextmanager
def bounded(limits: Limits) -> Iterator[None]:
    """Run a rendering within limits; Failure `template_limit` when it goes beyond.

    Time is that of the processor, so a busy machine changes nothing. The clock needs the main thread, where the engine
    renders; the bound on memory (Linux) also ends single operations that would take all of it.
    """
    try:
        with _time(limits.seconds), _memory(limits.memory):
            yield
    except MemoryError:
        message = f"The chat template asked for more than {limits.memory / GIB:.3g} GiB of memory."
        raise Failure("template_limit", message, ADVICE) from None


def checked(text: str, limits: Limits) -> str:
    """`text`, unless it is longer than any conversation; then Failure `template_limit`."""
    if len(text) > limits.characters:
        message = f"The chat template wrote {len(text):,} characters; at most {limits.characters:,} are allowed."
        raise Failure("template_limit", message, ADVICE)
    return text


@contextmanager
def _time(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    chances = iter(range(MOST_CHANCES))

    def end(number: int, frame: FrameType | None) -> None:
        # an error raised in a finalizer or a callback of the garbage collector would be lost; the next tick is near
        if not _renders(frame) and next(chances, None) is not None:
            return
        message = f"The chat template did not end within {seconds:g} seconds. It may never end."
        raise Failure("template_limit", message, ADVICE)

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _renders(frame: FrameType | None) -> bool:
    """Whether the code that runs is the template's or jinja's own."""
    return frame is not None and (frame.f_code.co_filename == "<template>" or "jinja2" in frame.f_code.co_filename)


@contextmanager
def _memory(most: int) -> Iterator[None]:
    used = _address_space()
    if used is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + most
    allowed = [limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(allowed), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Bytes that this process has mapped; None where the system does not say."""
    try:
        file = os.open(STATM, os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(os.read(file, 64).split()[0]) * resource.getpagesize()
    finally:
        os.close(file)
