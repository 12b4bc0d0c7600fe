"""What will be learned, as markup: kinds, counts, what is cut, and text that stays text."""

import re
from html import unescape
from typing import Any

import pytest

from studio import previews
from studio.db.tables import Dataset, Preview
from studio.ui.views import tokens
from tests.studio.ui.test_html import ATTACKS, tags

SURVEY: dict[str, Any] = {
    "rendered": 10,
    "cuts": {
        "every": 64,
        "total": [0, 640, 1240, 1300],
        "trained": [0, 100, 600, 650],
        "longest": [[100, 8], [190, 2]],
        "begins": [[20, 9], [70, 1]],
    },
    "lengths": {
        "p50": 100,
        "p99": 190,
        "max": 190,
        "histogram": [{"from": at, "to": at + 50, "count": n} for at, n in ((0, 0), (50, 0), (100, 8), (150, 2))],
    },
    "levels": [],
    "warnings": [{"code": "date", "rows": 1, "message": "The template asks for the date."}],
    "problems": [{"row": 3, "line": 3, "code": "template_refuses", "message": "Turn 2: no.", "fix": "Change it."}],
    "problem_counts": {"template_refuses": 2, "empty": 1},
}
DATASET = Dataset(id="d", name="d", kind="chat", rows=10, usable=10, report={"problem_counts": {"empty": 1}})


SIDES = ("chosen", "rejected")


def span(kind: str, text: str, *, trained: bool) -> dict[str, Any]:
    return {"kind": kind, "role": "user", "turn": 1, "trained": trained, "ids": [7], "texts": [text]}


def preview(*spans: dict[str, Any], **more: Any) -> Preview:
    row = {"row": 4, "samples": [{"turn": 1, "spans": list(spans)}], "warnings": [], "refusals": []}
    return Preview(way="{}", row=1, status="ready", rows=[row], survey=SURVEY, error="", **more)


def text_of(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", "", markup))


def test_tokens_are_told_apart_by_kind_and_by_being_trained() -> None:
    made = tokens.learned(preview(span("prompt", "a\n", trained=False), span("answer", "b", trained=True)), 300)
    assert 'class="tok prompt" data-about="prompt · User · only read"' in made
    assert 'class="tok answer trained" data-about="answer · User · trained"><i data-t="7">b</i>' in made
    assert f">{tokens.NEWLINE}</u>\n" in made
    assert "row 4 of 300" in made


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_row_or_a_template_says_stays_text(attack: str) -> None:
    shown = preview(span(attack, attack, trained=True))
    assert shown.rows is not None
    shown.rows[0] |= {"refusals": [{"turn": 0, "message": attack, "fix": attack}], "warnings": [{"message": attack}]}
    shown.rows[0]["samples"][0]["spans"][0]["role"] = attack
    names = {name for name, _ in tags(tokens.learned(shown, 1))}
    assert names <= {"section", "div", "h2", "span", "button", "i", "u", "b", "ul", "li", "input"}


def test_the_line_of_figures_follows_the_maximum_length() -> None:
    whole = text_of(tokens.survey(preview(), DATASET, 512))
    assert "50 % of 1,300 tokens are trained · 0 rows cut · longest 190" in whole
    short = tokens.survey(preview(), DATASET, 128)
    assert "48 % of 1,240 tokens are trained · 2 rows cut" in text_of(short)
    assert short.count('class="over"') == 1
    assert "maximum 128" in short
    assert "maximum" not in whole
    assert "1 rows have nothing left" not in short
    assert "1 row has nothing left to learn within 64 tokens" in text_of(tokens.survey(preview(), DATASET, 64))


def test_what_will_not_be_learned_and_what_to_know_are_said() -> None:
    said = text_of(tokens.survey(preview(), DATASET, 512))
    assert "2 turns will not be learned" in said
    assert "Row 3: Turn 2: no. Change it." in said
    assert "The template asks for the date." in said


def test_of_a_preference_both_answers_are_shown_under_their_names() -> None:
    shown = preview()
    shown.rows = [
        {"row": 1, "samples": [{"side": side, "spans": [span("answer", side, trained=True)]} for side in SIDES]}
    ]
    made = tokens.learned(shown, 1)
    assert re.findall(r"<h3>([^<]+)</h3><div class=\"tokens (\w+)\"", made) == [
        ("Preferred answer", "chosen"),
        ("Rejected answer", "rejected"),
    ]
    assert "sequences" not in made


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_prompt_is_shown_with_the_answer_that_is_expected(attack: str) -> None:
    shown = preview(span("prompt", "2 + 2?", trained=False))
    assert shown.rows is not None
    shown.rows[0] |= {"expected": attack}
    made = tokens.learned(shown, 1)
    assert "<h3>Expected answer</h3>" in made
    assert attack in unescape(text_of(made))
    assert {name for name, _ in tags(made)} <= {
        "section",
        "div",
        "h2",
        "h3",
        "span",
        "button",
        "i",
        "ul",
        "li",
        "input",
    }


def test_of_prompts_nothing_is_trained_and_longer_ones_are_left_out_whole() -> None:
    cuts = SURVEY["cuts"] | {"whole": [[100, 800, 0], [190, 380, 0]]}
    asked = preview()
    asked.survey = SURVEY | {"kind": "prompt", "cuts": cuts}
    said = text_of(tokens.survey(asked, DATASET, 128))
    assert "800 tokens of prompts" in said
    assert "2 rows left out for their length" in said
    assert "nothing left" not in said
    assert previews.length_of(asked.survey, None) == 190


def test_a_long_file_says_of_how_many_rows_the_figures_are() -> None:
    large = Dataset(id="d", name="d", kind="chat", rows=5000, usable=5000)
    assert "first 10 of 5,000 rows" in tokens.survey(preview(), large, 512)
