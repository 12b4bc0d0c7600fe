"""Packs: what is read is what was said, packed or not, whoever packed it when."""

import random

import numpy as np
import pytest
from sqlalchemy import delete, func, select

from studio import curves, packs, runs
from studio.db.tables import Pack, RunEvent
from tests.studio.measured import row, same, step, store


@pytest.fixture
def run_id(both, ready):
    spec = ready(both)
    with both.session() as session:
        return runs.create(session, spec).id


def last_told(told):
    kept = {}
    for event in told:
        kept = {number: one for number, one in kept.items() if number < event["step"]}
        kept[event["step"]] = event
    return list(kept.values())


@pytest.mark.parametrize("seed", range(4))
def test_packed_or_not_the_same_is_read(both, run_id, monkeypatch, seed):
    """Resumes that tell steps again, metrics that come and go, packers that overlap."""
    monkeypatch.setattr(packs, "SIZE", 5)
    chance = random.Random(seed)
    told, offset, number = [], 0, 0
    for _ in range(12):
        batch = []
        for _ in range(chance.randint(1, 9)):
            offset, number = offset + chance.randint(1, 300), number + 1
            more = {"metrics": {"rewards/chosen": offset / 7, "é": None}} if chance.random() < 0.4 else {}
            batch.append(step(run_id, offset, number, loss=chance.choice([None, offset / 3]), **more))
            if chance.random() < 0.2:
                offset += 1
                batch.append(row(run_id, offset, "eval", step=number, loss=0.5, metrics={"accuracy": 1.0}))
        store(both, batch)
        told += batch
        with both.session() as session:
            if chance.random() < 0.7:
                packs.pack(session, run_id, rest=chance.random() < 0.3)
            if chance.random() < 0.2:  # as a database from before there were packs
                session.execute(delete(Pack).where(Pack.kind == "step"))
        number = max(0, number - chance.choice([0, 0, 4]))
    steps = [one["data"] for one in told if one["kind"] == "step"]
    kept = last_told(steps)
    with both.session() as session:
        read = packs.read(session, run_id, "step")
        assert read["step"].tolist() == [event["step"] for event in kept]
        assert curves.numbers(read["loss"]) == [event["loss"] for event in kept]
        chosen = [event.get("metrics", {}).get("rewards/chosen") for event in kept]
        assert curves.numbers(read["metrics/rewards/chosen"]) == chosen
        packs.pack(session, run_id, rest=True)
        assert same(packs.read(session, run_id, "step"), read)
        session.execute(delete(RunEvent).where(RunEvent.run_id == run_id))
        assert same(packs.read(session, run_id, "step"), read)


def test_two_who_pack_at_once_do_no_harm(both, run_id, monkeypatch):
    monkeypatch.setattr(packs, "SIZE", 4)
    store(both, [step(run_id, 10 * n, n) for n in range(1, 9)])
    with both.session() as session:
        packs.pack(session, run_id)
        first = session.scalars(select(Pack).where(Pack.offset == 40)).one()
        names, data = first.names, first.data
        session.execute(delete(Pack).where(Pack.offset == 40))
        packs.pack(session, run_id)  # nothing: there is a later one
        session.add(Pack(run_id=run_id, kind="step", offset=40, names=names, data=data))
        wide = packs._block(packs._events(session, run_id, "step", 0)[:6])
        session.add(Pack(run_id=run_id, kind="step", offset=60, names=wide[0], data=wide[1].tobytes()))
        session.flush()
        assert packs.read(session, run_id, "step")["step"].tolist() == list(range(1, 9))
        assert packs.read(session, run_id, "step", after=30)["step"].tolist() == [4, 5, 6, 7, 8]


def test_bytes_stay_whole_and_a_run_takes_its_packs_along(both, run_id):
    huge = 2**41 + 1
    memory = [{"device": "cuda:0", "allocated": huge, "reserved": 0, "peak": huge, "total": huge}]
    store(both, [step(run_id, 10, 1, memory=memory)])
    with both.session() as session:
        packs.pack(session, run_id, rest=True)
        assert packs.read(session, run_id, "step")["memory/cuda:0/peak"].tolist() == [huge]
        assert not np.isnan(packs.read(session, run_id, "step")["time"]).any()
        runs.cancel(session, run_id)
        runs.delete(session, both.storage, run_id)
    with both.session() as session:
        assert session.scalar(select(func.count()).select_from(Pack)) == 0
