"""The adapter of a run as one zip, made in a temporary file so that it can be sent with its length."""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import IO

from studio.db.tables import Run
from studio.errors import NotFound
from studio.storage import Storage

CHUNK = 1 << 20
IN_MEMORY = 8 << 20


def zip_file(storage: Storage, run: Run) -> IO[bytes]:
    """The adapter folder as an open temporary zip file, at its start; it is gone once closed.

    All entries lie in one folder named after the run's id. Raises NotFound while there is no adapter.
    """
    folder = storage.run_dir(run.id).adapter
    if run.status != "succeeded" or not (folder / "adapter_config.json").is_file():
        raise NotFound(f"The run {run.id} is {run.status} and has no adapter to download.", code="no_adapter")
    file = TemporaryFile(dir=storage.incoming)  # noqa: SIM115 - the caller closes it
    pack(file, folder, f"{run.id}-adapter")
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
    return f"{words or 'adapter'}-{run.id.removeprefix('run-')[:6]}.zip"
