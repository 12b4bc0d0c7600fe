"""From a run's folder into the database: new event lines by byte offset, their meaning for the row, the log's end."""

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from engine import events
from engine.rundir import RunDir
from studio import packs
from studio.db import insert_new
from studio.db.tables import Run, RunEvent
from studio.labels import storable, storable_json
from worker.claims import Claim, held

MOST_LINES = 2_000  # relayed in one transaction
LOG_BYTES = 64 << 10
LOG_EVERY = 1.0  # seconds
ETA_STEPS = 20


@dataclass
class Relay:
    """Where the reading stands, and what the run said last."""

    run_dir: RunDir
    offset: int
    total_steps: int = 0
    best_eval_loss: float | None = None
    finished: events.Finished | None = None
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=ETA_STEPS))
    unpacked: int = 0
    log_size: int = -1
    log_at: float = -LOG_EVERY

    def relay(self, session: Session, claim: Claim, *, last: bool = False) -> int:
        """Store what is new under the claim; the number of lines. The caller commits, then calls `stored`."""
        lines = list(new_lines(self.run_dir.events, self.offset, MOST_LINES))
        values: dict[str, Any] = {}
        for _offset, event in lines:
            values |= self._meaning(event)
        if lines:
            insert_new(session, RunEvent, [_row(claim.run_id, offset, event) for offset, event in lines])
            self.offset = values["events_offset"] = lines[-1][0]
            self._pack(session, claim.run_id, sum(event.kind in packs.KINDS for _, event in lines))
        values |= self._log(last)
        status = values.pop("status", None)
        if values:
            session.execute(update(Run).where(held(claim)).values(values))
        if status:
            session.execute(update(Run).where(held(claim), Run.status == "preparing").values(status=status))
        return len(lines)

    def catch_up(self, sessions: sessionmaker[Session], claim: Claim) -> events.Finished | None:
        """Store what an engine still said after its worker was gone; its last event when that was its success."""
        more = True
        while more:
            with sessions.begin() as session:
                more = bool(self.relay(session, claim))
        finished, self.finished = self.finished, None
        return finished if finished is not None and finished.status == "succeeded" else None

    def _pack(self, session: Session, run_id: str, more: int) -> None:
        """Keep what is measured quick to read, now and then and when it ends."""
        self.unpacked += more
        if self.unpacked >= packs.SIZE or self.finished is not None:
            packs.pack(session, run_id, rest=self.finished is not None)
            self.unpacked = 0

    def _meaning(self, event: events.Event) -> dict[str, Any]:
        """Columns of the run's row that the event changes."""
        match event:
            case events.Phase():
                count = f"{event.done} of {event.total}" if event.done is not None and event.total else ""
                detail = storable(" ".join(part for part in (event.detail, count) if part))
                return {"phase": event.phase, "phase_detail": detail}
            case events.Started():
                self.total_steps = event.total_steps
                self.recent.clear()
                return {"status": "running", "total_steps": event.total_steps, "step": event.first_step}
            case events.Step():
                self.recent.append((event.step, event.time))
                measured = {} if event.loss is None else {"loss": event.loss}
                return {"status": "running", "step": event.step, "seconds_left": self._seconds_left(), **measured}
            case events.Eval():
                return self._evaluated(event.loss)
            case events.Saved(what="checkpoint"):
                return {"attempts": 1}  # progress: the workers lost before this point count no more
            case events.Finished():
                self.finished = event
        return {}

    def _evaluated(self, loss: float | None) -> dict[str, Any]:
        if loss is None:
            return {}
        if self.best_eval_loss is None or loss < self.best_eval_loss:
            self.best_eval_loss = loss
        return {"eval_loss": loss, "best_eval_loss": self.best_eval_loss}

    def _seconds_left(self) -> float | None:
        """From the pace of the last steps, pauses for evaluation and saving included."""
        if len(self.recent) < 2:
            return None
        (first, began), (last, ended) = self.recent[0], self.recent[-1]
        if last <= first or ended <= began:
            return None
        return max(0.0, (self.total_steps - last) * (ended - began) / (last - first))

    def _log(self, now_please: bool) -> dict[str, Any]:
        if not now_please and time.monotonic() - self.log_at < LOG_EVERY:
            return {}
        self.log_at = time.monotonic()
        size, text = log_tail(self.run_dir.log)
        if size == self.log_size:
            return {}
        self.log_size = size
        return {"log_tail": text}


def _row(run_id: str, offset: int, event: events.Event) -> dict[str, Any]:
    data = storable_json(event.model_dump(mode="json"))
    return {
        "run_id": run_id,
        "offset": offset,
        "kind": event.kind,
        "step": data.get("step"),
        "time": event.time,
        "data": data,
    }


def new_lines(path: Path, offset: int, most: int) -> list[tuple[int, events.Event]]:
    """At most `most` whole lines from byte `offset` on, each with the offset at which it ends.

    A last line that is still being written waits. A whole line that is no event becomes a warning, so that it shows.
    """
    found: list[tuple[int, events.Event]] = []
    if not path.exists():
        return found
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n") or len(found) >= most:
                break
            offset += len(line)
            found.append((offset, _parsed(line)))
    return found


def _parsed(line: bytes) -> events.Event:
    try:
        return events.parse(line)
    except ValidationError:
        shown = line[:200].decode("utf-8", "replace").strip()
        return events.Warned(code="unreadable_event", message=f"The run said something that cannot be read: {shown}")


def log_tail(path: Path) -> tuple[int, str]:
    """(size of the log in bytes, its last part as text of at most 64 KiB)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = storable(file.read(LOG_BYTES).decode("utf-8", "replace"))
    except FileNotFoundError:
        return 0, ""
    while len(text.encode()) > LOG_BYTES:  # a stand-in for a broken byte takes three
        text = text[len(text) // 8 + 1 :]
    return size, text


def drop_half_line(path: Path) -> None:
    """Cut off a last line that a killed process left unfinished, so that the next one begins on its own line."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        while size:
            start = max(0, size - 65_536)
            file.seek(start)
            end = file.read(size - start).rfind(b"\n")
            size = start + end + 1 if end >= 0 else start
            if end >= 0:
                break
        file.truncate(size)
