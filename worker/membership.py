"""The part of a host in runs that other hosts lead: an engine that meets theirs, for as long as the run is led."""

import logging
import time
from pathlib import Path
from threading import Thread

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from engine.rundir import RunDir
from studio.db.tables import Member, Run, now
from studio.runs import ACTIVE
from worker import devices, launch
from worker.bench import Bench
from worker.hosts import meeting

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
POLL_SECONDS = 0.05
PLAIN = {"synchronize_session": False}
SEEN_SECONDS = 20.0  # until a file that another host has just written is seen here: network file systems remember


def answer(bench: Bench) -> None:
    """Take part in each run that this worker is called to, in a thread of its own."""
    called = select(Member).where(Member.worker_id == bench.id, Member.status == "called")
    with bench.studio.session() as session:
        joined = [member for member in session.scalars(called).all() if _join(session, member)]
    bench.guests = [guest for guest in bench.guests if guest.is_alive()]
    for member in joined:
        guest = Thread(target=take_part, args=(bench, member), name=member.holder, daemon=True)
        guest.start()
        bench.guests.append(guest)


def _join(session: Session, member: Member) -> bool:
    """Say that this worker takes part; False when the run is not led any more."""
    mine = update(Member).where(Member.holder == member.holder, Member.status == "called", _led(member))
    done = session.execute(mine.values(status="joined"), execution_options=PLAIN)
    return bool(done.rowcount)  # type: ignore[attr-defined]


def take_part(bench: Bench, member: Member) -> None:
    """Start the engine and watch it until it has ended, or the run is no longer led as it was."""
    folder = bench.studio.storage.run_dir(member.run_id)
    part = Part(bench, member)
    if refusal := part.unseen(folder):
        part.end(error=refusal)
        return
    argv = [*bench.engine, "train", str(folder.path), *meeting(member.hosts, member.place, member.endpoint)]
    try:
        process = launch.start(argv, log=folder.log_of(member.place), extra=devices.engine_environment(member.device))
    except OSError as error:
        part.end(error=f"The engine could not be started on the host {member.host}: {error.strerror}.")
        return
    log.info("%s: takes part on %s (pid %d)", member.run_id, member.device, process.popen.pid)
    try:
        part.watch(process)
    finally:
        code = process.end()
    part.end(exit_code=code)


class Part:
    """One engine here, of a run that is led elsewhere."""

    def __init__(self, bench: Bench, member: Member) -> None:
        self.bench = bench
        self.member = member
        self.left_at: float | None = None

    def unseen(self, folder: RunDir) -> str:
        """What of the run this host cannot see, in a sentence; empty when it sees everything."""
        until = time.monotonic() + SEEN_SECONDS
        host = self.member.host
        while folder.meeting_key() != self.member.key:
            if time.monotonic() > until or not self.keep():
                return f"The host {host} does not see the folder of this run, {folder.path}, as the first host does."
            time.sleep(TICK_SECONDS)
        try:
            model = folder.read_spec().model
        except (OSError, ValueError) as error:
            return f"The host {host} cannot read the settings of this run: {str(error).splitlines()[0]}."
        return "" if Path(model).is_dir() else f"The host {host} does not see the folder of the model, {model}."

    def watch(self, process: launch.Process) -> None:
        """Until the engine has ended, or has no reason to go on."""
        while process.exit_code() is None and self.keep():
            until = time.monotonic() + TICK_SECONDS
            while time.monotonic() < until and process.exit_code() is None:
                time.sleep(POLL_SECONDS)

    def keep(self) -> bool:
        """Keep the devices, and tell when this worker is to end; False when the run is no longer led, or in time."""
        if self.bench.leaving.is_set():
            self.left_at = self.left_at or time.monotonic()
            if time.monotonic() - self.left_at > self.bench.studio.settings.stop_grace_seconds:
                return False
        member, settings = self.member, self.bench.studio.settings
        values = {"status": "leaving" if self.left_at else "joined"}
        try:
            with self.bench.studio.session() as session:
                mine = update(Member).where(Member.holder == member.holder, _led(member)).values(values)
                if not session.execute(mine, execution_options=PLAIN).rowcount:  # type: ignore[attr-defined]
                    return False
                devices.extend(session, member.holder, settings.lease_seconds)
        except SQLAlchemyError as error:  # the run goes on; whoever leads it waits as well
            log.warning("%s: the database is out of reach: %s", member.run_id, type(error).__name__)
        return True

    def end(self, *, exit_code: int | None = None, error: str = "") -> None:
        """Say how it ended and give the devices back; what cannot be stored, the leases' expiry tells."""
        mine = update(Member).where(Member.holder == self.member.holder)
        log.info("%s: took part until exit code %s %s", self.member.run_id, exit_code, error)
        try:
            with self.bench.studio.session() as session:
                session.execute(mine.values(status="ended", exit_code=exit_code, error=error))
                devices.release(session, self.member.holder)
        except SQLAlchemyError as fault:
            log.warning("%s: its end cannot be stored: %s", self.member.run_id, type(fault).__name__)


def _led(member: Member) -> ColumnElement[bool]:
    """The stored run is still led by the claim that called this member."""
    led = (
        Run.id == member.run_id,
        Run.worker_id == member.leader,
        Run.status.in_(ACTIVE),
        Run.lease_expires_at >= now(),
    )
    return select(Run.id).where(and_(*led)).exists()
