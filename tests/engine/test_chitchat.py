"""A dataset from elsewhere, unedited: converted as the documents say, checked, and learned."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine import events
from engine.inspect_data import survey_file
from engine.train import train

SCRIPT = Path(__file__).parents[2] / "docs" / "chitchat.py"


@pytest.fixture(scope="module")
def chitchat(tmp_path_factory):
    path = tmp_path_factory.mktemp("chitchat") / "chitchat.jsonl"
    subprocess.run([sys.executable, str(SCRIPT), str(path)], check=True, stdout=subprocess.DEVNULL)
    return path


def test_every_row_of_chitchat_is_usable(chitchat):
    found = survey_file(chitchat, None)
    assert (found["kind"], found["rows"], found["usable"]) == ("chat", 4017, 4017)
    assert found["problems"] == []


def test_a_model_learns_from_chitchat(chitchat, tmp_path, make_run):
    few = tmp_path / "few.jsonl"
    with chitchat.open(encoding="utf-8") as file:
        few.write_text("".join(next(file) for _ in range(40)), encoding="utf-8")
    training = {"max_steps": 3, "dtype": "float32", "device": "cpu"}
    folder = make_run(data={"dataset": str(few), "max_length": 512}, training=training)
    assert train(folder.path) == 0
    said = [event for _, event in events.read(folder.events)]
    assert len([event for event in said if isinstance(event, events.Step)]) == 3
    [started] = [event for event in said if isinstance(event, events.Started)]
    assert started.train_rows + started.eval_rows == 40
    assert started.bad_rows == 0
