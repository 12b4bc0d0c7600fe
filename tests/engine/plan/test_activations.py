"""Activations: what is counted without memory is what a real step keeps, to the byte or nearly."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from engine import attention
from engine.build import build
from engine.plan import activations
from engine.plan.activations import Live
from engine.plan.twin import make, read_config
from engine.spec import Data, RunSpec
from tests.engine.conftest import TinyModel

SPEC = RunSpec(model="m", data=Data(dataset="d"))
TOKENS = 96
CASES = [
    ("llama", False),
    ("llama", True),
    ("gpt_oss", False),
    ("gemma3_text", False),
    ("mistral", False),
    ("cohere", True),
]


def kept_by_a_real_step(folder: Path, recompute: bool) -> tuple[int, int]:
    """Bytes between forward and backward, and at most above them in the backward pass."""
    spec = RunSpec.model_validate(
        {
            "model": str(folder),
            "data": {"dataset": "d"},
            "training": {"dtype": "float32", "device": "cpu", "gradient_checkpointing": recompute},
        }
    )
    built = build(spec)
    built.model.train()
    live = Live(built.model)
    with live:
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        positions = torch.arange(TOKENS)[None]
        documents = {} if built.alone else {"documents": attention.Documents((TOKENS,))}
        out = built.trunk(input_ids=ids, position_ids=positions, use_cache=False, **documents)
        hidden = out.last_hidden_state[0]
        del out
        kept, live.peak = live.now, live.now
        hidden.sum().backward()
    return kept, live.peak - kept


@pytest.mark.parametrize(("family", "recompute"), CASES)
def test_a_real_step_keeps_what_was_planned(tiny_model: TinyModel, family: str, recompute: bool) -> None:
    folder = tiny_model(family)
    kept, _ = kept_by_a_real_step(folder, recompute)
    spec = RunSpec.model_validate({"model": str(folder), "data": {"dataset": "d"}})
    planned = activations.measure(
        make(read_config(str(folder)), torch.float32, spec), [TOKENS], kind="cpu", recompute=recompute
    )
    assert planned.kept == pytest.approx(kept, rel=0.03)


def test_layers_that_are_alike_are_run_once_and_counted_all() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 64}
    few, many = (
        activations.measure(
            make(LlamaConfig(num_hidden_layers=layers, **sizes), torch.bfloat16, SPEC),
            [64],
            kind="cuda",
            recompute=False,
        )
        for layers in (3, 30)
    )
    assert many.kept == pytest.approx(10 * few.kept, rel=0.1)
    assert many.working == few.working


def test_recompute_keeps_less_and_works_more() -> None:
    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_hidden_layers=8)
    made = make(config, torch.bfloat16, SPEC)
    plain, again = (activations.measure(made, [256], kind="cuda", recompute=which) for which in (False, True))
    assert again.kept < plain.kept / 5
    assert again.working > plain.working
    assert 0.5 < plain.sliced < 1.0
