"""Curves and events: fast, complete, with gaps as gaps."""

import math
import time

import pytest

from studio import metrics, runs
from studio.db import insert_new
from studio.db.tables import RunEvent
from studio.errors import Invalid


@pytest.fixture
def run_id(both, ready):
    spec = ready(both)
    with both.session() as session:
        return runs.create(session, spec).id


def row(run_id, offset, kind, **data):
    data = {"kind": kind, "time": float(offset), **data}
    return {
        "run_id": run_id,
        "offset": offset,
        "kind": kind,
        "step": data.get("step"),
        "time": data["time"],
        "data": data,
    }


def step(run_id, offset, number, loss=1.0):
    memory = [{"device": "cuda:0", "allocated": number, "reserved": 2, "peak": number, "total": 9}]
    measured = {"loss": loss, "learning_rate": 1e-4, "grad_norm": 0.5, "tokens": 100, "trained_tokens": 50}
    pace = {"seconds": 0.1, "tokens_per_second": 1000.0, "memory": memory, "epoch": number / 100}
    return row(run_id, offset, "step", step=number, **measured, **pace)


def store(studio, rows):
    with studio.session() as session:
        insert_new(session, RunEvent, rows)


def test_ten_thousand_steps_are_answered_below_200_ms(both, run_id, record_property):
    store(both, [step(run_id, 400 * n, n) for n in range(1, 10_001)])
    took = []
    for _ in range(5):
        began = time.perf_counter()
        with both.session() as session:
            told = metrics.points(session, run_id)
        took.append(time.perf_counter() - began)
    assert len(told["step"]) == len(told["memory"][0]["peak"]) == 10_000
    record_property("milliseconds", [round(1000 * t) for t in took])
    assert min(took) < 0.2
    with both.session() as session:
        began = time.perf_counter()
        curve = metrics.curve(session, run_id, "loss", most=500)
        assert time.perf_counter() - began < 0.4
    assert len(curve["step"]) <= 500


def test_points_come_in_columns_and_go_on_where_they_ended(both, run_id):
    store(both, [step(run_id, 10, 1), step(run_id, 20, 2), row(run_id, 30, "eval", step=2, loss=0.5)])
    with both.session() as session:
        told = metrics.points(session, run_id)
        assert told["step"] == [1, 2]
        assert told["eval"] == {"step": [2], "loss": [0.5]}
        assert told["memory"] == [
            {"device": "cuda:0", "total": 9, "allocated": [1, 2], "reserved": [2, 2], "peak": [1, 2]}
        ]
        assert told["next"] == 30
    store(both, [step(run_id, 40, 3)])
    with both.session() as session:
        more = metrics.points(session, run_id, after=30)
        assert (more["step"], more["next"]) == ([3], 40)
        rest = metrics.points(session, run_id, after=40)
        assert (rest["step"], rest["memory"], rest["next"]) == ([], [], 40)


def test_a_resumed_run_tells_a_step_twice_and_the_last_telling_counts(both, run_id):
    told = [step(run_id, 10 * n, n, loss=1.0) for n in (1, 2, 3)]
    store(both, [*told, step(run_id, 40, 2, loss=7.0), step(run_id, 50, 3, loss=8.0)])
    with both.session() as session:
        points = metrics.points(session, run_id)
    assert points["step"] == [1, 2, 3]
    assert points["loss"] == [1.0, 7.0, 8.0]


def test_gaps_survive_downsampling(both, run_id):
    store(both, [step(run_id, n, n, loss=None if 3000 <= n < 3500 else math.sin(n / 50)) for n in range(1, 5001)])
    with both.session() as session:
        curve = metrics.curve(session, run_id, "loss", most=200)
        memory = metrics.curve(session, run_id, "memory", most=200)
    assert len(curve["step"]) <= 200
    gap = [step for step, value in zip(curve["step"], curve["value"], strict=True) if value is None]
    assert gap == [3000]
    assert curve["step"] == sorted(curve["step"])
    assert {curve["step"][0], curve["step"][-1]} == {1, 5000}
    assert memory["value"][-1] == 5000


def test_a_curve_of_gaps_only_and_a_short_one():
    assert metrics.downsample(range(5), [None] * 5, 1000) == [0, 1, 2, 3, 4]
    assert metrics.downsample(range(5000), [None] * 5000, 100) == [0]
    spotted = [None if n % 2 else 1.0 for n in range(5000)]
    assert len(metrics.downsample(range(5000), spotted, 100)) <= 100


def test_an_unknown_curve_is_refused_and_an_empty_one_is_empty(both, run_id):
    with both.session() as session:
        assert metrics.curve(session, run_id, "memory") == {"step": [], "value": []}
        assert metrics.curve(session, run_id, "eval_loss") == {"step": [], "value": []}
        with pytest.raises(Invalid, match="There is no curve"):
            metrics.curve(session, run_id, "password")


def test_events_are_read_on_by_offset_and_by_kind(both, run_id):
    store(both, [row(run_id, 10, "phase"), step(run_id, 20, 1), row(run_id, 30, "warning", message="w")])
    with both.session() as session:
        assert [event.offset for event in metrics.events(session, run_id, limit=2)] == [10, 20]
        assert [event.kind for event in metrics.events(session, run_id, after=20)] == ["warning"]
        assert [event.offset for event in metrics.events(session, run_id, kinds=["step"])] == [20]
