"""`atelier worker`: one worker process, for installations that start each process by themselves."""

import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

from studio.cli.installation import DataDir, read_settings


class QueueName(StrEnum):
    """The two queues: training runs, and the preparation of data and models."""

    runs = "runs"
    prepare = "prepare"


def worker(
    queue: Annotated[QueueName, typer.Argument(help="runs trains, prepare checks and fetches data and models.")],
    data_dir: DataDir = None,
) -> None:
    """Start only one worker, until SIGTERM; a run in progress is saved and queued again."""
    os.environ["ATELIER_DATA_DIR"] = str(read_settings(data_dir).data_dir)
    sys.stdout.flush()
    # The worker takes this process's place, so that signals and the exit status are its own.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "worker", queue.value])
