"""Workers that are alive, and the devices they have to offer."""

from datetime import timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from studio.db.tables import Worker, now
from studio.queue import RUNS


def alive(session: Session, within_seconds: float, queue: str = RUNS) -> list[Worker]:
    """Workers of a queue that were heard of within that time."""
    since = now() - timedelta(seconds=within_seconds)
    return list(session.scalars(select(Worker).where(Worker.queue == queue, Worker.seen_at > since)))


def devices(session: Session, within_seconds: float) -> list[dict[str, Any]]:
    """Devices of the living workers: name, kind, total_bytes, used_bytes."""
    return [device for worker in alive(session, within_seconds) for device in worker.devices]
