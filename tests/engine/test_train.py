"""A run from its folder to its last event: what it says, how it ends in every way, and what it leaves behind."""

import errno
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import adapter, events, losses, state, trainer
from engine.card import last_component
from engine.events import Eval, Finished, Phase, Sample, Saved, Started, Step, Warned
from engine.train import train
from engine.verify import verify
from tests.engine.runs import ask_at, everything, said


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
def test_a_run_says_what_it_does_and_leaves_a_proven_adapter(make_run, family):
    run = make_run(family=family)
    assert train(run.path) == 0
    assert [phase.phase for phase in said(run, Phase) if phase.phase not in {"loading_data", "training"}] == [
        "starting",
        "loading_model",
        "evaluating",
        "evaluating",
        "sampling",
        "saving",
        "checking_adapter",
    ]
    (started,) = said(run, Started)
    assert (started.total_steps, started.first_step, started.dtype) == (10, 0, "float32")
    assert started.train_rows + started.eval_rows == 24
    assert set(started.versions) >= {"torch", "transformers", "peft", "python"}
    steps = said(run, Step)
    assert [step.step for step in steps] == list(range(1, 11))
    assert steps[-1].loss < steps[0].loss
    assert all(step.memory[0].peak >= step.memory[0].allocated > 0 for step in steps)
    assert [event.step for event in said(run, Eval)] == [5, 10]
    assert said(run, Eval)[0].best
    assert [event.path for event in said(run, Saved)] == ["checkpoints/step-5", "checkpoints/step-10", "adapter"]
    (sample,) = said(run, Sample)
    assert sample.prompt[-1]["role"] == "user"
    finished = everything(run)[-1]
    assert (finished.kind, finished.status, finished.step) == ("finished", "succeeded", 10)


def test_L08_the_adapter_folder_tells_nothing_about_this_machine(make_run, unproven):
    run = make_run()
    assert train(run.path) == 0
    names = {path.name for path in run.adapter.iterdir()}
    assert names >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "README.md",
        "atelier.json",
        "chat.json",
    }
    spec = run.read_spec()
    for path in run.adapter.iterdir():
        content = path.read_bytes()
        for secret in (str(run.path), spec.model, spec.data.dataset, str(Path.home()) + "/"):
            assert secret.encode() not in content, path.name
    assert json.loads((run.adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny-llama"
    assert json.loads((run.adapter / "atelier.json").read_text())["data"]["dataset"] == "chat.jsonl"


def test_L02_L05_the_layers_that_are_trained_are_listed_and_nothing_else_is_in_the_adapter(make_run, unproven):
    run = make_run(lora={"target_modules": ["q_proj", "up_proj"]})
    assert train(run.path) == 0
    assert said(run, Started)[-1].trained_modules == ["q_proj", "up_proj"]
    saved = load_file(run.adapter / "adapter_model.safetensors")
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in saved} == {"q_proj", "up_proj"}
    config = json.loads((run.adapter / "adapter_config.json").read_text())
    assert config["modules_to_save"] is None


def test_L06_the_adapter_brings_the_template_it_was_trained_with(make_run, unproven):
    run = make_run()
    train(run.path)
    template = "chat_template.jinja"
    assert (run.adapter / template).read_bytes() == (Path(run.read_spec().model) / template).read_bytes()


@pytest.mark.parametrize(
    ("path", "name"), [(r"D:\m\x", "x"), (r"G:\models\gemma", "gemma"), ("/a/b/", "b"), ("org/name", "name")]
)
def test_L08_of_a_path_only_the_last_component_is_kept(path, name):
    assert last_component(path) == name


def test_a_base_model_is_called_by_its_hub_id_where_one_is_known(tmp_path):
    folder = tmp_path / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    assert adapter.base_name(str(folder)) == "org/name"
    assert adapter.base_name("org/other") == "org/other"
    plain = tmp_path / "mine"
    plain.mkdir()
    assert adapter.base_name(str(plain)) == "mine"
    (plain / "atelier.json").write_text('{"hub_id": "HuggingFaceTB/SmolLM2-135M-Instruct"}')
    assert adapter.base_name(str(plain)) == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_an_adapter_with_other_logits_does_not_pass_its_check(make_run, unproven, tmp_path):
    run = make_run()
    assert train(run.path) == 0
    probe = tmp_path / "probe.safetensors"
    save_file({"ids": torch.arange(20), "logits": torch.randn(20, 264)}, probe, metadata={"dtype": "torch.float32"})
    verdict = verify(run.adapter, run.read_spec().model, probe)
    assert not verdict["agrees"]
    assert "differ" in verdict["message"]


def test_R04_pause_saves_where_it_stopped_and_the_run_goes_on_from_there(make_run, unproven, monkeypatch):
    straight, paused = make_run("straight"), make_run("paused")
    assert train(straight.path) == 0
    ask_at(monkeypatch, paused, 3, "pause")
    assert train(paused.path) == 0
    finished = everything(paused)[-1]
    assert (finished.status, finished.step) == ("paused", 3)
    assert (paused.checkpoints / "step-3").is_dir()
    assert not paused.stop.exists()
    assert train(paused.path) == 0
    assert said(paused, Started)[-1].first_step == 3
    assert [step.loss for step in said(paused, Step)] == [step.loss for step in said(straight, Step)]
    saved = "adapter_model.safetensors"
    assert (paused.adapter / saved).read_bytes() == (straight.adapter / saved).read_bytes()


def test_cancel_ends_at_the_next_step_and_keeps_the_last_checkpoint(make_run, monkeypatch):
    run = make_run()
    ask_at(monkeypatch, run, 7, "cancel")
    assert train(run.path) == 0
    finished = everything(run)[-1]
    assert (finished.status, finished.step) == ("cancelled", 7)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-5"]
    assert not run.adapter.exists()


def spoil(monkeypatch, bad_steps):
    """Make the loss of some steps NaN."""
    calls = iter(range(1, 1000))

    def imitation(logprobs_N, batch, trained_tokens):
        loss = losses.imitation(logprobs_N, batch, trained_tokens)
        if not torch.is_grad_enabled():  # an evaluation
            return loss
        return loss * float("nan") if next(calls) in bad_steps else loss

    monkeypatch.setattr(sys.modules["engine.methods.sft"], "imitation", imitation)


def test_M02_a_loss_that_is_not_finite_is_a_gap_with_a_warning_and_changes_nothing(make_run, unproven, monkeypatch):
    run = make_run()
    spoil(monkeypatch, {2, 3})
    assert train(run.path) == 0
    assert [step.step for step in said(run, Step) if step.loss is None] == [2, 3]
    assert len([event for event in said(run, Warned) if event.code == "not_finite"]) == 2
    assert "NaN" not in run.events.read_text()
    weights = load_file(run.adapter / "adapter_model.safetensors")
    assert all(value.isfinite().all() for value in weights.values())


def test_three_steps_in_a_row_that_are_not_finite_end_the_run_with_advice(make_run, monkeypatch):
    run = make_run()
    spoil(monkeypatch, {7, 8, 9})
    assert train(run.path) == 1
    finished = everything(run)[-1]
    assert (finished.status, finished.code, finished.step) == ("failed", "diverged", 9)
    assert "step 5" in finished.message
    assert "Learning rate" in finished.advice[0]
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-5"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("asked for 3 GiB"), MemoryError(), "DefaultCPUAllocator: no"])
def test_out_of_memory_names_the_settings_that_would_help(make_run, monkeypatch, error):
    run = make_run(data={"max_length": 512})

    def forward_backward(self, batch, loss):
        raise RuntimeError(error) if isinstance(error, str) else error

    monkeypatch.setattr(trainer.Trainer, "forward_backward", forward_backward)
    assert train(run.path) == 1
    finished = everything(run)[-1]
    assert (finished.status, finished.code) == ("failed", "out_of_memory")
    assert len(finished.advice) == len(finished.changes) == 3
    assert "Recompute" in finished.advice[0]
    assert finished.changes[0].settings == {"training.gradient_checkpointing": True}
    assert "the run held" in finished.message


def test_R05_a_full_disk_pauses_the_run_and_loses_nothing(make_run, unproven, monkeypatch):
    run = make_run()
    real = state.Snapshot.write

    def write(self, folder):
        if self.step == 10:
            (folder / "adapter.safetensors").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, folder)

    monkeypatch.setattr(state.Snapshot, "write", write)
    assert train(run.path) == 0
    finished = everything(run)[-1]
    assert (finished.status, finished.code) == ("paused", "disk_full")
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-5"]
    monkeypatch.setattr(state.Snapshot, "write", real)
    assert train(run.path) == 0
    assert said(run, Started)[-1].first_step == 5
    assert everything(run)[-1].status == "succeeded"


def test_L02_an_adapter_on_embedding_or_head_is_refused_and_never_dropped_in_silence(make_run):
    run = make_run(lora={"target_modules": ["q_proj", "embed_tokens", "lm_head"]})
    assert train(run.path) == 1
    finished = everything(run)[-1]
    assert finished.code == "target_not_supported"
    assert "embed_tokens, lm_head" in finished.message


def test_names_of_layers_that_do_not_exist_are_refused(make_run):
    run = make_run(lora={"target_modules": ["nothing_proj"]})
    assert train(run.path) == 1
    assert everything(run)[-1].code == "targets_not_found"


def test_a_model_folder_without_weights_is_a_message_and_not_a_traceback(make_run, tiny_model, tmp_path):
    folder = tmp_path / "empty-model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((tiny_model() / name).read_bytes())
    run = make_run(model=str(folder))
    assert train(run.path) == 1
    finished = everything(run)[-1]
    assert finished.code == "model_unreadable"
    assert "empty-model" in finished.message


def test_a_broken_spec_is_a_failed_run(tmp_path):
    assert train(tmp_path) == 1
    (finished,) = [event for _, event in events.read(tmp_path / "events.jsonl") if isinstance(event, Finished)]
    assert finished.code == "spec_unreadable"
