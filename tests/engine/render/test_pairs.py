"""Preference and prompt rows as tokens: two answers to one prompt, and a prompt, each as serving would have them."""

import datetime
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.failure import Failure
from engine.render.pair import render_pair
from engine.render.renderer import Renderer
from engine.rows import Row, normalise
from tests.engine.render.conversations import PARIS, TOOLS, called, result, said, system, user
from tests.engine.render.families import PATHS, stops_of, tokenizer_of
from tests.engine.render.judge import Judge

DAY = datetime.date(2026, 2, 3)
NAMES = [name for name in PATHS if not name.endswith("_training")]
TALK = [system("You are a lazy dog."), user("Question one?"), said("First answer."), user("Question two?")]


def preference(prompt, chosen, rejected, **more):
    answers = [[one] if isinstance(one, dict) else one for one in (chosen, rejected)]
    return Row("preference", "preference", prompt=prompt, chosen=answers[0], rejected=answers[1], number=1, **more)


@cache
def trl(name):
    tokenizer = tokenizer_of(name)
    stops = [tokenizer.convert_tokens_to_ids(stop) for stop in stops_of(name)]
    return Renderer(tokenizer, stops, frozen_date=DAY), Judge(tokenizer, DAY)


def sides(pair):
    return (pair.chosen, "chosen"), (pair.rejected, "rejected")


def assert_lawful(renderer, judge, row, pair):
    """The prompt is serving's, nothing of it is trained, and each answer is whole and ends with a stop token."""
    texts = list(judge.texts(row.prompt, row.tools, pair.chosen.level))
    served = [renderer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert pair.prompt.tolist() in served
    for sample, name in sides(pair):
        start = pair.prompt_length
        assert sample.ids[:start].tolist() == pair.prompt.tolist()
        assert not sample.trained[:start].any()
        assert sample.trained[start]
        assert int(sample.ids[sample.trained][-1]) in renderer.stop_ids
        assert sample.level == pair.chosen.level
        text = renderer.tokenizer.decode(sample.ids[start:])
        assert all(one["content"].strip() in text for one in getattr(row, name) if one["role"] == "assistant")


@pytest.mark.parametrize("name", NAMES)
def test_two_answers_follow_the_prompt_of_serving_under_every_template(name):
    renderer, judge = trl(name)
    for prompt in (TALK[1:2], TALK[1:], TALK):
        row = preference(prompt, said("Second answer."), said("Second guess."))
        rendered = render_pair(renderer, row)
        assert (rendered.pair is None) == bool(rendered.refusals)
        if rendered.pair:
            assert_lawful(renderer, judge, row, rendered.pair)
        else:  # what a chat of the same turns is refused for
            chat = Row("chat", "messages", messages=[*prompt, said("Second answer.")])
            assert renderer.render(chat, "last_turn").refusals


@pytest.mark.parametrize("name", ["qwen3", "qwen3_8", "glm4moe", "gptoss", "gemma4_v5"])
@pytest.mark.parametrize("thinks", ["chosen", "rejected", "both"])
def test_answers_with_and_without_reasoning_share_one_level_and_prompt(name, thinks):
    renderer, judge = trl(name)
    chosen, rejected = (
        said(text, "I think of it." if thinks in (side, "both") else "")
        for side, text in (("chosen", "Five letters."), ("rejected", "Six letters."))
    )
    row = preference([user("How many letters?")], chosen, rejected)
    rendered = render_pair(renderer, row)
    assert rendered.refusals == []
    assert_lawful(renderer, judge, row, rendered.pair)
    for sample, side in sides(rendered.pair):
        thought = "I think of it." in renderer.tokenizer.decode(sample.ids[sample.trained])
        assert thought == (thinks in (side, "both"))


def test_answers_that_no_level_can_both_have_are_refused_by_name():
    renderer, _ = trl("nemotron_3_super")  # its prompt opens a thought in a way that no answer without one begins
    row = preference([user("How many letters?")], said("Five letters.", "I think of it."), said("Six letters."))
    [refusal] = render_pair(renderer, row).refusals
    assert (refusal.code, "no level fits both" in refusal.message) == ("level_conflict", True)


def test_a_level_that_one_answer_cannot_have_is_refused_by_name():
    renderer, _ = trl("qwen3")
    row = preference([user("How many?")], said("Five.", "I count."), said("Six."))
    rendered = render_pair(renderer, row, level={"enable_thinking": False})
    assert rendered.pair is None
    assert [one.code for one in rendered.refusals] == ["level_conflict"]


MERGING = st.text("ab c\n", min_size=1, max_size=8).filter(str.strip)


@settings(max_examples=60)
@given(
    prompt=MERGING, chosen=MERGING, rejected=MERGING, template=st.sampled_from(["none", "chatml", "with_bos", "spaced"])
)
def test_T14_prompt_and_answer_are_the_whole_render_also_where_tokens_would_merge(
    tokenizer_with, prompt, chosen, rejected, template
):
    tokenizer = tokenizer_with(template)
    stops = [tokenizer.convert_tokens_to_ids(stop) for stop in ("<|im_end|>", "<|eot|>", "</s>")]
    renderer = Renderer(tokenizer, stops)
    row = normalise({"prompt": prompt, "chosen": f"{chosen}a", "rejected": f"{chosen}{rejected}b"})
    rendered = render_pair(renderer, row)
    assert rendered.refusals == []
    asked = renderer.prompt_ids(row.prompt)
    assert rendered.pair.prompt.tolist() == asked.tolist()
    for sample, side in sides(rendered.pair):
        answer = getattr(row, side)
        if template == "none":
            whole = prompt + answer[0]["content"] + tokenizer.eos_token
        else:
            whole = tokenizer.apply_chat_template([*row.prompt, *answer], tokenize=False).rstrip("\n")
        assert tokenizer.decode(sample.ids) == whole


def test_T10_tools_in_the_prompt_and_in_the_answer_are_rendered_or_refused_by_name():
    prompt = [user("Weather in Paris?"), called(PARIS), result("It is sunny.")]
    row = preference(prompt, said("Sunny."), said("Rainy."), tools=TOOLS)
    renderer, judge = trl("qwen3")
    assert_lawful(renderer, judge, row, render_pair(renderer, row).pair)
    answers = [[called(PARIS), result("It is sunny."), said(text)] for text in ("Sunny.", "Rainy.")]
    row = preference(prompt[:1], *answers, tools=TOOLS)
    for name, code in (("qwen2_5", ""), ("phi3", "tool_call_not_rendered")):
        rendered = render_pair(trl(name)[0], row)
        assert [one.code for one in rendered.refusals][:1] == ([code] if code else [])
    chosen = render_pair(trl("qwen2_5")[0], row).pair.chosen
    assert "sunny" not in trl("qwen2_5")[0].tokenizer.decode(
        chosen.ids[chosen.trained]
    )  # the tool's words are not learned


def test_an_answer_that_serving_shows_in_pieces_is_refused_by_name():
    turns = [said("First.", "One."), user("And?"), said("Second.", "Two.")]
    row = preference([user("Question?")], turns, [*turns[:2], said("Third.", "Three.")])
    assert [one.code for one in render_pair(trl("qwen3")[0], row).refusals] == ["answer_not_one_sample"]


def test_only_preference_rows_are_pairs():
    with pytest.raises(Failure, match="not a preference row"):
        render_pair(trl("qwen3")[0], Row("chat", "messages", messages=[user("a"), said("b")]))


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_row_is_what_serving_sends_and_trains_nothing(name):
    renderer, judge = trl(name)
    for prompt in (TALK[1:2], TALK[1:], TALK):
        rendered = renderer.render(Row("prompt", "prompt", prompt=prompt, number=1))
        texts = list(judge.texts(prompt, [], {}))
        if not texts:
            assert [one.code for one in rendered.refusals] == ["template_refuses"]
            continue
        [sample] = rendered.samples
        assert not sample.trained.any()
        assert sample.ids.tolist() in [
            renderer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts
        ]
        covered = np.concatenate([np.arange(span.start, span.end) for span in sample.spans])
        assert covered.tolist() == list(range(len(sample.ids)))
        assert {span.kind for span in sample.spans} <= {"prompt", "cue"}
