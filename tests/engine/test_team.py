"""A run on several devices of one host: started, spoken for, stopped and ended together."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from engine import events, ranks, team
from engine.events import Finished, Started, Step
from engine.layout.degrees import devices_of
from engine.meeting import Meeting
from engine.parity.table import LAUNCH
from engine.plan import Device, Machine, at_hand
from engine.run import on_its_devices
from engine.rundir import RunDir
from engine.spec import Layout
from engine.stopping import Signals
from engine.train import train
from tests.services import wait_until


def launch(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    program = ["-m", "tests.engine.rank_for_tests", str(folder), *arguments]
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "2", *program], stdin=subprocess.PIPE, env=environment, stderr=subprocess.DEVNULL
    )


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.iterdir() if path.read_text()]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_no_process_outlives_its_agent_however_it_ended(tmp_path):
    agent = launch(tmp_path)
    wait_until(lambda: len(pids(tmp_path)) == 2, "both processes", 60)
    agent.send_signal(signal.SIGKILL)
    agent.communicate()
    wait_until(lambda: all(gone(pid) for pid in pids(tmp_path)), "their end", 30)


def test_one_that_fails_ends_the_others_and_its_exit_code_is_told(tmp_path):
    agent = launch(tmp_path, "1")
    agent.communicate(timeout=120)
    assert agent.returncode == 7
    assert all(gone(pid) for pid in pids(tmp_path))


def test_a_run_on_two_devices_is_one_run(make_run):
    run = make_run(
        layout={"data": 1, "shard": 2, "tensor": 1, "expert": 1, "context": 1},
        training={"max_steps": 4, "dtype": "float32", "device": "cpu"},
        saving={"sample_prompts": 1, "save_steps": 2, "eval_steps": 2},
    )
    assert train(run.path) == 0
    said = [event for _, event in events.read(run.events)]
    (started,) = [event for event in said if isinstance(event, Started)]
    assert (started.devices, started.layout, started.micro_batches) == (2, "shard 2", 2)
    steps = [event for event in said if isinstance(event, Step)]
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [memory.device for memory in steps[-1].memory] == ["cpu", "cpu:1"]
    assert said[-1].status == "succeeded"


def test_adapters_of_experts_from_four_devices_load_in_stock_peft_and_are_gone_on_from_on_others(make_run, monkeypatch):
    run = make_run(
        family="gpt_oss",
        lora={"r": 4, "lora_alpha": 8, "target_modules": "all-linear+experts"},
        layout={"data": 1, "shard": 1, "tensor": 2, "expert": 2, "context": 2},
        data={"eval_fraction": 0.0},
        training={"max_steps": 2, "dtype": "float32", "device": "cpu"},
        saving={"sample_prompts": 0},
    )
    assert train(run.path) == 0
    with safe_open(str(run.path / "adapter" / "adapter_model.safetensors"), framework="pt") as saved:
        assert any(".experts." in name for name in saved.keys())  # noqa: SIM118
    said = [event for _, event in events.read(run.events)]
    assert said[-1].status == "succeeded"
    monkeypatch.setattr("engine.train.verify_result", lambda *_: {"divergence": 0.0, "effect": 1.0})  # as was just done
    goes_on = {
        "family": "gpt_oss",
        "lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear+experts"},
        "data": {"eval_fraction": 0.0},
        "training": {"max_steps": 1, "dtype": "float32", "device": "cpu", "gradient_accumulation_steps": 2},
        "saving": {"sample_prompts": 0},
        "adapter_from": str(run.adapter),
    }
    alone = make_run("alone", **goes_on)
    goes_on["training"]["gradient_accumulation_steps"] = 1
    split = make_run("split", layout={"data": 1, "shard": 2, "tensor": 1, "expert": 2, "context": 1}, **goes_on)
    assert train(alone.path) == train(split.path) == 0
    first, second = ([event for _, event in events.read(one.events)] for one in (alone, split))
    losses = [next(event.loss for event in said if isinstance(event, Step)) for said in (first, second)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    kept = [load_file(one.adapter / "adapter_model.safetensors") for one in (run, split)]
    assert kept[0].keys() == kept[1].keys()


def test_devices_that_hosts_cannot_share_evenly_are_refused(folder):
    assert team.lead(folder, 2, Meeting(hosts=3, endpoint="127.0.0.1:1")) == 2


def test_hosts_that_share_no_devices_never_train_one_folder_each_by_itself(make_run, monkeypatch, capsys):
    monkeypatch.setattr(at_hand, "here", lambda _: Machine(4, Device("H100", "cuda", 80 * 2**30, 1e15)))
    left_open = make_run()
    assert train(left_open.path, Meeting(hosts=2, host=1, endpoint="127.0.0.1:1")) == 2
    assert "A layout of 1 device, or one that is left open, cannot be spread" in capsys.readouterr().err
    assert not left_open.events.exists()
    assert not left_open.layout.exists()


def test_a_layout_of_two_hosts_does_not_start_on_one(make_run, capsys):
    assert team.lead(make_run(layout={"data": 2, "hosts": 2}), 2, Meeting()) == 2
    assert "The layout is for 2 hosts, and this is a start on 1." in capsys.readouterr().err


@pytest.fixture
def folder(make_run) -> RunDir:
    return make_run(layout={"shard": 2})


def test_the_agent_says_why_when_the_first_process_could_not(folder, monkeypatch):
    failure = Finished(status="failed", step=3, code="out_of_memory", message="The device ran out of memory.")

    def one_fails(*_):
        team.say_failure(folder, failure)
        team.say_failure(folder, failure.model_copy(update={"message": "A later one."}))
        return 1

    monkeypatch.setattr(ranks, "launch", one_fails)
    assert team.lead(folder, 2, Meeting()) == 1
    assert [event for _, event in events.read(folder.events)] == [failure]


def test_the_agent_is_silent_when_the_first_process_said_how_it_ended(folder, monkeypatch):
    paused = Finished(status="paused", step=3)

    def ends(*_):
        events.append(folder.events, paused)
        return 1

    monkeypatch.setattr(ranks, "launch", ends)
    assert team.lead(folder, 2, Meeting()) == 0
    assert [event for _, event in events.read(folder.events)] == [paused]


def test_a_signal_to_the_agent_asks_all_processes_to_pause(folder):
    with Signals(heard=lambda: folder.ask_to_stop("pause")).listening():
        os.kill(os.getpid(), signal.SIGTERM)
    assert folder.stop_asked() == "pause"


def test_a_layout_that_is_left_open_is_planned_for_the_devices_that_are_seen(make_run, monkeypatch, capsys):
    left_open = make_run(training={"max_steps": 4, "device": "cpu", "gradient_accumulation_steps": 2})
    assert team.needed(left_open) == 0
    monkeypatch.setattr(at_hand, "here", lambda _: Machine(2, Device("H100", "cuda", 80 * 2**30, 1e15)))
    assert team.needed(left_open) == 2
    planned = left_open.planned_layout()
    assert devices_of(planned.layout) == 2
    assert planned.why.startswith("Planned for 2 x H100: the fastest that fits;")
    assert planned.why in capsys.readouterr().err
    assert on_its_devices(left_open, left_open.read_spec()).layout == planned.layout
    monkeypatch.setattr(at_hand, "here", lambda _: Machine(1, Device("H100", "cuda", 80 * 2**30, 1e15)))
    assert team.needed(left_open) == 0
    assert on_its_devices(left_open, left_open.read_spec()).layout == Layout()


def test_a_model_that_cannot_be_planned_is_left_to_the_run_itself(make_run, tmp_path, monkeypatch):
    run = make_run()
    run.write_spec(run.read_spec().model_copy(update={"model": str(tmp_path)}))
    monkeypatch.setattr(at_hand, "here", lambda _: Machine(3, Device("H100", "cuda", 80 * 2**30, 1e15)))
    assert team.needed(run) == 0


def test_only_a_layout_of_several_devices_needs_a_team(folder, make_run, monkeypatch):
    assert team.needed(folder) == 2
    assert team.needed(make_run("one")) == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert team.needed(folder) == 0
