"""One run under supervision, with an engine that behaves in every bad way there is."""

import json
import os
import signal
import time
from pathlib import Path
from threading import Thread

import psutil
import pytest

from studio import packs, runs
from studio.db.tables import DeviceLease, Pack, Run, RunEvent
from studio.errors import Conflict
from tests.services import wait_until
from worker.claims import claim_next
from worker.supervise import supervise
from worker.tasks import work


@pytest.fixture
def working(bench):
    """Works in a thread, as Celery would have it."""
    threads = []

    def start():
        thread = Thread(target=work, args=(bench,), daemon=True)
        thread.start()
        threads.append(thread)
        return thread

    yield start
    bench.leaving.set()
    for thread in threads:
        thread.join(30)


def file_of(bench, run_id, name):
    return bench.studio.storage.run_dir(run_id).path / name


def test_a_run_goes_from_queued_to_succeeded(bench, new_run, read):
    run_id = new_run(bench.studio)
    assert work(bench) == 1
    run = read(run_id)
    assert run.status == "succeeded"
    assert (run.step, run.total_steps, run.loss, run.eval_loss, run.best_eval_loss) == (5, 5, 2.95, 2.5, 2.5)
    assert run.error is None
    assert run.started_at < run.finished_at
    with bench.studio.session() as session:
        told = session.query(RunEvent).filter_by(run_id=run_id).order_by(RunEvent.offset).all()
        assert [event.kind for event in told] == ["phase", "started", *["step"] * 5, "eval", "finished"]
        assert told[-1].offset == run.events_offset == file_of(bench, run_id, "events.jsonl").stat().st_size
        assert session.query(DeviceLease).count() == 0
        packed = session.query(Pack).filter_by(run_id=run_id).order_by(Pack.offset).all()
        assert [pack.kind for pack in packed] == ["step", "eval"]
        assert packs.read(session, run_id, "step")["step"].tolist() == [1, 2, 3, 4, 5]


def test_runs_are_carried_out_in_the_order_they_were_queued(bench, new_run, read):
    ids = [new_run(bench.studio, "steps 1") for _ in range(3)]
    assert work(bench) == 3
    begun = [read(run_id).started_at for run_id in ids]
    assert begun == sorted(begun)


def test_relaying_a_line_twice_changes_nothing(bench, new_run, read):
    run_id = new_run(bench.studio)
    work(bench)
    with bench.studio.session() as session:
        before = session.query(RunEvent).filter_by(run_id=run_id).count()
        session.query(Run).filter_by(id=run_id).update({"events_offset": 0, "status": "queued"})
    work(bench)  # the success is found in the file: no engine is started again
    with bench.studio.session() as session:
        assert session.query(RunEvent).filter_by(run_id=run_id).count() == before
    assert read(run_id).status == "succeeded"


def test_a_crash_says_exit_code_last_words_and_what_to_do(bench, new_run, read):
    run_id = new_run(bench.studio, "crash")
    work(bench)
    run = read(run_id)
    assert run.status == "failed"
    assert run.error["exit_code"] == 3
    assert "exit code 3" in run.error["message"]
    assert "the sky fell" in run.error["message"]
    assert run.error["advice"]
    assert "the sky fell" in run.log_tail


def test_an_engine_killed_by_the_system_is_told_as_out_of_memory(bench, new_run, read):
    run_id = new_run(bench.studio, "killed")
    work(bench)
    error = read(run_id).error
    assert error["exit_code"] == -signal.SIGKILL
    assert "killed by the system, probably because the machine ran out of memory" in error["message"]


def test_a_failure_that_the_engine_tells_is_kept_word_for_word(bench, new_run, read):
    run_id = new_run(bench.studio, "refuse")
    work(bench)
    wanted = {"code": "no_rows", "message": "0 of 9 rows can be used.", "advice": ["Mend the rows."], "exit_code": 1}
    assert read(run_id).error == wanted


def test_a_half_line_waits_and_a_broken_one_becomes_a_warning(bench, new_run, read):
    run_id = new_run(bench.studio, "half")
    work(bench)
    assert read(run_id).status == "failed"
    with bench.studio.session() as session:
        told = session.query(RunEvent).filter_by(run_id=run_id).order_by(RunEvent.offset).all()
        assert [event.kind for event in told] == ["phase", "warning"]
        assert told[1].data["code"] == "unreadable_event"
        runs.resume(session, run_id)
        session.query(Run).filter_by(id=run_id).update(
            {"spec": {**read(run_id).spec, "name": "steps 2"}}, synchronize_session=False
        )
    work(bench)  # the half line is cut off, so that the next engine's first line is whole
    assert read(run_id).status == "succeeded"
    assert [json.loads(line) for line in file_of(bench, run_id, "events.jsonl").read_bytes().splitlines()[2:]]


def test_R08_a_megabyte_of_output_blocks_nothing(bench, new_run, read):
    run_id = new_run(bench.studio, "loud")
    work(bench)
    run = read(run_id)
    assert run.status == "succeeded"
    assert file_of(bench, run_id, "log.txt").stat().st_size > 1_000_000
    assert 60_000 < len(run.log_tail.encode()) <= 64 * 1024


def test_the_engine_sees_no_secret_and_no_setting(bench, new_run, monkeypatch):
    secrets = {
        "ATELIER_PASSWORD": "a",
        "ATELIER_DATABASE_URL": "b",
        "HF_TOKEN": "c",
        "PGPASSWORD": "d",
        "MY_API_KEY": "e",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run_id = new_run(bench.studio, "environment")
    work(bench)
    seen = json.loads(file_of(bench, run_id, "environment.json").read_text())
    assert not set(secrets) & set(seen)
    assert seen["HF_HUB_OFFLINE"] == "1"
    assert seen["ATELIER_LIFELINE"] == "1"


def test_R05_a_run_that_pauses_itself_says_why(bench, new_run, read):
    run_id = new_run(bench.studio, "full")
    work(bench)
    run = read(run_id)
    assert (run.status, run.phase_detail) == ("paused", "The disk is full.")


def test_cancel_in_every_status(bench, new_run, read, status_is, working):
    studio = bench.studio
    queued = new_run(studio, "long")
    with studio.session() as session:
        assert runs.cancel(session, queued).status == "cancelled"
        assert runs.cancel(session, queued).status == "cancelled"
    assert work(bench) == 0

    running = new_run(studio, "long")
    thread = working()
    status_is(running, "running")
    with studio.session() as session:
        runs.cancel(session, running)
        runs.cancel(session, running)
    thread.join(20)
    run = read(running)
    assert (run.status, run.wanted, run.error) == ("cancelled", "", None)
    assert run.finished_at

    done = new_run(studio)
    work(bench)
    failed = new_run(studio, "crash")
    work(bench)
    for ended, word in ((done, "succeeded"), (failed, "failed")):
        with studio.session() as session, pytest.raises(Conflict, match=word):
            runs.cancel(session, ended)

    paused = new_run(studio, "full")
    work(bench)
    with studio.session() as session:
        assert runs.cancel(session, paused).status == "cancelled"


def test_R04_pause_then_resume_goes_on_from_the_checkpoint(bench, new_run, read, status_is, working):
    run_id = new_run(bench.studio, "long")
    thread = working()
    status_is(run_id, "running")
    with bench.studio.session() as session:
        runs.pause(session, run_id)
    thread.join(20)
    stopped = read(run_id)
    assert stopped.status == "paused"
    assert stopped.finished_at is None
    with bench.studio.session() as session:
        runs.resume(session, run_id)
    bench.leaving.clear()
    working()
    wait_until(lambda: read(run_id).step > stopped.step, "the run to go on")
    with bench.studio.session() as session:
        told = session.query(RunEvent).filter_by(run_id=run_id, kind="started").order_by(RunEvent.offset).all()
        assert told[-1].data["first_step"] == stopped.step
        runs.cancel(session, run_id)
    status_is(run_id, "cancelled")


def test_R06_a_child_that_ignores_sigterm_is_killed_with_its_group(bench, new_run, read, status_is, working):
    object.__setattr__(bench.studio, "settings", bench.studio.settings.model_copy(update={"stop_grace_seconds": 0.3}))
    run_id = new_run(bench.studio, "deaf")
    thread = working()
    wait_until(lambda: file_of(bench, run_id, "child").exists(), "the child to start")
    child = psutil.Process(int(file_of(bench, run_id, "child").read_text()))
    with bench.studio.session() as session:
        runs.cancel(session, run_id)
    thread.join(20)
    assert read(run_id).status == "cancelled"
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child to die", 5)


def test_a_leaving_worker_saves_the_run_and_queues_it_again(bench, new_run, read, status_is, working):
    run_id = new_run(bench.studio, "long")
    thread = working()
    status_is(run_id, "running")
    bench.leaving.set()
    thread.join(20)
    run = read(run_id)
    assert (run.status, run.attempts, run.worker_id, run.finished_at) == ("queued", 0, "", None)
    assert run.step > 0


def test_a_run_that_was_taken_over_is_left_alone(bench, new_run, read, status_is, working):
    run_id = new_run(bench.studio, "long")
    thread = working()
    status_is(run_id, "running")
    pid = int(file_of(bench, run_id, "started").read_text())
    with bench.studio.session() as session:
        session.query(Run).filter_by(id=run_id).update({"worker_id": "somebody else"})
    thread.join(20)
    assert not psutil.pid_exists(pid)
    run = read(run_id)
    assert (run.status, run.worker_id) == ("running", "somebody else")


def test_an_engine_that_an_earlier_worker_left_is_ended_first(bench, new_run, status_is, read, working):
    run_id = new_run(bench.studio, "deaf")
    thread = working()
    wait_until(lambda: file_of(bench, run_id, "child").exists(), "the engine to start")
    first = psutil.Process(int(file_of(bench, run_id, "started").read_text()))
    with bench.studio.session() as session:
        session.query(Run).filter_by(id=run_id).update(
            {"worker_id": "", "status": "queued", "spec": {**read(run_id).spec, "name": "steps 2"}}
        )
        session.query(DeviceLease).delete()
    assert work(bench) == 1
    assert read(run_id).status == "succeeded"
    thread.join(20)
    assert not first.is_running()


@pytest.mark.parametrize(
    ("harm", "code"), [("remove", "file_gone"), ("change", "file_changed"), ("delete", "file_gone")]
)
def test_D19_a_dataset_file_that_is_gone_or_changed_fails_clearly(bench, new_run, read, harm, code):
    run_id = new_run(bench.studio)
    run = read(run_id)
    path = next((bench.studio.storage.data_dir / "datasets").rglob("data.jsonl"))
    with bench.studio.session() as session:
        spec = {**run.spec, "data": {**run.spec["data"], "sha256": "0" * 64}}
        session.query(Run).filter_by(id=run_id).update({"spec": spec})
    if harm == "remove":
        path.unlink()
    elif harm == "delete":
        with bench.studio.session() as session:
            session.execute(runs.update(runs.Dataset).values(status="deleted"))
    work(bench)
    failed = read(run_id)
    assert failed.status == "failed"
    assert failed.error["code"] == code
    assert failed.started_at
    assert failed.finished_at


def test_an_engine_that_cannot_be_started_fails_the_run(bench, new_run, read):
    run_id = new_run(bench.studio)
    claim = claim_next(bench.studio.sessions, bench.host, bench.devices, bench.new_holder(), 5)
    bench.standby.engine = ["/no/such/program"]
    supervise(bench, claim)
    assert read(run_id).error["code"] == "engine_not_started"


def test_the_pace_of_the_last_steps_gives_the_time_left(bench, new_run, read, working, status_is):
    run_id = new_run(bench.studio, "long")
    working()
    wait_until(lambda: read(run_id).step > 30, "thirty steps")
    run = read(run_id)
    assert 0.5 < run.seconds_left / ((run.total_steps - run.step) * 0.0205) < 2.0
    with bench.studio.session() as session:
        runs.cancel(session, run_id)
    status_is(run_id, "cancelled")


def test_a_worker_that_dies_takes_its_engine_along(bench, new_run, status_is, working, read):
    """The lifeline: closing the pipe is what the kernel does for a killed worker."""
    run_id = new_run(bench.studio, "long")
    working()
    status_is(run_id, "running")
    pid = int(file_of(bench, run_id, "started").read_text())
    process = psutil.Process(pid)
    pipe = next(handle for handle in Path("/proc/self/fd").iterdir() if same_pipe(handle, pid))
    os.close(int(pipe.name))
    began = time.monotonic()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "the engine to end", 5)
    assert time.monotonic() - began < 2
    assert status_is(run_id, "failed").error["exit_code"] == 9


def same_pipe(handle: Path, pid: int) -> bool:
    try:
        return handle.readlink() == Path(f"/proc/{pid}/fd/0").readlink()
    except OSError:
        return False
