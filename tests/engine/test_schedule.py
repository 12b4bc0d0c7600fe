"""Learning rates and intervals."""

import pytest

from engine.schedule import learning_rate, share_of, warmup
from engine.spec import Optimizer


def rates(total, **settings):
    optimizer = Optimizer(learning_rate=1.0, **settings)
    return [learning_rate(optimizer, step, total) for step in range(1, total + 1)]


def test_linear_rises_to_the_peak_and_falls_towards_zero():
    assert rates(10, warmup_steps=2, lr_scheduler_type="linear") == pytest.approx(
        [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    )


def test_cosine_is_half_way_down_in_the_middle():
    found = rates(11, warmup_steps=0, lr_scheduler_type="cosine")
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 0.03


def test_constant_stays_at_the_peak_after_the_warm_up():
    assert rates(4, warmup_steps=1, lr_scheduler_type="constant") == [1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("value", "steps"), [(0, 0), (0.03, 1), (0.5, 5), (3, 3), (99, 10)])
def test_a_warm_up_below_one_is_a_share_of_all_steps(value, steps):
    assert warmup(value, 10) == steps


@pytest.mark.parametrize(("value", "steps"), [(0.1, 1), (0.5, 5), (1, 1), (7, 7), (0.001, 1)])
def test_an_interval_below_one_is_a_share_of_all_steps(value, steps):
    assert share_of(value, 10) == steps


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_a_run_of_one_step_learns(kind):
    assert rates(1, lr_scheduler_type=kind) == [1.0]
