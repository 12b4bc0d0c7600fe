"""bitsandbytes stays out of the processes of runs that do not ask for it."""

import subprocess
import sys

import pytest

from engine import extras

SHOW = "import sys, peft; print(bool(sys.modules.get('bitsandbytes')), extras.has_bitsandbytes())"


def test_peft_is_imported_without_bitsandbytes_and_both_are_known_to_be_there():
    code = f"from engine import extras; extras.settle(asked=False); {SHOW}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "True"]
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("sections", "asked"),
    [
        ({}, False),
        ({"training": {"quantization": "fp8"}}, False),
        ({"training": {"quantization": "nf4"}}, True),
        ({"optimizer": {"optim": "adamw_8bit"}}, True),
    ],
)
def test_the_spec_says_whether_it_is_needed(make_run, sections, asked):
    assert extras.asked_in(make_run(**sections).path) is asked


def test_a_folder_without_a_spec_asks_for_nothing(tmp_path):
    assert extras.asked_in(tmp_path) is False
