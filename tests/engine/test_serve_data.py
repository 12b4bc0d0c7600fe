"""The process that stays: many questions, one renderer each, and an answer whatever the template does."""

import copy
import json
import os
import subprocess
import sys

import pytest

from engine import serve_data
from engine.serve_data import MOST_RENDERERS, Desk
from tests.engine.render.families import tokenizer_of

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ROWS = [
    {"messages": [{"role": "user", "content": f"Number {n}?"}, {"role": "assistant", "content": "One. " * n}]}
    for n in range(1, 9)
]


def folder_of(tmp_path_factory, name, template=None):
    folder = tmp_path_factory.mktemp("models") / name
    tokenizer = copy.deepcopy(tokenizer_of("qwen3"))
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>")})
    )
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder_of(tmp_path_factory, "small")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return folder_of(tmp_path_factory, "hostile", ENDLESS)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    path.write_text("\n".join(["{half", *(json.dumps(row) for row in ROWS)]))
    return str(path)


def test_questions_are_answered_line_by_line_until_stdin_ends(model, hostile, file):
    asked = [
        {"verb": "show", "model": model, "file": file, "row": 2, "level": "enable_thinking=False"},
        {"verb": "show", "model": model, "file": file, "level": "zigzag"},
        {"verb": "show", "model": hostile, "file": file, "row": 2},
        {"verb": "check", "model": model, "file": file, "max_length": 20},
    ]
    lines = [*(json.dumps(one) for one in asked), "not JSON"]
    command = [sys.executable, "-m", "engine", "serve-data"]
    told = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    shown, level, endless, checked, garbage = (json.loads(line) for line in told.stdout.splitlines())
    assert (shown["row"], shown["level"], len(shown["samples"])) == (2, "enable_thinking=False", 1)
    assert level["error"]["code"] == "bad_level"
    assert level["error"]["advice"]
    assert endless["error"]["code"] == "template_limit"
    assert (checked["rows"], checked["usable"], checked["rendered"]) == (9, 8, 8)
    assert garbage["error"]["code"] == "bad_request"


def test_with_a_lifeline_it_ends_at_once_with_whoever_asked(hostile, file):
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "serve-data"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "ATELIER_LIFELINE": "1"},
    )
    told, _errors = process.communicate(b'{"verb": "open", "model": "nowhere"}\n', timeout=60)
    assert process.returncode == 0
    assert told.count(b"\n") <= 1


def test_several_rows_come_with_one_question(model, file):
    found = Desk().answer(json.dumps({"verb": "show", "model": model, "file": file, "count": 3, "kind": "chat"}))
    assert [row["row"] for row in found["rows"]] == [2, 3, 4]


def test_a_renderer_is_opened_once_and_the_oldest_is_let_go(model, monkeypatch):
    opened = []
    monkeypatch.setattr(serve_data, "open_renderer", lambda model, settings: opened.append(settings.level) or DULL)
    desk = Desk()
    for level in ("a", "b", "c", "d", "a", "e", "a", "b"):
        assert desk.answer(json.dumps({"verb": "open", "model": model, "level": level})) == {"levels": []}
    assert opened == ["a", "b", "c", "d", "e", "b"]
    assert len(desk.renderers) == MOST_RENDERERS


class DULL:
    class levels:
        levels = ()


def test_any_maximum_length_can_be_looked_up_in_one_survey(model, file):
    desk, about = Desk(), {"verb": "check", "model": model, "file": file}
    cuts = desk.answer(json.dumps(about))["cuts"]
    limit = cuts["every"]
    cut = desk.answer(json.dumps({**about, "max_length": limit}))
    assert (cuts["total"][1], cuts["trained"][1]) == (cut["total_tokens"], cut["trained_tokens"])
    for limit in (5, 20, 25, 30, 64):
        cut = desk.answer(json.dumps({**about, "max_length": limit}))
        assert cut["truncated"] == sum(rows for length, rows in cuts["longest"] if length > limit)
        assert cut["nothing_to_learn"] == sum(rows for first, rows in cuts["begins"] if first >= limit)


def test_a_long_file_is_counted_as_far_as_the_time_goes(model, file):
    found = Desk().answer(json.dumps({"verb": "check", "model": model, "file": file, "seconds": 1e-9}))
    assert (found["rendered"], found["usable"]) == (1, 8)


def test_a_plan_is_answered_by_the_same_process(starter):
    desk = Desk()
    spec = {"model": str(starter), "data": {"dataset": "d", "max_length": 256}}
    device = {"name": "cpu", "kind": "cpu", "label": "CPU", "total_bytes": 16 << 30, "used_bytes": 0}
    asked = {"verb": "plan", "spec": spec, "devices": [device], "rows": 40}
    told = desk.answer(json.dumps(asked))
    assert told["fits"]
    assert told["steps"] == 108
    assert told["peak"] == sum(told["parts"].values())
    broken = desk.answer(json.dumps(asked | {"spec": spec | {"model": "/nowhere"}}))
    assert broken["error"]["code"] == "model_unreadable"
