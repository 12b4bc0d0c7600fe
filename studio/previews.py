"""Previews: what a model would learn from a dataset under a reasoning level, worked out once by a worker."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from studio.db import insert_one
from studio.db.tables import Dataset, Model, Preview, now

KINDS = ("chat", "text")  # of rows that can be shown as tokens
AGAIN = timedelta(seconds=30)  # a failed preview that is asked for after this is tried again


def possible(dataset: Dataset | None, model: Model | None) -> bool:
    """Whether there can be one: both are ready, and the rows are of a kind that renders."""
    ready = all(one is not None and one.status == "ready" for one in (dataset, model))
    return ready and dataset is not None and dataset.kind in KINDS


def get(session: Session, dataset_id: str, model_id: str, level: str = "") -> Preview | None:
    """The preview as it stands; None when nobody has asked for it. `level` "": as in the data."""
    return session.get(Preview, (dataset_id, model_id, level))


def ask(session: Session, dataset_id: str, model_id: str, level: str = "") -> tuple[Preview, bool]:
    """The preview, and whether the caller has to send "preview" with its key after the commit.

    The row is made once, whoever asks at the same time. One that failed a while ago waits again.
    """
    row = {"dataset_id": dataset_id, "model_id": model_id, "level": level, "status": "waiting", "error": ""}
    new = insert_one(session, Preview, row | {"asked_at": now()})
    preview = session.get_one(Preview, (dataset_id, model_id, level), populate_existing=new)
    if not new and preview.status == "failed" and now() - preview.asked_at > AGAIN:
        preview.status, preview.error, preview.asked_at, new = "waiting", "", now(), True
        session.flush()
    return preview, new


@dataclass(frozen=True)
class Kept:
    """What a maximum length leaves of the rows that were rendered. Lengths and counts in tokens, but for the rows."""

    rows: int
    trained: int
    total: int
    cut: int  # rows that lose their end
    empty: int  # rows of which nothing is left to learn
    longest: int


def kept(survey: dict[str, Any], max_length: int) -> Kept:
    """The survey's numbers under a maximum length. Raises KeyError for the survey of a file that was not rendered."""
    cuts = survey["cuts"]
    at = [number * cuts["every"] for number in range(len(cuts["total"]))]
    trained, total = (round(float(np.interp(max_length, at, cuts[name]))) for name in ("trained", "total"))
    return Kept(
        rows=survey["rendered"],
        trained=trained,
        total=total,
        cut=sum(rows for length, rows in cuts["longest"] if length > max_length),
        empty=sum(rows for first, rows in cuts["begins"] if first >= max_length),
        longest=survey["lengths"]["max"],
    )


def levels(survey: dict[str, Any] | None) -> list[str]:
    """Names of the levels that the model can be told, without its default; none when there is no choice."""
    return [level["name"] for level in (survey or {}).get("levels") or () if level["name"] != "default"]
