"""Every layout trains to the numbers of one process: a covering part of `python -m engine.parity`."""

import pytest

from engine.layout.degrees import Degrees
from engine.parity.cells import COMPOSITE, ON_FOUR, Cell, quick
from engine.parity.families import FAMILIES
from engine.parity.table import PARTS, Row, markdown, rows


@pytest.fixture(scope="module")
def found():
    return list(rows(quick(list(FAMILIES))))


def test_losses_gradients_and_weights_are_those_of_one_process(found):
    assert not [(row.cell.family, row.cell.layout, row.distance) for row in found if not row.equal]


def test_every_layout_and_every_family_is_in_the_quick_table(found):
    assert {row.cell.degrees for row in found} >= set(ON_FOUR)
    assert {row.cell.family for row in found} == set(FAMILIES) == set(COMPOSITE)


def test_a_checkpoint_saved_on_four_devices_goes_on_on_two_and_on_one(found):
    moved = {row.cell.degrees.processes for row in found if row.cell.checkpoint == "resumed"}
    assert moved == {1, 2}


def test_the_table_marks_what_is_not_equal(found):
    wrong = Row(found[0].cell, dict.fromkeys(PARTS, float("nan")), 1.0)
    assert not wrong.equal
    assert " !" in markdown([wrong])
    assert " !" not in markdown(found)


def test_the_table_tells_what_was_not_trained_from_what_cannot_be():
    equal = dict.fromkeys(PARTS, 1e-16)
    spread, whole = Degrees(shard=2, expert=2), Degrees(shard=2)
    trained = [Cell("llama", whole), Cell("qwen3_moe", spread), Cell("gpt_oss", spread)]
    _, _, sharded, routed = markdown([Row(cell, equal, 1.0) for cell in trained]).splitlines()
    assert [cell.strip() for cell in sharded.split("|")[2:-1]] == ["1e-16", "", ""]
    assert [cell.strip() for cell in routed.split("|")[2:-1]] == ["-", "1e-16", "1e-16"]
