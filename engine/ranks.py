"""One program in several processes of this host, through torch's elastic agent, which also meets those of other hosts.

Every process ends when the agent does, however it ended: the agent holds the writing end of their standard input
(`engine.lifeline`). The agent itself may hang on its starter in the same way.
"""

import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from engine import lifeline

GRACE_SECONDS = 10  # between SIGTERM and SIGKILL for the others, once one process failed
MEETING_SECONDS = 300  # that hosts wait for one another


@dataclass(frozen=True)
class Meeting:
    """Where the agents of a run's hosts meet: `endpoint` is address:port on one of them, the same on all.

    `host`: which of the `hosts` this one is, from 0; that one speaks for the run.
    """

    hosts: int = 1
    host: int = 0
    endpoint: str = ""

    @property
    def own_address(self) -> str:
        """The address by which the other hosts reach this one."""
        if self.hosts == 1:
            return "127.0.0.1"
        address, _, port = self.endpoint.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, int(port)))  # nothing is sent: the system only chooses the way
            return str(probe.getsockname()[0])


def launch(
    arguments: Sequence[str], processes: int, extra: Mapping[str, str] | None = None, meeting: Meeting | None = None
) -> int:
    """Run `python ARGUMENTS` in this many processes here, with `extra` in their environment.

    0 when all of them ended well, else the first exit code.
    """
    meeting = meeting or Meeting()
    config = LaunchConfig(
        min_nodes=meeting.hosts,
        max_nodes=meeting.hosts,
        nproc_per_node=processes,
        run_id="atelier" if meeting.hosts > 1 else secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint=meeting.endpoint or f"127.0.0.1:{_free_port()}",
        rdzv_configs={"timeout": MEETING_SECONDS},
        local_addr=meeting.own_address,
        max_restarts=0,
        monitor_interval=0.2,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        signals_to_handle="SIGHUP,SIGQUIT",  # the others are the starter's to decide about
        shutdown_timeout=GRACE_SECONDS,
    )
    try:
        with _on_a_leash(processes, extra or {}):
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
