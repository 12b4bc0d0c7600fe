"""Real worker processes over both brokers: messages lost and doubled, brokers down, workers asked to end and killed."""

import os
import signal
import subprocess
import sys
import time

import psutil
from sqlalchemy import select

from studio import runs
from studio.context import make_studio
from studio.db.migrate import upgrade
from studio.db.tables import Run, RunEvent, Worker
from studio.queue import send_run
from tests.services import Redis, wait_until

STARTS = "started"


def send(studio, run_id, times=1):
    with studio.session() as session:
        return [send_run(studio.celery, session, session.get_one(Run, run_id)) for _ in range(times)]


def pid_of(studio, run_id):
    return int((studio.storage.run_dir(run_id).path / STARTS).read_text())


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_message_wakes_a_worker_and_a_doubled_one_does_nothing(both, new_run, start_worker, status_is):
    start_worker(both.settings)
    start_worker(both.settings)
    wait_until(lambda: workers(both) == 2, "both workers to be there")
    run_id = new_run(both, "steps 30")
    began = time.monotonic()
    assert send(both, run_id, times=4) == [True] * 4
    run = status_is(run_id, "succeeded")
    assert time.monotonic() - began < 5
    time.sleep(1)
    assert read_events(both, run_id).count("started") == 1
    assert run.attempts == 1


def read_events(studio, run_id):
    with studio.session() as session:
        kinds = select(RunEvent.kind).where(RunEvent.run_id == run_id).order_by(RunEvent.offset)
        return list(session.scalars(kinds))


def workers(studio):
    with studio.session() as session:
        return session.query(Worker).count()


def test_a_lost_message_is_sent_again_and_a_waiting_run_follows(both, new_run, start_worker, status_is):
    start_worker(both.settings)
    first, second = new_run(both, "steps 3"), new_run(both, "steps 3")  # no message for either
    assert status_is(first, "succeeded", seconds=20).started_at < status_is(second, "succeeded", seconds=20).started_at


def test_sigterm_saves_the_run_and_the_next_worker_goes_on(both, new_run, start_worker, status_is):
    worker = start_worker(both.settings)
    run_id = new_run(both, "long")
    send(both, run_id)
    status_is(run_id, "running")
    pid = pid_of(both, run_id)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(15) == 0
    assert gone(pid)
    stopped = status_is(run_id, "queued")
    assert stopped.step > 0
    assert workers(both) == 0
    start_worker(both.settings)
    run = status_is(run_id, "running", seconds=20)
    wait_until(lambda: status_is(run_id, "running").step > stopped.step, "the run to go on")
    assert run.attempts == 1
    with both.session() as session:
        runs.cancel(session, run_id)
    status_is(run_id, "cancelled")


def test_a_killed_worker_takes_its_engine_along_and_another_goes_on(both, new_run, start_worker, status_is):
    worker = start_worker(both.settings)
    run_id = new_run(both, "long")
    send(both, run_id)
    status_is(run_id, "running")
    pid = pid_of(both, run_id)
    worker.kill()
    worker.wait()
    wait_until(lambda: gone(pid), "the engine to end through its lifeline", 5)
    start_worker(both.settings)
    wait_until(lambda: pid_of(both, run_id) != pid and status_is(run_id, "running"), "the run to be resumed", 20)
    assert status_is(run_id, "running").attempts == 1 or status_is(run_id, "running").attempts == 2
    with both.session() as session:
        runs.cancel(session, run_id)
    status_is(run_id, "cancelled")


def test_a_broker_that_is_down_leaves_the_run_queued_until_it_is_back(
    settings, postgres_database, new_run, start_worker
):
    server = Redis()
    on = settings.model_copy(update={"database_url": postgres_database, "broker_url": server.url})
    upgrade(on)
    studio = make_studio(on)
    start_worker(on)  # before the broker is up
    run_id = new_run(studio)
    began = time.monotonic()
    assert send(studio, run_id) == [False]
    assert time.monotonic() - began < 3
    status = lambda: status_of(studio, run_id)  # noqa: E731
    time.sleep(2)
    assert status() == "queued"
    server.up()
    try:
        wait_until(lambda: status() == "succeeded", "the run to start once the broker is back", 40)
        server.down()  # now under a worker that is connected
        second = new_run(studio)
        assert send(studio, second) == [False]
        time.sleep(2)
        assert status_of(studio, second) == "queued"
        server.up()
        wait_until(lambda: status_of(studio, second) == "succeeded", "the second run to start", 40)
    finally:
        server.down()
        studio.close()


def status_of(studio, run_id):
    with studio.session() as session:
        return session.get_one(Run, run_id).status


def test_R09_a_run_longer_than_the_visibility_timeout_is_carried_out_once(both, new_run, start_worker, status_is):
    """The broker delivering the message again, any number of times, is the same as it being sent again."""
    start_worker(both.settings)
    run_id = new_run(both, "long")
    send(both, run_id)
    status_is(run_id, "running")
    for _ in range(5):
        send(both, run_id)
        time.sleep(0.3)
    assert read_events(both, run_id).count("started") == 1
    with both.session() as session:
        runs.cancel(session, run_id)
    status_is(run_id, "cancelled")
    send(both, run_id)
    time.sleep(1)
    assert read_events(both, run_id).count("started") == 1


def test_the_worker_loads_no_torch_and_starts_fast():
    code = (
        "import sys, worker.tasks, worker.main; print([m for m in ('torch','transformers','peft') if m in sys.modules])"
    )
    began = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
    assert time.monotonic() - began < 10


def test_a_worker_without_a_writable_data_folder_says_so(tmp_path):
    (tmp_path / "file").write_text("in the way")
    argv = [sys.executable, "-m", "worker", "runs", "--data-dir", str(tmp_path / "file" / "data")]
    ended = subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ))
    assert ended.returncode == 1
    assert "cannot be" in ended.stderr
    assert "Traceback" not in ended.stderr
