"""Layers on the same input in one product: the same numbers as one after another, whatever the model's code does."""

import pytest
import torch

from engine import lora, memory, siblings
from engine.build import build
from engine.spec import RunSpec


@pytest.fixture(params=["llama", "gpt_oss"])  # gpt_oss has biases
def attention(request, tiny_model):
    spec = RunSpec(model=str(tiny_model(request.param)), data={"dataset": "x"}, training={"dtype": "float32"})
    made = build(spec)
    with torch.no_grad():
        for name, value in made.parameters().items():
            if "lora_B" in name:
                value.normal_(std=0.1)
    return made.trunk.layers[0].self_attn


def projections(attention):
    return [attention.q_proj, attention.k_proj, attention.v_proj]


def waiting(layer):
    return layer.forward.func.__self__.waiting


def gradients(layers, x):
    x = x.clone().requires_grad_()
    outs = [layer(x) for layer in layers]
    sum(out.square().sum() for out in outs).backward()
    adapters = [value for layer in layers for name, value in layer.named_parameters() if "lora" in name]
    found = [out.detach() for out in outs] + [x.grad] + [value.grad for value in adapters]
    for value in adapters:
        value.grad = None
    return found


def test_values_and_gradients_are_those_of_one_layer_after_another(attention):
    layers = projections(attention)
    x = torch.randn(2, 5, layers[0].in_features)
    together = gradients(layers, x)
    for layer in layers:
        del layer.__dict__["forward"]
    for ours, theirs in zip(together, gradients(layers, x), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_layers_are_right_in_any_order_and_on_inputs_of_their_own(attention):
    q, k, v = projections(attention)
    x, y = torch.randn(2, 3, q.in_features)
    expected = {(layer, name): layer(given) for layer in (q, k, v) for name, given in (("x", x), ("y", y))}
    asked = [(v, "x"), (q, "y"), (k, "x"), (q, "x"), (q, "x"), (v, "y")]
    for layer, name in asked:
        torch.testing.assert_close(layer({"x": x, "y": y}[name]), expected[layer, name])


def test_nothing_waits_once_all_have_been_called(attention):
    layers = projections(attention)
    x = torch.randn(3, layers[0].in_features)
    layers[0](x)
    assert set(waiting(layers[0])) == {1, 2}
    layers[1](x)
    layers[2](x)
    assert waiting(layers[0]) == {}


def test_weights_are_held_once(attention):
    bases = [layer.base_layer for layer in projections(attention)]
    assert len({base.weight.untyped_storage().data_ptr() for base in bases}) == 1
    held = bases[0].weight.untyped_storage().nbytes()
    assert held == sum(base.weight.numel() * base.weight.element_size() for base in bases)


def test_with_the_adapter_off_each_is_the_base_layer(attention):
    layers = projections(attention)
    x = torch.randn(3, layers[0].in_features)
    with lora.switched_off(attention):
        assert all(torch.equal(layer(x), layer.base_layer(x)) for layer in layers)


def test_layers_of_which_one_has_no_adapter_stay_apart(tiny_model):
    spec = RunSpec(
        model=str(tiny_model("llama")),
        data={"dataset": "x"},
        training={"dtype": "float32"},
        lora={"target_modules": ["q_proj", "v_proj"]},
    )
    attention = build(spec).trunk.layers[0].self_attn
    assert not siblings.join(attention)
    attention.q_proj(torch.randn(3, attention.q_proj.in_features))


def test_weights_that_were_put_together_leave_nothing_mapped_from_the_file(attention):
    weights = [value for value in attention.parameters() if not value.requires_grad]
    before = [value.clone() for value in weights]
    places = {value.untyped_storage().data_ptr() for value in weights}
    memory.settle(attention)
    kept = {value.untyped_storage().data_ptr() for value in weights} & places
    together = (attention.q_proj.base_layer.weight, attention.q_proj.base_layer.bias)
    assert kept == {value.untyped_storage().data_ptr() for value in together if value is not None}
    assert all(torch.equal(one, other) for one, other in zip(weights, before, strict=True))
