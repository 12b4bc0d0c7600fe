"""What a run made, adapter or model, as one zip: a temporary file, so that it can be sent with its length."""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import IO, Literal

from studio.db.tables import Run
from studio.errors import NotFound
from studio.storage import Storage

CHUNK = 1 << 20
IN_MEMORY = 8 << 20
CONFIGS = ("adapter_config.json", "config.json")


def kind_of(run: Run) -> Literal["adapter", "model"]:
    """What the run makes: an adapter, or a whole model when all weights are trained."""
    training = (run.spec or {}).get("training") or {}
    return "model" if training.get("full_finetuning") else "adapter"


def zip_file(storage: Storage, run: Run) -> IO[bytes]:
    """The folder with the result as an open temporary zip file, at its start; it is gone once closed.

    All entries lie in one folder named after the run's id. Raises NotFound while there is no result.
    """
    what = kind_of(run)
    folder = storage.run_dir(run.id).path / what
    if run.status != "succeeded" or not any((folder / name).is_file() for name in CONFIGS):
        raise NotFound(f"The run {run.id} is {run.status} and has no {what} to download.", code=f"no_{what}")
    file = TemporaryFile(dir=storage.incoming)  # noqa: SIM115 - the caller closes it
    pack(file, folder, f"{run.id}-{what}")
    return file


def pack(file: IO[bytes] | SpooledTemporaryFile[bytes], folder: Path, top: str) -> None:
    """Write the plain files under `folder` into a zip: safetensors as they are, the rest packed; links are left out."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                how = zipfile.ZIP_STORED if path.suffix == ".safetensors" else zipfile.ZIP_DEFLATED
                archive.write(path, f"{top}/{path.relative_to(folder).as_posix()}", how)
    file.seek(0)


def zip_adapter(storage: Storage, run: Run) -> Iterator[bytes]:
    """The same zip in chunks. Raises NotFound before the first chunk is asked for."""
    return _chunks(zip_file(storage, run))


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


def download_name(run: Run) -> str:
    """A file name for the download made of the run's label: ASCII letters, digits and dashes only."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", run.name).strip("-")[:60].strip("-")
    return f"{words or kind_of(run)}-{run.id.removeprefix('run-')[:6]}.zip"
