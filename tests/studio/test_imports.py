"""What a fresh process loads: no torch in web server and workers, and next to nothing for `--help`."""

import subprocess
import sys
import time

import pytest

HEAVY = {"torch", "transformers", "peft"}


def loaded_by(module: str) -> set[str]:
    """Top-level packages in a fresh interpreter after importing `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(answer.stdout.split())


@pytest.mark.parametrize("module", ["studio.app", "worker.tasks", "studio.cli.train", "studio.cli.data"])
def test_no_model_library_is_loaded(module):
    assert not loaded_by(module) & HEAVY


def test_help_answers_at_once():
    began = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-m", "studio", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert time.monotonic() - began < 3.0  # 0.3 s on a quiet machine
    assert "train" in answer.stdout
    assert not loaded_by("studio.cli") & {
        "gradio",
        "fastapi",
        "sqlalchemy",
        "celery",
        "pyarrow",
        "huggingface_hub",
        *HEAVY,
    }
