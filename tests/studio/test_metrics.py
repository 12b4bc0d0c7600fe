"""What a run measured, for programs: fast, complete, with gaps as gaps."""

import math
import time

import pytest

from studio import metrics, packs, runs
from studio.curves import downsample
from studio.errors import NotFound
from tests.studio.measured import row, step, store


@pytest.fixture
def run_id(both, ready):
    spec = ready(both)
    with both.session() as session:
        return runs.create(session, spec).id


def part(session, run_id, key, **more):
    return metrics.curve(session, run_id, metrics.Part(key=key, **more))


def test_ten_thousand_steps_are_answered_below_200_ms(both, run_id, record_property):
    store(both, [step(run_id, 400 * n, n) for n in range(1, 10_001)])
    with both.session() as session:
        packs.pack(session, run_id)
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
        curve = part(session, run_id, "loss", points=500)
        assert time.perf_counter() - began < 0.4
    assert len(curve.x) <= 500 < curve.points == 10_000


def test_points_come_in_columns_and_go_on_where_they_ended(both, run_id):
    store(both, [step(run_id, 10, 1), step(run_id, 20, 2), row(run_id, 30, "eval", step=2, loss=0.5)])
    with both.session() as session:
        told = metrics.points(session, run_id)
        assert told["step"] == [1, 2]
        assert told["eval"] == {"step": [2], "loss": [0.5], "metrics": {}}
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


def test_what_a_method_measures_comes_by_name(both, run_id):
    own = {"rewards/chosen": 0.5, "rewards/margins": None}
    store(both, [step(run_id, 10, 1), step(run_id, 20, 2, metrics=own)])
    store(both, [row(run_id, 30, "eval", step=2, loss=0.5, metrics={"rewards/chosen": 0.25})])
    with both.session() as session:
        told = metrics.points(session, run_id)
        assert told["metrics"] == {"rewards/chosen": [None, 0.5], "rewards/margins": [None, None]}
        assert told["eval"]["metrics"] == {"rewards/chosen": [0.25]}
        assert part(session, run_id, "metrics/rewards/chosen").y == [None, 0.5]
        assert part(session, run_id, "eval/metrics/rewards/chosen").y == [0.25]


def test_M02_a_loss_that_is_no_number_is_a_gap_and_the_recovery_shows(both, run_id):
    store(both, [step(run_id, 10 * n, n, loss=loss) for n, loss in enumerate([1.2, None, None, 1.1], 1)])
    with both.session() as session:
        assert metrics.points(session, run_id)["loss"] == [1.2, None, None, 1.1]
        answer = part(session, run_id, "loss")
    assert answer.y == [1.2, None, None, 1.1]
    assert "NaN" not in answer.model_dump_json()


def test_a_part_of_a_curve_is_told_in_full(both, run_id):
    store(both, [step(run_id, n, n, loss=math.sin(n / 50)) for n in range(1, 5001)])
    with both.session() as session:
        packs.pack(session, run_id)
        window = part(session, run_id, "loss", start=1000, end=1100, points=200)
        assert window.x == list(range(999, 1102))  # one more on either side
        assert window.y == [math.sin(n / 50) for n in range(999, 1102)]
        late = part(session, run_id, "loss", axis="tokens", start=499_000)
        assert late.x == [498_900 + 100 * n for n in range(12)]
        minutes = part(session, run_id, "loss", axis="time", end=0.1 * 3 / 60)
        assert minutes.x == pytest.approx([0.1 * n / 60 for n in (1, 2, 3, 4)])
        smooth = part(session, run_id, "loss", smoothing=0.9, start=4999)
        assert smooth.y[-1] == pytest.approx(math.sin(100 - 9 / 50), abs=0.03)  # it lags by nine steps


def test_gaps_survive_downsampling(both, run_id):
    store(both, [step(run_id, n, n, loss=None if 3000 <= n < 3500 else math.sin(n / 50)) for n in range(1, 5001)])
    with both.session() as session:
        curve = part(session, run_id, "loss", points=200)
        memory = part(session, run_id, "memory", points=200)
    assert len(curve.x) <= 200
    assert [step for step, value in zip(curve.x, curve.y, strict=True) if value is None] == [3000]
    assert curve.x == sorted(curve.x)
    assert {curve.x[0], curve.x[-1]} == {1, 5000}
    assert memory.y[-1] == 5000


def test_a_curve_of_gaps_only_and_a_short_one():
    nothing = [math.nan]
    assert downsample(range(5), nothing * 5, 1000).tolist() == [0, 1, 2, 3, 4]
    assert downsample(range(5000), nothing * 5000, 100).tolist() == [0]
    spotted = [math.nan if n % 2 else 1.0 for n in range(5000)]
    assert len(downsample(range(5000), spotted, 100)) <= 100


def test_a_curve_that_was_not_measured_is_named(both, run_id):
    with both.session() as session:
        for key in ("password", "memory", "eval/loss"):
            with pytest.raises(NotFound, match="has not measured"):
                part(session, run_id, key)
