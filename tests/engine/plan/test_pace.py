"""The time of a step: laws of what devices exchange for a sequence that they share."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.layout.degrees import Degrees
from engine.plan.catalogue import Device
from engine.plan.memory import Model
from engine.plan.pace import Work, context_traffic, estimate, traffic
from engine.plan.parameters import Parameters

HEADS, HIDDEN, LAYERS = 4, 64, 3
LENGTH = 110_880  # divides by all numbers of devices below
MODEL = Model(
    Parameters({"attention": 3000}, ({"attention": 1000},) * LAYERS),
    trainable=100,
    hidden=HIDDEN,
    vocabulary=100,
    heads_width=HIDDEN,
    key_heads=HEADS,
    keys_width=2 * HEADS * 8,
)


def work(context: int, sequences: int = 1) -> Work:
    return Work(LENGTH * sequences // context, LENGTH, 1, everything=False, recompute=False, sequences=sequences)


def sent(context: int, sequences: int = 1, model: Model = MODEL) -> float:
    return context_traffic(model, Degrees(context=context), work(context, sequences))


@pytest.mark.parametrize("context", [1, 2, 4])
def test_context_that_divides_the_heads_costs_the_swaps_alone(context: int) -> None:
    rows = LENGTH // context * HIDDEN * 2
    assert sent(context) == 8 * rows * (1 - 1 / context)


@pytest.mark.parametrize(("context", "ring"), [(8, 2), (12, 3), (3, 3), (5, 5)])
def test_beyond_the_heads_keys_and_values_go_round_and_their_gradients_home(context: int, ring: int) -> None:
    tokens, swapping = LENGTH // context, context // ring
    keys, gradients = tokens * MODEL.keys_width * 2, tokens * MODEL.keys_width * 4
    round_the_ring = 2 * (ring - 1) * keys + ring * gradients
    assert sent(context) == pytest.approx(8 * tokens * HIDDEN * 2 * (1 - 1 / swapping) + round_the_ring)


@given(st.sampled_from([1, 2, 4]), st.integers(1, 10))
def test_more_devices_in_a_ring_never_send_less_of_a_text_between_them(swapping: int, ring: int) -> None:
    model = replace(MODEL, key_heads=swapping)
    few, many = (swapping * devices for devices in (ring, ring + 1))
    assert many * sent(many, model=model) >= few * sent(few, model=model)


def test_texts_that_end_within_a_stretch_do_not_travel() -> None:
    assert sent(3, sequences=3) == 0
    assert 0 < sent(3, sequences=2) < 2 * sent(3)


def test_the_time_of_a_step_has_what_goes_round_the_ring_in_every_layer() -> None:
    device, ring = Device("made up", "cuda", 2**34, 1e15), Degrees(context=4)
    one_head = replace(MODEL, key_heads=1)
    silent = replace(one_head, keys_width=0)
    assert traffic(one_head, ring, work(4)) - traffic(silent, ring, work(4)) == pytest.approx(
        LAYERS * (sent(4, model=one_head) - sent(4, model=silent))
    )
    assert estimate(one_head, device, ring, work(4)).seconds > estimate(silent, device, ring, work(4)).seconds
