"""Shapes of rows: detected by content, normalised, every fault named."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.rows import Row, check, normalise, usable

ASKED = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "yo"}


def codes(value):
    found = normalise(value)
    return [] if isinstance(found, Row) else [problem.code for problem in found]


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ({"messages": [ASKED, SAID]}, "messages"),
        ({"messages": json.dumps([ASKED, SAID])}, "messages"),
        ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}, "conversations"),
        ({"conversation": [ASKED, SAID]}, "conversations"),
        ({"my_column": [ASKED, SAID], "id": 3}, "conversations"),
        ({"instruction": "hi", "input": "", "output": "yo"}, "instruction"),
        ({"instruction": "hi", "input": None, "output": "yo"}, "instruction"),
        ({"prompt": "hi", "completion": "yo"}, "prompt_completion"),
        ({"prompt": [ASKED], "completion": [SAID]}, "prompt_completion"),
        ({"Question": "hi", " Answer ": "yo"}, "question_answer"),
        ({"messages": [ASKED, SAID], "prompt": "other", "text": None}, "messages"),
        ({"messages": None, "prompt": "hi", "completion": "yo"}, "prompt_completion"),
    ],
)
def test_chat_shapes_become_one(value, shape):
    row = normalise(value)
    assert isinstance(row, Row)
    assert (row.kind, row.shape, row.messages) == ("chat", shape, [ASKED, SAID])


def test_D11_shape_is_detected_by_content_whatever_else_the_row_has():
    row = normalise({"messages": [ASKED, SAID], "instruction": None, "source": "web"})
    assert row.kind == "chat"


def test_alpaca_input_goes_below_the_instruction_and_system_becomes_a_turn():
    row = normalise({"instruction": "sum up", "input": "text", "output": "yo", "system": "be kind"})
    assert [turn["content"] for turn in row.messages] == ["be kind", "sum up\n\ntext", "yo"]


def test_only_the_completion_is_trained_when_the_prompt_is_a_conversation():
    row = normalise({"prompt": [ASKED, SAID, ASKED], "completion": "end"})
    assert [turn.get("weight") for turn in row.messages] == [None, 0, None, None]


def test_D03_type_changes_are_reported_by_row_with_types(tmp_path):
    path = tmp_path / "rows.jsonl"
    outputs = ["a", ["a"], 3]
    path.write_text("\n".join(json.dumps({"instruction": "i", "output": output}) for output in outputs))
    report = check(path, "jsonl")
    assert [(one.row, one.code) for one in report.problems] == [(2, "wrong_type"), (3, "wrong_type")]
    assert "a list" in report.problems[0].message
    assert "a number" in report.problems[1].message
    assert '"3"' in report.problems[1].fix
    assert report.usable == 1


def test_D05_tool_arguments_of_mixed_type_are_both_kept():
    calls = [{"name": "f", "arguments": {"time": "2025"}}, {"function": {"name": "f", "arguments": '{"time": 1690}'}}]
    row = normalise({"messages": [ASKED, {"role": "assistant", "tool_calls": calls}]})
    found = [call["function"]["arguments"] for call in row.messages[1]["tool_calls"]]
    assert found == [{"time": "2025"}, '{"time": 1690}']


@pytest.mark.parametrize("nothing", [None, []])
def test_D07_tool_calls_without_content_are_as_if_absent(nothing):
    row = normalise({"messages": [ASKED, {**SAID, "tool_calls": nothing, "name": None, "weight": None}]})
    assert row.messages == [ASKED, SAID]


def test_D08_unknown_role_names_the_turn_and_suggests():
    [problem] = normalise({"conversations": [{"from": "hummany", "value": "x" * 5000}, {"from": "gpt", "value": "y"}]})
    assert problem.code == "unknown_role"
    assert "Turn 1" in problem.message
    assert "human" in problem.fix
    assert len(problem.message) + len(problem.fix) < 200


def test_D12_shared_first_turns_become_the_prompt():
    row = normalise({"chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "no"}]})
    assert (row.kind, row.prompt, row.chosen) == ("preference", [ASKED], [SAID])
    assert row.rejected == [{**SAID, "content": "no"}]


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "hi", "chosen": "yo", "rejected": "no"},
        {"prompt": [ASKED], "chosen": [SAID], "rejected": [{**SAID, "content": "no"}]},
        {"prompt": "hi", "chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "no"}]},
        {"question": "hi", "chosen": "yo", "rejected": "no", "messages": [ASKED]},
    ],
)
def test_preference_shapes_become_one(value):
    row = normalise(value)
    assert (row.prompt, row.chosen, row.rejected) == ([ASKED], [SAID], [{**SAID, "content": "no"}])


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"chosen": "yo", "rejected": "no"}, "no_prompt"),
        ({"prompt": "hi", "chosen": "yo", "rejected": "yo"}, "same_answers"),
        ({"chosen": [ASKED, SAID], "rejected": [{**ASKED, "content": "other"}, SAID]}, "no_prompt"),
        ({"prompt": "hi", "chosen": "", "rejected": "no"}, "empty_answer"),
    ],
)
def test_D12_a_prompt_is_never_invented(value, code):
    assert code in codes(value)


def test_prompts_for_sampling_keep_their_reference_answer():
    row = normalise({"prompt": "2+2?", "ground_truth": 4})
    assert (row.kind, row.prompt, row.answer) == ("prompt", [{"role": "user", "content": "2+2?"}], "4")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"messages": []}, "no_turns"),
        ({"messages": "hello"}, "wrong_type"),
        ({"messages": [ASKED, {**SAID, "content": 3}]}, "wrong_type"),
        ({"messages": [ASKED, {"role": "assistant", "content": " "}]}, "empty_answer"),
        ({"messages": [ASKED, {**SAID, "weight": 0}]}, "nothing_trained"),
        ({"messages": [ASKED, {**SAID, "weight": True}]}, "bad_weight"),
        ({"messages": [ASKED, SAID, SAID]}, "repeated_role"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": [{"name": 3}]}]}, "bad_tool_call"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAID]}, "not_text"),
        ({"messages": ["hi", SAID]}, "wrong_type"),
        ({"messages": [{"content": "hi"}, SAID]}, "unknown_role"),
        ({"messages": [{"role": "user"}, SAID]}, "no_content"),
        ({"messages": [ASKED, {**SAID, "content": "\ud800"}]}, "not_utf8"),
        ({"text": ""}, "empty_text"),
        ({"instruction": "x"}, "no_answer"),
        ({"mesages": "x"}, "unknown_columns"),
        ({}, "unknown_columns"),
        ({"prompt": [ASKED, SAID]}, "ends_in_answer"),
        ({"tools": "x", "messages": [ASKED, SAID]}, "wrong_type"),
    ],
)
def test_faults_have_a_name_and_a_fix(value, code):
    assert code in codes(value)
    assert all(problem.message.endswith(".") and problem.fix for problem in normalise(value))


def test_all_faults_of_one_row_are_found_at_once():
    turns = [{"role": "usr", "content": "hi"}, {**ASKED, "content": 3}, {**SAID, "weight": 5}, {"role": "assistant"}]
    assert {"unknown_role", "wrong_type", "bad_weight", "no_content"} <= set(codes({"messages": turns}))


def test_a_close_column_name_is_suggested():
    [problem] = normalise({"mesages": "x"})
    assert "“messages” instead of “mesages”" in problem.fix


def test_text_parts_are_joined_and_reasoning_is_kept_under_one_name():
    said = {
        "role": "assistant",
        "content": [{"type": "text", "text": "y"}, {"type": "text", "text": "o"}],
        "thinking": "r",
    }
    row = normalise({"messages": [ASKED, said]})
    assert row.messages[1] == {"role": "assistant", "content": "yo", "reasoning_content": "r"}


def test_sharegpt_function_calls_become_tool_calls():
    turns = [
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "42"},
        {"from": "gpt", "value": "yo"},
    ]
    row = normalise({"conversations": turns, "tools": '[{"name": "f"}]'})
    assert [turn["role"] for turn in row.messages] == ["user", "assistant", "tool", "assistant"]
    assert row.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert row.tools == [{"name": "f"}]


def test_majority_decides_the_kind_and_the_others_are_problems(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": "a"}, {"messages": [ASKED, SAID]}, {"messages": [ASKED, SAID]}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    report = check(path, "jsonl")
    assert (report.kind, report.usable, report.problem_counts) == ("chat", 2, {"other_kind": 1})
    assert report.problems[0].row == 1
    assert [row.number for row in usable(path, "jsonl")] == [2, 3]


def test_previews_are_bounded_and_safe_to_store(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps({"text": "a\x00" + "b" * 10_000})] * 50))
    report = check(path, "jsonl", preview=3)
    assert len(report.preview) == len(report.messages_preview) == 3
    assert "\x00" not in report.preview[0]["text"]
    assert len(report.preview[0]["text"]) < 3000
    assert report.characters == 50 * 10_002


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["messages", "conversations", "prompt", "completion", "chosen", "rejected", "text", "tools", "output"]
)
TURN = st.dictionaries(st.sampled_from(["role", "from", "content", "value", "weight", "tool_calls"]), JSON)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, JSON | st.lists(TURN, max_size=4), max_size=4))
def test_law_any_json_is_a_row_or_problems_and_never_a_crash(value):
    found = normalise(value)
    assert isinstance(found, Row) or (found and all(problem.message for problem in found))


TOLD = {"reasoning_effort": "low", "enable_thinking": False, "chat_template_kwargs": {"low_effort": True}}
ALL_TOLD = {"low_effort": True, "reasoning_effort": "low", "enable_thinking": False}
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "columns",
    [
        {"messages": TURNS},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"instruction": "a", "input": "c", "output": "b"},
        {"prompt": "a", "completion": "b"},
        {"question": "a", "answer": "b"},
        {"talk": TURNS},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a"},
    ],
)
def test_every_shape_may_say_what_its_template_is_told(columns):
    assert normalise({**columns, **TOLD}).chat_template_kwargs == ALL_TOLD
    as_text = {"Reasoning_Effort": "low", "enable_thinking": "False", "chat_template_kwargs": '{"low_effort": true}'}
    assert normalise({**columns, **as_text}).chat_template_kwargs == ALL_TOLD
    empty = {"reasoning_effort": "", "enable_thinking": None, "chat_template_kwargs": {"low_effort": None}}
    assert normalise({**columns, **empty}).chat_template_kwargs == {}


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("reasoning_effort", ["low"], "wrong_type"),
        ("enable_thinking", "perhaps", "wrong_type"),
        ("enable_thinking", 3, "wrong_type"),
        ("chat_template_kwargs", "low", "wrong_type"),
        ("chat_template_kwargs", {"reasoning_effort": "high"}, "level_twice"),
    ],
)
def test_a_setting_of_the_wrong_type_or_said_twice_is_named(column, value, code):
    [problem] = normalise({"messages": TURNS, "reasoning_effort": "low", column: value})
    assert problem.code == code
    assert column in problem.message
