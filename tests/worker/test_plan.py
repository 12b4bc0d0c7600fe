"""Plans on both databases: made by the engine, noted in runs, sent again when lost."""

import pytest

from studio import plans, runs
from studio.db.tables import Dataset, Model, Plan, Run
from worker import plan
from worker.keeper import preparations


@pytest.fixture
def spec(bench, ready):
    return ready(bench.studio)


@pytest.fixture
def key(bench, spec):
    """A waiting plan's key."""
    with bench.studio.session() as session:
        asked, new = plans.ask(session, spec, [device.told() for device in bench.devices])
        assert new
        return asked.id


def stored(bench, key):
    with bench.studio.session() as session:
        return session.get(Plan, key)


def test_a_worker_makes_the_plan_with_the_engine(bench, key):
    plan.once(bench, key)
    made = stored(bench, key)
    assert (made.status, made.error, made.told["steps"]) == ("ready", "", 9)
    bench.inspector.ask = None  # it is not asked again
    plan.once(bench, key)


def test_a_plan_that_waits_is_found_and_sent_again(bench, key):
    with bench.studio.session() as session:
        assert preparations(session)[plan.busy_name(key)] == ("plan", (key,))
    plan.once(bench, key)
    with bench.studio.session() as session:
        assert plan.busy_name(key) not in preparations(session)


def test_a_model_that_went_away_is_the_plans_error(bench, key):
    with bench.studio.session() as session:
        session.get_one(Model, "tiny").status = "unusable"
    plan.once(bench, key)
    assert stored(bench, key).status == "failed"


def test_a_plan_goes_with_its_dataset(bench, spec, key):
    with bench.studio.session() as session:
        session.delete(session.get_one(Dataset, spec.data.dataset))
    assert stored(bench, key) is None


def test_a_run_notes_what_it_was_planned_to_need(bench, spec, key):
    plan.once(bench, key)
    with bench.studio.session() as session:
        run_id = runs.create(session, spec).id
    plan.remember(bench, run_id)
    with bench.studio.session() as session:
        assert session.get_one(Run, run_id).planned_memory == 4 << 30


def test_a_run_that_nobody_planned_notes_it_once_the_plan_is_there(bench, spec):
    with bench.studio.session() as session:
        run = runs.create(session, spec)
        run_id, run.status = run.id, "running"
    plan.remember(bench, run_id)
    with bench.studio.session() as session:
        assert session.get_one(Run, run_id).planned_memory is None
        key = plans.found(session, spec, [device.told() for device in bench.devices]).id
    plan.once(bench, key)
    with bench.studio.session() as session:
        assert session.get_one(Run, run_id).planned_memory == 4 << 30
