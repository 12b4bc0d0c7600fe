"""Work on many items by several processes, with the results of one: in the order of the items, whoever did them.

The helpers are forks of this process, so they have what it has prepared, and end when it is gone: each waits for items
on a pipe whose other end nobody else holds.
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from engine.failure import Failure

Item = TypeVar("Item")
Made = TypeVar("Made")

AT_ONCE = 64  # items that a helper gets at a time
WORTH_IT = 1_000  # items per helper: less is done sooner than a process is forked
MOST = 16


def helpers_for(items: int) -> int:
    """How many processes for so many items: one per core that this process may use, fewer for few; 1: no helpers."""
    if sys.platform != "linux":  # elsewhere a fork may not go on with what other threads hold
        return 1
    return max(1, min(MOST, len(os.sched_getaffinity(0)), items // WORTH_IT))


def in_order(work: Callable[[Item], Made], items: Iterator[Item], helpers: int) -> Generator[tuple[Item, Made]]:
    """(item, work(item)) for all items, in order. `work` must make the same of an item wherever it is done.

    The first items are done here, so that every helper has what `work` keeps of them. Raises the Failures that `work`
    raises, and Failure `helper_died` when a helper ends for another reason.
    """
    for item in items if helpers <= 1 else islice(items, AT_ONCE):
        yield item, work(item)
    first = next(items, None)
    if first is None:
        return
    crew = _Crew(work, helpers)
    try:
        yield from crew.work_on(chain([first], items))
    finally:
        crew.end()


class _Crew(Generic[Item, Made]):
    """Helpers and the pipes to them. A helper never has more than one batch, so no pipe is ever full at both ends."""

    def __init__(self, work: Callable[[Item], Made], helpers: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.near: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for _ in range(helpers):
            near, far = fork.Pipe()
            self.near.append(near)
            process = fork.Process(target=_help, args=(work, far, self.near), daemon=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # other threads here only read a pipe
                process.start()
            far.close()
            self.processes.append(process)

    def work_on(self, items: Iterator[Item]) -> Iterator[tuple[Item, Made]]:
        """The results, while the helpers are busy with the next."""
        busy: deque[tuple[Connection, list[Item]]] = deque()

        def give(helper: Connection) -> None:
            if batch := list(islice(items, AT_ONCE)):
                helper.send(batch)
                busy.append((helper, batch))

        try:
            for helper in self.near:
                give(helper)
            while busy:
                helper, batch = busy.popleft()
                made = helper.recv()
                if isinstance(made, tuple):
                    raise Failure(*made)
                give(helper)
                yield from zip(batch, made, strict=True)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            advice = ["Free some memory, then try again.", "Look into the log for what it said last."]
            raise Failure("helper_died", "A process that prepares rows ended before its work.", advice) from error

    def end(self) -> None:
        """Close the pipes, and wait until every helper is gone."""
        for near in self.near:
            near.close()
        for process in self.processes:
            process.kill()
            process.join()


def _help(work: Callable[[Item], Made], far: Connection, near: list[Connection]) -> None:
    """Work on batches until the other end is closed; a Failure is sent instead of the results."""
    for inherited in near:
        inherited.close()
    for number in (signal.SIGTERM, signal.SIGINT):  # sent to the whole group: the one that asks decides
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads were not forked
    try:
        while True:
            batch = far.recv()
            try:
                far.send([work(item) for item in batch])
            except Failure as failure:
                far.send((failure.code, failure.message, failure.advice))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody asks any more
