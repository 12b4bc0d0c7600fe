"""One program in several processes of this host, through torch's elastic agent, which also meets those of other hosts.

Every process ends when the agent does, however it ended: the agent holds the writing end of their standard input
(`engine.lifeline`). The agent itself may hang on its starter in the same way.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from engine import lifeline
from engine.meeting import BACKEND, Meeting, Rendezvous

GRACE_SECONDS = 10  # between SIGTERM and SIGKILL for the others, once one process failed


def launch(
    arguments: Sequence[str], processes: int, extra: Mapping[str, str] | None = None, meeting: Meeting | None = None
) -> int:
    """Run `python ARGUMENTS` in this many processes here, with `extra` in their environment.

    0 when all of them ended well, else the first exit code. Raises Failure when the hosts do not meet.
    """
    meeting = meeting or Meeting()
    rendezvous_handler_registry.register(BACKEND, Rendezvous.of)
    config = LaunchConfig(
        min_nodes=meeting.hosts,
        max_nodes=meeting.hosts,
        nproc_per_node=processes,
        run_id=meeting.key,
        rdzv_backend=BACKEND,
        rdzv_endpoint=meeting.endpoint,
        rdzv_configs={"meeting": meeting},
        local_addr=meeting.own_address,
        max_restarts=0,
        monitor_interval=0.2,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        signals_to_handle="SIGHUP,SIGQUIT",  # the others are the starter's to decide about
        shutdown_timeout=GRACE_SECONDS,
    )
    try:
        with _on_a_leash(processes, {**meeting.interfaces(), **(extra or {})}):
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        first = error.get_first_failure()[1]
        return first.exitcode if first.exitcode > 0 else 1
    return 0


@contextmanager
def _on_a_leash(processes: int, extra: Mapping[str, str]) -> Iterator[None]:
    """Processes started inside the block read a pipe that only this one holds, find our code, and share the cores."""
    before, own_stdin = dict(os.environ), os.dup(lifeline.STDIN)
    reading, writing = os.pipe()
    os.dup2(reading, lifeline.STDIN)
    os.close(reading)
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    os.environ.update({**extra, lifeline.VARIABLE: "1"})
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    try:
        yield
    finally:
        os.close(writing)
        os.dup2(own_stdin, lifeline.STDIN)
        os.close(own_stdin)
        os.environ.clear()
        os.environ.update(before)
