"""The laws of rendering over every chat template of the installed trl, and over hand-written nasty ones.

1. Tokens before a trained stretch are those that serving sends. 2. It ends with a stop token, which stands nowhere else
in it. 3. No token of the cue is trained. 4. Reasoning is learned or refused by name. 5. One BOS. 6. No text is lost
without a named warning.
"""

import dataclasses
import datetime
import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.render.renderer import Renderer
from engine.render.sample import Rendered
from tests.engine.render import families
from tests.engine.render.conversations import chat, rows, said, system, user
from tests.engine.render.families import BOS, PATHS, stops_of, tokenizer_for, tokenizer_of
from tests.engine.render.judge import Judge, broken_laws
from tests.engine.render.nasty import NASTY, PLAIN, STOP, STOPS

DAY = datetime.date(2026, 2, 3)
ORIGINALS = [name for name in PATHS if not name.endswith("_training")]


class Bench:
    """A tokenizer with its template, rendered and judged."""

    def __init__(self, tokenizer, stops, **options):
        self.tokenizer = tokenizer
        self.stops = {tokenizer.convert_tokens_to_ids(stop) for stop in stops}
        begin = tokenizer.convert_tokens_to_ids(BOS)
        self.begin = begin if tokenizer.bos_token == BOS else None
        self.renderer = Renderer(tokenizer, self.stops, frozen_date=DAY, **options)
        self.judge = Judge(tokenizer, DAY)

    def broken(self, row, rendered=None):
        rendered = rendered or self.renderer.render(row)
        return broken_laws(self.judge, row, rendered, self.stops, self.begin)


@cache
def trl(name):
    return Bench(tokenizer_of(name), stops_of(name))


@cache
def nasty(name):
    stops = STOPS.get(name, [STOP])
    return Bench(tokenizer_for(NASTY[name], stops), stops)


@pytest.mark.parametrize("name", PATHS)
def test_the_laws_hold_for_every_template_of_trl(name):
    found = {kind: trl(name).broken(row) for kind, row in rows(stops_of(name)[0]).items()}
    assert {kind: broken for kind, broken in found.items() if broken} == {}


@pytest.mark.parametrize("name", NASTY)
def test_the_laws_hold_for_nasty_templates(name):
    found = {kind: nasty(name).broken(row) for kind, row in rows(STOP).items()}
    assert {kind: broken for kind, broken in found.items() if broken} == {}


def test_the_laws_hold_for_the_starter_model(starter):
    bench = Bench(AutoTokenizer.from_pretrained(starter), ["<|im_end|>"])
    found = {kind: bench.broken(row) for kind, row in rows("<|im_end|>").items()}
    assert {kind: broken for kind, broken in found.items() if broken} == {}


@cache
def spaced(source):
    """A tokenizer that writes a space before each text, as SentencePiece models do."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", BOS, STOP, *(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        show_progress=False,
    )
    backend.train_from_iterator([families.TEXT] * 20, trainer)
    kept = json.loads(backend.to_str())  # the bytes are no special tokens
    kept["added_tokens"] = [one for one in kept["added_tokens"] if not one["content"].startswith("<0x")]
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(kept)), bos_token=BOS, eos_token=STOP, unk_token="<unk>"
    )
    made.chat_template = source
    return made


@pytest.mark.parametrize("name", ["drops tools", "begins", "trims", "the stop belongs to the next turn"])
def test_the_laws_hold_with_a_tokenizer_that_begins_texts_with_a_space(name):
    bench = Bench(spaced(NASTY[name]), STOPS.get(name, [STOP]))
    found = {kind: bench.broken(row) for kind, row in rows(STOP).items()}
    assert {kind: broken for kind, broken in found.items() if broken} == {}
    [sample] = bench.renderer.render(rows(STOP)["one turn"]).samples
    text = next(bench.judge.texts(rows(STOP)["one turn"].messages, [], {}, cue=False))
    assert sample.ids.tolist()[:-1] == bench.judge.ids(text)[: len(sample.ids) - 1]


TEXT = st.text("ab c.<|>\n\té漢🙂\u00a0{}'\"\\", min_size=1, max_size=16).filter(str.strip)
TALK = st.lists(st.tuples(TEXT, TEXT, st.sampled_from(["", "I think.", "a"])), min_size=1, max_size=3)


@settings(max_examples=150)
@given(name=st.sampled_from(sorted({*ORIGINALS, *NASTY})), start=st.sampled_from(["", "sys a"]), turns=TALK)
def test_the_laws_hold_for_any_text(name, start, turns):
    bench = nasty(name) if name in NASTY else trl(name)
    talk = [message for asked, answer, thought in turns for message in (user(asked), said(answer, thought))]
    assert bench.broken(chat(*([system(start)] if start else []), *talk)) == []


# what a template must carry: a renderer that refuses everything would keep every law
NOTHING = {"deepseek_r1_distill", "deepseekv3"}  # their prompt opens a thought that no row can contain
REASONING = ("diffusion", "glm", "gptoss", "lfm2_2_5", "muse", "nemotron", "qwen3_5", "qwen3_6", "qwen3_8", "gemma4_v5")
TOOLS = (*REASONING, "gemma4", "lfm2_v2", "llama3_1", "llama3_2", "qwen2_5", "qwen3")


@pytest.mark.parametrize("name", ORIGINALS)
def test_what_a_template_can_carry_is_learned(name):
    made = {kind: trl(name).renderer.render(row) for kind, row in rows(stops_of(name)[0]).items()}
    learned = {kind for kind, rendered in made.items() if not rendered.refusals}
    wanted = set() if name in NOTHING else {"one turn", "white space", "markers", "the template's words", "short"}
    wanted |= {"system"} if name not in {"gemma", "gemma_training", *NOTHING} else set()
    thinks = name == "qwen3" or (name.startswith(REASONING) and name not in NOTHING)
    wanted |= {"one thought", "thoughts", "a thought in the middle"} if thinks else set()
    wanted |= {"tool"} if name.startswith(TOOLS) and name != "qwen2_5_vl" else set()
    assert wanted - learned == set()


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("deepseekv3", "one turn", "cue_not_in_rows"),
        ("gemma", "system", "template_refuses"),
        ("llama3", "tool", "tool_call_not_rendered"),
        ("gptoss", "two calls", "tool_call_not_rendered"),
        ("llama3_1", "two calls", "template_refuses"),
        ("llama3_1", "tool with words", "answer_not_rendered"),
        ("qwen2_5", "one thought", "reasoning_not_rendered"),
        ("never stops", "one turn", "no_stop_token"),
        ("opens a thought", "one turn", "cue_not_in_rows"),
        ("renders nothing", "one turn", "empty_prompt"),
        ("shouts", "one turn", "answer_not_rendered"),
        ("stops in the middle", "one thought", "stops_early"),
        ("numbers backwards", "system", "cue_not_in_rows"),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_name_with_both_texts(name, kind, code):
    stop = STOP if name in NASTY else stops_of(name)[0]
    bench = nasty(name) if name in NASTY else trl(name)
    refusals = [one for one in bench.renderer.render(rows(stop)[kind]).refusals if one.code == code]
    assert refusals
    assert refusals[0].message
    assert code in ("template_refuses", "empty_prompt") or (refusals[0].prompt and refusals[0].rendered)


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("the system text is dropped", "system", "system_text_lost"),
        ("drops tools", "tool", "tools_lost"),
        ("shows the last two messages", "system", "user_text_lost"),
        ("thinks in the last turn", "thoughts", "earlier_reasoning_lost"),
        ("begins twice", "one turn", "many_bos"),
        ("drops tools", "markers", "control_token_in_answer"),
        ("drops tools", "markers", "control_token_in_prompt"),
        ("drops tools", "weights", "after_last_turn"),
        ("phi3", "tool", "tool_result_lost"),
        ("llama3", "tool", "earlier_call_lost"),
        ("qwen3", "a stray tag", "earlier_answer_lost"),
        ("gptoss", "thoughts", "history_rewritten"),
        ("gptoss", "one thought", "level_by_default"),
    ],
)
def test_what_is_lost_or_odd_is_said_by_name(name, kind, code):
    stop = STOP if name in NASTY else stops_of(name)[0]
    bench = nasty(name) if name in NASTY else trl(name)
    assert code in [note.code for note in bench.renderer.render(rows(stop)[kind]).warnings]


@pytest.mark.parametrize(
    ("name", "kind", "samples"),
    [("gptoss", "tool with thoughts", 2), ("gemma4_v5", "tool with words", 2), ("qwen3_8", "thoughts", 1)],
)
def test_an_answer_is_read_after_a_shorter_history_where_the_whole_one_writes_it_differently(name, kind, samples):
    rendered = trl(name).renderer.render(rows(stops_of(name)[0])[kind])
    assert (rendered.refusals, len(rendered.samples)) == ([], samples)


@pytest.mark.parametrize("name", sorted(NOTHING))
def test_the_laws_hold_over_a_bridge_that_a_person_has_confirmed(name):
    offered = trl(name).renderer.offered_bridge
    assert (offered.opens, offered.closes) == ("<think>\n", "\n</think>\n\n")
    bench = Bench(tokenizer_of(name), stops_of(name), bridge=offered)
    found = {kind: bench.broken(row) for kind, row in rows(stops_of(name)[0]).items()}
    assert {kind: broken for kind, broken in found.items() if broken} == {}
    [sample] = bench.renderer.render(rows("")["one thought"]).samples
    learned = bench.tokenizer.decode(sample.ids[sample.trained])
    assert learned.startswith("We have to look at the word.\n</think>\n\nFive letters.")


def test_a_bridge_is_offered_only_where_it_is_needed():
    offers = {name for name in ORIGINALS if trl(name).renderer.offered_bridge}
    assert offers == NOTHING


def tampered(sample, at, **change):
    values = {"ids": sample.ids.copy(), "trained": sample.trained.copy()}
    for name, value in change.items():
        values[name][at] = value
    return dataclasses.replace(sample, **values)


@pytest.mark.parametrize(
    ("law", "place", "change"),
    [
        ("L1", -1, {"trained": True}),  # the last token of the cue is trained
        ("L1", 0, {"trained": False}),  # the first of the answer is not
        ("L1", -2, {"ids": 7}),  # serving sends something else
        ("L2", "end", {"trained": False}),  # the stop is not trained
        ("L3", -1, {"trained": True}),
        ("L6", 1, {"ids": 7}),  # a token of the answer is another
    ],
)
def test_the_judge_sees_a_broken_law(law, place, change):
    bench, row = nasty("begins"), rows(STOP)["one turn"]
    [sample] = bench.renderer.render(row).samples
    start = int(np.argmax(sample.trained))
    broken = tampered(sample, len(sample.ids) - 1 if place == "end" else start + place, **change)
    assert any(one.startswith(law) for one in bench.broken(row, Rendered([broken])))


def test_the_judge_sees_reasoning_that_is_not_learned():
    bench, row = nasty("begins"), rows(STOP)["one thought"]
    [sample] = bench.renderer.render(row).samples
    [thought] = [span for span in sample.spans if span.kind == "reasoning"]
    broken = tampered(sample, thought.start, ids=7)
    assert any(one.startswith("L4") for one in bench.broken(row, Rendered([broken])))


def test_the_judge_sees_lost_text_and_a_second_begin():
    bench, row = nasty("thinks in the last turn"), rows(STOP)["thoughts"]
    silent = dataclasses.replace(bench.renderer.render(row), warnings=[])
    assert any(one.startswith("L6") for one in bench.broken(row, silent))
    twice, row = nasty("begins twice"), rows(STOP)["one turn"]
    silent = dataclasses.replace(twice.renderer.render(row), warnings=[])
    assert any(one.startswith("L5") for one in twice.broken(row, silent))


def test_plain_templates_refuse_nothing_they_can_say():
    assert PLAIN in NASTY.values()
    assert not nasty("drops tools").renderer.render(rows(STOP)["thoughts"]).refusals
