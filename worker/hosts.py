"""The other hosts of a run, as the worker that leads it sees them: called to meet, watched, and told of at the end."""

import secrets
import socket
import time
from dataclasses import dataclass, field

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from engine.rundir import RunDir
from studio.context import Studio
from studio.db.tables import DeviceLease, Member, now
from studio.errors import Invalid
from worker import devices
from worker.claims import Claim
from worker.relay import log_tail

SILENT_SECONDS = 2.0  # beyond a lease: after a while without the database all are silent for a moment
GRACE_SECONDS = 15.0  # for the engine here to notice by itself that one elsewhere has ended


@dataclass
class Hosts:
    """What is known of the members of a claim; of a run on one host there are none, and everything is known."""

    claim: Claim
    members: list[Member] = field(default_factory=list)
    lost: str = ""  # the first host that was not heard of for a lease's length
    leaving: bool = False  # a member's worker is to end: the run is to be saved
    _silent_at: float | None = None
    _failed_at: float | None = None
    _asked_at: float | None = None

    def call(self, studio: Studio, folder: RunDir) -> list[str]:
        """Have the members begin; the engine's arguments about where they meet. Raises Invalid, with what to do."""
        if not self.claim.members:
            return []
        endpoint, key = free_endpoint(studio.settings.rendezvous_address), secrets.token_hex(16)
        folder.meeting.write_text(key, encoding="utf-8")
        asked = update(Member).where(Member.holder.in_(self.claim.members), Member.status == "asked")
        with studio.session() as session:
            session.execute(asked.values(status="called", endpoint=endpoint, key=key))
            for holder in self.claim.members:
                devices.extend(session, holder, studio.settings.lease_seconds)
        return meeting(1 + len(self.claim.members), 0, endpoint)

    def look(self, session: Session) -> None:
        """See how the members are."""
        if not self.claim.members:
            return
        alive = select(DeviceLease.worker_id).where(DeviceLease.expires_at >= now())
        holding = set(session.scalars(alive.where(DeviceLease.worker_id.in_(self.claim.members))))
        mine = select(Member).where(Member.holder.in_(self.claim.members)).order_by(Member.place)
        self.members = list(session.scalars(mine))
        silent = [one.host for one in self.members if one.status != "ended" and one.holder not in holding]
        self._silent_at = (self._silent_at or time.monotonic()) if silent else None
        if self._silent_at is not None and time.monotonic() - self._silent_at > SILENT_SECONDS:
            self.lost = self.lost or silent[0]
        self.leaving = self.leaving or any(one.status == "leaving" for one in self.members)
        if self._failed_at is None and any(one.exit_code for one in self.members):
            self._failed_at = time.monotonic()

    @property
    def hopeless(self) -> bool:
        """The engine here would wait in vain for one elsewhere."""
        failed = self._failed_at is not None and time.monotonic() - self._failed_at > GRACE_SECONDS
        return bool(self.lost or failed or self.refusal)

    @property
    def refusal(self) -> str:
        """Why a member could not take part; empty when all could."""
        return next((one.error for one in self.members if one.error), "")

    def known(self, seconds: float) -> bool:
        """Whether it is known how the run ended elsewhere; True at the latest this long after it is first asked."""
        self._asked_at = self._asked_at or time.monotonic()
        ended = len([one for one in self.members if one.status == "ended"]) == len(self.claim.members)
        return bool(self.lost or self.refusal) or ended or time.monotonic() - self._asked_at > seconds

    def last_words(self, folder: RunDir) -> str:
        """How the engines elsewhere ended, for an error that tells how the one here did."""
        told = [
            f" On the host {one.host} it ended with exit code {one.exit_code}: {_last_line(folder, one.place)}"
            for one in self.members
            if one.exit_code
        ]
        return "".join(told)


def meeting(hosts: int, place: int, endpoint: str) -> list[str]:
    """What an engine is told about the meeting."""
    return ["--hosts", str(hosts), "--host", str(place), "--meet", endpoint]


def free_endpoint(address: str) -> str:
    """address:port where nobody listens yet. Raises Invalid for an address that is not this host's."""
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
            return f"{address}:{probe.getsockname()[1]}"
    except OSError as error:
        raise Invalid(
            f"The hosts of this run cannot meet at {address}: {error.strerror}.",
            code="rendezvous_address",
            advice="Set ATELIER_RENDEZVOUS_ADDRESS on each host to an address of its own, and start its worker again.",
        ) from error


def _last_line(folder: RunDir, place: int) -> str:
    _, tail = log_tail(folder.log_of(place))
    return next((line.strip()[:300] for line in reversed(tail.splitlines()) if line.strip()), "it left no output.")
