"""Claims on runs: who may work on one, for how long, and what becomes of a run whose worker is gone."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session, sessionmaker

from engine.spec import RunSpec
from studio.db.tables import Dataset, DeviceLease, Model, Run, now
from studio.plans import devices_needed
from studio.runs import ACTIVE, PENDING_DATASET, PENDING_MODEL
from worker import devices
from worker.devices import Device

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3  # workers lost by one run without a new checkpoint between
LOOK_AHEAD = 20  # queued runs looked at when the first ones wait for another device


@dataclass(frozen=True)
class Claim:
    """The right to work on a run until the lease expires; `holder` differs between any two claims.

    `device`: the name of what is leased, or several names joined by `devices.TOGETHER`.
    """

    run_id: str
    holder: str
    device: str


def inputs_ready() -> ColumnElement[bool]:
    """Dataset and model of the run are no longer being prepared: ready, or unusable, which then fails the run."""
    pending_data = select(Dataset.id).where(Dataset.id == Run.dataset_id, Dataset.status.in_(PENDING_DATASET)).exists()
    pending_model = select(Model.id).where(Model.id == Run.model_id, Model.status.in_(PENDING_MODEL)).exists()
    return and_(~pending_data, ~pending_model)


def claim_next(
    sessions: sessionmaker[Session], host: str, found: Sequence[Device], holder: str, seconds: float
) -> Claim | None:
    """The longest-queued run that a free device of this host can take, now `preparing` and leased; or None."""
    with sessions() as session:
        query = select(Run.id, Run.spec).where(Run.status == "queued", inputs_ready())
        queued = session.execute(query.order_by(Run.queued_at, Run.id).limit(LOOK_AHEAD)).all()
        waiting = [(run_id, *_needs(session, spec, found)) for run_id, spec in queued]
    for run_id, choices, count in waiting:
        if count > len(choices):
            continue
        names = [f"{host}/{name}" for name in choices]
        claimed = _claim(sessions, run_id, names, count, holder, seconds)
        if claimed is not None:
            return claimed
    return None


def _needs(session: Session, spec: dict[str, Any], found: Sequence[Device]) -> tuple[list[str], int]:
    """The devices that a run may take, and how many of them it does: the CPU serves all its processes."""
    choices = devices.choices(found, spec.get("training", {}).get("device", "auto"))
    if choices == ["cpu"]:
        return choices, 1
    try:
        return choices, devices_needed(session, RunSpec.model_validate(spec), [device.told() for device in found])
    except ValidationError:  # of another version: the run says so when it has begun
        return choices, 1


def _claim(
    sessions: sessionmaker[Session], run_id: str, names: Sequence[str], count: int, holder: str, seconds: float
) -> Claim | None:
    """One transaction: the row is won and all its devices are leased, or nothing."""
    with sessions() as session:
        if not win(session, run_id, holder, seconds):
            return None
        device = devices.lease(session, names, run_id, holder, seconds, count)
        if device is None:
            session.rollback()
            return None
        session.commit()
        return Claim(run_id, holder, device)


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
    return bool(settled.rowcount)  # type: ignore[attr-defined]


def sweep(session: Session) -> None:
    """Put right what dead workers left: their runs are queued again, or ended; their device leases go."""
    moment = now()
    lost = or_(Run.lease_expires_at < moment, Run.lease_expires_at.is_(None))
    for run in session.scalars(select(Run).where(Run.status.in_(ACTIVE), lost)).all():
        values = _after_loss(run)
        same = and_(Run.id == run.id, Run.status == run.status, Run.worker_id == run.worker_id, lost)
        freed = {"worker_id": "", "lease_expires_at": None, "seconds_left": None, "wanted": ""}
        if session.execute(update(Run).where(same).values({**freed, **values})).rowcount:  # type: ignore[attr-defined]
            log.warning("%s: the worker %s is gone; the run is now %s", run.id, run.worker_id, values["status"])
    session.execute(delete(DeviceLease).where(DeviceLease.expires_at < moment))


def _after_loss(run: Run) -> dict[str, Any]:
    if run.wanted == "cancel":
        return {"status": "cancelled", "finished_at": now()}
    if run.wanted == "pause":
        return {"status": "paused"}
    if run.attempts < MOST_ATTEMPTS:
        return {
            "status": "queued",
            "sent_at": None,
            "phase": "",
            "phase_detail": "waiting for a worker: the last one is gone",
        }
    error = {
        "code": "worker_lost",
        "message": f"The machine or worker was lost {run.attempts} times while this run was active.",
        "advice": [
            "Look into the log below and the worker's own output: the run may need more memory than the machine has.",
            "Choose a shorter maximum length, a smaller batch or a smaller model, then resume or clone the run.",
        ],
        "exit_code": None,
    }
    return {"status": "failed", "finished_at": now(), "error": error}
