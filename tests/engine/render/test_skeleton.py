"""Renderings out of skeletons are those of the template, for every template of the installed trl and nasty ones."""

import datetime
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.render.patterns import Pattern
from engine.render.renderer import Renderer
from engine.render.sample import without_spans
from engine.render.skeleton import COMPARED, RENDERED_FIRST, Skeleton
from engine.render.traced import MARK
from tests.engine.render.conversations import chat, said, system, user
from tests.engine.render.families import PATHS, stops_of, tokenizer_for, tokenizer_of
from tests.engine.render.nasty import NASTY, PLAIN, STOP, STOPS

DAY = datetime.date(2026, 2, 3)
WARM = ["Which colour has the sky?", "It is blue.", "And the sea?", "That is green.", "And now?", "Black."]


def found(rendered):
    """A rendered row as values that can be compared."""
    samples = [(one.ids.tolist(), one.trained.tolist(), one.spans, one.level) for one in rendered.samples]
    return samples, rendered.warnings, rendered.refusals


def talk(texts, thoughts, start):
    turns = [user(text) if at % 2 == 0 else said(text, thoughts[at // 2]) for at, text in enumerate(texts)]
    return chat(*([system(start)] if start else []), *turns)


class Pair:
    """The same tokenizer twice: with skeletons, and without."""

    def __init__(self, tokenizer, stops):
        ids = {tokenizer.convert_tokens_to_ids(stop) for stop in stops}
        self.fast, self.slow = (Renderer(tokenizer, ids, frozen_date=DAY) for _ in range(2))
        self.slow.turns.skeletons.possible = False
        self.slow.turns.levels = self.fast.turns.levels  # found once

    def warm(self, row):
        """Render plain conversations of the row's shape until each has its skeleton."""
        texts = iter(WARM)
        plain = [
            {key: next(texts, "Yes.") if key in ("content", "reasoning_content") else one[key] for key in one}
            for one in row.messages
        ]
        for _ in range(RENDERED_FIRST + COMPARED + 4):
            self.fast.render(chat(*plain))
            self.fast.tokens(chat(*plain))

    def agree(self, row):
        slow, tokens = self.slow.render(row), self.fast.tokens(row)
        return found(self.fast.render(row)) == found(slow) and found(tokens) == found(without_spans(slow))


@cache
def pair(name):
    source = NASTY.get(name)
    stops = STOPS.get(name, [STOP]) if source is not None else stops_of(name)
    return Pair(tokenizer_for(source, stops) if source is not None else tokenizer_of(name), stops)


# words that templates look for, white space at the ends, the template's own words, and control tokens
BAIT = [
    "<think>",
    "</think>",
    "</",
    "think>",
    "<|im_end|>",
    "\n",
    " ",
    "user",
    "assistant",
    "/no_think",
    "<|end|>",
    MARK,
]
TEXT = st.lists(st.sampled_from([*BAIT, "a", "Blue sky.", "é漢🙂", "{}", "4"]), min_size=1, max_size=4).map("".join)
TEXTS = st.lists(TEXT.filter(str.strip), min_size=6, max_size=6)
THOUGHTS = st.lists(st.sampled_from(["", "I think.", "a\n", "</think>"]), min_size=3, max_size=3)


@settings(max_examples=100)
@given(
    name=st.sampled_from(sorted({*PATHS, *NASTY})),
    texts=TEXTS,
    thoughts=THOUGHTS,
    start=st.sampled_from(["", "Be brief.", " x\n"]),
    turns=st.sampled_from([2, 4, 6]),
)
def test_a_row_is_the_same_with_and_without_a_skeleton(name, texts, thoughts, start, turns):
    both, row = pair(name), talk(texts[:turns], thoughts, start)
    both.warm(row)
    assert both.agree(row)


@pytest.mark.parametrize("name", sorted({*PATHS, *NASTY}))
def test_plain_rows_are_the_same_and_need_no_rendering(name):
    both = pair(name)
    row = talk(["Why is that?", "Because of light.", "Are you sure?", "Quite sure."], ["", "", ""], "")
    both.warm(row)
    assert both.agree(row)
    assert both.fast.turns.skeletons.possible
    if name not in ("shouts", "never stops") and not name.startswith("the answer first"):
        assert any(isinstance(one, Skeleton) and one.uses for one in both.fast.turns.skeletons.known.values())


# templates that look at the texts themselves
LOOKS = {
    "length": "{% if m.content | length > 9 %}long {% endif %}",
    "letters": "{{ m.content[:2] }}",
    "case": "{{ m.content | upper }}",
    "json": "{{ m.content | tojson }}",
    "words": "{% if m.content in 'Blue sky. and sea' %}known {% endif %}",
    "number": "{{ m.content | int }}",
    "format": "{{ '%s!' | format(m.content) | lower }}",
    "same": "{% if messages[0].content == m.content %}same {% endif %}",
    "order": "{% if m.content > 'K' %}late {% endif %}",
    "lines": "{% for line in m.content.split('a') %}{{ line | trim }}/{% endfor %}",
    "joined": "{{ [m.content, 'a'] | join('-') | replace('a', 'b') }}",
    "glued": "{{ ('a' ~ m.content ~ 'ky').split('sky') | last }}",
    "macro": "{% macro f(x) %}{{ x | trim }}{% endmacro %}{% if 'Blue' in f(m.content) %}blue {% endif %}",
    "set": "{% set x %}<{{ m.content }}>{% endset %}{{ '1' if x.endswith('.>') }}{{ '2' if '<a' in x }}",
    "each": "{% for letter in m.content %}{{ letter }}.{% endfor %}",
}


@cache
def looking(kind):
    source = PLAIN.replace("{{ m.content }}", LOOKS[kind] + "{{ m.content }}")
    return Pair(tokenizer_for(source, [STOP]), [STOP])


@settings(max_examples=100)
@given(kind=st.sampled_from(sorted(LOOKS)), texts=TEXTS, turns=st.sampled_from([2, 4]))
def test_a_template_that_looks_at_the_texts_gives_the_same_rows(kind, texts, turns):
    both, row = looking(kind), talk(texts[:turns], ["", "", ""], "")
    both.warm(row)
    assert both.agree(row)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "phi3", "gemma3"])
def test_plain_conversations_are_put_together_from_patterns(name):
    both = pair(name)
    row = talk(["Why is that?", "Because of light."], ["", "", ""], "")
    both.warm(row)
    assert both.agree(row)
    assert any(isinstance(one, Pattern) and one.uses for one in both.fast.patterns.known.values())
