"""Models and datasets as a person names them on the command line: a path here, or an id of the studio."""

import re
from pathlib import Path

from studio.errors import Invalid
from studio.storage import FORMATS, MODEL_SLUG, RUN_ID, Storage

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
DATASET_ID = re.compile(r"file-[0-9a-f]{16}")


def find_model(name: str, beside: Path, storage: Storage) -> str:
    """A model folder as an absolute path, or a Hub id."""
    places = [Path(name).expanduser(), beside / name]
    if MODEL_SLUG.fullmatch(name):
        places.append(storage.model_dir(name))
    for place in places:
        if (place / "config.json").is_file():
            return str(place.absolute())
    if HUB_ID.fullmatch(name) and not Path(name).exists():
        return name
    raise Invalid(
        f"There is no model {name!r}: no folder with a config.json, and no model of the studio.",
        param="model",
        advice="Give a model folder, the id of a model in `atelier models list`, or a Hub id like owner/name.",
    )


def find_dataset(name: str, beside: Path, storage: Storage) -> Path:
    """A dataset file as an absolute path."""
    places = [Path(name).expanduser(), beside / name]
    if DATASET_ID.fullmatch(name):
        places += [storage.dataset_dir(name) / f"data.{format}" for format in FORMATS]
    for place in places:
        if place.is_file():
            return place.absolute()
    raise Invalid(
        f"There is no dataset {name!r}: no file here or beside the spec, and no dataset of the studio.",
        param="data.dataset",
        advice="Give a JSONL, JSON, CSV or Parquet file, or an id of `atelier data list`.",
    )


def find_adapter(name: str, beside: Path, storage: Storage) -> str:
    """An adapter folder as an absolute path: a folder here, a run's, or the result of a run of the studio."""
    places = [Path(name).expanduser(), beside / name]
    places += [place / "adapter" for place in places]
    if RUN_ID.fullmatch(name):
        places.append(storage.run_dir(name).adapter)
    for place in places:
        if (place / "adapter_config.json").is_file():
            return str(place.absolute())
    raise Invalid(
        f"There is no adapter {name!r}: no folder with an adapter_config.json, and no finished run of the studio.",
        param="adapter_from",
        advice="Give an adapter folder, a run folder, or an id of `atelier runs list`.",
    )
