"""The warm engine process: answers one question at a time, and comes back after whatever ended it."""

import os
import signal
import sys
import time
from threading import Event, Thread

import pytest

from studio.errors import Invalid, Unavailable
from tests.services import wait_until
from worker.inspector import Inspector

FAKE = """
import json, os, sys, time
from pathlib import Path
for line in sys.stdin:
    asked = json.loads(line)
    if asked["verb"] == "hang":
        time.sleep(600)
    if asked["verb"] == "die":
        sys.exit("the sky fell")
    if asked["verb"] == "refuse":
        asked = {"error": {"code": "bad_level", "message": "No such level.", "advice": ["Choose low."]}}
    print(json.dumps({"pid": os.getpid(), "secret": os.environ.get("ATELIER_PASSWORD"), **asked}), flush=True)
"""


@pytest.fixture
def inspector(tmp_path, monkeypatch):
    monkeypatch.setenv("ATELIER_PASSWORD", "secret")
    made = Inspector([sys.executable, "-S", "-c", FAKE], tmp_path / "logs" / "inspector.log", Event())
    yield made
    made.leaving.set()
    made.close()


def test_one_process_answers_every_question_and_knows_no_secret(inspector):
    first, second = (inspector.ask({"verb": "show", "row": n}, 20) for n in (1, 2))
    assert (first["row"], second["row"]) == (1, 2)
    assert first["pid"] == second["pid"]
    assert first["secret"] is None


def test_a_refusal_is_told_in_the_engines_own_words(inspector):
    with pytest.raises(Invalid, match="No such level") as caught:
        inspector.ask({"verb": "refuse"}, 20)
    assert (caught.value.code, caught.value.advice) == ("bad_level", "Choose low.")


def test_after_its_death_another_process_answers(inspector):
    first = inspector.ask({"verb": "show"}, 20)["pid"]
    with pytest.raises(Unavailable, match=r"ended\. the sky fell"):
        inspector.ask({"verb": "die"}, 20)
    second = inspector.ask({"verb": "show"}, 20)["pid"]
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: inspector._process.exit_code() is not None, "its end", 10)
    assert len({first, second, inspector.ask({"verb": "show"}, 20)["pid"]}) == 3


def test_a_question_that_takes_too_long_ends_the_process(inspector):
    before = inspector.ask({"verb": "show"}, 20)["pid"]
    with pytest.raises(Unavailable, match=r"within 0\.5 seconds"):
        inspector.ask({"verb": "hang"}, 0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert inspector.ask({"verb": "show"}, 20)["pid"] != before


def test_a_worker_that_leaves_does_not_wait_for_the_answer(inspector):
    def leave():
        time.sleep(0.3)
        inspector.leaving.set()

    Thread(target=leave).start()
    with pytest.raises(Unavailable, match="ending"):
        inspector.ask({"verb": "hang"}, 60)
