"""Rows and steps: the planned number of steps is the one that the run will make."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import batches
from engine.plan.rows import Rows, steps
from engine.spec import RunSpec

LENGTHS = st.lists(st.integers(2, 300), min_size=1, max_size=80)


def spec(length: int, size: int = 1, rounds: int = 1, epochs: float = 1.0, **data: object) -> RunSpec:
    training = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": rounds,
        "num_train_epochs": epochs,
    }
    told = {"dataset": "d", "max_length": length, "eval_fraction": 0.0, **data}
    return RunSpec.model_validate({"model": "m", "data": told, "training": training})


def rows_of(lengths: list[int]) -> Rows:
    pairs = sorted((one, lengths.count(one)) for one in set(lengths))
    return Rows(len(lengths), pairs, sum(lengths), 512)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 3.0), st.booleans())
def test_steps_are_those_of_the_run(lengths: list[int], size: int, rounds: int, epochs: float, packing: bool) -> None:
    asked = spec(512, size, rounds, epochs, packing=packing)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    samples = batches.Samples(np.zeros(total, np.int32), np.ones(total, np.bool_), offsets, np.arange(len(lengths)))
    run = batches.Plan(samples, max_length=512, packing=packing, batch_size=size, accumulation=rounds)
    assert steps(asked, rows_of(lengths).sequences(asked, 512)) == run.total_steps(epochs)


def test_rows_that_were_not_rendered_stand_for_themselves() -> None:
    known = Rows(200, [(100, 50)], 5_000, 128)
    assert known.sequences(spec(100), 100) == 200
    assert known.sequences(spec(100, eval_fraction=0.5), 100) == 100


def test_rows_of_which_only_the_number_is_known_are_a_sequence_each() -> None:
    known = Rows.of(40, None)
    assert known is not None
    assert known.sequences(spec(512), 512) == 40
    assert known.filled(spec(512), 512) == 512
    assert Rows.of(0, None) is None


def test_a_sequence_is_as_long_as_the_rows_make_it() -> None:
    short = Rows(3, [(20, 3)], 60, 64)
    assert short.filled(spec(512), 512) == 60
    assert short.filled(spec(512, packing=False), 512) == 20
    assert short.filled(spec(16), 16) == 16


def test_a_survey_is_read() -> None:
    cuts = {"every": 64, "total": [0, 640, 900], "trained": [0, 1, 2], "longest": [[40, 10], [100, 5]]}
    found = Rows.of(30, {"rendered": 15, "usable": 30, "cuts": cuts, "lengths": {"suggested": 128}})
    assert found == Rows(30, [(40, 10), (100, 5)], 900, 128)


@pytest.mark.parametrize(("most", "expected"), [(7, 7), (-1, 30)])
def test_max_steps_win(most: int, expected: int) -> None:
    asked = spec(128)
    asked = asked.model_copy(update={"training": asked.training.model_copy(update={"max_steps": most})})
    assert steps(asked, 30) == expected
