"""An engine process in the foreground: its events on the terminal, Ctrl-C as "save and stop", its end explained."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.events import Eval, Event, Finished, Phase, Rollout, Sample, Saved, Started, Step, Warned, read
from engine.lifeline import VARIABLE as LIFELINE
from engine.rundir import RunDir
from studio.cli.console import err, out, plain

ENGINE = (sys.executable, "-P", "-m", "engine")
LOOK_SECONDS = 0.2
QUIET_SECONDS = 5.0  # between two steps told on an output that is no terminal
LOG_TAIL_BYTES = 4000
INTERRUPTED = 130


class View(Protocol):
    """Where the events of a run are shown."""

    def show(self, event: Event) -> None:
        """Show one event."""

    def close(self) -> None:
        """Nothing follows."""


class Lines:
    """Every event as one JSON line."""

    def show(self, event: Event) -> None:
        """Print it at once, for whoever reads along."""
        out.file.write(event.model_dump_json() + "\n")
        out.file.flush()

    def close(self) -> None:
        """Nothing to clean up."""


class Screen:
    """A progress bar with loss and speed, and a line for everything that happens once."""

    def __init__(self, console: Console, run_dir: RunDir) -> None:
        self.console = console
        self.run_dir = run_dir
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("Starting", total=None, figures="")
        self.progress.start()
        self.told_at = 0.0
        self.total = 0

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Show one event."""
        match event:
            case Phase():
                words = event.phase.replace("_", " ").capitalize()
                self.progress.update(self.task, description=plain(f"{words} {event.detail}".strip()))
            case Started():
                self.start(event)
            case Step():
                self.step(event)
            case Eval():
                self.line(f"Step {event.step}: eval loss {figure(event.loss)}{' (best so far)' if event.best else ''}")
            case Sample():
                self.sample(event)
            case Rollout():
                self.rollout(event)
            case Saved():
                self.line(f"Step {event.step}: {event.what} saved, {event.bytes / 2**20:,.1f} MiB")
            case Warned():
                self.line(f"Warning: {event.message}")
            case Finished():
                self.progress.stop()
                self.finish(event)

    def start(self, event: Started) -> None:
        """The facts of the run."""
        self.total = event.total_steps
        self.progress.update(self.task, total=event.total_steps, completed=event.first_step, description="Training")
        share = event.trainable_parameters / max(1, event.total_parameters)
        self.line(
            f"{event.train_rows:,} rows, {event.trained_tokens:,} of {event.total_tokens:,} tokens trained per epoch; "
            f"{event.trainable_parameters:,} parameters ({share:.2%}); {event.device}, {event.dtype}"
        )

    def step(self, event: Step) -> None:
        """Move the bar; where there is none, a line from time to time."""
        figures = f"loss {figure(event.loss)}  {event.tokens_per_second:,.0f} tokens/s"
        self.progress.update(self.task, completed=event.step, figures=figures, description="Training")
        now = time.monotonic()
        if not self.console.is_terminal and (now - self.told_at > QUIET_SECONDS or event.step == self.total):
            self.told_at = now
            self.line(f"Step {event.step} of {self.total}: {figures}")

    def sample(self, event: Sample) -> None:
        """A prompt with the answers before and after."""
        asked = str(event.prompt[-1].get("content", "")) if event.prompt else ""
        self.line(
            f"Sample after step {event.step}\n  asked  {asked}\n  base   {event.base_answer}\n  tuned  {event.answer}"
        )

    def rollout(self, event: Rollout) -> None:
        """The best of a group of sampled answers, and what the group was worth."""
        there = [one for one in event.answers if one.reward is not None]
        if there:
            best = max(there, key=lambda one: one.reward or 0.0)
            mean = sum(one.reward or 0.0 for one in there) / len(there)
            self.line(f"Step {event.step}: reward {mean:.3f} over {len(there)} answers, the best: {best.text}")

    def finish(self, event: Finished) -> None:
        """How it ended, and what can be done now."""
        if event.status == "failed":
            self.line(f"Failed: {event.message}")
            for advice in event.advice:
                self.line(f"  {advice}")
        elif event.status == "succeeded":
            if event.message:
                self.line(event.message)
            what = "model" if self.run_dir.model.exists() else "adapter"
            self.line(f"Done. The {what} is in {self.run_dir.path / what}")
        else:
            self.line(f"{event.status.capitalize()} after step {event.step}.")
            self.line(f"Go on with the same command and --out {self.run_dir.path}")

    def line(self, text: str) -> None:
        """One line above the bar."""
        self.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)


def follow(run_dir: RunDir, view: View, engine: Sequence[str] = ENGINE) -> int:
    """Train in `run_dir` until the engine ends; the exit status: 0, 1 when it failed, 130 when it was interrupted."""
    offset = run_dir.events.stat().st_size if run_dir.events.exists() else 0
    last: Event | None = None
    with (
        run_dir.log.open("ab") as log,
        started([*engine, "train", str(run_dir.path)], log.fileno()) as process,
        stop_on_signal(run_dir, process) as asked,
    ):
        try:
            running = True
            while running:
                running = process.poll() is None  # asked before reading: what it said last is read below
                for end, event in read(run_dir.events, offset):
                    offset, last = end, event
                    view.show(event)
                if running:
                    time.sleep(LOOK_SECONDS)
        finally:
            view.close()
    if not isinstance(last, Finished):
        explain_death(run_dir, process.returncode)
        return 1
    return 1 if last.status == "failed" else INTERRUPTED if asked else 0


@contextmanager
def started(argv: Sequence[str], log: int) -> Iterator[subprocess.Popen[bytes]]:
    """The engine, in a session of its own (Ctrl-C reaches only this process), on a lifeline: it ends when this does."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={name: value for name, value in os.environ.items() if not name.startswith("ATELIER_")} | {LIFELINE: "1"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


@contextmanager
def stop_on_signal(run_dir: RunDir, process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and a closed terminal ask the engine to save; a second one ends it. Yields the signals so far."""
    asked: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:
            run_dir.ask_to_stop("pause")
            err.print("Saving; press Ctrl-C again to end at once.")
        else:
            process.kill()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain_death(run_dir: RunDir, code: int) -> None:
    """An engine that ended without a word: how, and the last of its output."""
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    with run_dir.log.open("rb") as file:
        file.seek(max(0, run_dir.log.stat().st_size - LOG_TAIL_BYTES))
        tail = file.read().decode("utf-8", "replace")
    err.print(f"The engine {how} before it could say why. The end of {run_dir.log}:", style="red", soft_wrap=True)
    err.print(plain(tail), soft_wrap=True)


def figure(value: float | None) -> str:
    """A loss."""
    return "not a number" if value is None else f"{value:.4f}"
