"""Rows brought to a maximum length: cut or left out, counted, and the length that is chosen from the rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cuts import Cuts, suggested_length
from engine.documents import Cutter, Document, Store
from engine.render.sample import Sample


def document(prompt, *answers):
    """Ids count up; each answer is trained, or the second half of a text without answers."""
    if not answers:
        return Document(np.arange(prompt, dtype=np.int32), np.arange(prompt) >= prompt // 2)
    length = prompt + sum(answers)
    return Document(np.arange(length, dtype=np.int32), np.arange(length) >= prompt, answers)


def test_a_text_is_cut_at_its_end():
    cut = document(10).cut(7)
    assert (cut.ids.tolist(), int(cut.trained.sum())) == ([0, 1, 2, 3, 4, 5, 6], 2)
    assert document(10).cut(5) is None
    assert document(10).cut(10).length == 10


def test_every_answer_after_a_prompt_is_cut_by_itself():
    pair = document(4, 3, 6)
    assert (pair.length, pair.needed) == (10, 4)
    cut = pair.cut(8)
    assert cut.answers == (3, 4)
    assert cut.ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert pair.cut(5).ids.tolist() == [0, 1, 2, 3, 4, 7]
    assert pair.cut(4) is None


@pytest.mark.parametrize(("drop", "kept", "counts"), [(False, 1, (1, 0, 0)), (True, 0, (0, 1, 0))])
def test_a_longer_row_is_cut_or_left_out_whole(drop, kept, counts):
    cutter = Cutter(7, drop)
    assert len(cutter.take([document(4)])) == 1
    assert len(cutter.take([document(10)])) == kept
    assert (cutter.truncated, cutter.dropped, cutter.empty) == counts


def test_P01_a_prompt_that_fills_the_window_leaves_nothing_to_learn_and_says_what_it_needs():
    cutter = Cutter(32)
    assert cutter.take([document(40, 5, 9)]) == []
    assert cutter.take([document(100)]) == []
    assert (cutter.empty, cutter.needed) == (2, 40)


LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=60)


@given(
    rows=st.lists(LENGTHS.map(lambda lengths: lengths[:4]), min_size=1, max_size=30),
    limit=st.integers(1, 400),
    drop=st.booleans(),
)
def test_law_cutting_what_is_stored_is_cutting_before_and_what_the_survey_says(rows, limit, drop):
    made = [[document(length) for length in row] for row in rows]
    before, after, whole, cuts = Cutter(limit, drop), Cutter(limit, drop), Store(), Cuts()
    at_once = Store()
    for number, documents in enumerate(made, 1):
        at_once.add(number, before.take(documents))
        whole.add(number, documents)
        cuts.take([Sample(one.ids, one.trained, []) for one in documents])
    later = whole.cut(after)
    assert (before, at_once.ids, at_once.rows, at_once.row_count) == (after, later.ids, later.rows, later.row_count)
    kept = cuts.kept(limit, drop=drop)
    assert (kept.truncated, kept.dropped) == (before.truncated, before.dropped)
    if not drop:
        assert kept.empty == before.empty


@given(LENGTHS)
def test_law_the_chosen_length_is_the_least_that_keeps_99_of_100_whole(lengths):
    chosen = suggested_length(lengths)
    assert chosen % 64 == 0
    most = len(lengths) / 100
    assert sum(length > chosen for length in lengths) <= most < sum(length > chosen - 64 for length in lengths)
