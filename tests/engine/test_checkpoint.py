"""A checkpoint is whole or not there."""

import json

import pytest

from engine.checkpoint import MARKER, Checkpoints, fault_of
from engine.failure import Failure


def fill(folder):
    (folder / "adapter.safetensors").write_bytes(b"weights")
    (folder / "state.json").write_text('{"step": 1}')


@pytest.fixture
def checkpoints(tmp_path):
    made = Checkpoints(tmp_path / "checkpoints", keep=2)
    for step in (9, 10, 11):
        made.save(step, fill)
    return made


def test_only_the_newest_are_kept_and_steps_are_ordered_as_numbers(checkpoints):
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-10", "step-11"]
    assert checkpoints.resume(lambda folder: None)[0].name == "step-11"


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda folder: (folder / MARKER).unlink(), "never finished"),
        (lambda folder: (folder / MARKER).write_text(""), "marker cannot be read"),
        (lambda folder: (folder / MARKER).write_text("[]"), "marker cannot be read"),
        (lambda folder: (folder / "adapter.safetensors").write_bytes(b"weight"), "is damaged"),
        (lambda folder: (folder / "adapter.safetensors").write_bytes(b"weighty"), "is damaged"),
        (lambda folder: (folder / "state.json").unlink(), "is missing"),
        (lambda folder: (folder / "state.json").write_text(""), "is damaged"),
    ],
)
def test_R03_every_kind_of_damage_is_noticed_and_the_one_before_is_taken(checkpoints, damage, fault):
    damage(checkpoints.folder / "step-11")
    assert fault in fault_of(checkpoints.folder / "step-11")
    found, passed = checkpoints.resume(lambda folder: None)
    assert found.name == "step-10"
    assert len(passed) == 1
    assert "step-11" in passed[0]


def test_with_no_whole_checkpoint_there_is_nothing_to_resume(checkpoints, tmp_path):
    for folder in checkpoints.folder.iterdir():
        (folder / MARKER).unlink()
    assert checkpoints.resume(lambda folder: None)[0] is None
    assert Checkpoints(tmp_path / "absent").resume(lambda folder: None) == (None, [])


def test_a_failed_save_leaves_the_older_ones_and_no_rest(checkpoints):
    def half(folder):
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoints.save(12, half)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-10", "step-11"]


def test_a_killed_save_is_not_taken_and_does_not_stand_in_the_way(checkpoints):
    partial = checkpoints.folder / ".step-12.partial"
    partial.mkdir()
    fill(partial)
    assert checkpoints.resume(lambda folder: None)[0].name == "step-11"
    checkpoints.save(12, fill)
    assert checkpoints.resume(lambda folder: None)[0].name == "step-12"


def test_a_checkpoint_of_another_adapter_is_an_error_and_not_passed_over(checkpoints):
    def read(folder):
        raise Failure("checkpoint_of_another_adapter", "other")

    with pytest.raises(Failure, match="other"):
        checkpoints.resume(read)


def test_the_marker_names_every_file(checkpoints):
    files = json.loads((checkpoints.folder / "step-11" / MARKER).read_text())["files"]
    assert set(files) == {"adapter.safetensors", "state.json"}
