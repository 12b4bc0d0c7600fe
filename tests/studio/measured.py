"""A run that measures: its events as rows of the database, and its curves without one."""

from typing import Any

import numpy as np

from studio import packs
from studio.curves import Curves
from studio.db import insert_new
from studio.db.tables import RunEvent

GIB = 1024**3


def row(run_id: str, offset: int, kind: str, **data: Any) -> dict[str, Any]:
    """A row of the table `events`."""
    data = {"kind": kind, "time": float(offset), **data}
    told = {"kind": kind, "step": data.get("step"), "time": data["time"], "data": data}
    return {"run_id": run_id, "offset": offset} | told


def step(run_id: str, offset: int, number: int, loss: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """One optimizer step."""
    memory = [{"device": "cuda:0", "allocated": number, "reserved": 2, "peak": number, "total": 9}]
    measured = {"loss": loss, "learning_rate": 1e-4, "grad_norm": 0.5, "tokens": 100, "trained_tokens": 50}
    pace = {"seconds": 0.1, "tokens_per_second": 1000.0, "memory": memory, "epoch": number / 100}
    return row(run_id, offset, "step", **{"step": number, **measured, **pace, **more})


def store(studio: Any, rows: list[dict[str, Any]]) -> None:
    """Into the database, as the relay does."""
    with studio.session() as session:
        insert_new(session, RunEvent, rows)


def curves(steps: list[dict[str, Any]], evals: list[dict[str, Any]] = ()) -> Curves:  # type: ignore[assignment]
    """The curves of events, as they are read from the database."""
    blocks = [packs._block([(one["offset"], one["data"]) for one in events]) for events in (steps, evals)]
    return Curves(*(packs._last_told(packs._joined([block])) for block in blocks))


def same(one: packs.Columns, other: packs.Columns) -> bool:
    """Whether two readings tell the same, gaps included."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)
