"""Starting the engine: its own process group, a lifeline on stdin, output to a file, no secrets in its environment."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ENGINE = [sys.executable, "-m", "engine"]
SECRET = re.compile(
    r"^(ATELIER_|PG|REDIS_|CELERY_|AWS_|AZURE_|GOOGLE_)|TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY"
    r"|(DATABASE|BROKER)_URL"
)
HARMLESS = ("TOKENIZERS_PARALLELISM", "ATELIER_VLLM_URL")
PROCESS_FILE = "process.json"


@dataclass
class Process:
    """A running engine and everything it started."""

    popen: subprocess.Popen[bytes]
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs."""
        return self.popen.poll()

    def signal_all(self, number: signal.Signals) -> None:
        """A signal to the process group, and to descendants that left it."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.popen.pid).children(recursive=True):
                self.seen[child.pid] = child
        _signal_group(self.popen.pid, number)
        for child in self.seen.values():
            with contextlib.suppress(psutil.Error):  # psutil compares start times: a reused pid is not hit
                child.send_signal(number)

    def end(self) -> int:
        """Kill whatever is left of the group, close the lifeline, and give the exit code."""
        self.signal_all(signal.SIGKILL)
        code = self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return code


def start(argv: Sequence[str], *, log: Path, extra: Mapping[str, str] | None = None) -> Process:
    """Start a program of the engine. Its output is appended to `log`; it ends when this process does."""
    with log.open("ab") as output:
        popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(extra),
        )
    return Process(popen)


def mark(process: Process, marker: Path) -> None:
    """Note in a file which process this is, so that another worker can end it: see `end_leftover`."""
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.popen.pid).create_time()
        told = {"host": os.uname().nodename, "pid": process.popen.pid, "started": started}
        marker.write_text(json.dumps(told), encoding="utf-8")


def end_leftover(marker: Path) -> None:
    """Kill the engine that the marker names if it still runs on this host: two must never write one folder."""
    try:
        told = json.loads(marker.read_text(encoding="utf-8"))
        if told["host"] == os.uname().nodename and psutil.Process(told["pid"]).create_time() == told["started"]:
            _signal_group(told["pid"], signal.SIGKILL)
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return


def lines(argv: Sequence[str], log: Path) -> Iterator[str]:
    """Lines that a program writes to its output, as they come; its errors go to `log`.

    Raises CalledProcessError when it fails.
    """
    with log.open("ab") as errors:
        popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env=environment(),
        )
    process = Process(popen)
    try:
        assert popen.stdout is not None
        for line in popen.stdout:
            yield line.decode("utf-8", "replace").strip()
        if code := popen.wait():
            raise subprocess.CalledProcessError(code, list(argv))
    finally:
        process.end()


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process without secrets and without the settings of the studio."""
    kept = {name: value for name, value in os.environ.items() if name in HARMLESS or not SECRET.search(name.upper())}
    ours = {"ATELIER_LIFELINE": "1", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**kept, **ours, **(extra or {})}


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
