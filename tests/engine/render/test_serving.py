"""What an adapter was told in training is kept with it, and is what it is told when nobody says otherwise."""

import copy
import datetime
import json

import pytest
from transformers import AutoTokenizer

from engine.render import serving
from engine.render.serving import Serving, with_default
from tests.engine.render.families import tokenizer_of

DAY = datetime.date(2026, 2, 3)
ASKED = [{"role": "user", "content": "hi"}]
LEVELS = [
    ("gptoss", {"reasoning_effort": "high"}),
    ("qwen3", {"enable_thinking": False}),
    ("qwen3_8", {"reasoning_effort": "low"}),
    ("nemotron_3_super", {"enable_thinking": True, "low_effort": True}),
    ("gemma4_v5", {"enable_thinking": True}),
    ("muse_glimmer", {"reasoning_strength": "low"}),
]


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_the_level_is_the_default_of_the_saved_template_and_another_can_be_said(tmp_path, name, level):
    tokenizer = copy.deepcopy(tokenizer_of(name))
    serving.save(tokenizer, Serving(level, DAY), tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    options = {"tokenize": False, "add_generation_prompt": True}
    assert stock.apply_chat_template(ASKED, **options) == tokenizer.apply_chat_template(ASKED, **options, **level)
    assert stock.chat_template != tokenizer.chat_template
    others = {key: not value if isinstance(value, bool) else "medium" for key, value in level.items()}
    assert stock.apply_chat_template(ASKED, **options, **others) == tokenizer.apply_chat_template(
        ASKED, **options, **others
    )
    assert serving.load(tmp_path) == Serving(level, DAY)


def test_without_a_level_the_template_is_saved_as_it_is(tmp_path):
    tokenizer = tokenizer_of("gptoss")
    serving.save(tokenizer, Serving({}, DAY), tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == tokenizer.chat_template
    assert serving.load(tmp_path) == Serving({}, DAY)


@pytest.mark.parametrize("level", [{"a %}{{ 1 }}": "x"}, {"x": {"deep": "%}"}}, {"x y": True}])
def test_nothing_but_plain_names_and_values_is_written_into_a_template(level):
    assert with_default("{{ messages }}", level) == "{{ messages }}"


def test_text_of_a_level_stays_text():
    source = with_default("{{ messages[0].content }}", {"effort": '"%}{{ evil }}'})
    tokenizer = copy.deepcopy(tokenizer_of("qwen3"))
    tokenizer.chat_template = source + "{{ effort }}"
    assert tokenizer.apply_chat_template(ASKED, tokenize=False) == 'hi"%}{{ evil }}'


def test_a_folder_that_does_not_say_says_nothing(tmp_path):
    assert serving.load(tmp_path) == Serving()
    (tmp_path / serving.FILE).write_text(json.dumps({"chat_template_kwargs": {"x": 1}, "date": None}))
    assert serving.load(tmp_path) == Serving({"x": 1}, None)
