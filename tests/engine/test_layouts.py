"""Layouts without processes: degrees, shares, pieces, and what is refused before anything runs."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.batches import NOTHING, MicroBatch, gather
from engine.failure import Failure
from engine.layout.context import Stretch
from engine.layout.degrees import Degrees, degrees_of, devices_of
from engine.layout.gradients import Gradients
from engine.layout.mesh import Group, Mesh
from engine.layout.placement import Placement
from engine.layout.rules import refusals
from engine.spec import Layout, RunSpec
from tests.engine.test_batches import samples_of

DEGREES = st.builds(Degrees, *[st.integers(1, 3)] * 3, st.just(1), st.integers(1, 3))
DENSE = {"num_attention_heads": 8, "num_key_value_heads": 2}
ROUTED = {**DENSE, "num_experts": 16}
PUBLISHED = {**ROUTED, "quantization_config": {"quant_method": "fp8"}}


def everything(lengths):
    return gather(samples_of(lengths), range(len(lengths)))


def spec(**sections):
    return RunSpec.model_validate({"model": "m", "data": {"dataset": "d"}, **sections})


@given(DEGREES)
def test_every_process_has_a_place_of_its_own(degrees):
    places = {
        (degrees.batch_index(rank), degrees.context_index(rank), degrees.tensor_index(rank))
        for rank in range(degrees.processes)
    }
    assert len(places) == degrees.processes
    assert max(places) == (degrees.batches - 1, degrees.context - 1, degrees.tensor - 1)


def test_experts_are_spread_over_neighbours_of_one_copy():
    degrees = Degrees(data=2, shard=2, tensor=2, expert=2)
    assert [degrees.expert_index(rank) for rank in range(8)] == [0, 1, 0, 1, 0, 1, 0, 1]


def test_auto_shards_over_the_devices_that_are_left():
    assert devices_of(Layout()) == 1
    assert degrees_of(Layout(), 4) == Degrees(shard=4)
    assert degrees_of(Layout(tensor=2), 4) == Degrees(shard=2, tensor=2)
    assert degrees_of(Layout(shard=2), 4) == Degrees(data=2, shard=2)
    assert str(degrees_of(Layout(tensor=2), 4)) == "shard 2 x tensor 2"


@pytest.mark.parametrize(("layout", "count"), [(Layout(tensor=3), 4), (Layout(data=1, shard=2), 4)])
def test_devices_that_make_no_whole_copies_are_refused(layout, count):
    with pytest.raises(ValueError, match="devices"):
        degrees_of(layout, count)


@given(st.integers(0, 11), st.integers(1, 4))
def test_shares_are_everything_once_and_equally_many(count, ways):
    meshes = [Mesh(batches=Group(ways, index)) for index in range(ways)]
    shares = [mesh.share(list(range(count)), -1) for mesh in meshes]
    assert len({len(share) for share in shares}) == 1
    assert sorted(one for share in shares for one in share if one >= 0) == list(range(count))


class Everyone(Group):
    """A group whose members are all here."""

    def gather(self, value):
        return self.pieces


@given(st.integers(0, 1), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_pieces_make_the_whole_again(dim, ways, blocks, times):
    shape = [3, 3]
    shape[dim] = ways * blocks * times
    whole = torch.randn(shape)
    places = [Placement(dim=dim, over=Everyone(ways, index), blocks=blocks) for index in range(ways)]
    pieces = [place.cut(whole) for place in places]
    for place, piece in zip(places, pieces, strict=True):
        object.__setattr__(place.over, "pieces", pieces)
        assert torch.equal(place.whole(piece), whole)
        assert place.whole_shape(piece.shape) == whole.shape


@given(st.lists(st.integers(2, 9), min_size=1, max_size=5), st.integers(1, 4))
def test_stretches_are_the_whole_sequence_and_predict_every_target_once(lengths, ways):
    batch = everything(lengths)
    stretches = [Stretch.of(batch, Group(ways, index)) for index in range(ways)]
    assert len({stretch.here.stop - stretch.here.start for stretch in stretches}) == 1
    found = torch.cat([torch.from_numpy(stretch.targets_n) for stretch in stretches])
    expected = torch.from_numpy(batch.ids_T[batch.trained_T])
    assert torch.equal(found[torch.from_numpy(stretches[0].places_N)], expected)


def test_a_batch_that_is_filled_up_trains_nothing_more():
    batch = everything([3, 4])
    filled = batch.filled([2, 1])
    assert filled.tokens == batch.tokens + 3
    assert filled.trained_tokens == batch.trained_tokens
    assert NOTHING.trained_tokens == 0
    assert replace(batch, idle=2).texts == 4
    assert isinstance(filled, MicroBatch)


class Silent(Group):
    """A group whose other members have zeros to add."""

    def sum_(self, value):
        return value


def test_a_parameter_that_no_device_reaches_has_no_gradient_as_on_one_device():
    world = Silent(2, 0)
    values = {name: torch.nn.Parameter(torch.ones(2)) for name in ("reached", "passed by")}
    values["reached"].grad = torch.tensor([3.0, 4.0])
    gradients = Gradients(values, dict.fromkeys(values, Placement(sums=world)), Mesh(world=world))
    gradients.synchronise()
    assert values["passed by"].grad is None
    assert values["reached"].grad.tolist() == [3.0, 4.0]


def test_a_trained_parameter_that_no_rule_places_is_refused():
    lost = {"a.weight": torch.nn.Parameter(torch.zeros(2))}
    with pytest.raises(Failure, match=r"a\.weight"):
        Gradients(lost, {}, Mesh(world=Group(2, 0)))


@pytest.mark.parametrize(
    ("sections", "config", "degrees", "setting"),
    [
        ({}, DENSE, Degrees(shard=2, expert=2), "layout.expert"),
        ({}, ROUTED, Degrees(shard=3, expert=3), "layout.expert"),
        ({}, ROUTED, Degrees(shard=2, expert=4), "layout.expert"),
        ({}, ROUTED, Degrees(shard=4, tensor=2, expert=1), ""),
        ({}, {**DENSE, "num_experts": 12}, Degrees(shard=3, tensor=2, expert=3), "layout.expert"),
        ({}, DENSE, Degrees(tensor=4), "layout.tensor"),
        ({"lora": {"lora_dropout": 0.1}}, DENSE, Degrees(tensor=2), "lora.lora_dropout"),
        ({"lora": {"lora_dropout": 0.1}}, DENSE, Degrees(shard=2), ""),
        ({}, DENSE, Degrees(context=8), ""),
        ({}, DENSE, Degrees(context=3), ""),
        ({}, DENSE, Degrees(tensor=2, context=8), ""),
        ({}, {**DENSE, "attention_dropout": 0.1}, Degrees(context=2), ""),
        ({}, {**DENSE, "attention_dropout": 0.1}, Degrees(context=4), "layout.context"),
        ({}, {**DENSE, "attention_dropout": 0.1}, Degrees(tensor=2, context=2), "layout.context"),
        ({}, {**DENSE, "layer_types": ["linear_attention"]}, Degrees(context=2), "layout.context"),
        ({}, {"text_config": {**DENSE, "index_topk": 8}}, Degrees(context=2), "layout.context"),
        ({"lora": {"use_dora": True}}, DENSE, Degrees(shard=2), "lora.use_dora"),
        ({"lora": {"use_dora": True}}, DENSE, Degrees(data=2), ""),
        (
            {"lora": {"target_modules": "all-linear+experts", "use_dora": True}},
            ROUTED,
            Degrees(),
            "lora.target_modules",
        ),
        ({"training": {"full_finetuning": True}}, DENSE, Degrees(data=2, shard=2, context=2), ""),
        ({"training": {"full_finetuning": True}}, DENSE, Degrees(tensor=2), "training.full_finetuning"),
        ({"training": {"full_finetuning": True}}, ROUTED, Degrees(shard=2, expert=2), "training.full_finetuning"),
        (
            {"training": {"full_finetuning": True}, "optimizer": {"optim": "adamw_bf16"}},
            DENSE,
            Degrees(shard=2),
            "optimizer.optim",
        ),
        ({"training": {"quantization": "nf4"}}, DENSE, Degrees(data=2, shard=2, context=2), ""),
        ({"training": {"quantization": "nf4"}}, DENSE, Degrees(tensor=2), "training.quantization"),
        ({"training": {"quantization": "nf4"}}, ROUTED, Degrees(shard=2, expert=2), ""),
        ({"training": {"quantization": "fp8"}}, DENSE, Degrees(data=2), ""),
        ({"training": {"quantization": "fp8"}}, DENSE, Degrees(shard=2), "training.quantization"),
        ({"training": {"quantization": "nf4"}}, PUBLISHED, Degrees(), "training.quantization"),
        ({"training": {"full_finetuning": True}}, PUBLISHED, Degrees(), "training.full_finetuning"),
        ({}, PUBLISHED, Degrees(data=2, shard=2, context=2, expert=4), ""),
        ({}, PUBLISHED, Degrees(tensor=2), "layout.tensor"),
        ({"lora": {"use_dora": True}}, PUBLISHED, Degrees(), "lora.use_dora"),
        ({"optimizer": {"optim": "adamw_8bit"}}, DENSE, Degrees(tensor=2), "optimizer.optim"),
        ({"layout": {"hosts": 2}}, DENSE, Degrees(), "layout.hosts"),
        ({"layout": {"data": 3, "hosts": 2}}, DENSE, Degrees(data=3), "layout.hosts"),
        ({"layout": {"data": 2, "shard": 2, "hosts": 2}}, DENSE, Degrees(data=2, shard=2), ""),
    ],
)
def test_what_cannot_be_combined_is_told_with_its_reason(sections, config, degrees, setting):
    found = refusals(spec(**sections), config, degrees)
    assert [refusal.setting for refusal in found][:1] == ([setting] if setting else [])
    assert all(refusal.why.endswith(".") and refusal.advice.endswith(".") for refusal in found)
