"""`atelier chat` with a small program in place of the engine: what is sent, what is shown, what is refused."""

import sys
from pathlib import Path

import pytest

from engine.rundir import RunDir
from engine.spec import Data, RunSpec
from studio.cli import chat as command
from studio.cli import main

ECHO = """
import json, sys
print(json.dumps({"ready": True, "level": "low"}), flush=True)
for line in sys.stdin:
    messages = json.loads(line)["messages"]
    if messages[-1]["content"] == "refuse":
        print(json.dumps({"error": {"code": "x", "message": "not that", "advice": []}}), flush=True)
        continue
    for piece in (str(len(messages)), " ", messages[-1]["content"], chr(27)):
        print(json.dumps({"piece": piece}), flush=True)
    print(json.dumps({"done": True, "truncated": False}), flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    folder = RunDir(tmp_path / "run")
    folder.write_spec(RunSpec(model=str(tmp_path / "base"), data=Data(dataset="d")))
    folder.adapter.mkdir()
    return folder


def talk(monkeypatch: pytest.MonkeyPatch, run: str, *questions: str) -> int:
    asked = iter(questions)
    monkeypatch.setattr(command, "ENGINE", (sys.executable, "-c", ECHO))
    monkeypatch.setattr("builtins.input", lambda *_: next(asked, "/quit"))
    monkeypatch.setattr(sys, "argv", ["atelier", "chat", run])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_conversation_grows_starts_over_and_goes_on_after_a_refusal(run, monkeypatch, capsys):
    assert talk(monkeypatch, str(run.path), "one", "refuse", "two", "/new", "three") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in lines] == ["1 one\ufffd", "3 two\ufffd", "1 three\ufffd"]


def test_a_run_without_a_result_is_refused(tmp_path, monkeypatch, capsys):
    assert talk(monkeypatch, str(tmp_path / "nothing"), "hello") != 0
    assert "no result to talk to" in " ".join(capsys.readouterr().err.split())
