"""The metrics of a finished run as the CSV file that a job's `result_files` names, as OpenAI's jobs have one."""

import csv
import io
from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from studio import metrics, runs
from studio.api.openai_jobs import RESULTS_PREFIX
from studio.db.tables import Run
from studio.errors import NotFound

COLUMNS = ("step", "train_loss", "valid_loss", "learning_rate", "grad_norm", "tokens_per_second")


def is_results(file_id: str) -> bool:
    """Whether a file id names the metrics of a run and not an uploaded file."""
    return file_id.startswith(RESULTS_PREFIX)


def id_of(run: Run) -> str:
    """The id of the file that holds the metrics of a run."""
    return RESULTS_PREFIX + run.id


def run_of(session: Session, file_id: str) -> Run:
    """The run whose metrics the file holds; NotFound while it has not succeeded."""
    run = runs.get(session, file_id.removeprefix(RESULTS_PREFIX))
    if run.status != "succeeded":
        raise NotFound(f"There is no file {file_id[:80]!r}: its run has not succeeded.")
    return run


def csv_of(session: Session, run: Run) -> str:
    """One line a step; `valid_loss` is empty where nothing was evaluated. What the method measures comes last."""
    told: dict[str, Any] = metrics.points(session, run.id)
    evaluated = dict(zip(told["eval"]["step"], told["eval"]["loss"], strict=True))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *told["metrics"]])
    writer.writerows(_lines(told, evaluated))
    return text.getvalue()


def _lines(told: dict[str, Any], evaluated: dict[int, float | None]) -> Iterator[list[Any]]:
    columns = [*(told[name] for name in ("step", "loss", *COLUMNS[3:])), *told["metrics"].values()]
    for step, loss, *rest in zip(*columns, strict=True):
        yield [step, loss, evaluated.get(step), *rest]
