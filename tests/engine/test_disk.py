"""A run that will not fit on the disk says so before its first step, and waits."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from engine import disk
from engine.checkpoint import size_of
from engine.events import Finished, Started, Step
from engine.train import train
from studio import room
from tests.engine.runs import pieces, said

pytestmark = pytest.mark.usefixtures("unproven")

Usage = namedtuple("Usage", "total used free")


def test_R05_too_little_space_is_told_before_the_first_step_and_the_run_goes_on_once_there_is_some(
    make_run, monkeypatch
):
    run = make_run()
    with monkeypatch.context() as small:
        small.setattr(shutil, "disk_usage", lambda _: Usage(2**30, 2**30, 2**20))
        assert train(run.path) == 0
    finished = said(run, Finished)[-1]
    assert (finished.status, finished.code) == ("paused", "disk_full")
    assert "needs about" in finished.message
    assert "1 MiB are free, so it is paused at step 0" in finished.message
    assert not said(run, Step)
    assert not said(run, Started)
    assert train(run.path) == 0
    assert said(run, Finished)[-1].status == "succeeded"


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_bf16", "adamw_8bit"])
def test_the_forecast_holds_what_the_run_writes_and_not_much_more(make_run, monkeypatch, optim):
    monkeypatch.setattr(disk, "ASIDE", 0)
    run = make_run(lora={"r": 64}, optimizer={"optim": optim}, training={"max_steps": 3}, saving={"save_steps": 1})
    built = pieces(run)[2].built
    forecast = disk.needed(built.sizes, built.width, run.read_spec())
    assert train(run.path) == 0
    (newest,) = run.checkpoints.glob("step-3")
    written = size_of(run.checkpoints) + size_of(newest) + size_of(run.adapter) - 5 * 2**14  # names and small files
    assert written <= forecast * 1.1
    assert size_of(newest) * 3 <= forecast * 1.1


def test_what_the_run_wrote_before_counts_as_room(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 90, 10))
    (tmp_path / "checkpoint").write_bytes(bytes(50))
    disk.check(tmp_path, 60)
    with pytest.raises(disk.NoSpace, match="needs about"):
        disk.check(tmp_path, 61)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"lora": {"r": 4, "target_modules": ["q_proj", "down_proj"]}, "optimizer": {"optim": "adamw_8bit"}},
        {"lora": {"use_dora": True}},
        {"training": {"full_finetuning": True}},
        {"training": {"full_finetuning": True, "dtype": "bfloat16"}, "optimizer": {"optim": "adamw_bf16"}},
    ],
)
def test_the_studio_forecasts_from_the_files_of_the_model_what_the_engine_does_from_the_model(make_run, sections):
    run = make_run(**sections)
    built, spec = pieces(run)[2].built, run.read_spec()
    assert room.forecast(Path(spec.model), spec) == pytest.approx(disk.needed(built.sizes, built.width, spec), rel=1e-3)
