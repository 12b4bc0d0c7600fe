"""One plan: what a run would need and how long it would take, from the warm engine process."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from studio import plans, previews
from studio.db.tables import Dataset, Member, Model, Plan, Run, Worker
from studio.errors import StudioError
from studio.labels import storable, storable_json
from studio.queue import send_prepare
from studio.runs import ACTIVE, spec_from, spec_of
from worker.bench import Bench

PLAN_SECONDS = 120.0  # then the process is ended


def busy_name(key: str) -> str:
    """The key under which a plan is worked on."""
    return f"plan {key}"


def once(bench: Bench, key: str) -> None:
    """Make the plan unless this process is at it already."""
    with bench.only_once(busy_name(key)) as mine:
        if mine:
            make(bench, key)


def make(bench: Bench, key: str) -> None:
    """A waiting plan becomes `ready`, or `failed` with the reason."""
    question = _question(bench, key)
    if question is None:
        return
    try:
        told = bench.inspector.ask(question, PLAN_SECONDS)
        _store(bench, key, status="ready", told=storable_json(told))
    except StudioError as error:
        if not bench.leaving.is_set():  # else it is made at the next start
            said = storable(" ".join((error.message, error.advice)).strip())
            _store(bench, key, status="failed", error=said)


def _question(bench: Bench, key: str) -> dict[str, Any] | None:
    """What the engine is asked; None when there is nothing to do (any more)."""
    with bench.studio.session() as session:
        plan = session.get(Plan, key)
        if plan is None or plan.status != "waiting":
            return None
        dataset, model = session.get(Dataset, plan.dataset_id), session.get(Model, plan.model_id)
        if dataset is None or model is None or not plans.possible(dataset, model):
            plan.status, plan.error = "failed", "The dataset or the model cannot be used any more."
            return None
        spec = spec_from(plan.spec, "the plan")
        preview = previews.of(session, spec, dataset)
        return {
            "verb": "plan",
            "spec": spec.model_copy(update={"model": model.path}).model_dump(mode="json"),
            "devices": plan.devices,
            "rows": dataset.usable,
            "survey": preview.survey if preview is not None else None,
            "tokens_per_second": plans.speed(session, spec),
        }


def remember(bench: Bench, run_id: str) -> None:
    """Note in a run that begins what it was planned to need, or ask for its plan, which then notes it."""
    with bench.studio.session() as session:
        run = session.get_one(Run, run_id)
        elsewhere = select(Worker).join(Member, Member.worker_id == Worker.id).where(Member.run_id == run_id)
        told = [device.told() for device in bench.devices]
        told += [device for worker in session.scalars(elsewhere) for device in worker.devices]
        plan, new = plans.ask(session, spec_of(run), told)
        if plan is not None and plan.told:
            run.planned_memory = plan.told["peak"]
    if plan is not None and new:
        send_prepare(bench.studio.celery, "plan", plan.id)


def _note_in_runs(session: Session, plan: Plan) -> None:
    """Runs that began before their plan was there."""
    mine = select(Run).where(Run.dataset_id == plan.dataset_id, Run.model_id == plan.model_id, Run.status.in_(ACTIVE))
    for run in session.scalars(mine.where(Run.planned_memory.is_(None))):
        if plan.told and plans.key_of(spec_of(run), plan.devices) == plan.id:
            run.planned_memory = plan.told["peak"]


def _store(bench: Bench, key: str, **values: Any) -> None:
    with bench.studio.session() as session:
        plan = session.get(Plan, key)
        if plan is not None:
            for name, value in values.items():
                setattr(plan, name, value)
            _note_in_runs(session, plan)
