"""A base in fewer bits learns through the same loop, and its adapter loads in stock PEFT."""

import pytest
import torch
from torch import nn

from engine import nf4
from engine.events import Finished, Step
from engine.failure import Failure
from engine.quantized import Float8Linear, check, frozen_numbers, hold_in_float8
from engine.train import train
from tests.engine.runs import pieces, said


def test_a_run_on_a_base_in_four_bits_leaves_an_adapter_that_is_proven_in_stock_peft(make_run):
    run = make_run(training={"quantization": "nf4"}, saving={"eval_steps": 10, "save_steps": 10})
    assert train(run.path) == 0
    steps = said(run, Step)
    assert steps[-1].loss < steps[0].loss
    assert "loads in stock PEFT" in said(run, Finished)[-1].message


def test_a_base_in_four_bits_holds_its_linear_layers_in_a_quarter_of_the_memory(make_run):
    _, _, plain = pieces(make_run("plain", training={"dtype": "bfloat16"}))
    _, _, small = pieces(make_run("small", training={"dtype": "bfloat16", "quantization": "nf4"}))

    def held(trainer):
        return sum(
            layer.base_layer.weight.nbytes for layer in trainer.built.model.modules() if hasattr(layer, "lora_A")
        )

    assert held(small) * 4 == held(plain)
    assert frozen_numbers(small.built.model) == frozen_numbers(plain.built.model)


def test_dora_learns_on_a_base_in_four_bits(make_run):
    _, plan, trainer = pieces(make_run(training={"quantization": "nf4"}, lora={"use_dora": True}))
    before = trainer.logprobs(plan.step(1)[0])
    trainer.forward_backward(plan.step(1)[0], lambda logprobs_N, _: -logprobs_N.mean())
    assert not trainer.optim_step(1e-2).skipped
    assert not torch.equal(trainer.logprobs(plan.step(1)[0]), before)


def test_eight_bit_floats_are_refused_where_the_device_has_none():
    with pytest.raises(Failure, match="CPU devices") as refused:
        check("fp8", torch.device("cpu"), torch.bfloat16)
    assert "nf4" in refused.value.advice[0]


def test_a_run_in_eight_bit_floats_is_refused_before_anything_is_loaded(make_run):
    run = make_run(training={"quantization": "fp8", "dtype": "bfloat16"})
    assert train(run.path) == 1
    assert said(run, Finished)[-1].code == "quantization_not_here"
    assert "loading_data" not in run.events.read_text()


def test_a_layer_in_eight_bit_floats_gives_nearly_the_same_values_and_gradients():
    layer = nn.Linear(64, 48).bfloat16().requires_grad_(False)
    other = nn.Linear(64, 30).bfloat16().requires_grad_(False)  # no multiple of 16: stays
    x = torch.randn(5, 7, 64, dtype=torch.bfloat16, requires_grad=True)
    expected = layer(x)
    expected.square().sum().backward()
    slope, x.grad = x.grad, None
    assert hold_in_float8(nn.ModuleList([layer, other])) == 1
    assert isinstance(layer, Float8Linear)
    assert layer.weight.nbytes == 64 * 48
    found = layer(x)
    found.square().sum().backward()
    assert float(((found - expected).norm() / expected.norm()).detach()) < 0.06
    assert float((x.grad - slope).norm() / slope.norm()) < 0.08


def test_an_adapter_learns_on_a_base_in_eight_bit_floats(make_run, unproven, monkeypatch):
    monkeypatch.setattr("engine.run.check_possible", lambda spec: None)
    run = make_run(training={"quantization": "fp8", "dtype": "bfloat16"})
    assert train(run.path) == 0
    steps = said(run, Step)
    assert steps[-1].loss < steps[0].loss


def test_a_layer_in_four_bits_has_the_gradient_of_its_unpacked_weight():
    library = pytest.importorskip("bitsandbytes")
    layer = library.nn.Linear4bit(64, 48, bias=True, quant_type="nf4", compute_dtype=torch.float32)
    layer = nn.ModuleList([layer.to("cpu")]).requires_grad_(False)
    state = layer[0].weight.quant_state
    whole = library.functional.dequantize_4bit(layer[0].weight.data, state)
    assert nf4.install(layer, torch.float32) == 1
    assert layer[0].weight.nbytes * 2 == whole.numel()
    x = torch.randn(5, 64, requires_grad=True)
    slope = torch.randn(5, 48)
    (found,) = torch.autograd.grad(layer[0](x), x, slope)
    assert torch.equal(found, slope @ whole)
    assert float((layer[0](x) - layer[0](x.detach())).detach().abs().max()) < 1e-5
    assert layer[0](x.detach().double()).dtype == torch.float64
