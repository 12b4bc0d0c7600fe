"""`/v1/fine_tuning/jobs`: runs as OpenAI's fine-tuning jobs. A job's id is its run's id."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from engine.spec import Data, RunSpec
from studio import runs, workers
from studio.api.deps import After, Limit, Page, TheStudio, page_of
from studio.api.openai_jobs import METHODS_HERE, Job, JobRequest, check_supported, job_of, spec_of
from studio.context import Studio
from studio.db.tables import Dataset, Model, Run, RunEvent
from studio.defaults import suggest
from studio.errors import Invalid, StudioError
from studio.queue import send_run
from studio.room import admitted

router = APIRouter(prefix="/v1/fine_tuning/jobs", tags=["Fine-tuning"], max_body_size=16 * 2**20)
OUR_FIELDS = {
    "data.dataset": "training_file",
    "data.max_bad_fraction": "training_file",
}  # what core calls a field -> what a job calls it


class Checkpoint(BaseModel):
    """`fine_tuning.job.checkpoint`: a complete state that a run can be resumed from."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: dict[str, float | None]


class JobEvent(BaseModel):
    """`fine_tuning.job.event`: one line of what a run said."""

    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any]


@router.post("")
def create(studio: TheStudio, request: JobRequest) -> Job:
    """Queue a run. A file or model that is still being checked is waited for (`validating_files`)."""
    check_supported(request)
    try:
        with studio.session() as session:
            spec = spec_of(request, suggested(studio, session, request))
            run = runs.create(session, spec, user_metadata=request.metadata, wait_for_inputs=True)
            admitted(session, studio.storage, run)
    except StudioError as error:
        error.param = OUR_FIELDS.get(error.param or "", error.param)
        raise
    return _sent(studio, run.id)


def suggested(studio: Studio, session: Session, request: JobRequest) -> RunSpec:
    """The settings the studio chooses for this model and file where the client leaves them open.

    The model may be the result of an earlier job, which this one then goes on from. Of a file that is not read through
    yet nothing is known: what depends on its rows keeps its plain default.
    """
    before = session.get(Run, request.model)
    base, start = (before.model_id, before.id) if before is not None else (request.model, "")
    plain = RunSpec(model=base, adapter_from=start, data=Data(dataset=request.training_file))
    model, dataset = session.get(Model, base), session.get(Dataset, request.training_file)
    if model is None or dataset is None:
        return plain  # refused, with the reason, when the run is made
    method = METHODS_HERE[request.method.type if request.method else "supervised"]
    spec = suggest(dataset, model, workers.devices(session, studio.settings.lease_seconds), method)
    spec = spec.model_copy(update={"adapter_from": start})
    if dataset.status == "ready":
        return spec
    training = spec.training.model_copy(update={"num_train_epochs": plain.training.num_train_epochs})
    return spec.model_copy(update={"data": plain.data, "saving": plain.saving, "training": training})


def _sent(studio: Studio, run_id: str) -> Job:
    """Wake the workers for a run that is committed; the run as a job."""
    with studio.session() as session:
        run = runs.get(session, run_id)
        send_run(studio.celery, session, run)
        return job_of(session, run)


@router.get("")
def list_jobs(studio: TheStudio, after: After = None, limit: Limit = 20) -> Page[Job]:
    """Jobs, newest first."""
    with studio.session() as session:
        found = runs.list_runs(session, after=after, limit=limit + 1)
        return page_of([(run.id, job_of(session, run)) for run in found], limit)


@router.get("/{job_id}")
def show(studio: TheStudio, job_id: str) -> Job:
    """One job."""
    with studio.session() as session:
        return job_of(session, runs.get(session, job_id))


@router.post("/{job_id}/cancel")
def cancel(studio: TheStudio, job_id: str) -> Job:
    """End a job for good; a running one saves first. Cancelling twice is harmless."""
    with studio.session() as session:
        return job_of(session, runs.cancel(session, job_id))


@router.post("/{job_id}/pause")
def pause(studio: TheStudio, job_id: str) -> Job:
    """Let a job save and wait."""
    with studio.session() as session:
        return job_of(session, runs.pause(session, job_id))


@router.post("/{job_id}/resume")
def resume(studio: TheStudio, job_id: str) -> Job:
    """Queue a paused or failed job again, from its last checkpoint."""
    with studio.session() as session:
        runs.resume(session, job_id)
    return _sent(studio, job_id)


@router.get("/{job_id}/events")
def list_events(studio: TheStudio, job_id: str, after: After = None, limit: Limit = 20) -> Page[JobEvent]:
    """What the run said, newest first."""
    with studio.session() as session:
        run = runs.get(session, job_id)
        found = _newest(session, run, after, limit + 1)
        return page_of([(event.id, event) for event in map(event_of, found)], limit)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(studio: TheStudio, job_id: str, after: After = None, limit: Limit = 10) -> Page[Checkpoint]:
    """Checkpoints the run has saved, newest first."""
    with studio.session() as session:
        run = runs.get(session, job_id)
        saved = _newest(session, run, after, None, kind="saved")
        found = [checkpoint_of(session, event) for event in saved if event.data.get("what") == "checkpoint"]
        return page_of([(checkpoint.id, checkpoint) for checkpoint in found[: limit + 1]], limit)


def event_id(event: RunEvent) -> str:
    """Id of an event in lists."""
    return f"{event.run_id}.{event.offset}"


def _newest(session: Session, run: Run, after: str | None, limit: int | None, kind: str = "") -> list[RunEvent]:
    """Events of the run, newest first, before the one that `after` names."""
    query = select(RunEvent).where(RunEvent.run_id == run.id)
    if kind:
        query = query.where(RunEvent.kind == kind)
    if after:
        owner, _, offset = after.rpartition(".")
        if owner != run.id or not offset.isdecimal() or len(offset) > 18:
            raise Invalid("This is not the id of an event of this job.", param="after")
        query = query.where(RunEvent.offset < int(offset))
    return list(session.scalars(query.order_by(RunEvent.offset.desc()).limit(limit)))


def event_of(event: RunEvent) -> JobEvent:
    """An event as OpenAI's clients read it; `data` is the whole event."""
    data = event.data
    failed = event.kind == "finished" and data.get("status") == "failed"
    return JobEvent(
        id=event_id(event),
        created_at=int(event.time),
        level="error" if failed else "warn" if event.kind == "warning" else "info",
        message=message_of(event.kind, data),
        type="metrics" if event.kind in {"step", "eval"} else "message",
        data=data,
    )


def message_of(kind: str, data: dict[str, Any]) -> str:
    """One sentence for an event."""
    step = data.get("step")
    messages = {
        "phase": str(data.get("phase", "")).replace("_", " ").capitalize()
        + (f": {data['detail']}" if data.get("detail") else ""),
        "started": f"Training on {data.get('device')}: {data.get('total_steps')} steps, {data.get('train_rows')} rows",
        "step": f"Step {step}: training loss={_figure(data.get('loss'))}",
        "eval": f"Step {step}: validation loss={_figure(data.get('loss'))}",
        "sample": f"Step {step}: a held-out prompt was answered",
        "saved": f"Step {step}: the {data.get('what')} is saved",
        "warning": str(data.get("message", "")),
        "finished": str(data.get("message") or f"The job has {data.get('status')}"),
    }
    return messages.get(kind, kind)


def _figure(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4f}"


def checkpoint_of(session: Session, event: RunEvent) -> Checkpoint:
    """A saved checkpoint with the losses last measured before it."""
    step = int(event.data["step"])
    metrics: dict[str, float | None] = {"step": step}
    for kind, name in (("step", "train_loss"), ("eval", "valid_loss")):
        query = select(RunEvent).where(
            RunEvent.run_id == event.run_id,
            RunEvent.kind == kind,
            RunEvent.step <= step,
            RunEvent.offset < event.offset,
        )
        measured = session.scalars(query.order_by(RunEvent.offset.desc()).limit(1)).first()
        if measured is not None:
            metrics[name] = measured.data.get("loss")
    return Checkpoint(
        id=event_id(event),
        created_at=int(event.time),
        fine_tuned_model_checkpoint=f"{event.run_id}:step-{step}",
        fine_tuning_job_id=event.run_id,
        step_number=step,
        metrics=metrics,
    )
