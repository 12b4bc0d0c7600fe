"""Adapters of routed experts: stock PEFT loads them and gives the trainer's logits and gradients."""

import pytest
import torch
from peft import PeftModel

from engine.adapter import _save_weights
from engine.auto import class_for
from engine.build import build
from engine.layout.mesh import Mesh
from engine.parity.families import ROUTED, make_twin
from engine.spec import RunSpec
from engine.state import gather


def built_of(folder, **lora):
    sections = {"lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear+experts", **lora}}
    spec = RunSpec.model_validate({"model": str(folder), "data": {"dataset": "d"}, **sections})
    built = build(spec, Mesh(), torch.float64)
    with torch.no_grad():
        for value in built.parameters().values():
            value.copy_(torch.randn_like(value) * 0.2)
    return built


def logits_of(model, ids):
    return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("family", sorted(ROUTED))
def test_stock_peft_has_the_same_logits(family, tmp_path):
    built = built_of(make_twin(family, tmp_path / "base"))
    folder = tmp_path / "adapter"
    folder.mkdir()
    weights = {name: value.detach() for name, value in built.parameters().items()}
    _save_weights(built, gather(weights, built.placements, keep=True), "base", folder)
    loading = {"dtype": torch.float64, "experts_implementation": "eager"}
    base = class_for(str(tmp_path / "base")).from_pretrained(tmp_path / "base", **loading)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        built.model.set_attn_implementation(built.native_attention)
        ours, without = logits_of(built.model, ids), logits_of(base, ids)
        theirs = logits_of(PeftModel.from_pretrained(base, str(folder)).eval(), ids)
    assert float((ours - theirs).abs().max()) < 1e-6
    assert float((ours - without).abs().max()) > 0.1
    with torch.no_grad(), built.base_model():
        assert float((logits_of(built.model, ids) - without).abs().max()) < 1e-6
