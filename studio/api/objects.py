"""Files, models and runs as the API tells them; the CLI's --json says the same. Knows no web framework."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

from studio.db.tables import Dataset, Model, Run

RunStatus = Literal["draft", "queued", "preparing", "running", "succeeded", "failed", "cancelled", "paused"]
FileStatus = Literal["uploaded", "processed", "error"]
STATUS: dict[str, FileStatus] = {
    "fetching": "uploaded",
    "checking": "uploaded",
    "ready": "processed",
    "unusable": "error",
    "deleted": "error",
}


class FileObject(BaseModel):
    """`file`: a dataset as OpenAI's clients read it, and what the check found."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: FileStatus
    status_details: str | None = None
    expires_at: int | None = None
    kind: str | None = None
    rows: int | None = None
    usable: int | None = None


def file_of(dataset: Dataset) -> FileObject:
    """The dataset as a file."""
    return FileObject(
        id=dataset.id,
        bytes=dataset.bytes,
        created_at=int(dataset.created_at.timestamp()),
        filename=dataset.filename or dataset.name,
        purpose=dataset.purpose,
        status=STATUS[dataset.status],
        status_details=dataset.error or None,
        kind=dataset.kind or None,
        rows=dataset.rows,
        usable=dataset.usable,
    )


class ModelObject(BaseModel):
    """`model`: a base model (`owned_by` its source), or the result of a run (`owned_by` atelier, `parent` its base)."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    name: str
    status: str
    error: str | None = None
    parent: str | None = None
    facts: dict[str, Any] | None = None


def model_of(model: Model) -> ModelObject:
    """A base model."""
    return ModelObject(
        id=model.id,
        created=int(model.created_at.timestamp()),
        owned_by=model.source,
        name=model.name,
        status=model.status,
        error=model.error or None,
        facts=model.facts,
    )


def result_of(run: Run) -> ModelObject:
    """The adapter of a run, named by the run's id."""
    return ModelObject(
        id=run.id,
        created=int((run.finished_at or run.created_at).timestamp()),
        owned_by="atelier",
        name=run.name,
        status="ready",
        parent=run.model_id,
    )


class RunObject(BaseModel):
    """A run: what was asked (`spec`) and where it stands. Times are ISO 8601, UTC."""

    id: str
    object: Literal["run"] = "run"
    name: str
    status: RunStatus
    wanted: str
    model: str
    dataset: str
    method: str
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    phase: str
    phase_detail: str
    step: int
    total_steps: int
    loss: float | None
    eval_loss: float | None
    best_eval_loss: float | None
    seconds_left: float | None
    error: dict[str, Any] | None
    metadata: dict[str, Any] | None
    spec: dict[str, Any]


def run_of(run: Run) -> RunObject:
    """The row as the API tells it."""
    same = set(RunObject.model_fields) - {"object", "model", "dataset", "metadata"}
    values = {name: getattr(run, name) for name in same}
    return RunObject(**values, model=run.model_id, dataset=run.dataset_id, metadata=run.user_metadata)
