"""What happens before a run: datasets checked, models described, the starter model converted."""

import json
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select

from engine.failure import Failure
from engine.rows.check import check
from studio.db.tables import Dataset, Model, Run
from studio.errors import Invalid, StudioError
from studio.facts import Facts, read_facts
from studio.labels import storable, storable_json
from studio.queue import send_run
from worker import fetch, gym, launch
from worker.bench import Bench

log = logging.getLogger(__name__)

PROGRESS_STEP = 0.01


def once(bench: Bench, key: str, what: Callable[[Bench, str], None], thing_id: str) -> None:
    """Do it unless this process is at it already; then wake the runs that waited for it."""
    with bench.only_once(key) as mine:
        if not mine:
            return
        what(bench, thing_id)
    wake_waiting(bench, thing_id)


def wake_waiting(bench: Bench, thing_id: str) -> None:
    """Send the queued runs that need this dataset or model."""
    with bench.studio.session() as session:
        needs = (Run.dataset_id == thing_id) | (Run.model_id == thing_id)
        for run in session.scalars(select(Run).where(Run.status == "queued", needs).limit(100)):
            send_run(bench.studio.celery, session, run)


def check_dataset(bench: Bench, dataset_id: str) -> None:
    """Read every row; the dataset becomes `ready` with its report, or `unusable` with the first reason."""
    studio = bench.studio
    with studio.session() as session:
        dataset = session.get(Dataset, dataset_id)
        if dataset is None or dataset.status != "checking":
            return
        path, format = studio.storage.dataset_file(dataset), dataset.format
    values: dict[str, Any]
    try:
        report = check(path, format)  # type: ignore[arg-type]  # the column holds one of the formats
        values = {
            "status": "ready" if report.usable else "unusable",
            "error": "" if report.usable else storable(report.summary),
            "kind": report.kind or "",
            "rows": report.rows,
            "usable": report.usable,
            "report": storable_json(report.model_dump()),
        }
    except Failure as failure:
        values = {"status": "unusable", "error": storable(" ".join([failure.message, *failure.advice]))}
    except OSError as error:
        values = {"status": "unusable", "error": f"The file cannot be read: {error.strerror}."}
    with studio.session() as session:
        dataset = session.get(Dataset, dataset_id)
        if dataset is not None and dataset.status == "checking":
            for name, value in values.items():
                setattr(dataset, name, value)


def fetch_dataset(bench: Bench, dataset_id: str) -> None:
    """Download a dataset of the Hub as one file, or make the rows of a task, then check it."""
    studio = bench.studio
    with studio.session() as session:
        dataset = session.get(Dataset, dataset_id)
        if dataset is None or dataset.status != "fetching":
            return
        origin = dict(dataset.origin or {})
    try:
        if "task" in origin:
            gym.dataset(bench, dataset_id, origin)
        else:
            fetch.dataset(studio, dataset_id, origin)
    except StudioError as error:
        with studio.session() as session:
            dataset = session.get(Dataset, dataset_id)
            if dataset is not None:
                dataset.status, dataset.error = "unusable", storable(" ".join((error.message, error.advice)).strip())
        return
    check_dataset(bench, dataset_id)


def check_model(bench: Bench, model_id: str) -> None:
    """Ask the engine, in a process of its own, what the model is and whether it can be trained."""
    with bench.studio.session() as session:
        model = session.get(Model, model_id)
        if model is None or model.status != "checking":
            return
        folder = Path(model.path)
    try:
        facts = describe(bench, folder)
        error = "" if facts.trainable else facts.why_not
    except Invalid as invalid:
        facts, error = Facts(trainable=False, why_not=invalid.message), invalid.message
    _store_model(bench, model_id, "ready" if facts.trainable else "unusable", error, facts)


def describe(bench: Bench, folder: Path) -> Facts:
    """Facts from the folder's files, completed by what the engine says of it. Raises Invalid when it says nothing."""
    facts = read_facts(folder)
    log_file = bench.studio.storage.incoming / f"describe-{bench.new_holder()}.log"
    try:
        told = json.loads("\n".join(launch.lines([*bench.engine, "describe", str(folder)], log_file)))
        known = {name: value for name, value in told.items() if value not in (None, "")}
        if not facts.trainable:  # the engine only says whether the weights can be loaded
            known |= {"trainable": False, "why_not": facts.why_not}
        return Facts.model_validate({**facts.model_dump(), **known})
    except (subprocess.CalledProcessError, ValueError, AttributeError, ValidationError, OSError) as error:
        said = log_file.read_text(encoding="utf-8", errors="replace").strip() if log_file.exists() else ""
        last = said.splitlines()[-1][:300] if said else str(error)[:300]
        raise Invalid(f"The model cannot be read by the engine: {storable(last)}", code="model_unreadable") from error
    finally:
        log_file.unlink(missing_ok=True)


def fetch_model(bench: Bench, model_id: str) -> None:
    """Download the files of a Hub model that training needs, then check it."""
    with bench.studio.session() as session:
        model = session.get(Model, model_id)
        if model is None or model.status != "fetching":
            return
        revision = model.revision
    try:
        folder, commit = fetch.model(model_id, revision, lambda share: _progress(bench, model_id, share))
    except StudioError as error:
        _store_model(bench, model_id, "unusable", " ".join((error.message, error.advice)).strip())
        return
    with bench.studio.session() as session:
        model = session.get(Model, model_id)
        if model is None:
            return
        model.path, model.revision, model.status, model.progress = str(folder), commit, "checking", None
    check_model(bench, model_id)


def convert_starter(bench: Bench, model_id: str) -> None:
    """Turn the starter model's file into safetensors with the engine, showing how far it is; then check it."""
    studio = bench.studio
    with studio.session() as session:
        model = session.get(Model, model_id)
        if model is None or model.status != "converting":
            return
    folder = studio.storage.model_dir(model_id)
    log_file = studio.storage.data_dir / "convert-starter.log"
    if not (folder / "config.json").is_file():
        try:
            for line in launch.lines([*bench.engine, "convert-starter", str(folder)], log_file):
                share = _share(line)
                if share is not None:
                    _progress(bench, model_id, share)
        except (subprocess.CalledProcessError, OSError) as error:
            if bench.leaving.is_set():
                return  # converted again at the next start
            message = f"The starter model could not be converted ({error}). The reason is in {log_file}."
            _store_model(bench, model_id, "unusable", message)
            return
    with studio.session() as session:
        session.get_one(Model, model_id).status = "checking"
    check_model(bench, model_id)


def _share(line: str) -> float | None:
    """0 to 1 from a line `{"done": n, "total": m}`; None for any other line."""
    try:
        told = json.loads(line)
        return min(1.0, float(told["done"]) / float(told["total"]))
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def _progress(bench: Bench, model_id: str, share: float) -> None:
    with bench.studio.session() as session:
        model = session.get(Model, model_id)
        if model is not None and share - (model.progress or 0.0) >= PROGRESS_STEP:
            model.progress = share


def _store_model(bench: Bench, model_id: str, status: str, error: str, facts: Facts | None = None) -> None:
    with bench.studio.session() as session:
        model = session.get(Model, model_id)
        if model is not None:
            model.status, model.error, model.progress = status, storable(error), None
            if facts is not None:
                before = Facts.model_validate(model.facts or {})
                facts = facts.model_copy(update={"licence": facts.licence or before.licence, "bridge": before.bridge})
                model.facts = storable_json(facts.model_dump())
