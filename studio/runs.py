"""Runs: made, listed, stopped, resumed, removed. The words of their status and the legal moves between them live here.

Every change of status is one conditional UPDATE: a page that cancels and a worker that claims at the same moment
cannot both win.
"""

import secrets
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, or_, select, tuple_, update
from sqlalchemy.orm import Session

from engine.rewards import known, unknown
from engine.spec import GRPO, Data, RunSpec
from studio.datasets import declarable
from studio.db import when_over
from studio.db.tables import Dataset, Model, Run, now
from studio.errors import Conflict, Invalid, NotFound
from studio.labels import label, shortened
from studio.layouts import check_layout
from studio.storage import Storage

STATUSES = ("draft", "queued", "preparing", "running", "succeeded", "failed", "cancelled", "paused")
ACTIVE = ("preparing", "running")
FINAL = ("succeeded", "failed", "cancelled")
MOVES: dict[str, tuple[str, ...]] = {
    "draft": ("queued", "cancelled"),
    "queued": ("preparing", "paused", "cancelled", "failed"),
    "preparing": ("running", "queued", "paused", "cancelled", "failed"),
    "running": ("succeeded", "queued", "paused", "cancelled", "failed"),
    "paused": ("queued", "cancelled"),
    "failed": ("queued",),
    "succeeded": (),
    "cancelled": (),
}
PENDING_DATASET = ("fetching", "checking")
PENDING_MODEL = ("fetching", "converting", "checking")


def move(run: Run, status: str) -> None:
    """Set a new status, Conflict when the table of moves has no such one. For objects that nobody else can change."""
    if status not in MOVES[run.status]:
        raise Conflict(f"A run that is {run.status} cannot become {status}.")
    run.status = status


def move_stored(session: Session, run: Run, status: str, *, seen: str | None = None, **values: Any) -> bool:
    """Move the stored run from the status seen here; False, and the object re-read, when another was faster."""
    seen = seen or run.status
    if status not in MOVES[seen]:
        raise Conflict(f"A run that is {seen} cannot become {status}.")
    return change_stored(session, run, Run.status == seen, status=status, **values)


def change_stored(session: Session, run: Run, condition: ColumnElement[bool], **values: Any) -> bool:
    """Change columns only where the stored row still fits; the object shows what is stored afterwards."""
    session.flush()
    changed = session.execute(update(Run).where(Run.id == run.id, condition).values(**values), {}, **_QUIET)
    session.refresh(run)
    return bool(changed.rowcount)  # type: ignore[attr-defined]


_QUIET: dict[str, Any] = {"execution_options": {"synchronize_session": False}}


def create(
    session: Session, spec: RunSpec, *, user_metadata: dict[str, Any] | None = None, wait_for_inputs: bool = False
) -> Run:
    """A queued run of this spec; after the commit, `queue.send_run` wakes the workers.

    Freezes the dataset's hash in the spec and fills an empty name. Raises Invalid, with `param`, for a model or dataset
    that does not exist or cannot be used, and Conflict while one is still being prepared; with `wait_for_inputs` the
    run is queued all the same and starts when they are ready.
    """
    dataset = _ready_dataset(session, spec.data, wait_for_inputs)
    model = _ready_model(session, spec.model, wait_for_inputs)
    if dataset.status == "ready":
        check_fit(dataset, spec)
    check_layout(model, spec)
    if spec.data.sha256 and spec.data.sha256 != dataset.sha256:
        raise Invalid(
            "The dataset is not the one that this spec was made for: its content differs.", param="data.sha256"
        )
    name = label(spec.name) or shortened(f"{model.name} on {dataset.name}")
    data = spec.data.model_copy(update={"sha256": dataset.sha256})
    lora = earlier_of(session, spec).lora if spec.adapter_from else spec.lora
    frozen = spec.model_copy(update={"name": name, "data": data, "lora": lora})
    run = Run(
        id=f"run-{secrets.token_hex(8)}",
        name=name,
        status="draft",
        spec=frozen.model_dump(mode="json"),
        dataset_id=dataset.id,
        model_id=model.id,
        method=frozen.method.type,
        created_at=now(),
        queued_at=now(),
        user_metadata=user_metadata,
    )
    move(run, "queued")
    session.add(run)
    session.flush()
    return run


def earlier_of(session: Session, spec: RunSpec) -> RunSpec:
    """The spec of the run whose adapter this one goes on from. Raises Invalid when there is no such adapter."""
    before = session.get(Run, spec.adapter_from)
    if before is None or before.status != "succeeded":
        raise Invalid(f"There is no finished run {spec.adapter_from[:80]!r} to start from.", param="adapter_from")
    if before.model_id != spec.model:
        raise Invalid(
            f"The run {before.name!r} was made with another model.",
            param="adapter_from",
            advice=f"Choose the model {before.model_id}, or another run to start from.",
        )
    if spec_of(before).training.full_finetuning:
        raise Invalid(f"The run {before.name!r} has no adapter: all weights were trained.", param="adapter_from")
    return spec_of(before)


def continuable(session: Session, model_id: str, most: int = 50) -> list[Run]:
    """Finished runs of a model whose adapters another run can go on from, newest first."""
    done = select(Run).where(Run.model_id == model_id, Run.status == "succeeded").order_by(Run.created_at.desc())
    return [run for run in session.scalars(done.limit(most)) if not spec_of(run).training.full_finetuning]


def _ready_dataset(session: Session, data: Data, wait: bool) -> Dataset:
    dataset_id = data.dataset
    dataset = session.get(Dataset, dataset_id)
    where = "data.dataset"
    if dataset is None:
        raise Invalid(f"There is no dataset {dataset_id[:80]!r}.", code="dataset_not_found", param=where)
    if dataset.status == "deleted":
        raise Invalid(
            f"The file of the dataset {dataset.name!r} is gone: it was deleted.", code="file_gone", param=where
        )
    if dataset.status == "unusable" and not (data.declared and declarable(dataset)):
        raise Invalid(
            f"The dataset {dataset.name!r} cannot be used: {dataset.error}", code="dataset_unusable", param=where
        )
    if dataset.status in PENDING_DATASET and not wait:
        raise Conflict(f"The dataset {dataset.name!r} is still being checked. Try again in a moment.", param=where)
    return dataset


def check_fit(dataset: Dataset, spec: RunSpec) -> None:
    """Raise Invalid when the method learns from rows of another kind, or more of them are bad than the spec tolerates.

    The engine refuses both too, but only once the run has waited for its turn. It alone judges rows that the spec
    declares to be other than they show.
    """
    strange = unknown(spec.method.rewards) if isinstance(spec.method, GRPO) else []
    if strange:
        raise Invalid(
            f"There is no reward {strange[0][:80]!r}.",
            code="unknown_reward",
            param="method.rewards",
            advice=f"There are {', '.join(known())}.",
        )
    if spec.data.columns or spec.data.kind not in ("auto", dataset.kind):
        return
    if dataset.kind not in spec.method.kinds:
        raise Invalid(
            f"The dataset {dataset.name!r} holds {dataset.kind} rows; {spec.method.type.upper()} learns from "
            f"{' or '.join(spec.method.kinds)} rows.",
            code="wrong_kind",
            param="data.dataset",
            advice="Choose another dataset.",
        )
    bad = dataset.rows - dataset.usable
    if bad > dataset.rows * spec.data.max_bad_fraction:
        raise Invalid(
            f"{bad:,} of {dataset.rows:,} rows cannot be used, more than the tolerated share of "
            f"{spec.data.max_bad_fraction:.4g}.",
            code="too_many_bad_rows",
            param="data.max_bad_fraction",
            advice="Correct the rows, or raise “Tolerated bad rows” (data.max_bad_fraction) to train without them.",
        )


def _ready_model(session: Session, model_id: str, wait: bool) -> Model:
    model = session.get(Model, model_id)
    if model is None:
        raise Invalid(f"There is no model {model_id[:300]!r}.", code="model_not_found", param="model")
    if model.status == "unusable":
        raise Invalid(
            f"The model {model.name!r} cannot be trained: {model.error}", code="model_unusable", param="model"
        )
    if model.status in PENDING_MODEL and not wait:
        raise Conflict(f"The model {model.name!r} is still {model.status}. Try again in a moment.", param="model")
    return model


def get(session: Session, run_id: str) -> Run:
    """The run of this id; NotFound when there is none."""
    run = session.get(Run, run_id)
    if run is None:
        raise NotFound(f"There is no run {run_id[:80]!r}.")
    return run


def list_runs(
    session: Session,
    *,
    status: str | Sequence[str] | None = None,
    text: str = "",
    model: str | None = None,
    dataset: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[Run]:
    """Runs, newest first. `text` is looked for in name and id; `after` is the last id of the page before."""
    query = select(Run).order_by(Run.created_at.desc(), Run.id.desc()).limit(limit)
    if status:
        query = query.where(Run.status.in_([status] if isinstance(status, str) else status))
    if text:
        query = query.where(or_(Run.name.icontains(text, autoescape=True), Run.id.contains(text, autoescape=True)))
    if model:
        query = query.where(Run.model_id == model)
    if dataset:
        query = query.where(Run.dataset_id == dataset)
    if after:
        last = get(session, after)
        query = query.where(tuple_(Run.created_at, Run.id) < tuple_(last.created_at, last.id))
    return list(session.scalars(query))


def cancel(session: Session, run_id: str) -> Run:
    """End a run for good: at once when no engine has it, else as soon as the engine has saved.

    Cancelling twice is harmless; a run that succeeded or failed raises Conflict.
    """
    for _ in range(len(STATUSES)):  # each turn lost to another writer brings a newer status
        run = get(session, run_id)
        if run.status == "cancelled":
            return run
        if run.status in ("succeeded", "failed"):
            raise Conflict(f"The run {run.status} already; there is nothing to cancel.", code="already_finished")
        if run.status in ACTIVE:
            if change_stored(session, run, Run.status.in_(ACTIVE), wanted="cancel"):
                return run
        elif move_stored(session, run, "cancelled", finished_at=now(), wanted="", phase="", seconds_left=None):
            return run
    raise Conflict("The run changes too fast to be cancelled. Try again.")


def pause(session: Session, run_id: str) -> Run:
    """Ask a run to save and wait for `resume`. Harmless when it is paused; Conflict when it has ended."""
    for _ in range(len(STATUSES)):
        run = get(session, run_id)
        if run.status == "paused" or run.wanted == "cancel":
            return run
        if run.status not in (*ACTIVE, "queued"):
            raise Conflict(f"A run that is {run.status} cannot be paused.")
        if run.status in ACTIVE:
            if change_stored(session, run, Run.status.in_(ACTIVE), wanted="pause"):
                return run
        elif move_stored(session, run, "paused", wanted=""):
            return run
    raise Conflict("The run changes too fast to be paused. Try again.")


def resume(session: Session, run_id: str) -> Run:
    """Queue a paused or failed run again; it goes on from its last complete checkpoint. Send it after the commit."""
    run = get(session, run_id)
    if run.status not in ("paused", "failed"):
        raise Conflict(f"A run that is {run.status} cannot be resumed.")
    spec = spec_of(run)
    _ready_dataset(session, spec.data, wait=True)
    _ready_model(session, spec.model, wait=True)
    fresh: dict[str, Any] = {
        "queued_at": now(),
        "sent_at": None,
        "finished_at": None,
        "error": None,
        "attempts": 0,
        "wanted": "",
    }
    if not move_stored(session, run, "queued", phase="", phase_detail="", **fresh):
        raise Conflict(f"The run is {run.status} now and cannot be resumed.")
    return run


def retry(session: Session, run_id: str) -> Run:
    """A new run of a failed one's spec with the changes that its failure proposes. Send it after the commit.

    Raises Conflict when it did not fail or its failure proposes none.
    """
    run = get(session, run_id)
    changes = (run.error or {}).get("changes") or ()
    if run.status != "failed" or not changes:
        raise Conflict("There are no other settings to retry this run with.", code="nothing_to_change")
    tree = clone_spec(session, run_id).model_dump(mode="json")
    for change in changes:
        for name, value in change["settings"].items():
            *sections, leaf = name.split(".")
            reduce(dict.__getitem__, sections, tree)[leaf] = value
    try:
        spec = RunSpec.model_validate(tree)
    except ValidationError as error:
        raise Invalid(f"The proposed settings do not fit together: {error.errors()[0]['msg']}.") from error
    return create(session, spec, wait_for_inputs=True)


def delete(session: Session, storage: Storage, run_id: str) -> None:
    """Remove a run, what it said and, after the commit, its folder. Conflict while it is queued or active."""
    run = get(session, run_id)
    if run.status in (*ACTIVE, "queued"):
        raise Conflict(f"The run is {run.status}; cancel it first.")
    folder = storage.run_dir(run.id).path
    session.delete(run)
    session.flush()
    when_over(session, committed=lambda: storage.remove(folder))


def spec_of(run: Run) -> RunSpec:
    """The stored spec; Invalid when it was stored by a version that this one cannot read."""
    return spec_from(run.spec, f"run {run.id}")


def spec_from(stored: Mapping[str, Any], owner: str) -> RunSpec:
    """A stored spec, as `spec_of` reads it; `owner` is named in the error."""
    try:
        return RunSpec.model_validate(stored)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
        raise Invalid(f"The settings of {owner} cannot be read by this version: {faults}.") from error


def clone_spec(session: Session, run_id: str) -> RunSpec:
    """The spec of a run, to start from: same settings and name, with the hash left open so that it is frozen anew."""
    spec = spec_of(get(session, run_id))
    return spec.model_copy(update={"data": spec.data.model_copy(update={"sha256": ""})})
