"""`python -m worker runs|prepare [--data-dir DIR]`."""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from engine import lifeline
from studio.errors import StudioError
from studio.queue import PREPARE, RUNS
from studio.settings import Settings
from worker.main import serve

LAST_SECONDS = 10.0  # to end after a run has saved, or was given up


def main() -> int:
    """Serve a queue; 1 with one line on stderr when that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m worker", description="Serve one of Atelier's queues.")
    parser.add_argument("queue", choices=(RUNS, PREPARE))
    parser.add_argument("--data-dir", type=Path, help="data folder; else ATELIER_DATA_DIR or ~/.atelier")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    given: dict[str, Any] = {"data_dir": arguments.data_dir} if arguments.data_dir else {}
    settings = Settings(**given)
    lifeline.hold(settings.stop_grace_seconds + LAST_SECONDS if arguments.queue == RUNS else LAST_SECONDS)
    try:
        return serve(settings, arguments.queue)
    except StudioError as error:
        sys.stderr.write(f"{error.message} {error.advice}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
