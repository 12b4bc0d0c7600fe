"""Our own routes beside OpenAI's: runs with their full spec, their metrics, adapter and diagnostics."""

import os
from collections.abc import Iterator
from typing import IO, Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from engine.spec import RunSpec
from studio import adapters, metrics, runs
from studio.api.deps import After, Limit, Page, TheStudio, page_of
from studio.api.objects import RunObject, RunStatus, run_of
from studio.diagnostics import diagnostics
from studio.queue import send_run
from studio.room import admitted

router = APIRouter(prefix="/v1", tags=["Runs"], max_body_size=16 * 2**20)
ZIP: dict[int | str, dict[str, Any]] = {200: {"content": {"application/zip": {}}, "description": "A zip file."}}
CHUNK = 1 << 20


@router.post("/runs")
def create(studio: TheStudio, spec: RunSpec) -> RunObject:
    """Queue a run of a full RunSpec. A dataset or model that is still being checked is waited for."""
    with studio.session() as session:
        run_id = admitted(session, studio.storage, runs.create(session, spec, wait_for_inputs=True)).id
    with studio.session() as session:
        run = runs.get(session, run_id)
        send_run(studio.celery, session, run)
        return run_of(run)


@router.get("/runs")
def list_runs(
    studio: TheStudio,
    after: After = None,
    limit: Limit = 100,
    status: Annotated[list[RunStatus] | None, Query()] = None,
    text: Annotated[str, Query(max_length=300, description="Part of the name or id.")] = "",
    model: Annotated[str | None, Query(max_length=300)] = None,
    dataset: Annotated[str | None, Query(max_length=40)] = None,
) -> Page[RunObject]:
    """Runs, newest first."""
    with studio.session() as session:
        found = runs.list_runs(
            session, status=status, text=text, model=model, dataset=dataset, after=after, limit=limit + 1
        )
        return page_of([(run.id, run_of(run)) for run in found], limit)


@router.get("/runs/{run_id}")
def show(studio: TheStudio, run_id: str) -> RunObject:
    """One run."""
    with studio.session() as session:
        return run_of(runs.get(session, run_id))


@router.post("/runs/{run_id}/retry")
def retry(studio: TheStudio, run_id: str) -> RunObject:
    """Queue a new run with the settings that the failure of this one proposes (`error.changes`)."""
    with studio.session() as session:
        new_id = admitted(session, studio.storage, runs.retry(session, run_id)).id
    with studio.session() as session:
        run = runs.get(session, new_id)
        send_run(studio.celery, session, run)
        return run_of(run)


@router.get("/runs/{run_id}/metrics")
def show_metrics(studio: TheStudio, run_id: str, after: Annotated[int, Query(ge=0, le=2**62)] = 0) -> dict[str, Any]:
    """Columns of everything measured after `after`; the answer's `next` is the `after` of the next call."""
    with studio.session() as session:
        runs.get(session, run_id)
        return metrics.points(session, run_id, after)


@router.get("/runs/{run_id}/curve")
def show_curve(studio: TheStudio, run_id: str, part: Annotated[metrics.Part, Query()]) -> metrics.Curve:
    """One curve between two positions: every point, or as many as are asked for, chosen so that the shape stays."""
    with studio.session() as session:
        runs.get(session, run_id)
        return metrics.curve(session, run_id, part)


@router.get("/runs/{run_id}/diagnostics", response_class=Response, responses=ZIP)
def download_diagnostics(studio: TheStudio, run_id: str) -> Response:
    """Spec, versions, log and events of a run as a zip, without secrets."""
    with studio.session() as session:
        run = runs.get(session, run_id)
        file = diagnostics(studio.storage, run, studio.settings)
    return attachment(file, f"{run.id}-diagnostics.zip")


@router.get("/adapters/{run_id}", response_class=Response, responses=ZIP)
def download_adapter(studio: TheStudio, run_id: str) -> Response:
    """The adapter of a run that succeeded, in PEFT's format, as a zip."""
    with studio.session() as session:
        run = runs.get(session, run_id)
        file = adapters.zip_file(studio.storage, run)
    return attachment(file, adapters.download_name(run))


def attachment(file: IO[bytes], name: str) -> Response:
    """An open file as a download with its length; closed, and so removed, once sent. `name` is plain ASCII."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(size)}
    return StreamingResponse(_chunks(file), media_type="application/zip", headers=headers)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk
