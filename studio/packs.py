"""Packs: what a run measured as columns of numbers, a thousand events in one blob, so that long runs open at once.

A pack is made from stored events and never changed; what was said after the last pack is read from the events
themselves. So a run without packs reads the same as one with them, only slower.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from sqlalchemy import String, cast, func, literal, literal_column, select, type_coerce
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from studio.db import insert_new
from studio.db.tables import Pack, RunEvent

KINDS = ("step", "eval")  # of events that measure something
SIZE = 1_000  # events in a pack
NUMBER = np.dtype("<f8")  # whole numbers are exact up to 2**53; NaN is a gap

Numbers: TypeAlias = NDArray[np.float64]
Columns: TypeAlias = dict[str, Numbers]
Block: TypeAlias = tuple[list[str], Numbers]  # names, and one row of numbers for each


def read(session: Session, run_id: str, kind: str, after: int = 0) -> Columns:
    """Columns of equal length of everything measured after byte `after`: `offset`, `step`, and whatever was told.

    `memory/<device>/<what>` holds bytes, `metrics/<name>` what the method measures besides. A resumed run tells some
    steps again: the last telling counts.
    """
    stored = select(Pack.offset, Pack.names, Pack.data).where(
        Pack.run_id == run_id, Pack.kind == kind, Pack.offset > after
    )
    blocks: list[Block] = []
    for offset, names, data in session.execute(stored.order_by(Pack.offset)):
        blocks.append(_newer((names, np.frombuffer(data, NUMBER).reshape(len(names), -1)), after))
        after = offset
    told = _events(session, run_id, kind, after)
    if told or not blocks:
        blocks.append(_block(told))
    return _last_told(_joined(blocks))


def pack(session: Session, run_id: str, *, rest: bool = False) -> None:
    """Pack what the run said since its last packs, `SIZE` events at a time; with `rest` also fewer, as at its end.

    Two who do so at once make packs that overlap, which `read` sees through.
    """
    for kind in KINDS:
        last = select(func.max(Pack.offset)).where(Pack.run_id == run_id, Pack.kind == kind)
        told = _events(session, run_id, kind, session.scalar(last) or 0)
        for begin in range(0, len(told), SIZE):
            piece = told[begin : begin + SIZE]
            if len(piece) == SIZE or rest:
                names, numbers = _block(piece)
                row = {"run_id": run_id, "kind": kind, "offset": piece[-1][0], "names": names}
                insert_new(session, Pack, [row | {"data": numbers.tobytes()}])


def _events(session: Session, run_id: str, kind: str, after: int) -> list[tuple[int, dict[str, Any]]]:
    """(offset, event) in order. The database joins the stored texts; they are parsed in one go."""
    embedded = session.get_bind().dialect.name == "sqlite"
    data = type_coerce(RunEvent.data, String) if embedded else cast(RunEvent.data, String)
    pair = literal("[", String) + cast(RunEvent.offset, String) + "," + data + "]"
    chosen = (
        select(RunEvent.offset, pair.label("pair"))
        .where(RunEvent.run_id == run_id, RunEvent.offset > after, RunEvent.kind == kind)
        .order_by(RunEvent.offset)
        .subquery()
    )
    if embedded:  # SQLite keeps the order of an ordered subquery under group_concat
        joined = func.group_concat(chosen.c.pair, ",")
    else:
        joined = func.string_agg(chosen.c.pair, aggregate_order_by(literal_column("','"), chosen.c.offset))
    text = session.scalar(select(joined))
    return from_json(f"[{text}]") if text else []


def _block(told: Sequence[tuple[int, Mapping[str, Any]]]) -> Block:
    rows = [{"offset": offset, **dict(_numbers(event))} for offset, event in told]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, np.array([[row.get(name) for row in rows] for name in names], NUMBER).reshape(len(names), len(rows))


def _numbers(event: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """The numbers of an event by name, those inside it by path."""
    for name, value in event.items():
        if name == "memory":
            for device in value or ():
                for what, bytes_ in device.items():
                    if what != "device":
                        yield f"memory/{device['device']}/{what}", bytes_
        elif name == "metrics":
            for metric, number in (value or {}).items():
                yield f"metrics/{metric}", number
        elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            yield name, value


def _newer(block: Block, after: int) -> Block:
    """The part of a block that lies after an offset: all of it, unless two have packed at once."""
    names, numbers = block
    return names, numbers[:, np.searchsorted(numbers[names.index("offset")], after, "right") :]


def _joined(blocks: Sequence[Block]) -> Columns:
    """Blocks one after the other; a column that one of them lacks is a gap there."""
    every = list(dict.fromkeys(name for names, _ in blocks for name in ("offset", "step", *names)))
    if all(names == every for names, _ in blocks):
        return dict(zip(every, np.concatenate([numbers for _, numbers in blocks], axis=1), strict=True))
    whole = np.full((len(every), sum(numbers.shape[1] for _, numbers in blocks)), np.nan)
    place, begin = {name: row for row, name in enumerate(every)}, 0
    for names, numbers in blocks:
        end = begin + numbers.shape[1]
        whole[[place[name] for name in names], begin:end] = numbers
        begin = end
    return dict(zip(every, whole, strict=True))


def _last_told(columns: Columns) -> Columns:
    """Rising steps: going back to a step takes back what was told from there on."""
    steps = columns["step"]
    if len(steps) < 2 or (np.diff(steps) > 0).all():
        return columns
    lowest_later = np.minimum.accumulate(steps[::-1])[::-1]
    kept = np.append(steps[:-1] < lowest_later[1:], True)
    return {name: column[kept] for name, column in columns.items()}
