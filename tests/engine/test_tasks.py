"""Procedural tasks as rows: different questions, and answers that their own reward finds right."""

import json

import pytest

from engine import tasks
from engine.rewards import Case, Grader
from engine.rows import check


@pytest.fixture(autouse=True)
def library():
    pytest.importorskip(tasks.LIBRARY)


def test_tasks_become_prompt_rows_whose_answers_their_reward_finds_right(tmp_path, capsys):
    path = tmp_path / "tasks.jsonl"
    assert tasks.main("chain_sum", 30, 1, path) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 30}
    report = check(path, "jsonl", preview=0)
    assert (report.kind, report.usable) == ("prompt", 30)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == 30
    grader = Grader({"reasoning_task": 1.0})
    right = [grader.grade(Case(row["solution"], expected=row["solution"], metadata=row["metadata"])) for row in rows]
    assert {grade.reward for grade in right} == {1.0}


def test_an_unknown_task_is_refused(tmp_path, capsys):
    assert tasks.main("no_such_task", 3, 1, tmp_path / "tasks.jsonl") == 1
    assert "no_such_task" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_without_the_library_it_is_told_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tasks, "LIBRARY", "no_such_library")
    assert tasks.main("chain_sum", 3, 1, tmp_path / "tasks.jsonl") == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "tasks_not_installed"
    assert "Install the extra" in error["advice"][0]
