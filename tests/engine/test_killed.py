"""A run that is killed anywhere, any number of times, ends bit for bit like one that was left alone."""

import random
import signal
import subprocess
import sys
import time

import pytest

from engine import checkpoint, events, state
from engine.events import Finished, Step, Warned
from engine.train import train
from engine.trainer import Trainer
from tests.engine.runs import said

pytestmark = pytest.mark.usefixtures("unproven")

SECTIONS = {
    "training": {"max_steps": 8},
    "lora": {"lora_dropout": 0.1},
    "saving": {"sample_prompts": 0, "save_steps": 3, "eval_steps": 2},
}
KEYS = {"step", "loss", "learning_rate", "grad_norm", "tokens", "trained_tokens", "epoch"}
WEIGHTS = "adapter_model.safetensors"


class Killed(BaseException):
    """Nothing in the engine catches it, as nothing catches SIGKILL."""


def curve(run):
    """The last word on every step: a step that was repeated after a kill replaces the first one."""
    steps = {step.step: step.model_dump(include=KEYS) for step in said(run, Step)}
    return [steps[number] for number in sorted(steps)]


@pytest.fixture
def moments(monkeypatch):
    """Counts the moments at which a run can be killed; at the chosen one it is, with a file half written if one was."""
    count = {"now": 0, "fatal": 0}

    def tick():
        count["now"] += 1
        if count["now"] == count["fatal"]:
            raise Killed

    def before(module, name):
        real = getattr(module, name)

        def dies(*given, **named):
            tick()
            return real(*given, **named)

        monkeypatch.setattr(module, name, dies)

    real_write = state._write

    def write(path, tensors):
        real_write(path, tensors)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        tick()
        path.write_bytes(whole)

    monkeypatch.setattr(state, "_write", write)
    for module, name in ((events, "append"), (checkpoint, "_sync"), (checkpoint, "_mark"), (Trainer, "optim_step")):
        before(module, name)
    return count


def test_R03_killed_at_random_moments_the_run_ends_as_if_it_had_not_been(make_run, moments):
    straight = make_run("straight", **SECTIONS)
    assert train(straight.path) == 0
    every = moments["now"]
    chance = random.Random(7)
    for attempt in range(3):
        run = make_run(f"killed-{attempt}", **SECTIONS)
        for _ in range(3):
            moments.update(now=0, fatal=chance.randint(1, every))
            try:
                train(run.path)
            except Killed:
                continue
        moments.update(fatal=0)
        assert train(run.path) == 0
        assert curve(run) == curve(straight)
        assert (run.adapter / WEIGHTS).read_bytes() == (straight.adapter / WEIGHTS).read_bytes()


def test_R03_a_real_process_killed_between_two_steps_is_gone_on_with(make_run):
    straight, run = make_run("straight", **SECTIONS), make_run("killed", **SECTIONS)
    assert train(straight.path) == 0
    process = subprocess.Popen([sys.executable, "-m", "engine", "train", str(run.path)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not said(run, Step) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert train(run.path) == 0
    assert said(run, Finished)[-1].status == "succeeded"
    assert not [event for event in said(run, Warned) if event.code == "best_lost"]
    assert curve(run) == curve(straight)
    assert (run.adapter / WEIGHTS).read_bytes() == (straight.adapter / WEIGHTS).read_bytes()
