"""Words about datasets and rewards: what is made is not downloaded, what is declared is usable, rewards are told."""

import pytest

from engine.rewards import known
from engine.rows import Declared
from studio.db.tables import Dataset
from studio.previews import Way
from studio.ui.views import datasets, train


def dataset(status, source="upload"):
    return Dataset(id="file-0", name="d", filename="", format="jsonl", status=status, source=source, bytes=0, kind="")


@pytest.mark.parametrize(
    ("status", "source", "declared", "words"),
    [
        ("fetching", "hub", False, "downloading"),
        ("fetching", "tasks", False, "being made"),
        ("unusable", "upload", False, "cannot be used"),
        ("unusable", "upload", True, "read as you say"),
        ("ready", "upload", True, "ready"),
    ],
)
def test_the_badge_of_a_dataset_says_what_is_so(status, source, declared, words):
    assert words in datasets.state(dataset(status, source), declared=declared)


def test_tasks_are_made_and_not_fetched_from_the_hub():
    assert "Making the tasks" in datasets.line(dataset("fetching", "tasks"))
    assert "Hub" in datasets.line(dataset("fetching", "hub"))


def test_every_reward_on_offer_is_told_in_words_and_those_of_an_installation_by_name():
    choices = {value: label for label, value in train.rewards([*known(), "politeness"])}
    assert choices.pop("politeness") == "politeness"
    assert [label for value, label in choices.items() if value and "·" not in label] == []


def test_rows_that_are_read_as_a_person_says_are_counted_as_such():
    odd = dataset("unusable")
    odd.rows, odd.usable = 9, 0
    way = Way(declared=Declared("chat", {"prompt": "frage", "completion": "antwort"}))
    shown = str(datasets.top(odd, way=way, survey={"kind": "chat", "usable": 8}))
    assert "read as you say" in shown
    assert "chats" in shown
    assert "<b>8</b>" in shown
    assert "<b>1</b>" in shown
    assert "None of this can be trained on" not in shown
    assert "read as you say" in datasets.choice(odd, declared=True)[0]
