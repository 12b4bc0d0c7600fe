"""A run that the disk has no room for is refused before it waits, in words that say what to do."""

import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select

from engine.spec import RunSpec
from studio import room, runs
from studio.context import Studio
from studio.db.tables import Dataset, Model, Run
from studio.errors import Invalid
from studio.ui.pages.train_state import refusal
from studio.ui.views.train import Chosen

Usage = namedtuple("Usage", "total used free")
Ready = Callable[[Studio], RunSpec]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MiB is free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**30, 2**30, 2**20))


@pytest.mark.usefixtures("full")
def test_a_run_without_room_is_not_made(both: Studio, ready: Ready) -> None:
    spec = ready(both)
    with (
        pytest.raises(Invalid, match=r"about 0\.\d\d GiB, and 0\.00 GiB are free") as refused,
        both.session() as session,
    ):
        room.admitted(session, both.storage, runs.create(session, spec))
    assert (refused.value.code, refused.value.param) == ("disk_full", "saving.save_total_limit")
    assert "Checkpoints kept" in refused.value.advice
    with both.session() as session:
        assert session.scalar(select(func.count()).select_from(Run)) == 0


def test_a_run_with_room_is_made(both: Studio, ready: Ready) -> None:
    spec = ready(both)
    with both.session() as session:
        assert room.admitted(session, both.storage, runs.create(session, spec)).status == "queued"


@pytest.mark.usefixtures("full")
def test_the_page_says_so_beside_the_setting_and_nothing_while_the_model_is_fetched(
    studio: Studio, ready: Ready
) -> None:
    spec = ready(studio)
    with studio.session() as session:
        dataset, model = session.get_one(Dataset, spec.data.dataset), session.get_one(Model, spec.model)
        found = refusal(Chosen(dataset, model), spec, studio.storage)
        assert found is not None
        assert found.param == "saving.save_total_limit"
        model.status = "fetching"
        assert refusal(Chosen(dataset, model), spec, studio.storage) is None


def test_more_checkpoints_or_a_larger_adapter_need_more_room(model_folder: Callable[..., Path]) -> None:
    folder = model_folder()
    spec = RunSpec.model_validate({"model": str(folder), "data": {"dataset": "d"}})
    plain = room.forecast(folder, spec)
    assert (
        room.forecast(
            folder, spec.model_copy(update={"saving": spec.saving.model_copy(update={"save_total_limit": 9})})
        )
        > plain
    )
    assert room.forecast(folder, spec.model_copy(update={"lora": spec.lora.model_copy(update={"r": 64})})) > plain
