"""Charts as data: what is drawn, what is said in words, how runs are coloured."""

import math
from typing import Any

from studio.ui import charts, status
from studio.ui.views import compare

GIB = 1024**3


def told(steps: int, *, gap: int | None = None) -> dict[str, Any]:
    """Points of a run as `studio.metrics.points` gives them."""
    along = list(range(1, steps + 1))
    device = {
        "device": "cpu",
        "total": 24 * GIB,
        "allocated": [2 * GIB] * steps,
        "reserved": [2 * GIB] * steps,
        "peak": [3 * GIB] * steps,
    }
    return {
        "step": along,
        "epoch": [step / 10 for step in along],
        "loss": [None if step == gap else 3 * math.exp(-step / 20) for step in along],
        "learning_rate": [2e-4] * steps,
        "grad_norm": [0.5] * steps,
        "tokens_per_second": [300.0] * steps,
        "seconds": [2.0] * steps,
        "memory": [device] if steps else [],
        "eval": {"step": along[::10], "loss": [1.0 for _ in along[::10]]},
    }


def test_a_long_curve_is_sent_short_and_keeps_its_ends_and_gaps() -> None:
    points = told(10_000, gap=5_000)
    train = charts.loss(points)["series"][0]
    assert len(train["x"]) == len(train["y"]) <= charts.MOST + 1
    assert (train["x"][0], train["x"][-1]) == (1, 10_000)
    assert None in train["y"]


def test_a_chart_says_in_words_what_it_shows() -> None:
    summary = charts.loss(told(40))["summary"]
    assert summary == "train: 2.854 → 0.406, lowest 0.406 at step 40 · eval: 1.000 → 1.000, lowest 1.000 at step 1"
    assert charts.memory(told(3))["summary"] == "cpu: 2.0 GiB now, between 2.0 GiB and 2.0 GiB"


def test_a_run_without_steps_has_empty_charts_that_say_so() -> None:
    for draw in (charts.loss, charts.memory, charts.rate, charts.norm, charts.speed):
        chart = draw(told(0))
        assert chart["series"] == []
        assert chart["empty"] == "No points yet"


def test_memory_that_is_reserved_and_allocated_alike_is_one_line() -> None:
    names = [line["name"] for line in charts.memory(told(5))["series"]]
    assert names == ["allocated", "peak"]


def test_several_devices_are_told_apart_by_name() -> None:
    points = told(5)
    points["memory"] = [
        {**points["memory"][0], "device": name, "reserved": [4 * GIB] * 5} for name in ("cuda:0", "cuda:1")
    ]
    names = [line["name"] for line in charts.memory(points)["series"]]
    assert "cuda:0 allocated" in names
    assert "cuda:1 reserved" in names
    assert len(set(names)) == 6


def test_a_run_keeps_its_colour_and_shared_colours_differ_by_dash() -> None:
    ids = [f"run-{number:016x}" for number in range(40)]
    alone = {run_id: status.lines([run_id])[run_id][0] for run_id in ids}
    together = status.lines(ids)
    assert {run_id: style[0] for run_id, style in together.items()} == alone
    first_two = [style for style in together.values() if style[0] == together[ids[0]][0]][:2]
    assert len(set(first_two)) == len(first_two)


def test_smoothing_starts_at_the_first_value_and_keeps_gaps() -> None:
    smooth = compare.smoothed([4.0, None, 4.0, 2.0], 0.5)
    assert smooth[:3] == [4.0, None, 4.0]
    assert smooth[3] is not None
    assert 2.0 < smooth[3] < 4.0


def test_time_and_tokens_add_up_along_the_run() -> None:
    assert compare.positions(told(3), "time") == [2 / 60, 4 / 60, 6 / 60]
    assert compare.positions(told(3), "tokens") == [600.0, 1200.0, 1800.0]
    x, y = compare.column(told(30), "eval_loss", "time")
    assert len(x) == len(y) == 3


def test_a_sparkline_needs_two_points() -> None:
    assert "<svg" not in charts.sparkline([1.0])
    assert "<path" in charts.sparkline([3.0, None, 1.0])
