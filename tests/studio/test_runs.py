"""Runs as pages and the API use them."""

import pytest
from sqlalchemy import update

from engine.spec import Layout, LoRA, RunSpec
from studio import runs
from studio.compare import differences
from studio.db.tables import Dataset, Model, Run, RunEvent
from studio.errors import Conflict, Invalid, NotFound


def test_every_move_leads_to_a_status_and_final_ones_lead_nowhere_but_again():
    assert set(runs.MOVES) == set(runs.STATUSES)
    assert {target for targets in runs.MOVES.values() for target in targets} <= set(runs.STATUSES)
    assert runs.MOVES["succeeded"] == runs.MOVES["cancelled"] == ()
    run = Run(status="succeeded")
    with pytest.raises(Conflict, match="succeeded cannot become queued"):
        runs.move(run, "queued")


def test_a_new_run_is_queued_with_its_data_frozen_and_a_name_filled_in(both, ready):
    spec = ready(both)
    with both.session() as session:
        session.execute(update(Dataset).values(sha256="ab" * 32))
    with both.session() as session:
        run = runs.create(session, spec, user_metadata={"a": "b"})
    assert (run.status, run.name, run.method) == ("queued", "Tiny on rows", "sft")
    assert run.spec["data"]["sha256"] == "ab" * 32
    assert run.user_metadata == {"a": "b"}
    assert RunSpec.model_validate(run.spec).name == run.name
    with both.session() as session:
        clone = runs.clone_spec(session, run.id)
        assert clone.data.sha256 == ""
        assert runs.create(session, clone).id != run.id


@pytest.mark.parametrize(
    ("table", "status", "error", "param"),
    [
        (Dataset, "deleted", Invalid, "data.dataset"),
        (Dataset, "unusable", Invalid, "data.dataset"),
        (Dataset, "checking", Conflict, "data.dataset"),
        (Model, "unusable", Invalid, "model"),
        (Model, "converting", Conflict, "model"),
    ],
)
def test_a_run_needs_inputs_that_are_ready(both, ready, table, status, error, param):
    spec = ready(both)
    with both.session() as session:
        session.execute(update(table).values(status=status))
    with both.session() as session, pytest.raises(error) as caught:
        runs.create(session, spec)
    assert caught.value.param == param


def test_a_run_may_wait_for_inputs_that_are_being_prepared(both, ready):
    spec = ready(both)
    with both.session() as session:
        session.execute(update(Dataset).values(status="checking"))
        session.execute(update(Model).values(status="converting"))
        assert runs.create(session, spec, wait_for_inputs=True).status == "queued"


@pytest.mark.parametrize(("key", "param"), [("model", "model"), ("dataset", "data.dataset")])
def test_an_unknown_model_or_dataset_is_named(both, ready, key, param):
    spec = ready(both)
    other = {"model": "nope"} if key == "model" else {"data": spec.data.model_copy(update={"dataset": "file-no"})}
    with both.session() as session, pytest.raises(Invalid, match="There is no") as caught:
        runs.create(session, spec.model_copy(update=other))
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b\\c", "🦙" * 150, "x" * 300, "  zwei\nzeilen\x00 ", "<b>&"])
def test_U01_names_are_labels_and_may_repeat(both, ready, name):
    spec = ready(both).model_copy(update={"name": name})
    with both.session() as session:
        one, two = runs.create(session, spec), runs.create(session, spec)
    assert one.id != two.id
    assert one.name == two.name == name.replace("\n", " ").replace("\x00", " ").strip()
    assert both.storage.run_dir(one.id).path.parent == both.storage.data_dir / "runs"


def test_runs_are_listed_newest_first_in_pages_and_filtered(both, ready):
    spec = ready(both)
    with both.session() as session:
        ids = [runs.create(session, spec.model_copy(update={"name": f"run 100% {n}"})).id for n in range(5)]
        session.get_one(Run, ids[0]).status = "failed"
    with both.session() as session:
        assert [run.id for run in runs.list_runs(session)] == ids[::-1]
        page = runs.list_runs(session, limit=2)
        assert [run.id for run in runs.list_runs(session, limit=2, after=page[-1].id)] == ids[2:0:-1]
        assert [run.id for run in runs.list_runs(session, status="failed")] == ids[:1]
        assert len(runs.list_runs(session, status=["queued", "failed"], model="tiny", text="RUN 100% ")) == 5
        assert runs.list_runs(session, text="100_") == []
        assert runs.list_runs(session, text=ids[3][:12])[0].id == ids[3]
        assert runs.list_runs(session, dataset="file-ffffffffffffffff") == []
        with pytest.raises(NotFound):
            runs.list_runs(session, after="run-0000000000000000")


def test_an_old_spec_that_cannot_be_read_breaks_its_own_page_only(both, ready):
    spec = ready(both)
    with both.session() as session:
        run = runs.create(session, spec)
        run.spec = {**run.spec, "forbidden": 1}
    with both.session() as session:
        assert len(runs.list_runs(session)) == 1
        with pytest.raises(Invalid, match="forbidden"):
            runs.clone_spec(session, run.id)


def test_deleting_a_run_takes_events_and_folder_once_it_is_committed(both, ready):
    spec = ready(both)
    with both.session() as session:
        run = runs.create(session, spec)
        session.add(RunEvent(run_id=run.id, offset=1, kind="phase", time=0, data={}))
        with pytest.raises(Conflict, match="cancel it first"):
            runs.delete(session, both.storage, run.id)
        runs.cancel(session, run.id)
    folder = both.storage.run_dir(run.id).path
    folder.mkdir(parents=True)
    with pytest.raises(RuntimeError), both.session() as session:  # noqa: PT012 - the error comes last
        runs.delete(session, both.storage, run.id)
        raise RuntimeError
    assert folder.exists()
    with both.session() as session:
        runs.delete(session, both.storage, run.id)
        assert folder.exists()
    assert not folder.exists()
    with both.session() as session:
        assert session.query(RunEvent).count() == 0
        with pytest.raises(NotFound):
            runs.get(session, run.id)


def test_a_paused_queue_entry_can_be_resumed(both, ready):
    spec = ready(both)
    with both.session() as session:
        run = runs.create(session, spec)
        assert runs.pause(session, run.id).status == "paused"
        assert runs.pause(session, run.id).status == "paused"
        assert runs.resume(session, run.id).status == "queued"
        with pytest.raises(Conflict, match="cannot be resumed"):
            runs.resume(session, run.id)


def test_the_settings_that_differ_are_shown_side_by_side(both, ready):
    spec = ready(both)
    with both.session() as session:
        made = [runs.create(session, spec.model_copy(update={"lora": LoRA(r=r)})) for r in (8, 16, 16)]
        made[2].spec = {**made[2].spec, "new_setting": True}
    assert differences(made) == [("lora.r", [8, 16, 16]), ("new_setting", [None, None, True])]
    assert differences(made[:1]) == []


@pytest.mark.parametrize(
    ("stored", "code", "param"),
    [
        ({"kind": "preference"}, "wrong_kind", "data.dataset"),
        ({"rows": 20, "usable": 10}, "too_many_bad_rows", "data.max_bad_fraction"),
    ],
)
def test_a_run_that_its_data_cannot_feed_is_refused_before_it_waits(studio, ready, stored, code, param):
    spec = ready(studio)
    with studio.session() as session:
        session.execute(update(Dataset).values(**stored))
    with studio.session() as session, pytest.raises(Invalid) as caught:
        runs.create(session, spec)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_bad_rows_are_no_hindrance_when_the_spec_tolerates_them(studio, ready):
    spec = ready(studio)
    with studio.session() as session:
        session.execute(update(Dataset).values(rows=20, usable=10))
    tolerant = spec.model_copy(update={"data": spec.data.model_copy(update={"max_bad_fraction": 0.5})})
    with studio.session() as session:
        assert runs.create(session, tolerant).status == "queued"


def test_a_failed_run_is_retried_with_what_its_failure_proposes(both, ready):
    spec = ready(both).model_copy(update={"name": "heavy"})
    changes = [
        {"settings": {"training.gradient_checkpointing": True}, "effect": "less"},
        {"settings": {"data.max_length": 512, "lora.r": 8}, "effect": "less still"},
    ]
    with both.session() as session:
        run_id = runs.create(session, spec).id
        with pytest.raises(Conflict, match="no other settings"):
            runs.retry(session, run_id)
        session.execute(update(Run).values(status="failed", error={"code": "out_of_memory", "changes": changes}))
    with both.session() as session:
        retried = runs.retry(session, run_id)
        made = runs.spec_of(retried)
        assert (retried.status, retried.name) == ("queued", "heavy")
        assert retried.id != run_id
        assert (made.training.gradient_checkpointing, made.data.max_length, made.lora.r) == (True, 512, 8)
        assert runs.get(session, run_id).status == "failed"
        assert differences([runs.get(session, run_id), retried])


def test_a_run_on_several_hosts_says_how_it_is_split(studio, ready):
    spec = ready(studio)
    for layout, told in (
        (Layout(hosts=2), "not planned for you"),
        (Layout(data=3, hosts=2), "3 devices do not divide"),
    ):
        with studio.session() as session, pytest.raises(Invalid, match=told) as caught:
            runs.create(session, spec.model_copy(update={"layout": layout}))
        assert caught.value.param == "layout.hosts"
