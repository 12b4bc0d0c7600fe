"""A worker process: Celery with a pool of threads for one queue, the keeper beside it, and an orderly end."""

import logging
import time
import warnings
from collections.abc import Callable, Sequence

from celery import Celery, signals
from celery.exceptions import SecurityWarning

from studio.context import Studio, make_studio
from studio.db import ping
from studio.errors import Unavailable
from studio.queue import RUNS
from studio.settings import Settings
from worker.bench import Bench
from worker.keeper import RESEND_SECONDS, Keeper
from worker.launch import ENGINE
from worker.tasks import register

log = logging.getLogger(__name__)

PREPARE_THREADS = 2
DATABASE_PATIENCE = 30.0  # seconds that a worker waits at its start for the database


def make_worker(settings: Settings, engine: Sequence[str] = ENGINE) -> Celery:
    """The Celery app with its tasks. `engine` is the command that starts the engine, without its verb."""
    studio = make_studio(settings)
    return make_app(Bench(studio, engine))


def make_app(bench: Bench) -> Celery:
    """The studio's own Celery app, with the tasks working at this bench."""
    register(bench.studio.celery, bench)
    return bench.studio.celery


def serve(
    settings: Settings, queue: str, engine: Sequence[str] = ENGINE, *, resend_seconds: float = RESEND_SECONDS
) -> int:
    """Serve one queue until SIGTERM or SIGINT; the exit code. Raises Unavailable when the database stays away."""
    # Celery warns of root because of pickled messages; here messages are JSON and nothing else.
    warnings.filterwarnings("ignore", message="You're running the worker with superuser", category=SecurityWarning)
    studio = make_studio(settings)
    wait_for_database(studio)
    bench = Bench(studio, engine)
    app = make_app(bench)
    # One thread per device, and one that looks at a wake-up while all devices are busy and returns.
    threads = len(bench.devices) + 1 if queue == RUNS else PREPARE_THREADS
    keeper = Keeper(bench, queue, resend_seconds=resend_seconds, slots=threads)
    keeper.start()
    leave = _leave_on_shutdown(bench)
    worker = app.Worker(
        pool="threads",
        concurrency=threads,
        queues=[queue],
        hostname=f"{queue}@{bench.host}",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        loglevel="WARNING",
    )
    log.info("worker %s serves %r with %s", bench.id, queue, ", ".join(device.label for device in bench.devices))
    try:
        worker.start()
    finally:
        signals.worker_shutting_down.disconnect(leave)
        bench.leaving.set()
        bench.close()
        keeper.join(timeout=5)
        for guest in bench.guests:  # each ends within the grace
            guest.join()
        studio.close()
    return int(worker.exitcode or 0)


def _leave_on_shutdown(bench: Bench) -> Callable[..., None]:
    """On the first SIGTERM or SIGINT the runs here are asked to save; Celery waits for their tasks."""

    def leave(**_kwargs: object) -> None:
        bench.leaving.set()

    signals.worker_shutting_down.connect(leave, weak=False)
    return leave


def wait_for_database(studio: Studio, patience: float = DATABASE_PATIENCE) -> None:
    """Return once the database answers; raise Unavailable after some time."""
    until = time.monotonic() + patience
    while True:
        try:
            return ping(studio.engine)
        except Unavailable:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)
