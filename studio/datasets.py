"""Datasets: immutable files of rows under an id, checked by a worker before they can be used."""

import hashlib
import re
import secrets
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy import delete as remove
from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from engine.failure import Failure
from engine.rows.check import Report
from engine.rows.files import sniff
from studio.db import when_over
from studio.db.tables import Dataset, Preview, Run, now
from studio.errors import Conflict, Invalid, NotFound, TooLarge
from studio.labels import label, shortened
from studio.settings import Settings
from studio.storage import FORMATS, Storage

CHUNK = 1 << 20
TASK = re.compile(r"[a-z][a-z0-9_]{0,63}")
MOST_TASKS = 100_000  # rows
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def add(  # noqa: PLR0913 - keywords, two of which exclude each other
    session: Session,
    storage: Storage,
    settings: Settings,
    *,
    filename: str,
    stream: BinaryIO | None = None,
    path: Path | None = None,
    name: str = "",
    source: str = "upload",
    purpose: str = "fine-tune",
) -> Dataset:
    """Copy a file (an open `stream`, or a `path` of this machine) under a new id; status `checking`.

    After the commit, `queue.send_prepare(celery, "check_dataset", dataset.id)`. Raises TooLarge above the upload limit
    and Invalid for a file that is empty, binary, or not what its extension says. Nothing stays behind on an error.
    """
    shown = shortened(Path(filename.replace("\\", "/")).name) or "data"
    dataset = Dataset(
        id=f"file-{secrets.token_hex(8)}",
        name=label(name) or shown,
        filename=shown,
        source=source,
        purpose=purpose,
        status="checking",
        created_at=now(),
    )
    growing = storage.incoming / dataset.id
    try:
        if stream is not None:
            dataset.bytes, dataset.sha256 = _copy(stream, growing, settings.max_upload_mib)
        elif path is not None:
            with path.open("rb") as file:
                dataset.bytes, dataset.sha256 = _copy(file, growing, settings.max_upload_mib)
        else:
            raise Invalid("There is no file.", param="file")
        dataset.format = _format(growing, shown)
        _put_in_place(session, storage, dataset, growing)
    except OSError as error:
        raise Invalid(f"The file {shown!r} cannot be read or stored: {error.strerror}.", param="file") from error
    finally:
        growing.unlink(missing_ok=True)
    session.add(dataset)
    session.flush()
    return dataset


def _copy(source: BinaryIO, target: Path, limit_mib: int) -> tuple[int, str]:
    """Bytes and SHA-256 of what was copied."""
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as file:
        while chunk := source.read(CHUNK):
            size += len(chunk)
            if size > limit_mib * 1024 * 1024:
                raise TooLarge(
                    f"The file is larger than {limit_mib} MiB, the limit for uploads.",
                    param="file",
                    advice="Raise ATELIER_MAX_UPLOAD_MIB, or give a smaller file.",
                )
            digest.update(chunk)
            file.write(chunk)
    return size, digest.hexdigest()


def _format(path: Path, filename: str) -> str:
    try:
        return str(sniff(path, filename))
    except Failure as failure:
        raise Invalid(failure.message, code=failure.code, param="file", advice=" ".join(failure.advice)) from failure


def _put_in_place(session: Session, storage: Storage, dataset: Dataset, growing: Path) -> None:
    folder = storage.dataset_dir(dataset.id)
    folder.mkdir(mode=0o700, parents=True)
    growing.rename(storage.dataset_file(dataset))
    when_over(session, undone=lambda: storage.remove(folder))


def adopt(session: Session, storage: Storage, dataset: Dataset, path: Path, filename: str, *, limit_mib: int) -> None:
    """Give a fetched dataset its file: copied, hashed, and next to be checked."""
    growing = storage.incoming / f"{dataset.id}-{secrets.token_hex(4)}"
    try:
        with path.open("rb") as file:
            dataset.bytes, dataset.sha256 = _copy(file, growing, limit_mib)
        dataset.format = _format(growing, filename)
        storage.remove(storage.dataset_dir(dataset.id))
        _put_in_place(session, storage, dataset, growing)
    finally:
        growing.unlink(missing_ok=True)
    dataset.filename = shortened(filename)
    dataset.status = "checking"
    session.flush()


def add_from_hub(session: Session, hub_id: str, subset: str = "", split: str = "train") -> Dataset:
    """A dataset of the Hub; status `fetching`. After the commit, send_prepare("fetch_dataset", id)."""
    hub_id = hub_id.strip()
    if not HUB_ID.fullmatch(hub_id) or ".." in hub_id:
        raise Invalid(f"{hub_id[:100]!r} is not a dataset id of the Hub; it looks like owner/name.", param="hub_id")
    name = " ".join(part for part in (hub_id, subset, split) if part)
    told = {"subset": label(subset, "subset"), "split": label(split, "split") or "train"}
    return _coming(session, name, "hub", {"hub_id": hub_id, **told, "revision": ""})


def add_tasks(session: Session, task: str, rows: int = 500, seed: int = 0) -> Dataset:
    """Rows of a reasoning-gym task, made by a worker; status `fetching`.

    After the commit, send_prepare("fetch_dataset", id). Raises Invalid for what is no task's name, or too many rows.
    """
    task = task.strip()
    if not TASK.fullmatch(task):
        raise Invalid(f"{task[:100]!r} is not the name of a task; one looks like chain_sum.", param="task")
    if not 1 <= rows <= MOST_TASKS:
        raise Invalid(f"{rows:,} rows cannot be made.", param="rows", advice=f"Ask for 1 to {MOST_TASKS:,}.")
    return _coming(session, task, "tasks", {"task": task, "rows": rows, "seed": seed})


def _coming(session: Session, name: str, source: str, origin: dict[str, Any]) -> Dataset:
    """A dataset whose file a worker will bring."""
    dataset = Dataset(
        id=f"file-{secrets.token_hex(8)}",
        name=shortened(name),
        filename="",
        format=FORMATS[-1],
        sha256="",
        bytes=0,
        source=source,
        status="fetching",
        created_at=now(),
        origin=origin,
    )
    session.add(dataset)
    session.flush()
    return dataset


def get(session: Session, dataset_id: str) -> Dataset:
    """The dataset of this id; NotFound when there is none or it was deleted."""
    dataset = session.get(Dataset, dataset_id)
    if dataset is None:
        raise NotFound(f"There is no dataset {dataset_id[:80]!r}.")
    if dataset.status == "deleted":
        raise NotFound(f"The file of the dataset {dataset.name!r} is gone: it was deleted.", code="file_gone")
    return dataset


def list_datasets(session: Session, *, kind: str | None = None, limit: int = 1000) -> list[Dataset]:
    """Datasets that still have their file, newest first."""
    query = select(Dataset).where(Dataset.status != "deleted").order_by(Dataset.created_at.desc(), Dataset.id.desc())
    if kind:
        query = query.where(Dataset.kind == kind)
    return list(session.scalars(query.limit(limit)))


def delete(session: Session, storage: Storage, dataset_id: str) -> None:
    """Remove a dataset and, once the commit is through, its file.

    Where runs were made from it the row stays, as `deleted`, so that they keep its name. Conflict while a run that
    needs it is waiting or active.
    """
    dataset = get(session, dataset_id)
    waiting = ("queued", "preparing", "running", "paused")
    if session.scalar(select(exists().where(Run.dataset_id == dataset.id, Run.status.in_(waiting)))):
        raise Conflict(f"A run that has not ended needs the dataset {dataset.name!r}; cancel it first.")
    if session.scalar(select(exists().where(Run.dataset_id == dataset.id))):
        dataset.status = "deleted"
        dataset.report = None
        session.execute(remove(Preview).where(Preview.dataset_id == dataset.id))
    else:
        session.delete(dataset)
    session.flush()
    folder = storage.dataset_dir(dataset.id)
    when_over(session, committed=lambda: storage.remove(folder))


def declarable(dataset: Dataset) -> bool:
    """Whether a person can say what its rows are: it was read, though none of them may have been recognised."""
    return dataset.status in ("ready", "unusable") and dataset.rows > 0


def report(dataset: Dataset) -> Report | None:
    """What the check found; None while it has not run."""
    return Report.model_validate(dataset.report) if dataset.report else None


def facts(dataset: Dataset) -> dict[str, Any]:
    """The few figures that lists and cards show."""
    return {"kind": dataset.kind, "rows": dataset.rows, "usable": dataset.usable, "bytes": dataset.bytes}
