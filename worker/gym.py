"""Procedural tasks as a dataset: rows that the engine makes in a process of its own become its file."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studio import datasets
from studio.db.tables import Dataset
from studio.errors import Invalid, StudioError
from worker import launch
from worker.bench import Bench


def dataset(bench: Bench, dataset_id: str, origin: dict[str, Any]) -> None:
    """Make the rows of a task and give them to the dataset. Raises StudioError with what to do."""
    studio, task = bench.studio, str(origin["task"])
    with TemporaryDirectory(dir=studio.storage.incoming) as folder:
        path, log = Path(folder) / f"{task}.jsonl", Path(folder) / "log.txt"
        options = ["--rows", str(int(origin["rows"])), "--seed", str(int(origin["seed"]))]
        said(launch.lines([*bench.engine, "make-tasks", task, str(path), *options], log), log)
        with studio.session() as session:
            row = session.get_one(Dataset, dataset_id)
            datasets.adopt(session, studio.storage, row, path, path.name, limit_mib=studio.settings.max_upload_mib)


def said(lines: Iterable[str], log: Path) -> None:
    """Hear the engine out. Raises Invalid with its reason, StudioError where it ended without one."""
    told: dict[str, Any] = {}
    try:
        for line in lines:
            told = json.loads(line)
    except (subprocess.CalledProcessError, ValueError) as error:
        if "error" not in told:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or [str(error)]
            raise StudioError(f"The tasks could not be made: {last[0][:300]}") from error
    if "error" in told:
        reason = told["error"]
        raise Invalid(reason["message"], code=reason["code"], advice=" ".join(reason["advice"]))
