"""The warm engine process of a worker: questions about datasets, one at a time, without waiting for imports."""

import contextlib
import json
import logging
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Lock
from typing import Any

from studio.errors import Invalid, Unavailable
from worker.launch import Process, environment

log = logging.getLogger(__name__)

CHUNK = 1 << 16
TICK_SECONDS = 0.2  # how soon a worker that leaves stops waiting
LOG_BYTES = 1 << 20  # the log begins anew above this


class Inspector:
    """`python -m engine serve-data`, started when first needed, and again when it died or took too long."""

    def __init__(self, engine: Sequence[str], log_file: Path, leaving: Event) -> None:
        self.argv = [*engine, "serve-data"]
        self.log_file = log_file
        self.leaving = leaving
        self._process: Process | None = None
        self._lock = Lock()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one question (see engine.serve_data), within `seconds` from its turn.

        Raises Invalid with the engine's own words, and Unavailable when it died, took too long, or the worker leaves.
        """
        with self._lock:
            process = self._running()
            try:
                answer = self._answer(process, json.dumps(dict(request)).encode() + b"\n", seconds)
            except BaseException:
                self._end()  # whatever it still writes would be taken for the next answer
                raise
        if error := answer.get("error"):
            advice = " ".join(error.get("advice") or ())
            raise Invalid(error["message"], code=error["code"], advice=advice)
        return answer

    def close(self) -> None:
        """End the process; a question that waits is answered with Unavailable. `leaving` must be set."""
        with self._lock:
            self._end()

    def _running(self) -> Process:
        if self._process is not None and self._process.exit_code() is None:
            return self._process
        self._end()
        self.log_file.parent.mkdir(exist_ok=True)
        fresh = not self.log_file.exists() or self.log_file.stat().st_size > LOG_BYTES
        with self.log_file.open("wb" if fresh else "ab") as errors:
            popen = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
                env=environment(),
            )
        self._process = Process(popen)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _answer(self, process: Process, line: bytes, seconds: float) -> dict[str, Any]:
        pipe, until = process.popen.stdout, time.monotonic() + seconds
        assert process.popen.stdin is not None
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # the end of its output says so too
            process.popen.stdin.write(line)
        parts: list[bytes] = []
        with selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_READ)
            while not parts or not parts[-1].endswith(b"\n"):
                if self.leaving.is_set():
                    raise Unavailable("The worker is ending.", code="leaving")
                if time.monotonic() > until:
                    raise Unavailable(f"The data could not be read as the model would within {seconds:g} seconds.")
                if ready.select(TICK_SECONDS):
                    parts.append(os.read(pipe.fileno(), CHUNK))
                    if not parts[-1]:
                        raise Unavailable(f"The process that reads the data ended. {self._last_words()}".strip())
        return self._decoded(b"".join(parts))

    def _decoded(self, answer: bytes) -> dict[str, Any]:
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Unavailable("The process that reads the data gave no answer that can be read.")
        return found

    def _last_words(self) -> str:
        """The last line of its log."""
        said = self.log_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return said[-1][:300] if said else ""
