"""Columns and kinds declared by hand, and what is said when the rows show something else."""

import json

import pytest

from engine.failure import Failure
from engine.rows import Declared, Row, check, normalise, usable
from engine.rows.declared import columns_of

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.fixture
def written(tmp_path):
    def write(*rows):
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    return write


def test_columns_of_any_name_hold_what_is_declared():
    row = normalise(
        {"Frage": "a", "Antwort": "b", "system": "s"}, Declared(columns={"prompt": "frage", "completion": "Antwort"})
    )
    assert [(one["role"], one["content"]) for one in row.messages] == [
        ("system", "s"),
        ("user", "a"),
        ("assistant", "b"),
    ]
    assert row.shape == "prompt_completion"


def test_what_is_declared_outweighs_other_columns():
    value = {
        "messages": TURNS,
        "best": TURNS,
        "prompt": "x",
        "worst": [*TURNS[:1], {"role": "assistant", "content": "c"}],
    }
    assert normalise(value).kind == "chat"
    assert normalise(value, Declared(columns={"chosen": "best", "rejected": "worst"})).kind == "preference"


def test_a_fault_is_told_with_the_files_own_name_of_the_column():
    [problem] = normalise({"q": "a", "a": 3}, Declared(columns={"prompt": "q", "completion": "a"}))
    assert (problem.code, problem.message[:3]) == ("wrong_type", "“a”")


def test_a_kind_is_declared_where_content_would_take_it_for_another():
    value = {"question": "2+2?", "answer": "4"}
    assert normalise(value).kind == "chat"
    row = normalise(value, Declared(kind="prompt"))
    assert (row.kind, row.prompt[0]["content"], row.answer) == ("prompt", "2+2?", "4")
    assert normalise({"messages": TURNS[:1]}, Declared(kind="prompt")).kind == "prompt"


def test_D11_a_wrong_declaration_gives_way_to_content_and_both_are_shown(written):
    path = written({"messages": TURNS}, {"messages": TURNS})
    declared = Declared(columns={"instruction": "instruction", "output": "output"})
    report = check(path, "jsonl", declared=declared)
    assert (report.kind, report.usable) == ("chat", 2)
    [remark] = report.warnings
    assert (remark.code, remark.rows) == ("not_as_declared", 2)
    assert "“instruction”" in remark.message
    assert "chat" in remark.message
    assert len(list(usable(path, "jsonl", declared=declared))) == 2


def test_D11_rows_read_as_declared_though_they_look_otherwise_are_told(written):
    path = written({"question": "a", "answer": "b"}, {"question": "c", "answer": "d"})
    report = check(path, "jsonl", declared=Declared(kind="prompt"))
    assert (report.kind, report.usable) == ("prompt", 2)
    [remark] = report.warnings
    assert (remark.code, remark.rows) == ("declared_otherwise", 2)
    assert "prompt" in remark.message
    assert "chat" in remark.message
    assert check(path, "jsonl", declared=Declared(kind="chat")).warnings == []
    assert (
        check(written({"chosen": "a", "rejected": "b", "prompt": "p"}), "jsonl", declared=Declared("text"))
        .warnings[0]
        .code
        == "not_as_declared"
    )


def test_what_no_column_can_hold_is_refused_with_a_suggestion(written):
    path = written({"messages": TURNS})
    with pytest.raises(Failure, match="nothing that a column") as caught:
        check(path, "jsonl", declared=Declared(columns=columns_of(["promt=question"])))
    assert "“prompt”" in caught.value.advice[0]
    with pytest.raises(Failure, match="has no name"):
        check(path, "jsonl", declared=Declared(columns=columns_of(["prompt"])))


def test_a_declared_row_is_a_row_or_problems():
    for value in ({}, {"prompt": None}, {"messages": []}, {"text": 3}):
        for kind in ("chat", "preference", "prompt", "text"):
            assert isinstance(normalise(value, Declared(kind)), Row | list)
