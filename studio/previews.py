"""Previews: what a model would learn from a dataset as settings render it, worked out once by a worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from sqlalchemy import delete
from sqlalchemy.orm import Session

from engine.rows import AS_SEEN, Declared
from engine.spec import METHODS, RunSpec
from studio.datasets import declarable
from studio.db import insert_one
from studio.db.tables import Dataset, Model, Preview, now

ROWS = 20  # of a page
KINDS = ("chat", "text", "preference", "rated", "prompt")  # of rows that can be shown as tokens
MOST_KEY = 400  # characters of a way, as the database keeps it
FORGOTTEN = timedelta(hours=1)
AGAIN = timedelta(seconds=30)  # a failed preview that is asked for after this is tried again


class Way(BaseModel):
    """How rows are rendered, by the names that the engine knows; `level` "": as in the data."""

    model_config = ConfigDict(frozen=True)

    level: str = ""
    bridge: bool = False
    train_on: str = "all_turns"
    train_reasoning: bool = True
    asks: bool = False  # the answers are sampled: of a chat only the prompt is read
    declared: Declared = AS_SEEN

    @property
    def key(self) -> str:
        """Equal for equal ways."""
        return self.model_dump_json(exclude_defaults=True)


AS_IN_DATA = Way()


def possible(dataset: Dataset | None, model: Model | None, way: Way = AS_IN_DATA) -> bool:
    """Whether there can be one: both are ready, and the rows are of a kind that renders, by themselves or declared."""
    if dataset is None or model is None or model.status != "ready" or len(way.key) > MOST_KEY:
        return False
    if way.declared:
        return declarable(dataset)
    return dataset.status == "ready" and dataset.kind in KINDS


class Key(NamedTuple):
    """What a preview is of: rows from `row` on, 1 the first; only that from the first row on has the survey."""

    dataset_id: str
    model_id: str
    way: str = AS_IN_DATA.key
    row: int = 1

    @property
    def name(self) -> str:
        """As one text."""
        return f"preview {self.dataset_id} {self.model_id} {self.way} {self.row}"


def get(session: Session, key: Key) -> Preview | None:
    """The preview as it stands; None when nobody has asked for it."""
    return session.get(Preview, tuple(key))


def asks(kind: str, method: str) -> bool:
    """Whether a method samples its answers, so that of rows of this kind only the prompt is read."""
    return kind == "chat" and "prompt" in METHODS[method].kinds


def of(session: Session, spec: RunSpec, dataset: Dataset) -> Preview | None:
    """The preview that belongs to a run: rendered in its way, else as in the data."""
    method = spec.method.model_dump()
    told = {name: method[name] for name in ("train_on", "train_reasoning") if name in method}
    declared = spec.data.declared
    asking = asks(declared.kind or dataset.kind, spec.method.type)
    mine = Way(level=spec.data.reasoning_level, bridge=spec.data.bridge, asks=asking, declared=declared, **told)
    ways = dict.fromkeys((mine.key, AS_IN_DATA.key))
    found = (get(session, Key(spec.data.dataset, spec.model, way)) for way in ways)
    return next((preview for preview in found if preview is not None and preview.survey), None)


def ask(session: Session, key: Key) -> tuple[Preview, bool]:
    """The preview, and whether the caller has to send "preview" with its key after the commit.

    The row is made once, whoever asks at the same time. One that failed a while ago waits again.
    """
    new = insert_one(session, Preview, key._asdict() | {"status": "waiting", "error": "", "asked_at": now()})
    preview = session.get_one(Preview, tuple(key), populate_existing=new)
    if not new and preview.status == "failed" and now() - preview.asked_at > AGAIN:
        preview.status, preview.error, preview.asked_at, new = "waiting", "", now(), True
        session.flush()
    if new and key.row > 1:  # pages that somebody turned to a while ago are made again when they are wanted again
        old = delete(Preview).where(Preview.row > 1, Preview.asked_at < now() - FORGOTTEN)
        session.execute(old)
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
    name = "max" if survey.get("kind") == "prompt" else "suggested"  # prompts are never cut
    return max_length if max_length is not None else int(survey.get("lengths", {}).get(name, 0))


def kept(survey: Mapping[str, Any], max_length: int | None, *, drop: bool = False) -> Kept:
    """The survey's numbers under a maximum length; `drop`: longer rows are left out, not cut, as prompts always are.

    Raises KeyError for the survey of a file that was not rendered.
    """
    cuts, limit = survey["cuts"], length_of(survey, max_length)
    drop = drop or survey.get("kind") == "prompt"
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


def usable(dataset: Dataset, survey: Mapping[str, Any] | None) -> int:
    """Rows that can be learned from as they are read; the check alone does not know what was declared."""
    return int((survey or {}).get("usable", dataset.usable))


def levels(survey: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The levels that the model can be told, without its default; none when there is no choice."""
    return [level for level in (survey or {}).get("levels") or () if level["name"] != "default"]


def reasons(survey: Mapping[str, Any] | None) -> bool:
    """Whether the model's chat template knows reasoning, as far as it is known."""
    found = survey or {}
    return bool(found.get("bridge")) or any(level["thinks"] for level in found.get("levels") or ())
