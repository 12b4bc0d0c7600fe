"""`atelier plan`: what the terminal shows, and what programs get."""

import json

import pytest
import yaml

from studio.cli import build, inspection
from studio.cli.console import run_and_explain


@pytest.fixture
def plan(settings, model_folder, fake_engine, tmp_path, monkeypatch, capsys):
    """Runs `atelier plan` on a spec with these training settings: (exit status, stdout, stderr)."""
    monkeypatch.setenv("ATELIER_DATA_DIR", str(settings.data_dir))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(inspection, "ENGINE", fake_engine)
    folder = model_folder("tiny")

    def run(*options, **training):
        file = tmp_path / "spec.yaml"
        file.write_text(yaml.safe_dump({"model": str(folder), "data": {"dataset": "gone.jsonl"}, "training": training}))
        arguments = ["plan", str(file), *options]
        try:
            status = run_and_explain(lambda: build(arguments)(arguments, prog_name="atelier"))
        except SystemExit as ended:
            status = ended.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_plan_is_a_headline_a_bar_its_parts_and_why(plan):
    status, out, _ = plan("--devices", "8xB300")
    assert status == 0
    assert "Fits: 4.00 GiB of 16.00 GiB on each of 1 device" in out
    assert "█" in out
    assert "base weights" in out
    assert "3.00 GiB" in out
    assert "1,000 parameters, 500 active, 10 trained, 125 on a device" in out
    assert "64 tokens a step, 9 steps, about 3 min, 0.50 GiB on disk" in out
    assert "- Planned for 8xB300." in out


def test_what_does_not_fit_has_exit_status_1(plan):
    status, out, _ = plan(per_device_train_batch_size=2000)
    assert status == 1
    assert "Does not fit: 4.00 GiB of 2.00 GiB" in out


def test_programs_get_the_promised_keys_and_no_more(plan):
    status, out, _ = plan("--json")
    told = json.loads(out)
    assert status == 0
    assert set(told) == {
        "fits",
        "layout",
        "per_device",
        "parameters",
        "tokens_per_step",
        "steps",
        "seconds",
        "disk_gib",
        "why",
    }
    assert told["why"][0] == "Planned for here."


def test_auto_says_what_to_set(plan):
    _, out, _ = plan("--auto")
    assert "--set training.gradient_checkpointing=true" in out
    assert "--set layout.shard=8" in out


def test_settings_can_be_changed_for_the_plan(plan):
    assert plan("--set", "training.per_device_train_batch_size=2000")[0] == 1
    status, _, err = plan("--set", "training.size=3")
    assert status == 1
    assert "training.size" in err
