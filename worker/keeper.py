"""A thread beside the tasks: says that the worker lives, puts right what dead workers left, wakes what is due."""

import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from threading import Thread

from sqlalchemy import delete, or_, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from studio.db.tables import Dataset, Model, Plan, Preview, Run, Worker, now
from studio.previews import Key
from studio.queue import RUNS, PrepareKind, send_prepare, send_run
from worker import membership, plan
from worker.bench import Bench
from worker.claims import inputs_ready, sweep
from worker.devices import choices, find_devices, taken
from worker.preview import warm

log = logging.getLogger(__name__)

RESEND_SECONDS = 10.0
FORGET_WORKERS = timedelta(days=1)
TASKS_OF_MODELS: dict[str, PrepareKind] = {
    "checking": "check_model",
    "fetching": "fetch_model",
    "converting": "convert_starter",
}
TASKS_OF_DATASETS: dict[str, PrepareKind] = {"checking": "check_dataset", "fetching": "fetch_dataset"}


class Keeper(Thread):
    """Beats until the bench is left; every error of the database is logged once and waited out."""

    def __init__(self, bench: Bench, queue: str, *, resend_seconds: float = RESEND_SECONDS, slots: int = 1) -> None:
        super().__init__(name="keeper", daemon=True)
        self.bench = bench
        self.queue = queue
        self.resend_seconds = resend_seconds
        self.slots = slots
        self.every = min(bench.studio.settings.lease_seconds / 6, resend_seconds / 4, 2.0)
        self.sent: dict[str, float] = {}
        self.last_good = time.monotonic()
        self.complained = False
        self.warmed = False

    def run(self) -> None:
        """Until the worker leaves; from then on nobody counts on its devices."""
        while not self.bench.leaving.is_set():
            self.beat_safely()
            self.bench.leaving.wait(self.every)
        self.farewell()

    def beat_safely(self) -> None:
        """One beat. After a time without the database nothing is swept at first: the others were cut off as well."""
        cut_off = time.monotonic() - self.last_good > self.bench.studio.settings.lease_seconds / 2
        try:
            self.beat(sweeping=not cut_off)
            self.last_good, self.complained = time.monotonic(), False
        except SQLAlchemyError as error:
            if not self.complained:
                log.warning(
                    "the database is out of reach: %s", str(getattr(error, "orig", None) or error).splitlines()[0]
                )
            self.complained = True

    def beat(self, *, sweeping: bool = True) -> None:
        """Say that this worker lives, sweep, and wake what is due."""
        studio = self.bench.studio
        with studio.session() as session:
            told = [device.told() for device in find_devices()]
            here = {"host": self.bench.host, "devices": told, "address": studio.settings.rendezvous_address}
            session.merge(Worker(id=self.bench.id, queue=self.queue, seen_at=now(), **here))
            session.execute(delete(Worker).where(Worker.seen_at < now() - FORGET_WORKERS))
        if self.queue == RUNS:
            membership.answer(self.bench)
            if sweeping:
                with studio.session() as session:
                    sweep(session)
            with studio.session() as session:
                self._wake_runs(session)
        else:
            self._wake_preparations()

    def _wake_runs(self, session: Session) -> None:
        """Send the first due runs again, as many as devices are free here; while all are busy nothing is sent."""
        leased = taken(session)
        free = [device for device in self.bench.devices if f"{self.bench.host}/{device.name}" not in leased]
        if not free:
            return
        self._stand_by([device.name for device in free])
        late = now() - timedelta(seconds=self.resend_seconds)
        due = select(Run).where(Run.status == "queued", or_(Run.sent_at.is_(None), Run.sent_at < late), inputs_ready())
        for run in session.scalars(due.order_by(Run.queued_at, Run.id).limit(len(free))).all():
            send_run(self.bench.studio.celery, session, run)

    def _stand_by(self, free: Sequence[str]) -> None:
        """Have an engine waiting for the free device that the next run will take."""
        likely = next((name for name in choices(self.bench.devices, "auto") if name in free), None)
        if likely is not None and self.is_alive():
            self.bench.standby.keep(f"{self.bench.host}/{likely}")

    def _wake_preparations(self) -> None:
        """Send again what waits to be prepared and that nobody here is at, while there is a free hand."""
        busy = self.bench.busy()
        if len(busy) >= self.slots:
            return
        with self.bench.studio.session() as session:
            waiting = preparations(session)
        self.sent = {name: at for name, at in self.sent.items() if name in waiting}
        for name, (kind, key) in waiting.items():
            # The first sight is not late yet: whoever made the row has sent it just now.
            first_seen = self.sent.setdefault(name, time.monotonic())
            if name not in busy and time.monotonic() - first_seen >= self.resend_seconds:
                self.sent[name] = time.monotonic()
                send_prepare(self.bench.studio.celery, kind, *key)
        if not busy and not waiting:
            self._warm()

    def _warm(self) -> None:
        """Once, with nothing else to do: a first preview should not wait for imports."""
        if self.is_alive() and not self.warmed:
            self.warmed = True
            with self.bench.studio.session() as session:
                newest = select(Model.path).where(Model.status == "ready").order_by(Model.created_at.desc()).limit(1)
                folder = session.scalar(newest)
            Thread(target=warm, args=(self.bench, folder), name="warm", daemon=True).start()

    def farewell(self) -> None:
        """Take this worker off the list."""
        try:
            with self.bench.studio.session() as session:
                session.execute(delete(Worker).where(Worker.id == self.bench.id))
        except SQLAlchemyError:
            log.warning("the database is out of reach; this worker stays on the list for a while")


def preparations(session: Session) -> dict[str, tuple[PrepareKind, tuple[str, ...]]]:
    """Everything that waits to be prepared: task and key, by the name under which it is worked on."""
    datasets = session.execute(select(Dataset.id, Dataset.status).where(Dataset.status.in_(TASKS_OF_DATASETS)))
    models = session.execute(select(Model.id, Model.status).where(Model.status.in_(TASKS_OF_MODELS)))
    previews = select(Preview.dataset_id, Preview.model_id, Preview.way, Preview.row)
    found: dict[str, tuple[PrepareKind, tuple[str, ...]]] = {
        f"dataset {key}": (TASKS_OF_DATASETS[status], (key,)) for key, status in datasets
    }
    for key, status in models:
        kind = TASKS_OF_MODELS[status]
        found[f"model {key}"] = (kind, () if kind == "convert_starter" else (key,))
    for waiting in session.execute(previews.where(Preview.status == "waiting")):
        found[Key(*waiting).name] = ("preview", tuple(map(str, waiting)))
    for key in session.scalars(select(Plan.id).where(Plan.status == "waiting")):
        found[plan.busy_name(key)] = ("plan", (key,))
    return found
