"""Before the engine starts: inputs resolved to paths, the data verified, the spec frozen in the run's folder."""

import hashlib
from pathlib import Path

from sqlalchemy.orm import Session

from engine.rundir import RunDir
from engine.spec import RunSpec
from studio import runs
from studio.datasets import declarable
from studio.db.tables import Dataset, Model, Run
from studio.errors import Invalid
from studio.layouts import check_layout
from studio.storage import Storage
from worker.relay import drop_half_line

CHUNK = 1 << 20


def resolve(session: Session, storage: Storage, run: Run) -> RunSpec:
    """The run's spec with `model` and `data.dataset` as paths.

    Raises Invalid, with the cause, when one is gone, or for a layout that the model, when it was prepared, turned out
    not to allow.
    """
    spec = runs.spec_of(run)
    dataset = session.get(Dataset, run.dataset_id)
    if dataset is None or dataset.status == "deleted":
        raise Invalid("The file of this run's dataset is gone: the dataset was deleted.", code="file_gone")
    if dataset.status != "ready" and not (spec.data.declared and declarable(dataset)):
        raise Invalid(f"The dataset {dataset.name!r} cannot be used: {dataset.error}", code="dataset_unusable")
    model = session.get(Model, run.model_id)
    if model is None:
        raise Invalid(f"The model {run.model_id!r} is no longer in this studio.", code="model_gone")
    if model.status != "ready":
        raise Invalid(f"The model {model.name!r} cannot be used: {model.error}", code="model_unusable")
    if not Path(model.path).is_dir():
        raise Invalid(f"The folder {model.path} of the model {model.name!r} is gone.", code="model_gone")
    check_layout(model, spec)
    data = spec.data.model_copy(update={"dataset": str(storage.dataset_file(dataset))})
    before = str(_adapter(storage, spec.adapter_from)) if spec.adapter_from else ""
    return spec.model_copy(update={"model": model.path, "data": data, "adapter_from": before})


def _adapter(storage: Storage, run_id: str) -> Path:
    """The adapter of an earlier run. Raises Invalid when it is gone."""
    folder = storage.run_dir(run_id).adapter
    if not (folder / "adapter_config.json").is_file():
        raise Invalid(f"The adapter of {run_id}, from which this run starts, is gone.", code="adapter_gone")
    return folder


def verify(spec: RunSpec) -> None:
    """Raise Invalid unless the dataset's file is there and has the content that the run was made for."""
    try:
        with Path(spec.data.dataset).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Invalid(
            f"The dataset's file {spec.data.dataset} is gone or cannot be read: {error.strerror}.",
            code="file_gone",
            advice="Upload the file again and start a new run with it.",
        ) from error
    if spec.data.sha256 and digest != spec.data.sha256:
        raise Invalid(
            f"The dataset's file {spec.data.dataset} was changed after the run was made.",
            code="file_changed",
            advice="Upload the present content as a new dataset and start a new run with it.",
        )


def lay_out(run_dir: RunDir, spec: RunSpec) -> None:
    """Make the run's folder ready for an engine: the spec in it, no old wish to stop, no half line."""
    run_dir.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    run_dir.write_spec(spec)
    run_dir.stop.unlink(missing_ok=True)
    drop_half_line(run_dir.events)
