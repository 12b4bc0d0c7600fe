"""A run that goes on from an earlier one: what it takes over, what it is refused for, where the adapter is found."""

import pytest
from sqlalchemy import update

from engine.spec import GRPO, LoRA
from studio import runs
from studio.db.tables import Run
from studio.errors import Invalid
from worker.prepare_run import resolve


@pytest.fixture
def earlier(studio, ready):
    """(a finished run of rank 4, the spec of a run that would go on from it)."""
    spec = ready(studio)
    with studio.session() as session:
        run = runs.create(session, spec.model_copy(update={"lora": LoRA(r=4, lora_alpha=8)}))
    with studio.session() as session:
        session.execute(update(Run).where(Run.id == run.id).values(status="succeeded"))
    return run, spec.model_copy(update={"adapter_from": run.id})


def test_it_takes_over_the_shape_of_the_adapter_and_finds_its_folder(studio, earlier):
    run, spec = earlier
    with studio.session() as session:
        assert [one.id for one in runs.continuable(session, run.model_id)] == [run.id]
        later = runs.create(session, spec)
        assert later.spec["lora"]["r"] == 4
        with pytest.raises(Invalid, match="is gone"):
            resolve(session, studio.storage, later)
        folder = studio.storage.run_dir(run.id).adapter
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        assert resolve(session, studio.storage, later).adapter_from == str(folder)


@pytest.mark.parametrize("change", [{"status": "failed"}, {"model_id": "another"}], ids=str)
def test_it_needs_a_finished_run_of_the_same_model(studio, earlier, change):
    run, spec = earlier
    with studio.session() as session:
        session.execute(update(Run).where(Run.id == run.id).values(**change))
    with studio.session() as session, pytest.raises(Invalid) as caught:
        runs.create(session, spec)
    assert caught.value.param == "adapter_from"


def test_a_reward_that_nobody_knows_is_refused_before_the_run_is_made(studio, ready):
    spec = ready(studio).model_copy(update={"method": GRPO(rewards={"exactly": 1.0})})
    with studio.session() as session, pytest.raises(Invalid, match="exactly") as caught:
        runs.create(session, spec)
    assert caught.value.param == "method.rewards"
