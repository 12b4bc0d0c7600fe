"""All weights trained: the result is a model folder that stock transformers loads, and resuming is exact."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.adapter import _save_model, write_probe
from engine.build import build
from engine.events import Finished, Sample, Saved, Started, Step
from engine.methods import METHODS
from engine.parity.families import ROUTED
from engine.spec import RunSpec
from engine.train import train
from engine.verify import verify
from tests.engine.models import byte_tokenizer, make_tiny
from tests.engine.runs import assert_resumes, pieces, said

WHOLE = {"full_finetuning": True, "max_steps": 10}
SLOW = {"learning_rate": 1e-3}


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # tied embeddings, and a head of its own
def test_L01_every_weight_is_trained_and_the_saved_model_is_proven_in_stock_transformers(make_run, family):
    run = make_run(family=family, training=WHOLE, optimizer=SLOW)
    assert train(run.path) == 0
    (started,) = said(run, Started)
    assert started.trainable_parameters == started.total_parameters
    assert ("lm_head" in started.trained_modules) == (family == "qwen3")
    assert "embed_tokens" in started.trained_modules
    steps = said(run, Step)
    assert steps[-1].loss < steps[0].loss
    assert [(event.what, event.path) for event in said(run, Saved)][-1] == ("model", "model")
    assert "loads in stock transformers" in said(run, Finished)[-1].message
    (sample,) = said(run, Sample)
    assert sample.base_answer != sample.answer
    saved, base = (AutoModelForCausalLM.from_pretrained(folder) for folder in (run.model, run.read_spec().model))
    changed = [name for name, value in saved.state_dict().items() if not torch.equal(value, base.state_dict()[name])]
    assert set(changed) == set(saved.state_dict())
    assert saved.config.tie_word_embeddings == base.config.tie_word_embeddings


def test_L08_the_model_folder_tells_nothing_about_this_machine(make_run, unproven):
    run = make_run(training={**WHOLE, "max_steps": 1}, optimizer=SLOW)
    assert train(run.path) == 0
    names = {path.name for path in run.model.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "README.md", "atelier.json"}
    for path in run.model.iterdir():
        for secret in (str(run.path), run.read_spec().model, str(Path.home()) + "/"):
            assert secret.encode() not in path.read_bytes(), path.name
    assert "library_name: transformers" in (run.model / "README.md").read_text()
    assert json.loads((run.model / "atelier.json").read_text())["training"]["full_finetuning"]


@pytest.mark.parametrize("family", sorted(ROUTED))  # whose classes join the experts, which files name one by one
def test_L01_a_whole_model_with_routed_experts_loads_in_stock_transformers(family, tmp_path):
    base, result, probe = (tmp_path / name for name in ("base", "result", "probe.safetensors"))
    training = {"full_finetuning": True, "device": "cpu", "dtype": "float32"}
    built = build(
        RunSpec.model_validate({"model": str(make_tiny(family, base)), "data": {"dataset": "d"}, "training": training})
    )
    with torch.no_grad():
        for value in built.parameters().values():
            value.mul_(1.1)
    _save_model(built.model, {}, result)
    byte_tokenizer().save_pretrained(result)
    write_probe(built, list(range(40)), probe)
    verdict = verify(result, str(base), probe)
    assert verdict["agrees"], verdict
    assert verdict["effect"] > 1e-3
    weights = load_file(result / "model.safetensors")
    save_file({**weights, "model.lost.weight": torch.zeros(2)}, result / "model.safetensors", metadata={"format": "pt"})
    assert "tensors were loaded" in verify(result, str(base), probe)["message"]


@pytest.mark.parametrize(("optim", "dtype"), [("adamw_torch_fused", "float32"), ("adamw_bf16", "bfloat16")])
def test_R01_resuming_is_exact_with_all_weights_trained(make_run, tmp_path, optim, dtype):
    run = make_run(training={**WHOLE, "dtype": dtype}, optimizer={**SLOW, "optim": optim})
    assert_resumes(run, tmp_path / "state", 3)


def test_the_base_model_is_inside_the_block_and_the_trained_weights_come_back(make_run):
    spec, plan, trainer = pieces(make_run(training=WHOLE, optimizer=SLOW))
    (batch,) = plan.step(1)
    base = trainer.logprobs(batch)
    list(METHODS["sft"](trainer, spec, plan))
    tuned = trainer.logprobs(batch)
    with trainer.base_model():
        assert torch.equal(trainer.logprobs(batch), base)
    assert torch.equal(trainer.logprobs(batch), tuned)
    assert not torch.equal(base, tuned)


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        ({"training": {"full_finetuning": True, "quantization": "nf4"}}, "quantization must be none"),
        ({"training": {"full_finetuning": True, "dtype": "bfloat16"}}, "adamw_bf16"),
    ],
)
def test_what_cannot_be_trained_well_is_refused_in_the_spec(sections, word):
    with pytest.raises(ValidationError, match=word):
        RunSpec.model_validate({"model": "m", "data": {"dataset": "d"}, **sections})
