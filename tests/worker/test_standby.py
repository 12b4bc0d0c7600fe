"""An engine that waits becomes the run's own process, and is in nobody's way otherwise."""

from dataclasses import replace
from threading import Thread

import psutil
import pytest

from studio import runs
from tests.services import wait_until
from worker.devices import host_name
from worker.keeper import Keeper
from worker.standby import Standby
from worker.tasks import work

CPU = f"{host_name()}/cpu"


def waiting(bench):
    kept = bench.standby._waiting
    return kept and kept[1]


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def bench(bench):
    bench.devices = [device for device in bench.devices if device.kind == "cpu"]
    return bench


def stood_by(bench, run_id):
    return (bench.studio.storage.run_dir(run_id).path / "stood-by").exists()


def test_the_engine_that_waits_becomes_the_run_and_logs_into_its_folder(bench, new_run, read):
    bench.standby.keep(CPU)
    pid = waiting(bench).popen.pid
    bench.standby.keep(CPU)
    assert waiting(bench).popen.pid == pid
    run_id = new_run(bench.studio, "loud")
    assert work(bench) == 1
    assert read(run_id).status == "succeeded"
    assert "yyy" in read(run_id).log_tail
    folder = bench.studio.storage.run_dir(run_id).path
    assert (folder / "started").read_text() == str(pid)
    assert str(pid) in (folder / "process.json").read_text()
    assert waiting(bench) is None


def test_a_run_on_another_device_is_not_given_the_waiting_engine(bench, new_run, read):
    bench.standby.keep(f"{host_name()}/cuda:7")
    run_id = new_run(bench.studio)
    work(bench)
    assert read(run_id).status == "succeeded"
    assert not stood_by(bench, run_id)
    assert waiting(bench) is not None


def test_R06_a_run_that_stood_by_and_hears_nothing_is_killed_with_its_children(bench, new_run, read):
    hasty = bench.studio.settings.model_copy(update={"stop_grace_seconds": 0.2})
    bench.studio = replace(bench.studio, settings=hasty)
    bench.standby.keep(CPU)
    run_id = new_run(bench.studio, "deaf")
    child = bench.studio.storage.run_dir(run_id).path / "child"
    worker = Thread(target=work, args=(bench,))
    worker.start()
    wait_until(lambda: child.exists() and child.read_text(), "the child")
    with bench.studio.session() as session:
        runs.cancel(session, run_id)
    worker.join(30)
    assert read(run_id).status == "cancelled"
    assert stood_by(bench, run_id)
    wait_until(lambda: gone(int(child.read_text())), "the child to be killed")


def test_an_engine_that_died_while_waiting_costs_no_run_and_is_not_started_for_ever(bench, new_run, read):
    bench.standby.keep(CPU)
    process = waiting(bench)
    process.popen.kill()
    process.popen.wait()
    run_id = new_run(bench.studio)
    work(bench)
    assert read(run_id).status == "succeeded"
    assert not stood_by(bench, run_id)
    bench.standby.keep(CPU)
    assert waiting(bench) is None


def test_an_engine_that_cannot_be_started_is_no_error_of_the_worker(tmp_path):
    standby = Standby(["/no/such/program"], tmp_path / "logs" / "standby.log")
    standby.keep(CPU)
    assert standby._waiting is None


def test_the_worker_keeps_one_while_its_device_is_free_and_ends_it_with_itself(bench):
    keeper = Keeper(bench, "runs")
    keeper.start()
    wait_until(lambda: waiting(bench), "an engine to wait")
    process = waiting(bench)
    bench.leaving.set()
    keeper.join(10)
    bench.close()
    assert gone(process.popen.pid)
    bench.standby.keep(CPU)
    assert waiting(bench) is None
