"""Folders of the data directory. A folder's name is an id that passed a pattern, never text from a user."""

import re
import shutil
import tempfile
from pathlib import Path

from engine.rundir import RunDir
from studio.db.tables import Dataset
from studio.errors import Invalid, Unavailable

RUN_ID = re.compile(r"run-[0-9a-f]{16}")
DATASET_ID = re.compile(r"file-[0-9a-f]{16}")
MODEL_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
FORMATS = ("jsonl", "json", "csv", "parquet")


class Storage:
    """Where everything lies under one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.expanduser().absolute()

    def prepare(self) -> None:
        """Make the folders; Unavailable when the data directory cannot be written."""
        try:
            for name in ("runs", "datasets", "models", "incoming"):
                (self.data_dir / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.incoming):
                pass
        except OSError as error:
            raise Unavailable(
                f"The data folder {self.data_dir} cannot be written: {error.strerror}.",
                code="data_folder_not_writable",
                advice="Choose another one with --data-dir, or correct its permissions.",
            ) from error

    @property
    def incoming(self) -> Path:
        """Where files grow before they are renamed into place; on the same file system as the rest."""
        return self.data_dir / "incoming"

    @property
    def models(self) -> Path:
        """Folder of the models kept in the data directory."""
        return self.data_dir / "models"

    def run_dir(self, run_id: str) -> RunDir:
        """The folder of a run; it need not exist yet."""
        return RunDir(self._inside("runs", run_id, RUN_ID))

    def dataset_dir(self, dataset_id: str) -> Path:
        """The folder of a dataset."""
        return self._inside("datasets", dataset_id, DATASET_ID)

    def dataset_file(self, dataset: Dataset) -> Path:
        """The one file of a dataset."""
        if dataset.format not in FORMATS:
            raise Invalid(f"A dataset cannot have the format {dataset.format!r}.")
        return self.dataset_dir(dataset.id) / f"data.{dataset.format}"

    def model_dir(self, model_id: str) -> Path:
        """The folder of a model that is kept in the data directory."""
        return self._inside("models", model_id, MODEL_SLUG)

    def remove(self, folder: Path) -> None:
        """Remove a folder of this data directory: renamed first, so that a half-removed one is never found."""
        if not folder.absolute().is_relative_to(self.data_dir) or folder.absolute() == self.data_dir:
            raise Invalid(f"{folder} is outside the data folder.")
        if not folder.exists():
            return
        self.incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
        grave = Path(tempfile.mkdtemp(prefix="removed-", dir=self.incoming))
        folder.rename(grave / "content")
        shutil.rmtree(grave, ignore_errors=True)

    def _inside(self, kind: str, name: str, pattern: re.Pattern[str]) -> Path:
        if not pattern.fullmatch(name):
            raise Invalid(f"{name[:80]!r} is not a valid id.", code="invalid_id")
        root = self.data_dir / kind
        path = root / name
        if not path.resolve().is_relative_to(root.resolve()):
            raise Invalid(f"{name!r} leads outside the data folder.", code="invalid_id")
        return path
