"""`/healthz` for supervisors and `/metrics` for Prometheus."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Request
from kombu.exceptions import OperationalError as BrokerError
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from sqlalchemy import Select, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse, Response

from studio.api.deps import TheStudio
from studio.api.guard import KNOWN
from studio.context import Studio
from studio.db.tables import Run, Worker, now
from studio.queue import PREPARE, RUNS
from studio.runs import STATUSES

router = APIRouter(tags=["Health"])


@router.get("/healthz")
def healthz(studio: TheStudio, request: Request) -> JSONResponse:
    """200 `ok` when the database answers, else 503. Needs no password, and says no more to somebody without it.

    Those who are known are told of the queue too. A broker that is down leaves the status at 200: runs wait in the
    database and nothing is lost.
    """
    try:
        with studio.session() as session:
            session.scalar(select(1))
    except SQLAlchemyError:
        return JSONResponse({"status": "down"}, 503)
    if not request.scope.get(KNOWN):
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "ok", "database": "ok", "queue": "ok" if queue_answers(studio) else "down"})


def queue_answers(studio: Studio) -> bool:
    """Whether the broker accepts a connection now."""
    try:
        with studio.celery.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=2)
    except (BrokerError, OSError):
        return False
    return True


class StudioCollector(Collector):
    """Reads the figures from the database when they are asked for, so that every process tells the same."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio

    def collect(self) -> Iterator[Metric]:
        """Gauges of runs, of the queue and of the workers that are alive."""
        with self.studio.session() as session:
            yield from (runs_by_status(session), queue_length(session), workers(session, self.studio))


def runs_by_status(session: Session) -> GaugeMetricFamily:
    """Runs by their status, zeros included."""
    gauge = GaugeMetricFamily("atelier_runs", "Runs by status.", labels=["status"])
    counted = tally(session, select(Run.status, func.count()).group_by(Run.status))
    for status in STATUSES:
        gauge.add_metric([status], counted.get(status, 0))
    return gauge


def tally(session: Session, query: Select[str, int]) -> dict[str, int]:
    """Rows of (word, number) as a dict."""
    return dict(list(session.execute(query)))


def queue_length(session: Session) -> GaugeMetricFamily:
    """Runs that wait for a worker: the queue of record is the database."""
    waiting: Any = session.scalar(select(func.count()).select_from(Run).where(Run.status == "queued"))
    return GaugeMetricFamily("atelier_queue_length", "Runs waiting for a worker.", value=waiting)


def workers(session: Session, studio: Studio) -> GaugeMetricFamily:
    """Workers heard of within a lease's length, by the queue they serve."""
    gauge = GaugeMetricFamily("atelier_workers", "Workers alive, by queue.", labels=["queue"])
    since = now() - timedelta(seconds=studio.settings.lease_seconds)
    query = select(Worker.queue, func.count()).where(Worker.seen_at > since).group_by(Worker.queue)
    counted = tally(session, query)
    for queue in (RUNS, PREPARE):
        gauge.add_metric([queue], counted.get(queue, 0))
    return gauge


@router.get("/metrics", response_class=Response)
def show_metrics(studio: TheStudio) -> Response:
    """Figures in Prometheus' text format; asks for the password like every other route."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StudioCollector(studio))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
