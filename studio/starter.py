"""The content that every new installation has: a small chat model and two small datasets, with no internet needed."""

from importlib.resources import as_file, files

from sqlalchemy import select

from engine.starter_paths import LICENCE, MODEL_ID, NAME, gguf_file
from studio import datasets
from studio.context import Studio
from studio.db.tables import Dataset, Model, now
from studio.facts import Facts
from studio.queue import send_prepare


def ensure(studio: Studio) -> None:
    """Register what is missing of the starter content and send what still has to be done for it. Idempotent.

    The model appears as `converting`, with progress, until a worker has made it; a dataset that was deleted stays so.
    """
    with studio.session() as session:
        waiting = []
        for name in _shipped():
            if session.scalar(select(Dataset.id).where(Dataset.source == "starter", Dataset.filename == name)) is None:
                with as_file(files("studio") / "starter_data" / name) as path:
                    label = name.removesuffix(".jsonl").replace("_", " ").replace("-", " ").capitalize()
                    added = datasets.add(
                        session, studio.storage, studio.settings, filename=name, path=path, name=label, source="starter"
                    )
                    waiting.append(added.id)
        model = _model(studio, session.get(Model, MODEL_ID))
        if model is not None:
            session.add(model)
    for dataset_id in waiting:
        send_prepare(studio.celery, "check_dataset", dataset_id)
    if model is not None and model.status == "converting":
        send_prepare(studio.celery, "convert_starter")


def _shipped() -> list[str]:
    folder = files("studio") / "starter_data"
    return sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".jsonl")) if folder.is_dir() else []


def _model(studio: Studio, model: Model | None) -> Model | None:
    """The row as it should be now; None when the starter model is not installed and never was."""
    folder = studio.storage.model_dir(MODEL_ID)
    if model is None:
        if gguf_file() is None and not folder.is_dir():
            return None
        model = Model(
            id=MODEL_ID,
            name=NAME,
            source="starter",
            path=str(folder),
            created_at=now(),
            status="converting",
            progress=0.0,
            facts=Facts(cached=False, licence=LICENCE, has_chat_template=True).model_dump(),
        )
    model.path = str(folder)  # the data folder may have moved
    if not (folder / "config.json").is_file():
        model.status, model.progress, model.error = "converting", 0.0, ""
    return model
