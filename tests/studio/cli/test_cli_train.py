"""`atelier train`: specs from files, places of models and data, and an engine in the foreground."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from pydantic import ValidationError
from rich.console import Console

from engine.rundir import RunDir
from engine.spec import Data, RunSpec
from studio.cli.foreground import Lines, Screen, follow
from studio.cli.spec import read_spec
from studio.cli.train import find_dataset, find_model, prepare
from studio.errors import Conflict, Invalid
from studio.storage import Storage

SPEC = "model: m\r\ndata:\r\n  dataset: rows.jsonl\r\noptimizer:\r\n  learning_rate: 2e-4\r\n"


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "spec.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def run_dir(tmp_path):
    def make(name):
        folder = RunDir(tmp_path / "run")
        prepare(folder, RunSpec(name=name, model="m", data=Data(dataset="d")))
        return folder

    return make


def test_windows_line_ends_and_byte_order_marks_are_read(written):
    spec = read_spec(written(b"\xef\xbb\xbf" + SPEC.encode()), [])
    assert (spec.data.dataset, spec.optimizer.learning_rate) == ("rows.jsonl", 2e-4)


def test_settings_are_changed_on_the_command_line(written):
    changes = ["lora.r=4", "name=a=b", "lora.target_modules=[q_proj, v_proj]", "training.gradient_checkpointing=true"]
    spec = read_spec(written(SPEC), changes)
    assert (spec.lora.r, spec.name, spec.lora.target_modules) == (4, "a=b", ["q_proj", "v_proj"])
    assert spec.training.gradient_checkpointing


@pytest.mark.parametrize("change", ["lora.r", "=4", "lora..r=4", "model.x=1", "lora.r=[", ""])
def test_a_change_that_is_none_is_refused(written, change):
    with pytest.raises(Invalid):
        read_spec(written(SPEC), [change])


@pytest.mark.parametrize(
    "content", [b"", b"- a\n", b"model: [\n", b"\xff\xfe\x00", b"x" * 2**21, b"!!python/object/apply:os.system [ls]\n"]
)
def test_a_file_that_is_no_spec_is_refused_with_a_sentence(written, content):
    with pytest.raises(Invalid, match=r"spec\.yaml"):
        read_spec(written(content), [])


def test_unknown_settings_are_named(written):
    with pytest.raises(ValidationError, match=r"lora\.rank"):
        read_spec(written(SPEC), ["lora.rank=4"])


def test_model_and_data_are_found_here_beside_the_spec_and_in_the_studio(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = Storage(tmp_path / "data")
    for folder in (tmp_path / "beside" / "m", storage.model_dir("kept")):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (tmp_path / "beside" / "rows.jsonl").write_text("{}")
    kept = storage.dataset_dir("file-0123456789abcdef")
    kept.mkdir(parents=True)
    (kept / "data.csv").write_text("")
    beside = tmp_path / "beside"
    assert find_model("m", beside, storage) == str(beside / "m")
    assert find_model("kept", beside, storage) == str(storage.model_dir("kept"))
    assert find_model("owner/name", beside, storage) == "owner/name"
    assert find_dataset("rows.jsonl", beside, storage) == beside / "rows.jsonl"
    assert find_dataset("file-0123456789abcdef", beside, storage) == kept / "data.csv"
    with pytest.raises(Invalid, match="no model"):
        find_model("../..", beside, storage)
    with pytest.raises(Invalid, match="no dataset"):
        find_dataset("none.jsonl", beside, storage)


def test_a_folder_is_only_used_again_for_the_same_spec(run_dir, tmp_path):
    folder = run_dir("a")
    folder.ask_to_stop("pause")
    run_dir("a")
    assert folder.stop_asked() is None
    with pytest.raises(Conflict, match="other settings"):
        run_dir("b")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(Conflict, match="not empty"):
        prepare(RunDir(tmp_path / "full"), folder.read_spec())


def test_a_run_is_shown_to_its_end(run_dir, fake_engine, capsys):
    folder = run_dir("fine")
    console = Console(width=200)
    assert follow(folder, Screen(console, folder), fake_engine) == 0
    out = capsys.readouterr().out
    assert "Step 5 of 5: loss 2.9500" in out
    assert f"Done. The adapter is in {folder.adapter}" in out


def test_events_come_as_json_lines(run_dir, fake_engine, capsys):
    assert follow(run_dir("fine"), Lines(), fake_engine) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["phase", "started", *["step"] * 5, "eval", "finished"]


@pytest.mark.parametrize(
    ("name", "words"), [("refuse", "0 of 9 rows"), ("crash", "RuntimeError: the sky fell"), ("killed", "signal 9")]
)
def test_a_failed_run_says_why_and_ends_with_1(run_dir, fake_engine, capsys, name, words):
    folder = run_dir(name)
    assert follow(folder, Screen(Console(width=200), folder), fake_engine) == 1
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path, fake_engine):
    script = tmp_path / "follow.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfrom engine.rundir import RunDir\n"
        "from studio.cli.foreground import Lines, follow\n"
        f"sys.exit(follow(RunDir(Path(sys.argv[1])), Lines(), {fake_engine!r}))\n"
    )
    folder = RunDir(tmp_path / "run")
    prepare(folder, RunSpec(name="long", model="m", data=Data(dataset="d")))
    process = start(script, folder)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["status"] == "paused"
    prepare(folder, folder.read_spec())
    process = start(script, folder)
    process.kill()  # the engine is on a lifeline: it must not outlive its terminal
    process.communicate(timeout=30)
    engine = int((folder.path / "started").read_text())
    until = time.monotonic() + 10
    while is_alive(engine):
        assert time.monotonic() < until
        time.sleep(0.05)


def start(script, folder):
    (folder.path / "started").unlink(missing_ok=True)
    said = folder.events.stat().st_size if folder.events.exists() else 0
    process = subprocess.Popen([sys.executable, str(script), str(folder.path)], stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while not (folder.events.exists() and folder.events.stat().st_size > said + 500):
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
