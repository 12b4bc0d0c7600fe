"""Batches: packing laws, and that a batch is a pure function of seed and step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batches import Plan, Samples, in_order
from engine.packing import best_fit


def samples_of(lengths):
    """Sample i has the ids i * 1000 + 0, 1, 2, ...; its first token is the only one that is not trained."""
    ids = [np.arange(length) + index * 1000 for index, length in enumerate(lengths)]
    trained = np.concatenate([np.arange(length) > 0 for length in lengths])
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return Samples(np.concatenate(ids).astype(np.int32), trained, offsets, np.arange(len(lengths), dtype=np.int64) + 1)


def plan_of(lengths, limit=100, packing=True, **settings):
    return Plan(samples_of(lengths), max_length=limit, packing=packing, **settings)


LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=60)
SHAPES = {"batch_size": st.integers(1, 4), "accumulation": st.integers(1, 4), "packing": st.booleans()}


@given(LENGTHS, st.integers(0, 10))
def test_P03_no_pack_is_longer_than_the_limit_and_none_is_lost(lengths, seed):
    order = np.random.default_rng(seed).permutation(len(lengths))
    packs = best_fit(lengths, 100, order)
    assert all(sum(lengths[index] for index in pack) <= 100 for pack in packs)
    assert sorted(index for pack in packs for index in pack) == list(range(len(lengths)))
    assert len(packs) == len(best_fit(lengths, 100, range(len(lengths))))
    # two packs that are both at most half full would have been one
    assert sum(sum(lengths[index] for index in pack) <= 50 for pack in packs) <= 1


def test_P03_two_rows_that_do_not_fit_together_stay_apart():
    assert sorted(best_fit([60, 60], 100, [0, 1])) == [[0], [1]]
    with pytest.raises(ValueError, match="does not fit"):
        best_fit([101], 100, [0])


def test_best_fit_takes_the_fullest_pack_that_has_room():
    packs = best_fit([70, 60, 40, 30], 100, range(4))
    assert sorted(sorted(pack) for pack in packs) == [[0, 3], [1, 2]]


def one_by_one(lengths, limit, order):
    """Best fit decreasing as the textbook says it: how full the packs get."""
    rooms = []
    for size in sorted((lengths[index] for index in order), reverse=True):
        fitting = [at for at, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting, key=rooms.__getitem__)] -= size
        else:
            rooms.append(limit - size)
    return sorted(rooms)


@given(LENGTHS, st.integers(0, 10))
def test_moving_samples_in_bulk_packs_as_one_by_one_does(lengths, seed):
    order = np.random.default_rng(seed).permutation(len(lengths))
    packs = best_fit(lengths, 100, order)
    assert sorted(100 - sum(lengths[index] for index in pack) for pack in packs) == one_by_one(lengths, 100, order)


def test_a_hundred_thousand_samples_leave_almost_no_room():
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(350), 0.9, 100_000).astype(int), 8, 2048)
    packs = best_fit(lengths, 2048, np.arange(len(lengths)))
    assert lengths.sum() / (len(packs) * 2048) > 0.999


@given(LENGTHS, st.integers(0, 10))
def test_packs_in_another_order_are_the_same_packs(lengths, seed):
    packs = best_fit(lengths, 100, range(len(lengths)))
    order = np.random.default_rng(seed).permutation(len(packs))
    whole = list(packs)
    assert list(packs.reordered(order)) == [whole[at] for at in order]
    assert packs.between(1, 3) == whole[1:3]


@settings(max_examples=60)
@given(LENGTHS, st.integers(0, 5), st.fixed_dictionaries(SHAPES))
def test_law_every_epoch_has_every_sample_once(lengths, seed, shape):
    plan = plan_of(lengths, seed=seed, **shape)
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch + 1, (epoch + 1) * plan.steps_per_epoch + 1)
        batches = [batch for step in steps for batch in plan.step(step)]
        assert sorted(row for batch in batches for row in batch.rows) == list(range(1, len(lengths) + 1))
        assert sum(batch.tokens for batch in batches) == sum(lengths)
        assert sum(batch.trained_tokens for batch in batches) == plan.samples.trained_tokens


@settings(max_examples=60)
@given(LENGTHS, st.integers(0, 5), st.fixed_dictionaries(SHAPES), st.integers(1, 40))
def test_law_a_batch_is_a_pure_function_of_seed_and_step(lengths, seed, shape, step):
    walked, fresh = plan_of(lengths, seed=seed, **shape), plan_of(lengths, seed=seed, **shape)
    for before in range(1, step):
        walked.step(before)
    for one, other in zip(walked.step(step), fresh.step(step), strict=True):
        assert one.ids_T.tolist() == other.ids_T.tolist()
        assert one.rows == other.rows


@settings(max_examples=60)
@given(LENGTHS, st.fixed_dictionaries(SHAPES), st.integers(1, 20))
def test_law_micro_batches_are_flat_whole_documents(lengths, shape, step):
    plan = plan_of(lengths, **shape)
    batches = plan.step(step)
    assert 1 <= len(batches) <= plan.accumulation
    for batch in batches:
        assert batch.tokens <= 100 * plan.batch_size
        assert batch.cu_seqlens.tolist() == [0, *np.cumsum(batch.lengths).tolist()]
        assert (batch.ids_T.dtype, batch.position_ids_T.dtype, batch.trained_T.dtype) == (np.int64, np.int64, np.bool_)
        for start, end, row in zip(batch.cu_seqlens, batch.cu_seqlens[1:], batch.rows, strict=False):
            assert batch.position_ids_T[start:end].tolist() == list(range(end - start))
            assert batch.ids_T[start:end].tolist() == ((row - 1) * 1000 + np.arange(lengths[row - 1])).tolist()
            assert not batch.trained_T[start]


def test_P04_total_steps_come_from_the_packs():
    plan = plan_of([10] * 100, limit=100)
    assert (plan.sequences, plan.steps_per_epoch, plan.total_steps(3.0)) == (10, 10, 30)
    assert plan.epoch(plan.total_steps(3.0)) == 3.0
    assert plan_of([10] * 100, packing=False).total_steps(1.0) == 100


def test_total_steps_follow_epochs_or_the_maximum():
    plan = plan_of([100] * 10, accumulation=4)
    assert plan.steps_per_epoch == 3
    assert [plan.total_steps(epochs) for epochs in (0.01, 0.5, 1.0, 2.5)] == [1, 2, 3, 8]
    assert plan.total_steps(3.0, max_steps=7) == 7
    assert [len(plan.step(step)) for step in (1, 2, 3, 4)] == [4, 4, 2, 4]


def test_epochs_and_seeds_differ_in_order():
    plan = plan_of([100] * 50)
    first = [plan.step(step)[0].rows[0] for step in range(1, 51)]
    second = [plan.step(step)[0].rows[0] for step in range(51, 101)]
    other = plan_of([100] * 50, seed=1)
    assert first != second
    assert first != [other.step(step)[0].rows[0] for step in range(1, 51)]


@given(LENGTHS)
def test_evaluation_reads_every_sample_in_order(lengths):
    batches = list(in_order(samples_of(lengths), 100))
    assert [row for batch in batches for row in batch.rows] == list(range(1, len(lengths) + 1))
    assert all(batch.tokens <= 100 for batch in batches)


def test_no_samples_and_no_step_are_errors():
    with pytest.raises(ValueError, match="no samples"):
        Plan(samples_of([1]).__class__(*(np.zeros(n, int) for n in (0, 0, 1, 0))), max_length=9, packing=True)
    with pytest.raises(ValueError, match="count from 1"):
        plan_of([1]).step(0)
