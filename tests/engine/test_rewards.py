"""Rewards: pure, named, weighted; what fails is missing and never ends a run."""

import time

import pytest

from engine.failure import Failure
from engine.rewards import Case, Grader, grader, known, plain, unknown


@pytest.mark.parametrize(
    ("name", "case", "worth"),
    [
        ("exact_match", Case(" 42\n", expected="42"), 1.0),
        ("exact_match", Case("The answer is 42.", expected="42"), 0.0),
        ("exact_match", Case("42"), None),
        ("number_match", Case("So 1,000 - 958 is 42.0 apples.", expected="42"), 1.0),
        ("number_match", Case("-3/6", expected="-0.5"), 1.0),
        ("number_match", Case("no idea", expected="7"), 0.0),
        ("number_match", Case("7", expected="seven"), None),
        (r"regex:^\d+$", Case("123"), 1.0),
        ("regex", Case("b", metadata={"pattern": "a"}), 0.0),
        ("regex", Case("b"), None),
        ("json_valid", Case('```json\n{"a": 1}\n```'), 1.0),
        ("json_valid", Case("{a: 1}"), 0.0),
        ("length:100", Case("x", tokens=100), 1.0),
        ("length:100", Case("x", tokens=150), 0.5),
        ("length:100", Case("x", tokens=900), 0.0),
        ("reasoning_format", Case("4", reasoning="2 and 2"), 1.0),
        ("reasoning_format", Case("", reasoning=None), 0.0),
        ("finished", Case("x", truncated=True), 0.0),
    ],
)
def test_a_reward_judges_an_answer(name, case, worth):
    assert Grader({name: 1.0}).grade(case).reward == worth


@pytest.mark.parametrize(
    ("name", "case", "worth"),
    [
        ("math_equal", Case(r"It is \boxed{\frac{2}{4}}", expected=r"$\frac{1}{2}$"), 1.0),
        ("math_equal", Case("$x + 1$", expected="$x + 2$"), 0.0),
        ("json_schema", Case('{"a": 1}', metadata={"schema": {"required": ["a"]}}), 1.0),
        ('json_schema:{"required": ["b"]}', Case('{"a": 1}'), 0.0),
        ("reasoning_task", Case("-4", expected="-4", metadata={"source_dataset": "chain_sum"}), 1.0),
        ("reasoning_task", Case("5", expected="-4", metadata={"source_dataset": "chain_sum"}), 0.0),
    ],
)
def test_a_reward_with_a_library_behind_it_judges_an_answer(name, case, worth):
    pytest.importorskip("reasoning_gym")
    assert Grader({name: 1.0}).grade(case).reward == worth


def test_the_sum_is_weighted_and_leaves_out_what_is_missing():
    grade = Grader({"exact_match": 2.0, "finished": 0.5, "regex": 9.0}).grade(Case("42", expected="42"))
    assert grade.reward == 2.5
    assert grade.parts == {"exact_match": 1.0, "finished": 1.0, "regex": None}


def test_a_reward_that_raises_or_takes_too_long_is_missing_and_told(monkeypatch):
    def slow(case, _):
        time.sleep(5)
        return 1.0

    def broken(case, _):
        raise KeyError("no such thing")

    monkeypatch.setitem(grader.PLAIN, "slow", slow)
    monkeypatch.setitem(grader.PLAIN, "broken", broken)
    began = time.monotonic()
    grade = Grader({"slow": 1.0, "broken": 1.0, "finished": 1.0}, seconds=0.05).grade(Case("x"))
    assert time.monotonic() - began < 4
    assert grade.reward == 1.0
    assert [fault.split(":")[0] for fault in grade.faults] == ["slow", "broken"]


def test_a_pattern_that_explodes_is_ended():
    grade = Grader({r"regex:(a+)+$": 1.0}, seconds=0.2).grade(Case("a" * 40 + "!"))
    assert grade.reward is None
    assert "longer" in grade.faults[0]


def test_an_unknown_reward_is_refused_with_those_there_are():
    assert unknown({"exact_match": 1.0, "exactly": 1.0}) == ["exactly"]
    assert {"exact_match", "math_equal"} <= {*known()}
    with pytest.raises(Failure, match="exactly"):
        Grader({"exactly": 1.0})


def test_the_last_number_of_a_text_is_read_exactly():
    assert plain.last_number("0.1") * 10 == 1
    assert plain.last_number("") is None
