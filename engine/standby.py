"""An engine that has loaded its libraries before it knows its run: it reads the run's folder, one line, on stdin.

Importing torch, transformers and PEFT takes longer than everything else up to the first step. Whoever starts runs keeps
one such process waiting, so that a run begins without it. It is the run's own process from the start: nothing is
forked, so torch's threads and an accelerator's context are never shared, and it is stopped and killed like any other.
"""

import os
import sys
from pathlib import Path

from engine import lifeline
from engine.rundir import RunDir
from engine.train import train

STDIN, STDOUT, STDERR = 0, 1, 2


def main() -> int:
    """Wait for the folder, then be its engine, with the output in its log; 0 at once when stdin ends before."""
    told = b""
    while not told.endswith(b"\n"):
        if not (more := os.read(STDIN, 4096)):
            return 0  # whoever kept this process is gone, or has no use for it
        told += more
    folder = RunDir(Path(os.fsdecode(told.rstrip(b"\n"))))
    lifeline.hold(grace_seconds=0)
    _write_to(folder.log)
    return train(folder.path)


def _write_to(log: Path) -> None:
    """From now on, output is appended to the run's log."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(descriptor, STDOUT)
    os.dup2(descriptor, STDERR)
    os.close(descriptor)
