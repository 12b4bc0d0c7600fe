"""Child processes of `atelier up`: started with a lifeline, output shown and kept, started again, ended for good."""

import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

import psutil
import typer

from engine.lifeline import VARIABLE

LOG_BYTES, LOG_FILES = 5_000_000, 3
LINE_LIMIT = 16_384  # characters; a longer line is shown in parts
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before a dead child is started again
STEADY_SECONDS = 60.0  # one that lived so long starts again without delay
POLL_SECONDS = 0.05


@dataclass
class Child:
    """One child: a Python module with arguments, and where its output is kept."""

    name: str
    arguments: list[str]
    environment: dict[str, str]
    log: Path
    essential: bool = False
    stop_seconds: float = 10.0
    wait: float = FIRST_WAIT
    due: float = field(default=0.0, init=False)
    started: float = field(default=0.0, init=False)
    process: subprocess.Popen[str] | None = field(default=None, init=False)
    reader: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it in a session of its own: Ctrl-C reaches only `up`, which then asks each child once."""
        self.close()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.started, self.due = time.monotonic(), 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", *self.arguments],
            env=os.environ | self.environment | {VARIABLE: "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.reader = threading.Thread(target=drain, args=(self.name, self.process.stdout, self.log), daemon=True)
        self.reader.start()

    def close(self) -> None:
        """Of a process that has ended: let go of the lifeline and show its last lines."""
        if self.process and self.process.stdin and self.reader:
            self.process.stdin.close()
            self.reader.join(timeout=1.0)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll() if self.process else None

    def revive(self) -> None:
        """Start a dead child again once its waiting time is over; the time doubles while it keeps dying early."""
        now = time.monotonic()
        if not self.due:
            self.wait = FIRST_WAIT if now - self.started > STEADY_SECONDS else min(2 * self.wait, LONGEST_WAIT)
            self.due = now + self.wait
            say(f"{self.name} {how_it_ended(self.exit_code)}; it starts again in {self.wait:.0f} s. Log: {self.log}")
        elif now >= self.due:
            self.start()


def how_it_ended(code: int | None) -> str:
    """An exit code in words."""
    return f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"


def say(line: str) -> None:
    """One line to the terminal; one that is gone is no reason to stop working."""
    try:
        typer.echo(line)
    except OSError:
        return


def drain(name: str, stream: IO[str], log: Path) -> None:
    """Show every line with the child's name in front and keep it in a rotating file, until the output is closed."""
    kept = RotatingFileHandler(log, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
    kept.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    with stream:
        while line := stream.readline(LINE_LIMIT):
            line = line.rstrip("\n")
            kept.handle(logging.makeLogRecord({"msg": line}))
            if line:
                say(f"{name:<7} | {line}")
    kept.close()


def end_all(children: list[Child], hurry: threading.Event) -> None:
    """SIGTERM to all at once, to each its own time to save and end, then SIGKILL to what is left of it and below it.

    When `hurry` is set nobody is waited for any longer.
    """
    running = [child for child in children if child.process and child.exit_code is None]
    family = [relative for child in running for relative in descendants(child)]
    for child in running:
        assert child.process is not None
        child.process.terminate()
    asked = time.monotonic()
    for child in running:
        assert child.process is not None
        while child.exit_code is None and not hurry.is_set() and time.monotonic() - asked < child.stop_seconds:
            time.sleep(POLL_SECONDS)
        if child.exit_code is None:
            say(f"{child.name} is still busy and is cut off.")
            family += descendants(child)
            child.process.kill()
            child.process.wait()
    for child in children:
        child.close()
    kill_leftovers(family)


def descendants(child: Child) -> list[psutil.Process]:
    """Processes that the child has started, and theirs."""
    try:
        return psutil.Process(child.process.pid).children(recursive=True) if child.process else []
    except psutil.NoSuchProcess:
        return []


def kill_leftovers(family: list[psutil.Process]) -> None:
    """A moment to end by themselves, then SIGKILL. psutil compares start times: no stranger is hit."""
    _, left = psutil.wait_procs(family, timeout=2.0)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
