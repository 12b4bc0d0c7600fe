"""One run under a claim: start the engine, relay what it says, pass on wishes to stop, and write how it ended."""

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from engine.failure import Change
from studio.context import Studio
from studio.db.tables import Run
from studio.errors import StudioError
from studio.labels import storable
from worker import claims, launch, plan
from worker.bench import Bench
from worker.claims import Claim
from worker.hosts import Hosts
from worker.prepare_run import lay_out, resolve, verify
from worker.relay import Relay, log_tail

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
POLL_SECONDS = 0.05  # how soon the end of the engine is noticed
TERM_SECONDS = 5.0  # between SIGTERM and SIGKILL
GRACE = 5.0  # beyond a lease, after which the engines on other hosts are waited for no longer
RESUME = ["The log has the details; resume to try again."]
IN_VAIN = "The engine here was ended, since one that it works with ended on another host."
SAME_FOLDERS = ["All hosts of a run need the data folder, and the model's, at the same path. Mount them, then resume."]


@dataclass
class Stopping:
    """How far the engine has been pressed to stop, and since when."""

    wanted: str = ""
    asked_at: float = 0.0
    termed_at: float = 0.0
    killed: bool = False


def supervise(bench: Bench, claim: Claim) -> None:
    """Carry a claimed run to its end. When the worker is to end meanwhile, the run is saved and queued again."""
    studio = bench.studio
    run_dir = studio.storage.run_dir(claim.run_id)
    try:
        with studio.session() as session:
            run = session.get_one(Run, claim.run_id)
            spec = resolve(session, studio.storage, run)
            relay = Relay(run_dir, run.events_offset, run.total_steps, run.best_eval_loss)
        verify(spec)
        plan.remember(bench, claim.run_id)
        lay_out(run_dir, spec)
        if done := relay.catch_up(studio.sessions, claim):
            _settle(studio, claim, "succeeded", phase="", phase_detail=storable(done.message))
            return
        hosts = Hosts(claim)
        process = bench.standby.start(run_dir, claim.device, hosts.call(studio, run_dir))
    except StudioError as error:
        _settle(
            studio, claim, "failed", error=_error(error.code, error.message, [error.advice] if error.advice else [])
        )
        return
    except OSError as error:
        message = f"The engine could not be started: {error.strerror} ({error.filename})."
        _settle(
            studio,
            claim,
            "failed",
            error=_error("engine_not_started", message, ["Free disk space or memory, then resume."]),
        )
        return
    log.info("%s: the engine runs on %s (pid %d)", claim.run_id, claim.device, process.popen.pid)
    supervision = Supervision(studio, claim, relay, process, bench.leaving, hosts)
    try:
        ours = supervision.watch()
    finally:
        code = process.end()
    if ours:
        supervision.conclude(code)


@dataclass
class Supervision:
    """The parts of one supervision."""

    studio: Studio
    claim: Claim
    relay: Relay
    process: launch.Process
    leaving: Event
    hosts: Hosts

    def __post_init__(self) -> None:
        self.stopping = Stopping()
        self.left = False  # the wish to stop came from the end of this worker, or of one that takes part
        self.in_vain = False  # the engine here was ended, since it waited for one elsewhere that is gone

    def watch(self) -> bool:
        """Until the engine has ended, here and elsewhere; False when the run was taken over by another worker."""
        lease = self.studio.settings.lease_seconds
        while True:
            ended = self.process.exit_code() is not None
            wanted = self._tick(last=ended)
            if wanted is None:
                log.warning("%s: taken over by another worker; the engine here is ended", self.claim.run_id)
                return False
            if ended and (self.relay.finished is not None or self.hosts.known(lease + GRACE)):
                return True
            if not ended and self.hosts.hopeless:
                self.in_vain = True
                self.process.end()
            elif not ended:
                self._press(wanted)
            self._wait()

    def _wait(self) -> None:
        until, ended = time.monotonic() + TICK_SECONDS, self.process.exit_code() is not None
        while time.monotonic() < until and (self.process.exit_code() is not None) == ended:
            time.sleep(POLL_SECONDS)

    def _tick(self, *, last: bool) -> str | None:
        """Relay and extend the lease; what a person wants of the run, None when the claim is lost.

        While the database is out of reach the engine goes on; its events wait in the file.
        """
        before = self.relay.offset, self.relay.log_size
        try:
            while True:
                with self.studio.session() as session:
                    if not claims.extend(session, self.claim, self.studio.settings.lease_seconds):
                        return None
                    self.hosts.look(session)
                    more = self.relay.relay(session, self.claim, last=last)
                    wanted = session.scalars(select(Run.wanted).where(Run.id == self.claim.run_id)).one()
                before = self.relay.offset, self.relay.log_size
                if not more or not last:
                    return wanted
        except SQLAlchemyError as error:
            self.relay.offset, self.relay.log_size = before
            log.warning("%s: the database is out of reach: %s", self.claim.run_id, _first_line(error))
            return self.stopping.wanted

    def _press(self, wanted: str) -> None:
        """Stop file, then SIGTERM after the grace, then SIGKILL; each to every process of the run."""
        self.left = not wanted and (self.leaving.is_set() or self.hosts.leaving)
        if self.left:
            wanted = "pause"
        if not wanted:
            return
        now, state = time.monotonic(), self.stopping
        if wanted != state.wanted:
            self.relay.run_dir.ask_to_stop("cancel" if wanted == "cancel" else "pause")
            state.asked_at = state.asked_at or now
            state.wanted = wanted
        elif not state.termed_at and now - state.asked_at >= self.studio.settings.stop_grace_seconds:
            log.warning("%s: did not stop within the grace; SIGTERM", self.claim.run_id)
            self.process.signal_all(signal.SIGTERM)
            state.termed_at = now
        elif state.termed_at and not state.killed and now - state.termed_at >= TERM_SECONDS:
            log.warning("%s: did not end after SIGTERM; SIGKILL", self.claim.run_id)
            self.process.signal_all(signal.SIGKILL)
            state.killed = True

    def conclude(self, code: int) -> None:
        """Write the final status from what the run said, what was wanted, and how the process ended."""
        status, values = self._outcome(code)
        log.info("%s: %s (exit code %d)", self.claim.run_id, status, code)
        _settle(self.studio, self.claim, status, **values)

    def _outcome(self, code: int) -> tuple[str, dict[str, Any]]:
        said, wanted = self.relay.finished, self.stopping.wanted
        if said is not None and said.status == "succeeded":
            return "succeeded", {"phase": "", "phase_detail": storable(said.message)}
        if wanted == "cancel":
            return "cancelled", {"phase": "", "phase_detail": ""}
        if said is not None and said.status == "failed":
            return "failed", {"error": _error(said.code or "failed", said.message, said.advice, code, said.changes)}
        if said is not None and said.status == "cancelled":
            return "cancelled", {"phase": "", "phase_detail": ""}
        if wanted == "pause" and self.left:
            return "queued", {"attempts": 0, "phase_detail": "waiting for the worker to come back"}
        if wanted == "pause" or said is not None:
            return "paused", {"phase": "", "phase_detail": storable(said.message) if said else ""}
        return self._unsaid(code)

    def _unsaid(self, code: int) -> tuple[str, dict[str, Any]]:
        """The outcome of a run that ended without a word: a host was lost, could not take part, or an engine died."""
        folder, hosts = self.relay.run_dir, self.hosts
        if hosts.lost:
            with self.studio.session() as session:
                values = claims.after_loss(session.get_one(Run, self.claim.run_id), hosts.lost)
            return values.pop("status"), values
        if hosts.refusal:
            return "failed", {"error": _error("host_refused", hosts.refusal, SAME_FOLDERS)}
        error = _error("crashed", IN_VAIN, RESUME) if self.in_vain else crashed(code, log_tail(folder.log)[1])
        return "failed", {"error": error | {"message": error["message"] + storable(hosts.last_words(folder))}}


def crashed(code: int, tail: str) -> dict[str, Any]:
    """The error of an engine that ended without a word: cause as far as it can be known, last words, advice."""
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")
    said = f" Its last line of output was: {last[:300]}" if last else " It left no output."
    memory = ["Choose a shorter maximum length, a smaller batch, or a smaller model; or turn on recompute activations."]
    if code == -signal.SIGKILL:
        message = "The engine was killed by the system, probably because the machine ran out of memory."
        return _error("killed", message + said, memory, code)
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return _error("crashed", f"The engine was ended by {name}.{said}", RESUME, code)
    message = f"The engine ended with exit code {code} and without saying why.{said}"
    return _error("crashed", message, RESUME, code)


def _error(
    code: str, message: str, advice: Sequence[str], exit_code: int | None = None, changes: Sequence[Change] = ()
) -> dict[str, Any]:
    told = [storable(line) for line in advice]
    error = {"code": code, "message": storable(message), "advice": told, "exit_code": exit_code}
    return error | ({"changes": [asdict(change) for change in changes]} if changes else {})


def _settle(studio: Studio, claim: Claim, status: str, **values: Any) -> None:
    """Write the end of a claim; kept trying for a while when the database is away, then left to the sweep."""
    for attempt in range(10):
        try:
            with studio.session() as session:
                claims.settle(session, claim, status, **values)
            return
        except SQLAlchemyError as error:
            log.warning("%s: its end cannot be stored yet: %s", claim.run_id, _first_line(error))
            time.sleep(min(2.0, 0.2 * 2**attempt))


def _first_line(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
