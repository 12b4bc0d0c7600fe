"""Norms and gated MLPs in fewer passes: the same numbers, only where they are the same, and less kept."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from engine import fused, lora
from engine.build import build
from engine.spec import RunSpec


def built(tiny_model, family, dtype="float32"):
    spec = RunSpec(model=str(tiny_model(family)), data={"dataset": "x"}, training={"dtype": dtype, "device": "cpu"})
    return build(spec)


def replaced(model, kind):
    return [name for name, module in model.named_modules() if name.endswith(kind) and "forward" in module.__dict__]


def unfused(model):
    for name, module in model.named_modules():
        if "norm" in name or name.endswith(".mlp"):
            module.__dict__.pop("forward", None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "norms", "mlps"),
    [("llama", 5, 2), ("qwen3", 9, 2), ("gemma3_text", 13, 2), ("phi3", 5, 0), ("gpt_oss", 5, 0), ("cohere", 0, 2)],
)
def test_what_can_be_computed_in_fewer_passes_is_found_by_trying(tiny_model, family, norms, mlps, dtype):
    model = built(tiny_model, family, dtype).model
    assert len(replaced(model, "norm")) == norms
    assert len(replaced(model, ".mlp")) == mlps


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "cohere"])
def test_values_and_gradients_are_those_of_the_parts_replaced(tiny_model, family):
    made = built(tiny_model, family)
    with torch.no_grad():
        for value in made.parameters().values():
            value.add_(torch.randn_like(value) * 0.1)
    ids = torch.randint(256, (1, 12))

    def measure():
        for value in made.parameters().values():
            value.grad = None
        hidden = made.trunk(input_ids=ids, use_cache=False).last_hidden_state
        hidden.square().sum().backward()
        return hidden.detach(), {name: value.grad for name, value in made.parameters().items()}

    ours, our_gradients = measure()
    unfused(made.model)
    theirs, their_gradients = measure()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    for name, value in our_gradients.items():
        torch.testing.assert_close(value, their_gradients[name], atol=1e-4, rtol=1e-4, msg=name)


def test_a_norm_keeps_its_input_and_one_number_per_token():
    kept = []
    x = torch.randn(1, 40, 16, dtype=torch.bfloat16, requires_grad=True)
    module = nn.RMSNorm(16, eps=1e-6, dtype=torch.bfloat16).requires_grad_(False)
    assert fused.fuse_norm(module, x.dtype)
    with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
        module(x).sum().backward()
    assert sorted(tuple(value.shape) for value in kept) == [(16,), (40, 1), (40, 16)]
    assert all(value.dtype == torch.bfloat16 for value in kept if value.dim() == 2 and value.shape[1] == 16)


class TwiceNorm(nn.Module):
    """Looks like an RMS norm by name and parameters; is none."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16), requires_grad=False)
        self.eps = 1e-6

    def forward(self, x):
        return 2 * x * self.weight


def test_a_module_that_only_looks_like_a_norm_is_left_alone():
    assert not fused.fuse_norm(TwiceNorm(), torch.float32)


class GatedNorm(nn.RMSNorm):
    """As in the linear attention of Qwen3.5: it wants a gate besides."""

    def forward(self, x, gate):
        return super().forward(x) * torch.sigmoid(gate)


def test_a_norm_that_wants_more_than_hidden_states_stays_as_it_is():
    assert not fused.fuse_norm(GatedNorm(8, eps=1e-6), torch.float32)


def test_a_norm_in_training_goes_its_own_way():
    module = nn.RMSNorm(16, eps=1e-6).requires_grad_(False)
    assert fused.fuse_norm(module, torch.float32)
    module.requires_grad_(True)
    module(torch.randn(3, 16)).square().sum().backward()
    assert module.weight.grad is not None


def test_the_base_model_is_untouched_where_the_adapter_is_off(tiny_model):
    made = built(tiny_model, "llama")
    with torch.no_grad():
        for value in made.parameters().values():
            value.add_(0.1)
    ids = torch.randint(256, (1, 12))
    stock = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)
    with torch.no_grad(), lora.switched_off(made.model):
        torch.testing.assert_close(made.model(input_ids=ids).logits, stock(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
