"""What rows tell the chat template for themselves, and reasoning that is read but not learned."""

import datetime

import numpy as np
import pytest

from engine.render.renderer import Renderer
from engine.rows import normalise
from tests.engine.render.conversations import PARIS, TOOLS, called, chat, rows, said, user
from tests.engine.render.families import PATHS, stops_of, tokenizer_of

DAY = datetime.date(2026, 2, 3)
ASKED = [user("How many letters?")]
THOUGHT, PLAIN = said("Five letters.", "We look at the word."), said("Five letters.")


def renderer_of(name, **options):
    tokenizer = tokenizer_of(name)
    stops = [tokenizer.convert_tokens_to_ids(stop) for stop in stops_of(name)]
    return Renderer(tokenizer, stops, frozen_date=DAY, **options)


@pytest.fixture(scope="module")
def trl():
    made = {}

    def get(name):
        return made.setdefault(name, renderer_of(name))

    return get


def row(answer, **columns):
    return normalise({"messages": [*ASKED, answer], **columns})


def codes(rendered):
    return {note.code for note in rendered.warnings}


def text(renderer, sample):
    return renderer.tokenizer.decode(sample.ids)


def test_a_row_chooses_its_own_level(trl):
    renderer = trl("gptoss")
    for effort in ("low", "high"):
        [sample] = renderer.render(row(THOUGHT, reasoning_effort=effort)).samples
        assert f"Reasoning: {effort}" in text(renderer, sample)
        assert sample.level == {"reasoning_effort": effort}
    [sample] = trl("qwen3").render(row(PLAIN, enable_thinking=True)).samples
    assert sample.level == {"enable_thinking": True}


def test_a_row_overrides_the_level_of_the_run():
    renderer = renderer_of("gptoss", level={"reasoning_effort": "low"})
    [own] = renderer.render(row(THOUGHT, chat_template_kwargs={"reasoning_effort": "high"})).samples
    [runs] = renderer.render(row(THOUGHT)).samples
    assert ("Reasoning: high" in text(renderer, own), "Reasoning: low" in text(renderer, runs)) == (True, True)


def test_a_value_that_the_template_refuses_is_a_problem_of_the_row_by_name(trl):
    [refusal] = trl("qwen3_8").render(row(THOUGHT, reasoning_effort="high")).refusals
    assert (refusal.code, refusal.turn) == ("level_refused", 1)
    assert "reasoning_effort=high" in refusal.message
    assert trl("qwen3_8").render(row(THOUGHT, reasoning_effort="low")).refusals == []


@pytest.mark.parametrize("name", ["messages", "tokenize", "tools", "bos_token", "chat_template"])
def test_a_row_cannot_tell_what_is_not_the_templates(trl, name):
    rendered = trl("qwen3").render(row(PLAIN, chat_template_kwargs={name: "x"}))
    assert (rendered.samples, [one.code for one in rendered.refusals]) == ([], ["level_refused"])
    assert name in rendered.refusals[0].message


def test_a_setting_that_the_template_does_not_read_or_know_is_said(trl):
    assert "level_not_read" in codes(trl("qwen2_5").render(row(PLAIN, reasoning_effort="low")))
    assert "level_unusual" in codes(trl("gptoss").render(row(THOUGHT, reasoning_effort="banana")))
    assert not {"level_not_read", "level_unusual"} & codes(trl("gptoss").render(row(THOUGHT, reasoning_effort="low")))


def test_reasoning_and_level_that_contradict_are_told(trl):
    assert "reasoning_despite_level" in codes(trl("gemma4_v5").render(row(THOUGHT, enable_thinking=False)))
    [refusal] = trl("qwen3").render(row(THOUGHT, enable_thinking=False)).refusals
    assert refusal.code == "level_conflict"
    assert "no_reasoning_at_level" in codes(trl("gptoss").render(row(PLAIN, reasoning_effort="high")))
    assert "empty_reasoning" in codes(trl("qwen3").render(row(PLAIN, enable_thinking=True)))
    assert codes(trl("qwen3").render(row(PLAIN, enable_thinking=False))) == set()


@pytest.mark.parametrize(("name", "plain_too"), [("gptoss", True), ("qwen3_8", False), ("muse_glimmer", True)])
def test_rows_that_fall_to_the_default_of_a_level_in_the_prompts_text_ask_for_a_choice(trl, name, plain_too):
    noted = next(one for one in trl(name).render(row(THOUGHT)).warnings if one.code == "level_by_default")
    assert "Choose one of: default" in noted.message
    assert "low" in noted.message
    assert ("level_by_default" in codes(trl(name).render(row(PLAIN)))) == plain_too


@pytest.mark.parametrize("name", [name for name in PATHS if not name.endswith("_training")])
def test_reasoning_that_is_only_read_leaves_the_tokens_as_they_are(name):
    renderer = renderer_of(name)
    for kind, one in rows(stops_of(name)[0]).items():
        renderer.train_reasoning = True
        whole = renderer.render(one)
        renderer.train_reasoning = False
        read = renderer.render(one)
        assert [sample.ids.tolist() for sample in read.samples] == [sample.ids.tolist() for sample in whole.samples]
        assert read.refusals == whole.refusals, kind
        for sample, before in zip(read.samples, whole.samples, strict=True):
            assert not (sample.trained & ~before.trained).any()
            for span in sample.spans:
                learned = sample.trained[span.start : span.end]
                if span.kind in ("answer", "tool_call", "stop"):
                    assert np.array_equal(learned, before.trained[span.start : span.end])
                if span.kind == "reasoning":
                    assert not learned.any()


@pytest.mark.parametrize(
    ("name", "learned"), [("qwen3", "Five letters.<|im_end|>"), ("gptoss", "Five letters.<|return|>")]
)
def test_around_reasoning_that_is_only_read_nothing_of_the_template_is_learned(name, learned):
    renderer = renderer_of(name)
    renderer.train_reasoning = False
    [sample] = renderer.render(row(THOUGHT)).samples
    assert renderer.tokenizer.decode(sample.ids[sample.trained]) == learned
    call = chat(*ASKED, called(PARIS, thought="We look."), tools=TOOLS)
    [sample] = renderer.render(call).samples
    written = renderer.tokenizer.decode(sample.ids[sample.trained])
    assert "get_weather" in written
    assert "We look." not in written
