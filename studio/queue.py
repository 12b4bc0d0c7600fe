"""The queue: wake-up messages over Celery. What is due stands in the database; a message only says "look".

So a lost message costs a few seconds (a sweep sends it again), a doubled one costs nothing (one claim wins), and a
broker that is down loses nothing.
"""

import logging
from typing import Literal

from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError
from kombu.transport import TRANSPORT_ALIASES
from sqlalchemy.orm import Session

from studio.db.tables import Run, now
from studio.settings import Settings

log = logging.getLogger(__name__)

RUNS, PREPARE = "runs", "prepare"
TRAIN = "atelier.train"
PrepareKind = Literal[
    "check_dataset", "fetch_dataset", "check_model", "fetch_model", "convert_starter", "preview", "plan"
]
POLL_SECONDS = 0.2  # how often the file broker looks for messages
SOCKET_SECONDS = 2.0  # a Redis that does not answer is down


def make_celery(settings: Settings) -> Celery:
    """A Celery app for sending; the worker adds the tasks. Connects to nothing yet."""
    app = Celery("atelier", set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_default_queue=RUNS,
        task_queues=[Queue(RUNS, routing_key=RUNS), Queue(PREPARE, routing_key=PREPARE)],
        task_create_missing_queues=False,
        task_acks_late=False,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=SOCKET_SECONDS,
        broker_heartbeat=0,
    )
    if settings.broker_url:
        options = {
            "socket_connect_timeout": SOCKET_SECONDS,
            "socket_timeout": 10 * SOCKET_SECONDS,
            "max_retries": 1,
            "interval_start": 0,
            "interval_step": 0.1,
            "interval_max": 0.1,
        }
        app.conf.update(broker_url=settings.broker_url, broker_transport_options=options)
    else:
        TRANSPORT_ALIASES["atelier-files"] = "studio.filebroker:Transport"
        options_of_files = {"folder": str(settings.broker_dir.absolute()), "polling_interval": POLL_SECONDS}
        app.conf.update(broker_url="atelier-files://localhost", broker_transport_options=options_of_files)
    return app


def send_run(celery: Celery, session: Session, run: Run) -> bool:
    """Wake the workers for a queued run, after the commit that queued it, and note the time in `session`.

    False when the broker is down: the run stays queued and a sweep wakes the workers later.
    """
    run.sent_at = now()
    return _send(celery, TRAIN, [run.id], RUNS)


def send_prepare(celery: Celery, kind: PrepareKind, *key: str) -> bool:
    """Ask for a check, download, conversion, preview or plan, after the commit that made the row of this key.

    False when the broker is down.
    """
    return _send(celery, f"atelier.{kind}", list(key), PREPARE)


def _send(celery: Celery, task: str, args: list[str], queue: str) -> bool:
    try:
        celery.send_task(task, args=args, queue=queue, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("the broker is out of reach (%s); %s %s waits in the database", error, task, " ".join(args))
        return False
    return True
