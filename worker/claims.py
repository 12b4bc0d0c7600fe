"""Claims on runs: who may work on one, for how long, and what becomes of a run whose worker is gone."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session, sessionmaker

from studio.db.tables import Dataset, DeviceLease, Member, Model, Run, now
from studio.runs import ACTIVE, PENDING_DATASET, PENDING_MODEL
from worker import devices
from worker.devices import Device
from worker.shares import Host, Share, shares

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3  # workers lost by one run without a new checkpoint between
LOOK_AHEAD = 20  # queued runs looked at when the first ones wait for another device


@dataclass(frozen=True)
class Claim:
    """The right to work on a run until the lease expires; `holder` differs between any two claims.

    `device`: the name of what is leased, or several names joined by `devices.TOGETHER`. `members`: the claims that
    the workers of other hosts have on what is leased there.
    """

    run_id: str
    holder: str
    device: str
    members: tuple[str, ...] = ()


def inputs_ready() -> ColumnElement[bool]:
    """Dataset and model of the run are no longer being prepared: ready, or unusable, which then fails the run."""
    pending_data = select(Dataset.id).where(Dataset.id == Run.dataset_id, Dataset.status.in_(PENDING_DATASET)).exists()
    pending_model = select(Model.id).where(Model.id == Run.model_id, Model.status.in_(PENDING_MODEL)).exists()
    return and_(~pending_data, ~pending_model)


def claim_next(
    sessions: sessionmaker[Session], host: str, found: Sequence[Device], holder: str, seconds: float, address: str = ""
) -> Claim | None:
    """The longest-queued run that free devices of this host, and others where it takes them, can take; or None.

    It is now `preparing` and leased. `address`: where other hosts reach this one.
    """
    here = Host(host, found, address)
    with sessions() as session:
        query = select(Run.id, Run.spec).where(Run.status == "queued", inputs_ready())
        queued = session.execute(query.order_by(Run.queued_at, Run.id).limit(LOOK_AHEAD)).all()
        # Half the time, so that a host whose lease on a lost run has just expired is not asked again.
        waiting = [(run_id, shares(session, spec, here, seconds / 2)) for run_id, spec in queued]
    for run_id, spread in waiting:
        claimed = _claim(sessions, run_id, spread, holder, seconds) if spread else None
        if claimed is not None:
            return claimed
    return None


def _claim(
    sessions: sessionmaker[Session], run_id: str, spread: Sequence[Share], holder: str, seconds: float
) -> Claim | None:
    """One transaction: the row is won and all its devices on all its hosts are leased, or nothing."""
    with sessions() as session:
        if not win(session, run_id, holder, seconds):
            return None
        holders = [holder, *(f"{holder}/{place}" for place in range(1, len(spread)))]
        leased: dict[str, str] = {}
        # By name, so that of two runs that want the same hosts none waits for the other.
        for share, own in sorted(zip(spread, holders, strict=True), key=lambda pair: pair[0].host.name):
            device = devices.lease(session, share.names, run_id, own, seconds, share.count)
            if device is None:
                session.rollback()
                return None
            leased[own] = device
        session.execute(delete(Member).where(Member.run_id == run_id))
        for place, (share, own) in enumerate(zip(spread, holders, strict=True)):
            if place:
                who = {"host": share.host.name, "worker_id": share.host.worker_id, "leader": holder, "holder": own}
                session.add(Member(run_id=run_id, place=place, hosts=len(spread), device=leased[own], **who))
        session.commit()
        return Claim(run_id, holder, leased[holder], tuple(holders[1:]))


def win(session: Session, run_id: str, holder: str, seconds: float) -> bool:
    """Take a queued run; of any number who try at once, one gets True."""
    moment = now()
    values: dict[str, Any] = {
        "status": "preparing",
        "worker_id": holder,
        "lease_expires_at": moment + timedelta(seconds=seconds),
        "attempts": Run.attempts + 1,
        "started_at": func.coalesce(Run.started_at, moment),
        "phase": "starting",
        "phase_detail": "",
        "seconds_left": None,
        "error": None,
    }
    won = session.execute(update(Run).where(Run.id == run_id, Run.status == "queued").values(values))
    return bool(won.rowcount)  # type: ignore[attr-defined]


def held(claim: Claim) -> ColumnElement[bool]:
    """The stored run still belongs to this claim."""
    return and_(Run.id == claim.run_id, Run.worker_id == claim.holder, Run.status.in_(ACTIVE))


def extend(session: Session, claim: Claim, seconds: float) -> bool:
    """Keep run and device; False when another worker has taken the run over."""
    expires = now() + timedelta(seconds=seconds)
    kept = session.execute(update(Run).where(held(claim)).values(lease_expires_at=expires))
    if not kept.rowcount:  # type: ignore[attr-defined]
        return False
    devices.extend(session, claim.holder, seconds)
    return True


def settle(session: Session, claim: Claim, status: str, **values: Any) -> bool:
    """Write how the claim ended and give the device back; False when the run was no longer ours."""
    ended: dict[str, Any] = {
        "status": status,
        "lease_expires_at": None,
        "worker_id": "",
        "wanted": "",
        "seconds_left": None,
    }
    if status == "queued":
        ended |= {"sent_at": None, "phase": "", "phase_detail": ""}
    elif status != "paused":
        ended["finished_at"] = now()
    settled = session.execute(update(Run).where(held(claim)).values({**ended, **values}))
    devices.release(session, claim.holder)
    if claim.members:
        _dismiss(session, claim)
    return bool(settled.rowcount)  # type: ignore[attr-defined]


def _dismiss(session: Session, claim: Claim) -> None:
    """Give back what other hosts have leased and not begun to use; who has begun gives it back by itself."""
    idle = update(Member).where(Member.holder.in_(claim.members), Member.status.in_(("asked", "called")))
    for holder in session.scalars(idle.values(status="ended").returning(Member.holder)).all():
        devices.release(session, holder)


def sweep(session: Session) -> None:
    """Put right what dead workers left: their runs are queued again, or ended; their device leases go."""
    moment = now()
    lost = or_(Run.lease_expires_at < moment, Run.lease_expires_at.is_(None))
    for run in session.scalars(select(Run).where(Run.status.in_(ACTIVE), lost)).all():
        values = after_loss(run)
        same = and_(Run.id == run.id, Run.status == run.status, Run.worker_id == run.worker_id, lost)
        freed = {"worker_id": "", "lease_expires_at": None, "seconds_left": None, "wanted": ""}
        if session.execute(update(Run).where(same).values({**freed, **values})).rowcount:  # type: ignore[attr-defined]
            log.warning("%s: the worker %s is gone; the run is now %s", run.id, run.worker_id, values["status"])
    session.execute(delete(DeviceLease).where(DeviceLease.expires_at < moment))


def after_loss(run: Run, host: str = "") -> dict[str, Any]:
    """What becomes of a run whose worker is gone, or another `host` that took part: as wanted, or begun again."""
    if run.wanted == "cancel":
        return {"status": "cancelled", "finished_at": now()}
    if run.wanted == "pause":
        return {"status": "paused"}
    if run.attempts < MOST_ATTEMPTS:
        return {
            "status": "queued",
            "sent_at": None,
            "phase": "",
            "phase_detail": f"waiting for hosts: {host} is gone"
            if host
            else "waiting for a worker: the last one is gone",
        }
    lost = f"The host {host}, or another one," if host else "The machine or worker"
    error = {
        "code": "host_lost" if host else "worker_lost",
        "message": f"{lost} was lost {run.attempts} times while this run was active.",
        "advice": [
            "Look into the log below and the worker's own output: the run may need more memory than the machine has.",
            "Choose a shorter maximum length, a smaller batch or a smaller model, then resume or clone the run.",
        ],
        "exit_code": None,
    }
    return {"status": "failed", "finished_at": now(), "error": error}
