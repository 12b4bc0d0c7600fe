"""A base that was published in 8-bit floats stays as it is, and its adapter is one of the base that others unpack."""

import pytest
import torch
from torch import nn
from transformers.integrations.finegrained_fp8 import FP8Linear

from engine import experts, float8
from engine.adapter import _save_weights, write_probe
from engine.build import build
from engine.describe import describe
from engine.failure import Failure
from engine.parity.families import publish_in_float8
from engine.spec import RunSpec
from engine.state import gather
from engine.verify import verify
from tests.engine.models import byte_tokenizer, make_tiny


def filled(layer, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator).to(torch.float8_e4m3fn))
        layer.weight_scale_inv.copy_(torch.rand(layer.weight_scale_inv.shape, generator=generator) + 0.5)
    return layer.requires_grad_(False)


@pytest.mark.parametrize("block", [(4, 16), (16, 16), None])  # 20 rows are no multiple of 16
def test_a_layer_computes_like_its_unpacked_weight_forwards_and_backwards(block, monkeypatch):
    monkeypatch.setattr(float8, "STRIP_BYTES", 1)
    layer = filled(FP8Linear(32, 20, block_size=block, has_bias=True), seed=1)
    layer.bias = nn.Parameter(torch.randn(20, generator=torch.Generator().manual_seed(2)), requires_grad=False)
    assert float8.install(nn.ModuleList([layer])) == 1
    scale = layer.weight_scale_inv.reshape(-1, 1, 1) if block is None else layer.weight_scale_inv
    high, wide = block or (20, 32)
    whole = layer.weight.double() * scale.reshape(-(-20 // high), -(-32 // wide)).double().repeat_interleave(high, 0)[
        :20
    ].repeat_interleave(wide, 1)
    x = torch.randn(3, 5, 32, dtype=torch.float64, requires_grad=True)
    expected = x @ whole.float().double().t() + layer.bias
    found = layer(x)
    assert float((found - expected).abs().max().detach()) < 1e-12
    slope = torch.randn_like(found)
    grads = [torch.autograd.grad(out, x, slope)[0] for out in (found, expected)]
    assert float((grads[0] - grads[1]).abs().max()) < 1e-12


def test_blocks_of_a_gate_and_an_up_projection_in_one_matrix_begin_anew():
    generator = torch.Generator().manual_seed(3)
    small = torch.randn(12, 8, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(4, 1, generator=generator)
    expected = small.double() * scale.double().repeat_interleave(torch.tensor([4, 2, 4, 2]), 0)
    assert torch.equal(float8._joined(small, scale, (4, 8), torch.float64), expected.float().double())


def test_a_form_that_is_not_known_is_refused_by_its_name():
    class Another(FP8Linear):
        pass

    with pytest.raises(Failure, match="odd"):
        float8.install(nn.ModuleDict({"odd": Another(16, 16, block_size=(16, 16))}))


@pytest.mark.parametrize("pieces", [2**30, 1])  # all experts unpacked at once, and one by one
@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_moe", "mistral_large4"])
def test_an_adapter_of_it_is_proven_in_stock_peft_on_the_base_unpacked(family, pieces, tmp_path, monkeypatch):
    monkeypatch.setattr(float8, "UNPACKED_BYTES", pieces)
    base, result, probe = (tmp_path / name for name in ("base", "result", "probe.safetensors"))
    publish_in_float8(make_tiny(family, base))
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear+experts"}
    spec = {
        "model": str(base),
        "data": {"dataset": "d"},
        "lora": lora,
        "training": {"device": "cpu", "dtype": "float32"},
    }
    built = build(RunSpec.model_validate(spec))
    held = [module.down_proj.dtype for _, module in experts.modules(built.model)]
    held += [layer.weight.dtype for layer in built.model.modules() if isinstance(layer, float8.UnpackedLinear)]
    assert len(held) > 4
    assert set(held) == {torch.float8_e4m3fn}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in built.parameters().values():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.2)
    result.mkdir()
    weights = {name: value.detach() for name, value in built.parameters().items()}
    _save_weights(built, gather(weights, built.placements, keep=True), "base", result)
    byte_tokenizer().save_pretrained(result)
    write_probe(built, list(range(40)), probe)
    verdict = verify(result, str(base), probe)
    assert verdict["agrees"], verdict
    assert verdict["effect"] > 0.1


def test_a_model_that_reads_images_besides_can_be_trained_with_text(tmp_path):
    facts = describe(make_tiny("mistral_large4", tmp_path / "base"))
    assert (facts["trainable"], facts["why_not"]) == (True, "")
