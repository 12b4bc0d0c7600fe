"""A hostile chat template ends in a clear error."""

import threading
import time

import pytest

from engine.failure import Failure
from engine.render.limits import Limits, bounded
from engine.render.renderer import Renderer
from engine.render.template import raises_to_a_power
from tests.engine.render.conversations import chat, said, user
from tests.engine.render.families import tokenizer_for

ROW = chat(user("a"), said("b"))
TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
LONG = "{% for i in range(99999) %}{% for j in range(99999) %}"
DONE = "{% endfor %}{% endfor %}"
GROWING = "{{% set n = namespace(s={0}) %}}{{% for i in range(99) %}}{{% set n.s = n.s {1} n.s %}}{{% endfor %}}"
HOSTILE = {
    "an endless loop": (LONG + DONE, "did not end"),
    "an endless loop that writes": (LONG + "{{ i }} lines" + DONE, "did not end|memory"),
    "growing text": (GROWING.format("'aaaa'", "~"), "memory"),
    "huge text": ("{{ 'a' * 99999999999 }}", "memory"),
    "huge white space": ("{{ 'a' | center(9999999999) }}", "memory"),
    "huge numbers": ("{{ '%9999999999d' % 1 }}", "memory"),
    "growing numbers": (GROWING.format(99999, "*"), "did not end"),
    "powers": ("{{ 9 ** 9 ** 9 }}", "power"),
    "too much text": ("{{ 'a' * 3000000 }}", "at most 2,000,000"),
}
SMALL = Limits(seconds=0.3, memory=1 << 28, characters=2_000_000)


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_template_ends_in_a_clear_error(attack):
    source, said_so = HOSTILE[attack]
    tokenizer = tokenizer_for(TURN + source, ["<|end|>"])
    started = time.monotonic()
    with pytest.raises(Failure, match=said_so) as caught:
        Renderer(tokenizer, [tokenizer.eos_token_id], limits=SMALL).render(ROW)
    assert caught.value.code == "template_limit"
    assert caught.value.advice
    assert time.monotonic() - started < 20


def test_endless_recursion_is_a_refusal():
    source = TURN + "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"
    tokenizer = tokenizer_for(source, ["<|end|>"])
    [refusal] = Renderer(tokenizer, [tokenizer.eos_token_id]).render(ROW).refusals
    assert refusal.code == "template_refuses"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 2 ** 8 }}", True),
        ("{{ n.x**n.x }}", True),
        ("**bold** {{ a * b }} {# 2 ** 8 #} {{ '**' }}", False),
        ("{{ dict(**message) }}{{ dict(a, **message) }}", False),
    ],
)
def test_powers_are_told_from_text_and_named_arguments(source, expected):
    assert raises_to_a_power(source) is expected


def test_limits_leave_nothing_behind_and_do_not_need_the_main_thread():
    done = []

    def render():
        with bounded(Limits(seconds=0.2)):
            done.append(sum(range(1000)))

    thread = threading.Thread(target=render)
    thread.start()
    thread.join()
    assert done
    with bounded(Limits(seconds=0.05)):
        pass
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
