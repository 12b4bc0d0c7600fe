"""Parameters of published models, exact, from their configurations alone."""

import resource
import time
from functools import cache

import pytest
import torch
from transformers import GptOssConfig, MistralLarge4Config

from engine.plan.parameters import kind_of
from engine.plan.twin import Twin, make
from engine.spec import Data, RunSpec

SPEC = RunSpec(model="m", data=Data(dataset="d"))
MODELS = {
    "gpt-oss-20b": GptOssConfig(num_hidden_layers=24, num_local_experts=32),
    "gpt-oss-120b": GptOssConfig(num_hidden_layers=36, num_local_experts=128),
}


@cache
def twin(name: str) -> Twin:
    return make(MODELS[name], torch.bfloat16, SPEC)


def test_gpt_oss_20b_is_counted_exactly() -> None:
    counted = twin("gpt-oss-20b").parameters
    assert counted.total == 20_914_757_184
    assert counted.by_kind["experts"] == 19_116_933_120
    assert round(counted.active / 1e9, 2) == 4.19
    assert round(counted.local(2) / 1e9, 3) == 11.356
    assert round(counted.local(8) / 1e9, 3) == 4.187


def test_gpt_oss_120b_is_counted_exactly() -> None:
    counted = twin("gpt-oss-120b").parameters
    assert counted.total == 116_829_156_672
    assert counted.by_kind["experts"] == 114_701_598_720
    assert round(counted.active / 1e9, 2) == 5.71
    assert round(counted.local(8) / 1e9, 3) == 16.465


def test_a_trillion_parameters_are_counted_in_seconds_and_little_memory() -> None:
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = make(MistralLarge4Config(), torch.bfloat16, SPEC)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert made.parameters.total == 1_051_822_421_536
    assert round((made.parameters.total - made.parameters.by_kind["vision"]) / 1e9, 1) == 1_050.1
    assert round(made.parameters.by_kind["experts"] / 1e9, 1) == 1_029.2
    assert round((made.parameters.active - made.parameters.by_kind["vision"]) / 1e9, 1) == 53.1
    assert round(made.parameters.by_kind["experts"] / 8e9, 1) == 128.6
    assert time.process_time() - began < 60
    assert more < 2 * 2**20  # KiB


def test_an_adapter_is_counted_as_the_engine_would_make_it() -> None:
    layers, rank = 24, 16
    attention = 64 * 64 + 2880, 2 * (8 * 64 + 2880), 64 * 64 + 2880  # q, k and v, o: inputs and outputs
    router = 0  # a matrix that is no linear layer
    assert twin("gpt-oss-20b").trainable == layers * rank * (sum(attention) + router)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.embed_tokens.weight", "other"),
        ("model.layers.3.self_attn.q_proj.weight", "attention"),
        ("model.layers.3.mlp.gate_proj.weight", "mlp"),
        ("model.layers.3.mlp.gate.weight", "router"),
        ("model.layers.3.mlp.router.bias", "router"),
        ("model.layers.3.mlp.experts.gate_up_proj", "experts"),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", "shared_experts"),
        ("model.layers.3.mlp.shared_expert_gate.weight", "shared_experts"),
        ("model.layers.3.input_layernorm.weight", "norm"),
        ("model.layers.3.self_attn.q_norm.weight", "norm"),
        ("model.layers.3.linear_attn.in_proj.weight", "attention"),
        ("model.vision_tower.transformer.layers.0.attention.q_proj.weight", "vision"),
        ("model.visual.blocks.0.mlp.fc1.weight", "vision"),
    ],
)
def test_a_parameter_is_known_by_its_place(name: str, kind: str) -> None:
    assert kind_of(name) == kind
