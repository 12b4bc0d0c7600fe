"""Checkpoints are written beside the training: it stops for the copy of its state only, and nothing else changes."""

import errno
import time
from threading import Event, Lock

import pytest
import torch

from engine import checkpoint, events, state
from engine.checkpoint import Checkpoints, fault_of
from engine.events import Finished, Saved, Step
from engine.methods import METHODS
from engine.train import train
from engine.trainer import Trainer
from engine.writer import Writer
from tests.engine.runs import everything, pieces, said

pytestmark = pytest.mark.usefixtures("unproven")

PATIENCE = 30.0  # seconds that a test waits for what must come
OFTEN = {"training": {"max_steps": 6}, "saving": {"sample_prompts": 0, "save_steps": 2, "eval_steps": 6}}


def steps_saved(run):
    return [event.step for event in said(run, Saved) if event.what == "checkpoint"]


def test_training_goes_on_while_a_checkpoint_is_written_and_it_is_told_when_it_is_whole(make_run, monkeypatch):
    further, in_time = Event(), []
    real_step, real_mark = Trainer.optim_step, checkpoint._mark

    def optim_step(self, learning_rate):
        done = real_step(self, learning_rate)
        if done.step == 4:
            further.set()
        return done

    def mark(folder):
        in_time.append(further.wait(PATIENCE))
        real_mark(folder)

    monkeypatch.setattr(Trainer, "optim_step", optim_step)
    monkeypatch.setattr(checkpoint, "_mark", mark)
    run = make_run(**OFTEN)
    assert train(run.path) == 0
    assert all(in_time)
    told = [(type(event).__name__, event.step) for event in everything(run) if isinstance(event, (Step, Saved))]
    assert told.index(("Saved", 2)) > told.index(("Step", 4))
    assert steps_saved(run) == [2, 4, 6]


def test_two_checkpoints_are_never_written_at_once_and_each_is_whole_when_it_is_told(make_run, monkeypatch):
    alone, real_save, real_append = Lock(), Checkpoints.save, events.append

    def save(self, *given):
        assert alone.acquire(blocking=False)
        try:
            time.sleep(0.02)
            return real_save(self, *given)
        finally:
            alone.release()

    def append(path, event):
        if isinstance(event, Saved):
            assert not alone.locked()
            assert event.what != "checkpoint" or not fault_of(path.parent / event.path)
        real_append(path, event)

    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr(events, "append", append)
    run = make_run(**(OFTEN | {"saving": {"sample_prompts": 0, "save_steps": 1, "eval_steps": 1}}))
    assert train(run.path) == 0
    assert steps_saved(run) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fatal", [2, 6])
def test_a_disk_that_fills_up_in_the_background_pauses_the_run_which_then_goes_on(make_run, monkeypatch, fatal):
    straight, run = make_run("straight", **OFTEN), make_run("full", **OFTEN)
    assert train(straight.path) == 0
    real = state._write

    def write(path, tensors):
        if path.parent.name == f".step-{fatal}.partial":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, tensors)

    with monkeypatch.context() as full:
        full.setattr(state, "_write", write)
        assert train(run.path) == 0
    end = said(run, Finished)[-1]
    assert (end.status, end.code) == ("paused", "disk_full")
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [f"step-{step}" for step in range(2, fatal, 2)]
    assert train(run.path) == 0
    losses = {step.step: step.loss for step in said(run, Step)}
    assert losses == {step.step: step.loss for step in said(straight, Step)}
    weights = "adapter_model.safetensors"
    assert (run.adapter / weights).read_bytes() == (straight.adapter / weights).read_bytes()


def test_a_snapshot_stays_what_it_was_while_training_goes_on(make_run, tmp_path):
    spec, plan, trainer = pieces(make_run(training={"max_steps": 4}))
    steps = METHODS["sft"](trainer, spec, plan)
    next(steps)
    at_once, later = tmp_path / "at_once", tmp_path / "later"
    at_once.mkdir()
    later.mkdir()
    snapshot = trainer.save()
    snapshot.write(at_once)
    list(steps)
    torch.rand(3)
    snapshot.write(later)
    for path in at_once.iterdir():
        assert path.read_bytes() == (later / path.name).read_bytes(), path.name


def test_what_a_writing_raised_is_raised_by_whoever_asks_next_and_once(tmp_path):
    writer = Writer()
    assert writer.finished(wait=True) is None

    def fails():
        raise OSError(errno.ENOSPC, "No space left on device")

    writer.begin(fails)
    with pytest.raises(OSError, match="No space"):
        writer.finished(wait=True)
    assert writer.finished(wait=True) is None
    gate = Event()
    writer.begin(lambda: gate.wait(PATIENCE) and tmp_path)
    assert writer.finished(wait=False) is None
    with pytest.raises(RuntimeError, match="two writes"):
        writer.begin(lambda: tmp_path)
    gate.set()
    assert writer.finished(wait=True) == tmp_path
