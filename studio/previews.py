"""Previews: what a model would learn from a dataset under a reasoning level, worked out once by a worker."""

from collections.abc import Mapping
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
    dropped: int  # rows that are left out for being longer
    empty: int  # rows of which nothing is left to learn
    longest: int


def length_of(survey: Mapping[str, Any], max_length: int | None) -> int:
    """A maximum length, or the one that is chosen from the rows when none is set (0 while they are not rendered)."""
    return max_length if max_length is not None else int(survey.get("lengths", {}).get("suggested", 0))


def kept(survey: Mapping[str, Any], max_length: int | None, *, drop: bool = False) -> Kept:
    """The survey's numbers under a maximum length; `drop`: longer rows are left out, not cut.

    Raises KeyError for the survey of a file that was not rendered.
    """
    cuts, limit = survey["cuts"], length_of(survey, max_length)
    longer = sum(rows for length, rows in cuts["longest"] if length > limit)
    if drop:
        short = [tokens for length, *tokens in cuts["whole"] if length <= limit]
        total, trained = (sum(tokens[at] for tokens in short) for at in (0, 1))
    else:
        at = [number * cuts["every"] for number in range(len(cuts["total"]))]
        total, trained = (round(float(np.interp(limit, at, cuts[name]))) for name in ("total", "trained"))
    return Kept(
        rows=survey["rendered"],
        trained=trained,
        total=total,
        cut=0 if drop else longer,
        dropped=longer if drop else 0,
        empty=0 if drop else sum(rows for first, rows in cuts["begins"] if first >= limit),
        longest=survey["lengths"]["max"],
    )


def levels(survey: dict[str, Any] | None) -> list[str]:
    """Names of the levels that the model can be told, without its default; none when there is no choice."""
    return [level["name"] for level in (survey or {}).get("levels") or () if level["name"] != "default"]
