"""One engine of a worker that waits, its libraries loaded, for the next run: a click should not wait for imports."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from engine.rundir import RunDir
from worker import launch
from worker.devices import engine_environment
from worker.launch import Process

log = logging.getLogger(__name__)


class Standby:
    """`python -m engine standby` for one device; handed over to a run, or to nobody when the worker ends."""

    def __init__(self, engine: Sequence[str], log_file: Path) -> None:
        self.engine = list(engine)
        self.log_file = log_file
        self._waiting: tuple[str, Process] | None = None
        self._broken = False  # it ended by itself: without one, runs start all the same
        self._closed = False
        self._lock = Lock()

    def keep(self, device: str) -> None:
        """Have an engine waiting for `device` (a name as in leases), unless one waits already."""
        with self._lock:
            if self._waiting is not None and self._waiting[1].exit_code() is not None:
                log.warning("the waiting engine ended by itself; runs start without one. See %s", self.log_file)
                self._broken = True
                self._end()
            if self._waiting is not None or self._broken or self._closed:
                return
            try:
                self.log_file.parent.mkdir(exist_ok=True)
                self.log_file.unlink(missing_ok=True)
                process = launch.start([*self.engine, "standby"], log=self.log_file, extra=engine_environment(device))
            except OSError as error:
                log.warning("no engine can be kept waiting: %s", error)
                self._broken = True
                return
            self._waiting = device, process

    def start(self, folder: RunDir, device: str, meeting: Sequence[str] = ()) -> Process:
        """The engine of a run: the one that waits when it is for this device, else a new one. Raises OSError.

        `meeting`: arguments about the other hosts of the run, if there are any; then it is a new one.
        """
        marker = folder.path / launch.PROCESS_FILE
        launch.end_leftover(marker)
        process = None if meeting else self._take(folder, device)
        if process is None:
            argv = [*self.engine, "train", str(folder.path), *meeting]
            process = launch.start(argv, log=folder.log, extra=engine_environment(device))
        launch.mark(process, marker)
        return process

    def _take(self, folder: RunDir, device: str) -> Process | None:
        with self._lock:
            if self._waiting is None or self._waiting[0] != device:
                return None
            process = self._waiting[1]
            pipe = process.popen.stdin
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.write(bytes(folder.path) + b"\n")
                pipe.flush()
                if process.exit_code() is None:
                    self._waiting = None
                    return process
            return None

    def close(self) -> None:
        """End the engine that waits; no other is started."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting[1].end()
            self._waiting = None
