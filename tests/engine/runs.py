"""What tests of runs share: runs on a file, what a run said, its parts, a stop on the way, an exact resume."""

import torch

from engine import events
from engine.batches import Plan
from engine.build import build, load_tokenizer, stop_ids
from engine.data import prepare
from engine.methods import METHODS
from engine.trainer import Trainer


def on_rows(make_run, file, *, steps, batch, **settings):
    """`make("name", method={...}, data={...})`: a run on the rows of this file, its method with these settings."""

    def make(name="run", *, method=None, **sections):
        data = {"dataset": str(file), "max_length": 64, **sections.pop("data", {})}
        training = {"max_steps": steps, "per_device_train_batch_size": batch, **sections.pop("training", {})}
        return make_run(name, data=data, training=training, method={**settings, **(method or {})}, **sections)

    return make


def everything(run):
    return [event for _, event in events.read(run.events)]


def said(run, kind):
    return [event for event in everything(run) if isinstance(event, kind)]


def ask_at(monkeypatch, run, step, reason):
    """Ask the run to stop during a step."""
    real = Trainer.optim_step

    def optim_step(self, learning_rate):
        if self.step + 1 == step:
            run.ask_to_stop(reason)
            monkeypatch.setattr(Trainer, "optim_step", real)
        return real(self, learning_rate)

    monkeypatch.setattr(Trainer, "optim_step", optim_step)


def pieces(run):
    """(spec, plan, trainer) of a run folder."""
    spec = run.read_spec()
    torch.manual_seed(spec.training.seed)
    tokenizer = load_tokenizer(spec)
    stops = stop_ids(spec, tokenizer)
    prepared = prepare(spec, tokenizer, stops, lambda event: None)
    plan = Plan(
        prepared.train,
        max_length=spec.data.max_length,
        packing=spec.data.packing,
        batch_size=spec.training.per_device_train_batch_size,
        accumulation=spec.training.gradient_accumulation_steps,
        seed=spec.training.seed,
    )
    return spec, plan, Trainer(build(spec), spec.optimizer, stops)


def assert_resumes(run, folder, at):
    """Steps up to `at`, saved, and the others by a trainer that loads them, are the steps straight, bit for bit."""
    spec, plan, straight = pieces(run)
    expected = list(METHODS["sft"](straight, spec, plan))
    _, _, first = pieces(run)
    for step in METHODS["sft"](first, spec, plan):
        if step.step == at:
            break
    folder.mkdir()
    first.save().write(folder)
    _, _, second = pieces(run)
    second.load(folder)
    assert list(METHODS["sft"](second, spec, plan)) == expected[at:]
    for name, value in straight.built.parameters().items():
        assert torch.equal(value, second.built.parameters()[name]), name
