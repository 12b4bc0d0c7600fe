"""Reasoning levels: found by asking the template, and what becomes of rows under them."""

import datetime

import numpy as np
import pytest

from engine.failure import Failure
from engine.render.levels import levels, probe
from engine.render.renderer import Renderer
from engine.render.template import ChatTemplate
from tests.engine.render.conversations import chat, rows, said, user
from tests.engine.render.families import stops_of, tokenizer_for, tokenizer_of

DAY = datetime.date(2026, 2, 3)
THINKING = ["default", "enable_thinking=False"]
OFF_BY_DEFAULT = ["default", "enable_thinking=True"]
KEEP, CUT = ["preserve_thinking=True"], ["truncate_history_thinking=False"]
# template -> (levels, history switches, variables that take any text)
FOUND = {
    "gptoss": (["default", "reasoning_effort=low", "reasoning_effort=high"], [], ("reasoning_effort",)),
    "muse_glimmer": (["default", "reasoning_strength=low", "reasoning_strength=medium"], [], ("reasoning_strength",)),
    "qwen3": (THINKING, [], ()),
    "qwen3_5_think": (THINKING, [], ()),
    "qwen3_5_nothink": (OFF_BY_DEFAULT, [], ()),
    "qwen3_6": (THINKING, KEEP, ()),
    "qwen3_8": (
        ["default", "reasoning_effort=low", "reasoning_effort=medium", "enable_thinking=False"],
        ["preserve_thinking=False"],
        (),
    ),
    "nemotron_3_nano": (THINKING, CUT, ()),
    "nemotron_3_super": (
        ["default", "low_effort=True", "enable_thinking=False", "enable_thinking=False, low_effort=True"],
        CUT,
        (),
    ),
    "nemotron_3_ultra": (
        ["default", "medium_effort=True", "enable_thinking=False", "enable_thinking=False, medium_effort=True"],
        CUT,
        (),
    ),
    "glm4moe": (THINKING, [], ()),
    "gemma4_v2": (OFF_BY_DEFAULT, [], ()),
    "gemma4_v5": (OFF_BY_DEFAULT, KEEP, ()),
    "diffusion_gemma": (OFF_BY_DEFAULT, KEEP, ()),
    "lfm2_2_5": (["default"], KEEP, ()),
    "deepseekv3": (["default"], [], ()),
    "deepseek_r1_distill": (["default"], [], ()),
    "llama3_2": (["default"], [], ()),
    "gemma3": (["default"], [], ()),
}
HEAD = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
# written after templates that are not in the wheel
STYLES = {
    "deepseek v3.1": (
        HEAD + "{% if add_generation_prompt %}<|assistant|>{{ '<think>' if thinking else '</think>' }}{% endif %}",
        ["default", "thinking=True"],
    ),
    "a settings block": (
        "{% set effort = reasoning_effort | default('high') %}"
        "{% if effort not in ('low', 'medium', 'high') %}{{ raise_exception('unknown effort ' ~ effort) }}{% endif %}"
        '[SETTINGS]{"effort": "{{ effort }}"}[/SETTINGS]'
        + HEAD
        + "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        ["default", "reasoning_effort=low", "reasoning_effort=medium"],
    ),
    "two kinds of effort": (
        "{% if reasoning_effort is defined and reasoning_effort == 'high' %}High{% else %}Max{% endif %}"
        + HEAD
        + "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        ["default", "reasoning_effort=high"],
    ),
    "a switch in the system text": (
        "{% set on = enable_thinking | default(true) %}{% if '/no_think' in messages[0].content %}{% set on = false %}"
        "{% endif %}Mode: {{ '/think' if on else '/no_think' }}"
        + HEAD
        + "{% if add_generation_prompt %}<|assistant|>{{ '' if on else '<think></think>' }}{% endif %}",
        ["default", "enable_thinking=False"],
    ),
}


def found(tokenizer):
    return probe(ChatTemplate(tokenizer, DAY))


@pytest.mark.parametrize("name", FOUND)
def test_the_levels_of_known_templates_are_found_by_asking(name):
    names, history, free = FOUND[name]
    seen = found(tokenizer_of(name))
    assert [level.name for level in seen.levels] == names
    assert [level.name for level in seen.history] == history
    assert seen.free_text == free


@pytest.mark.parametrize("style", STYLES)
def test_the_levels_of_other_styles_are_found_by_asking(style):
    source, names = STYLES[style]
    assert [one.name for one in levels(ChatTemplate(tokenizer_for(source, ["<|end|>"]), DAY))] == names


def test_values_that_render_alike_are_one_level_and_those_that_raise_are_none():
    seen = found(tokenizer_of("qwen3_8"))
    assert [dict(one) for one in seen.levels[0].alike] == [{"enable_thinking": True}, {"reasoning_effort": "xhigh"}]
    assert {"high", "max"} <= set(seen.refused["reasoning_effort"])
    assert {"reasoning_effort": "medium"} in [dict(one) for one in found(tokenizer_of("gptoss")).levels[0].alike]


def test_what_is_no_level_is_told_apart():
    assert found(tokenizer_of("gptoss")).other == ("builtin_tools", "model_identity")
    assert "date_string" in found(tokenizer_of("llama3_2")).other


def test_a_level_says_what_it_does():
    low = found(tokenizer_of("gptoss")).levels[1]
    assert (low.prompt_text, low.thinks) == ("low", True)
    default, off = found(tokenizer_of("qwen3")).levels
    assert (default.thinks, off.thinks) == (True, False)
    assert off.cue.endswith("<think>\n\n</think>\n\n")
    assert (default.frame, off.frame) == (len("<think>\n\n</think>\n\n"), 0)


def renderer(name, **options):
    tokenizer = tokenizer_of(name)
    stops = [tokenizer.convert_tokens_to_ids(stop) for stop in stops_of(name)]
    return Renderer(tokenizer, stops, frozen_date=DAY, **options)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "glm4moe"])
def test_each_turn_gets_the_level_that_it_shows(name):
    rendered = renderer(name).render(rows("")["a thought in the middle"])
    thinks = [sample.level.get("enable_thinking", name != "qwen3_5_nothink") for sample in rendered.samples]
    assert thinks == [False, True, False]
    assert "<think></think>" not in "".join(
        renderer(name).tokenizer.decode(one.ids[one.trained]) for one in rendered.samples
    )


def test_a_run_sets_a_level_and_a_row_another():
    row = rows("")["one thought"]
    low = renderer("gptoss", level={"reasoning_effort": "low"})
    [sample] = low.render(row).samples
    assert sample.level == {"reasoning_effort": "low"}
    assert "Reasoning: low" in low.tokenizer.decode(sample.ids)
    [sample] = low.render(row, level={"reasoning_effort": "high"}).samples
    assert "Reasoning: high" in low.tokenizer.decode(sample.ids)
    assert not low.render(row).warnings
    start = int(np.argmax(sample.trained))
    assert sample.ids[:start].tolist() == low.prompt_ids(row.messages[:1], level={"reasoning_effort": "high"}).tolist()


@pytest.mark.parametrize("name", ["qwen3", "qwen3_8", "nemotron_3_super"])
def test_a_level_that_contradicts_the_row_is_said(name):
    off = {"enable_thinking": False}
    [refusal] = renderer(name, level=off).render(rows("")["one thought"]).refusals
    assert (refusal.code, "enable_thinking=False" in refusal.message) == ("level_conflict", True)
    assert refusal.prompt
    assert refusal.rendered


def test_a_thinking_level_over_a_row_without_thought_is_said():
    rendered = renderer("qwen3", level={"enable_thinking": True}).render(rows("")["one turn"])
    assert [note.code for note in rendered.warnings] == ["empty_reasoning"]
    rendered = renderer("nemotron_3_nano", level={"enable_thinking": True}).render(rows("")["one turn"])
    assert [one.code for one in rendered.refusals] == ["level_conflict"]


def test_a_level_that_serving_must_be_told_is_said():
    [note] = renderer("qwen3").render(rows("")["one turn"]).warnings
    assert (note.code, "enable_thinking=False" in note.message) == ("level_not_default", True)
    assert renderer("qwen3").render(rows("")["one thought"]).warnings == []
    assert renderer("qwen3", level={"enable_thinking": False}).render(rows("")["one turn"]).warnings == []


@pytest.mark.parametrize("name", ["nemotron_3_nano", "qwen3_6", "lfm2_2_5"])
def test_a_history_switch_keeps_earlier_thoughts_and_leaves_the_level_open(name):
    row = rows("")["thoughts"]
    switch = found(tokenizer_of(name)).history[0]
    assert len(renderer(name).render(row).samples) == 3
    rendered = renderer(name, level=switch.variables).render(row)
    assert len(rendered.samples) == 1
    assert "earlier_reasoning_lost" not in [note.code for note in rendered.warnings]


def test_the_level_that_no_row_can_show_is_named_with_the_choices():
    [note] = renderer("gptoss").render(rows("")["one thought"]).warnings
    assert note.code == "level_by_default"
    assert "reasoning_effort=low" in note.message
    assert not renderer("gptoss", level={"reasoning_effort": "medium"}).render(rows("")["one thought"]).warnings


def test_names_that_are_not_the_templates_are_refused():
    with pytest.raises(Failure, match="tokenize is no variable") as caught:
        renderer("qwen3", level={"tokenize": True}).render(chat(user("a"), said("b")))
    assert caught.value.code == "bad_level"
