"""The Celery tasks. Each is a wake-up: what is to be done is read from the database, so a doubled one does nothing."""

from celery import Celery
from sqlalchemy.exc import SQLAlchemyError

from engine.starter_paths import MODEL_ID
from studio.previews import Key
from studio.queue import TRAIN
from worker import plan as plans
from worker import prepare
from worker import preview as previews
from worker.bench import Bench
from worker.claims import claim_next
from worker.supervise import supervise

__all__ = ["register"]


def register(app: Celery, bench: Bench) -> None:
    """Add the tasks to the app. The arguments of a message are ids, never trusted beyond being looked up."""

    def train(run_id: str) -> None:
        """Carry out what is queued, oldest first, as long as a device is free; `run_id` only says who woke us."""
        work(bench)

    def check_dataset(dataset_id: str) -> None:
        prepare.once(bench, f"dataset {dataset_id}", prepare.check_dataset, dataset_id)

    def fetch_dataset(dataset_id: str) -> None:
        prepare.once(bench, f"dataset {dataset_id}", prepare.fetch_dataset, dataset_id)

    def check_model(model_id: str) -> None:
        prepare.once(bench, f"model {model_id}", prepare.check_model, model_id)

    def fetch_model(model_id: str) -> None:
        prepare.once(bench, f"model {model_id}", prepare.fetch_model, model_id)

    def convert_starter() -> None:
        prepare.once(bench, f"model {MODEL_ID}", prepare.convert_starter, MODEL_ID)

    def preview(dataset_id: str, model_id: str, way: str, row: str) -> None:
        previews.once(bench, Key(dataset_id, model_id, way, int(row)))

    def plan(key: str) -> None:
        plans.once(bench, key)

    app.task(name=TRAIN, throws=(SQLAlchemyError,))(train)
    for task in (check_dataset, fetch_dataset, check_model, fetch_model, convert_starter, preview, plan):
        app.task(name=f"atelier.{task.__name__}", throws=(SQLAlchemyError,))(task)


def work(bench: Bench) -> int:
    """Claim and supervise runs until none is left that this host can take now; how many it were."""
    done = 0
    while not bench.leaving.is_set():
        lease, address = bench.studio.settings.lease_seconds, bench.studio.settings.rendezvous_address
        claim = claim_next(bench.studio.sessions, bench.host, bench.devices, bench.new_holder(), lease, address)
        if claim is None:
            break
        supervise(bench, claim)
        done += 1
    return done
