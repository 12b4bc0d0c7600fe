"""Memory by part: laws of the arithmetic, on a model of round numbers."""

from dataclasses import replace

import pytest

from engine.layout.degrees import Degrees
from engine.plan.activations import Activations
from engine.plan.memory import Batch, Model, Needs, needs
from engine.plan.parameters import Kind, Parameters
from engine.plan.recipe import Recipe

LAYER: dict[Kind, int] = {"attention": 1000, "experts": 8000, "norm": 10}
MODEL = Model(
    Parameters(
        {"embedding": 5000, "head": 5000, "attention": 4000, "experts": 32000, "norm": 40}, (LAYER,) * 4, (8, 2)
    ),
    trainable=600,
    hidden=10,
    vocabulary=100,
    sliced=("attention", "experts"),
)
ADAPTER = Recipe()
WHOLE = Recipe(everything=True, trained=2, gradient=2, optimizer=4, keeps_gradients=False)
ACTIVE = Activations(kept=10_000, head=500, working=3_000, sliced=0.5)
ONE = Batch(tokens=16)


def need(recipe: Recipe = ADAPTER, **degrees: int) -> Needs:
    return needs(MODEL, recipe, Degrees(**degrees), ACTIVE, ONE)


def test_the_parts_are_the_total() -> None:
    found = need()
    assert found.weights == 2 * 46_040
    assert (found.adapter, found.gradients, found.optimizer) == (2400, 2400, 4800)
    assert (found.activations, found.head, found.gathered, found.dispatch) == (13_000, 0, 0, 0)
    assert found.total == 92_080 + 9600 + 13_000
    assert found.moment == "the backward pass begins"


def test_the_fullest_moment_is_the_one_that_is_told() -> None:
    loud = needs(MODEL, ADAPTER, Degrees(), replace(ACTIVE, head=9_000), ONE)
    assert loud.moment == "the loss is computed"
    assert (loud.activations, loud.head) == (10_000, 9_000)
    quiet = needs(MODEL, WHOLE, Degrees(), replace(ACTIVE, kept=10), ONE)
    assert quiet.moment == "the backward pass ends"
    assert quiet.gradients == 2 * 46_040


@pytest.mark.parametrize("axis", ["shard", "tensor", "expert", "context"])
def test_no_axis_makes_weights_heavier(axis: str) -> None:
    more = {"expert": {"shard": 4, "expert": 4}}.get(axis, {axis: 4})
    assert need(**more).weights <= need(**({"shard": 4} if axis == "expert" else {})).weights


def test_weights_are_shared_by_all_devices_of_a_copy() -> None:
    assert need(shard=4).weights == 2 * 46_040 // 4
    assert need(data=4).weights == 2 * 46_040
    assert need(shard=4, expert=4).weights == 2 * 46_040 // 4


def test_experts_that_stay_where_they_are_are_not_gathered() -> None:
    gathered, stay = need(shard=4), need(shard=4, expert=4)
    assert gathered.gathered == 2 * (2 * 9_010) + 2 * 10_000
    assert stay.gathered == 2 * (2 * 1_010) + 2 * 10_000
    assert stay.dispatch > gathered.dispatch == 0


def test_tensor_cuts_what_the_plan_names() -> None:
    half = need(tensor=2)
    assert half.weights == 2 * (46_040 - 18_000)
    assert half.activations == round(13_000 * 0.75)


def test_all_weights_in_training_share_gradients_and_moments() -> None:
    one, four = need(WHOLE), need(WHOLE, shard=4)
    assert (one.optimizer, four.optimizer) == (4 * 46_040, 46_040)
    assert one.adapter == four.adapter == 0


def test_kept_whole_after_the_forward_pass_costs_weights_and_no_gathering() -> None:
    zero2 = need(replace(WHOLE, reshards=False), shard=4)
    assert zero2.weights == 2 * 46_040
    assert zero2.optimizer == 46_040


def test_a_packed_base_is_shared_but_for_its_scales_and_its_routed_experts_are_not_packed() -> None:
    packed = Recipe(weights=0.5, experts=2.0, scales=0.015)
    assert need(packed).weights == round(4000 * 0.515 + 2 * 42_040)
    assert need(packed, shard=4).weights == round(4000 * (0.5 / 4 + 0.015) + 2 * 42_040 / 4)


def test_experts_published_in_fewer_bits_are_gathered_as_they_are() -> None:
    published = Recipe(weights=1.0)
    assert need(published, shard=4).gathered == 2 * 9_020 + 2 * 10_000
    assert need(published, shard=4, expert=4).weights == round((36_000 + 2 * 10_040) / 4)
