"""Charts as data: what is drawn, what is said in words, how runs are coloured."""

import json
import math
from typing import Any

import numpy as np
import pytest

from studio.curves import Curves, numbers, smoothed
from studio.db.tables import Run
from studio.ui import charts, status
from studio.ui.views import compare, run_charts
from tests.studio.measured import curves, row, step

GIB = 1024**3


def told(steps: int, *, gap: int | None = None, **more: Any) -> Curves:
    """What a run of so many steps measured."""
    device = {"device": "cpu", "allocated": 2 * GIB, "reserved": 2 * GIB, "peak": 3 * GIB, "total": 24 * GIB}
    said = {"memory": [device], "learning_rate": 2e-4, "tokens": 600, "tokens_per_second": 300.0, "seconds": 2.0}
    losses = [None if number == gap else 3 * math.exp(-number / 20) for number in range(1, steps + 1)]
    events = [step("r", 10 * n, n, loss=loss, **(said | more)) for n, loss in enumerate(losses, 1)]
    return curves(events, [row("r", 10 * n + 1, "eval", step=n, loss=1.0) for n in range(1, steps + 1, 10)])


def of_run(curves_: Curves, **more: Any) -> dict[str, charts.Chart]:
    """The charts of a run by key."""
    return {one["key"]: one for one in run_charts.all_of(charts.Source("r", curves_), **more)}


def test_a_long_curve_is_sent_short_and_keeps_its_ends_and_gaps() -> None:
    train = of_run(told(10_000, gap=5_000))["loss"]["series"][0]
    assert len(train["x"]) == len(train["y"]) <= charts.MOST + 1
    assert (train["x"][0], train["x"][-1], train["of"]) == (1, 10_000, 10_000)
    assert None in train["y"]


def test_numbers_are_sent_short() -> None:
    sent = charts.rounded(np.array([0.0, -0.123456789, 1234567.0, 4e-12, 2.5e12, math.nan, 31.0]))
    assert sent == [0.0, -0.123457, 1234570.0, 4e-12, 2.5e12, None, 31.0]


def test_a_chart_says_in_words_what_it_shows() -> None:
    drawn = of_run(told(30))
    assert drawn["loss"]["summary"].startswith("train: 2.854 → 0.669, lowest 0.669 at step 30 · eval: 1.000")
    assert drawn["memory"]["summary"] == "cpu: 2.0 GiB now, between 2.0 GiB and 2.0 GiB"


def test_M02_the_words_of_a_chart_count_the_steps_without_a_number() -> None:
    assert (
        "train: 2.854 → 2.456, lowest 2.456 at step 4, 1 step without a number"
        in of_run(told(4, gap=2))["loss"]["summary"]
    )


def test_a_run_without_steps_has_empty_charts_that_say_so() -> None:
    for chart in of_run(told(0)).values():
        assert chart["series"] == []
        assert chart["words"]["empty"] == "No points yet"


def test_memory_that_is_reserved_and_allocated_alike_is_one_line() -> None:
    names = [line["name"] for line in of_run(told(5))["memory"]["series"]]
    assert names == ["allocated", "peak"]


def test_several_devices_are_told_apart_by_name_and_colour() -> None:
    used = {"allocated": 2 * GIB, "reserved": 4 * GIB, "peak": 3 * GIB, "total": 24 * GIB}
    memory = of_run(told(5, memory=[{"device": name, **used} for name in ("cuda:0", "cuda:1")]))["memory"]
    names = [line["name"] for line in memory["series"]]
    assert "cuda:0 allocated" in names
    assert "cuda:1 reserved" in names
    assert len(set(names)) == len({(line["colour"], line["dash"]) for line in memory["series"]}) == 6


def test_the_plans_memory_is_a_line_beside_what_is_used() -> None:
    assert of_run(told(3))["memory"]["marks"] == []
    assert of_run(told(3), planned=3 * GIB // 2)["memory"]["marks"] == [{"y": 1.5, "label": "planned: 1.5 GiB"}]


def test_what_a_method_measures_has_charts_of_its_own() -> None:
    drawn = of_run(told(5, metrics={"rewards/margins": 0.5, "kl": None}))
    assert list(drawn)[:4] == ["loss", "memory", "metrics/rewards/margins", "metrics/kl"]
    assert drawn["metrics/rewards/margins"]["title"] == "Better minus worse"
    assert drawn["metrics/rewards/margins"]["series"][0]["y"] == [0.5] * 5


def test_a_line_names_where_all_its_points_are() -> None:
    line = of_run(told(5, metrics={"a&b": 0.5}))["metrics/a&b"]["series"][0]
    assert line["ask"] == "/v1/runs/r/curve?key=metrics%2Fa%26b&axis=step"


def compared(*names: str) -> list[tuple[Run, Curves]]:
    """Runs with a name each, and what they measured."""
    return [(Run(id=f"run-{at}", name=name, status="succeeded"), told(8)) for at, name in enumerate(names)]


def test_M06_another_run_leaves_lines_and_their_keys_alone() -> None:
    two, three = (compare.board(compared(*names), "step", 0.0) for names in (("a", "b"), ("a", "b", "a")))
    looks = [[(line["key"], line["colour"], line["dash"]) for line in board["lines"]] for board in (two, three)]
    assert looks[0] == looks[1][:2]


def test_M07_ten_runs_with_ten_curves_are_sent_in_bounded_numbers() -> None:
    many = {f"metrics/{letter}": np.arange(10_000.0) for letter in "abcdef"}
    steps = {"step": np.arange(1.0, 10_001.0), "loss": np.sin(np.arange(10_000.0) / 9), "grad_norm": np.ones(10_000)}
    long = Curves(steps | many, {"step": np.empty(0)})
    board = compare.board([(run, long) for run, _ in compared(*"abcdefghij")], "step", 0.0)["charts"]
    assert len(board) == 8
    assert all(len(chart["series"]) == 10 for chart in board)
    assert max(len(line["x"]) for chart in board for line in chart["series"]) <= charts.share(10) == 300


def test_a_board_is_sent_as_text_without_markup_and_without_loss() -> None:
    board = compare.board(compared("<script>alert(1)</script>", "b"), "step", 0.0)
    sent = charts.sent(board)
    assert "<" not in sent
    assert json.loads(sent) == board


def test_smoothing_keeps_the_measured_line_behind() -> None:
    loss = compare.board(compared("a"), "time", 0.5)["charts"][0]
    pale, line = loss["series"]
    assert (pale["faint"], pale["follows"], line["key"]) == (True, "run-0", "run-0")
    assert line["ask"].endswith("axis=time&smoothing=0.5")


def test_a_run_keeps_its_colour_and_shared_colours_differ_by_dash() -> None:
    ids = [f"run-{number:016x}" for number in range(40)]
    alone = {run_id: status.lines([run_id])[run_id][0] for run_id in ids}
    together = status.lines(ids)
    assert {run_id: style[0] for run_id, style in together.items()} == alone
    first_two = [style for style in together.values() if style[0] == together[ids[0]][0]][:2]
    assert len(set(first_two)) == len(first_two)


def test_smoothing_starts_at_the_first_value_and_keeps_gaps() -> None:
    smooth = numbers(smoothed(np.array([4.0, math.nan, 4.0, 2.0]), 0.5))
    assert smooth[1] is None
    assert smooth[:1] + smooth[2:] == pytest.approx([4.0, 4.0, (2 + 4 / 2 + 4 / 4) / (1 + 1 / 2 + 1 / 4)])


@pytest.mark.parametrize("weight", [0.1, 0.9, 0.99])
def test_smoothing_is_the_weighted_mean_of_all_before(weight: float) -> None:
    values = np.random.default_rng(0).normal(size=3000)
    weights = weight ** np.arange(3000)
    expected = [values[: n + 1] @ weights[: n + 1][::-1] / weights[: n + 1].sum() for n in (0, 1, 50, 2999)]
    assert smoothed(values, weight)[[0, 1, 50, 2999]] == pytest.approx(expected, abs=1e-6)


def test_time_and_tokens_add_up_along_the_run() -> None:
    assert told(3).reached("time").tolist() == pytest.approx([2 / 60, 4 / 60, 6 / 60])
    assert told(3).reached("tokens").tolist() == [600.0, 1200.0, 1800.0]
    x, y = told(30).line("eval/loss", "time")
    assert x.tolist() == pytest.approx([2 / 60, 22 / 60, 42 / 60])
    assert len(y) == 3


def test_a_sparkline_needs_two_points() -> None:
    assert "<svg" not in charts.sparkline([1.0])
    assert "<path" in charts.sparkline([3.0, None, 1.0])
