"""`/v1/files`: datasets as OpenAI's files. A file's id is its dataset's id."""

from typing import Annotated, Literal

from fastapi import APIRouter, File, Form, Query, UploadFile
from pydantic import BaseModel
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session
from starlette.responses import FileResponse, Response

from studio import datasets
from studio.api import results
from studio.api.deps import After, Limit, Page, TheStudio, page_of
from studio.api.objects import FileObject, file_of
from studio.db.tables import Dataset, Run
from studio.errors import Invalid, NotFound
from studio.queue import send_prepare

router = APIRouter(prefix="/v1/files", tags=["Files"])


class Deleted(BaseModel):
    """The answer to a DELETE."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


def results_of(session: Session, run: Run) -> FileObject:
    """The metrics of a run as a file."""
    size = len(results.csv_of(session, run).encode())
    created = int((run.finished_at or run.created_at).timestamp())
    return FileObject(
        id=results.id_of(run),
        bytes=size,
        created_at=created,
        filename="step_metrics.csv",
        purpose="fine-tune-results",
        status="processed",
    )


@router.post("")
def upload(
    studio: TheStudio,
    file: Annotated[UploadFile, File(description="JSONL, JSON, CSV or Parquet.")],
    purpose: Annotated[str, Form(max_length=40, description="Must be fine-tune.")],
) -> FileObject:
    """Store a file; a worker then reads every row (`status` becomes `processed` or `error`)."""
    if purpose != "fine-tune":
        raise Invalid("Files are stored for training only: the purpose must be fine-tune.", param="purpose")
    with studio.session() as session:
        dataset = datasets.add(
            session,
            studio.storage,
            studio.settings,
            stream=file.file,
            filename=file.filename or "data",
            purpose=purpose,
        )
    send_prepare(studio.celery, "check_dataset", dataset.id)
    return file_of(dataset)


@router.get("")
def list_files(
    studio: TheStudio,
    after: After = None,
    limit: Limit = 1000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(max_length=40)] = None,
) -> Page[FileObject]:
    """Files that are still there, newest first."""
    place = tuple_(Dataset.created_at, Dataset.id)
    query = select(Dataset).where(Dataset.status != "deleted").limit(limit + 1)
    query = query.order_by(
        *(column.desc() if order == "desc" else column.asc() for column in (Dataset.created_at, Dataset.id))
    )
    if purpose:
        query = query.where(Dataset.purpose == purpose)
    with studio.session() as session:
        if after:
            last = datasets.get(session, after)
            edge = tuple_(last.created_at, last.id)
            query = query.where(place < edge if order == "desc" else place > edge)
        return page_of(((found.id, file_of(found)) for found in session.scalars(query)), limit)


@router.get("/{file_id}")
def show(studio: TheStudio, file_id: str) -> FileObject:
    """One file."""
    with studio.session() as session:
        if results.is_results(file_id):
            return results_of(session, results.run_of(session, file_id))
        return file_of(datasets.get(session, file_id))


@router.get("/{file_id}/content", response_class=Response)
def content(studio: TheStudio, file_id: str) -> Response:
    """The file itself, byte for byte, as an attachment."""
    with studio.session() as session:
        if results.is_results(file_id):
            run = results.run_of(session, file_id)
            headers = {"Content-Disposition": f'attachment; filename="{run.id}-step_metrics.csv"'}
            return Response(results.csv_of(session, run), media_type="text/csv", headers=headers)
        dataset = datasets.get(session, file_id)
        path = studio.storage.dataset_file(dataset)
    if not path.is_file():
        raise NotFound(f"The file of the dataset {dataset.name!r} is not on this machine (yet).", code="file_gone")
    return FileResponse(path, media_type="application/octet-stream", filename=f"{dataset.id}.{dataset.format}")


@router.delete("/{file_id}")
def delete(studio: TheStudio, file_id: str) -> Deleted:
    """Remove a file. Runs made from it stay; 409 while one of them has not ended."""
    with studio.session() as session:
        datasets.delete(session, studio.storage, file_id)
    return Deleted(id=file_id)
