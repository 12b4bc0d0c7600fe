"""The shipped datasets: whole, of the right kind, and true to the habit that they teach."""

from pathlib import Path

import pytest

import studio
from engine.rows import check, usable

DATA = Path(studio.__file__).parent / "starter_data"


def has_habit(text):
    body, _, last = text.rpartition("\n\n")
    return bool(body) and last.startswith("In short: ") and "\n" not in last


@pytest.mark.parametrize(("name", "kind", "rows"), [("chat", "chat", 300), ("preference", "preference", 200)])
def test_every_row_is_usable_and_none_repeats(name, kind, rows):
    path = DATA / f"starter-{name}.jsonl"
    report = check(path, "jsonl")
    assert (report.kind, report.rows, report.problems) == (kind, rows, [])
    assert path.stat().st_size < 400_000
    asked = [(row.messages or row.prompt)[0]["content"] for row in usable(path, "jsonl")]
    assert len(set(asked)) == rows


def test_every_answer_shows_the_habit_and_no_rejected_one_does():
    for row in usable(DATA / "starter-chat.jsonl", "jsonl"):
        assert all(has_habit(turn["content"]) for turn in row.messages if turn["role"] == "assistant")
    for row in usable(DATA / "starter-preference.jsonl", "jsonl"):
        assert has_habit(row.chosen[0]["content"])
        assert "In short" not in row.rejected[0]["content"]
