"""One winner for every run and every device, and what becomes of the runs of a dead worker."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest

from studio import plans, runs
from studio.db.tables import DeviceLease, Run, now
from studio.runs import spec_of
from worker import devices
from worker.claims import MOST_ATTEMPTS, claim_next, extend, settle, sweep, win
from worker.devices import TOGETHER, Device

GPUS = [Device(f"cuda:{n}", "cuda", "GPU", 8, 0) for n in range(2)] + [Device("cpu", "cpu", "CPU", 8, 0)]
CPU = GPUS[2:]


def together(count, what):
    """What each of `count` threads got, all starting at the same moment."""
    barrier = Barrier(count)

    def one(number):
        barrier.wait()
        return what(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_of_twenty_threads_one_wins_a_run(both, new_run):
    run_id = new_run(both)

    def attempt(number):
        with both.session() as session:
            return win(session, run_id, f"worker-{number}", 30)

    assert Counter(together(20, attempt)) == {True: 1, False: 19}


def test_of_twenty_threads_one_claims_the_only_device(both, new_run):
    for _ in range(5):
        new_run(both)
    won = together(20, lambda number: claim_next(both.sessions, "host", CPU, f"worker-{number}", 30))
    assert len([claim for claim in won if claim]) == 1
    with both.session() as session:
        assert session.query(Run).filter_by(status="preparing").count() == 1
        assert session.query(Run).filter_by(status="queued").count() == 4
        assert session.query(DeviceLease).one().device == "host/cpu"


def test_of_twenty_threads_each_device_gets_one_run(both, new_run):
    ids = [new_run(both) for _ in range(4)]
    won = [claim for claim in together(20, lambda n: claim_next(both.sessions, "host", GPUS, f"w-{n}", 30)) if claim]
    assert sorted(claim.device for claim in won) == ["host/cuda:0", "host/cuda:1"]
    assert {claim.run_id for claim in won} == set(ids[:2])


def test_a_run_that_is_planned_not_to_fit_on_one_device_gets_all_of_the_host(both, new_run):
    run_id = new_run(both)
    with both.session() as session:
        plan, _ = plans.ask(session, spec_of(session.get_one(Run, run_id)), [device.told() for device in GPUS])
        plan.status, plan.told = "ready", {"devices": 2}
    claim = claim_next(both.sessions, "host", GPUS, "w", 30)
    assert claim.device == TOGETHER.join(f"host/{device.name}" for device in GPUS if device.kind != "cpu")


def test_cancel_and_claim_at_once_have_one_winner(both, new_run):
    for _ in range(5):
        run_id = new_run(both)

        def act(number, run_id=run_id):
            with both.session() as session:
                if number % 2:
                    return runs.cancel(session, run_id).status
                return win(session, run_id, f"w-{number}", 30)

        answers = together(8, act)
        with both.session() as session:
            run = session.get_one(Run, run_id)
        won = answers.count(True)
        assert won <= 1
        assert (run.status, run.wanted) == (("preparing", "cancel") if won else ("cancelled", ""))


def test_an_expired_device_lease_is_taken_over(both, new_run):
    first, second = new_run(both), new_run(both)
    claim = claim_next(both.sessions, "host", CPU, "dead.1", 30)
    assert claim.run_id == first
    assert claim_next(both.sessions, "host", CPU, "alive.1", 30) is None
    with both.session() as session:
        session.query(DeviceLease).update({"expires_at": now() - timedelta(seconds=1)})
    taken = claim_next(both.sessions, "host", CPU, "alive.2", 30)
    assert (taken.run_id, taken.device) == (second, "host/cpu")


def test_a_run_that_wants_the_cpu_passes_one_that_waits_for_a_gpu(both, new_run):
    one, two, three = (new_run(both) for _ in range(3))
    with both.session() as session:
        for run_id, device in ((one, "auto"), (two, "auto"), (three, "cpu")):
            run = session.get_one(Run, run_id)
            run.spec = {**run.spec, "training": {**run.spec["training"], "device": device}}
    single = [GPUS[0], GPUS[2]]
    claimed = [claim_next(both.sessions, "host", single, f"w.{n}", 30) for n in range(3)]
    assert [(claim.run_id, claim.device) if claim else None for claim in claimed] == [
        (one, "host/cuda:0"),
        (three, "host/cpu"),
        None,
    ]
    assert devices.engine_environment("host/cuda:0")["CUDA_VISIBLE_DEVICES"] == "0"
    assert devices.engine_environment("host/cpu") == {}


def test_a_lease_is_extended_by_its_holder_only(both, new_run):
    new_run(both)
    claim = claim_next(both.sessions, "host", CPU, "mine.1", 1)
    with both.session() as session:
        assert extend(session, claim, 60)
        session.query(Run).update({"worker_id": "other"})
        assert not extend(session, claim, 60)
        assert not settle(session, claim, "succeeded")
        assert session.get_one(Run, claim.run_id).status == "preparing"


@pytest.mark.parametrize(("wanted", "status"), [("", "queued"), ("pause", "paused"), ("cancel", "cancelled")])
def test_the_run_of_a_dead_worker_goes_where_a_person_wanted_it(both, new_run, wanted, status):
    new_run(both)
    claim = claim_next(both.sessions, "host", CPU, "dead.1", -1)
    with both.session() as session:
        session.query(Run).update({"wanted": wanted})
    with both.session() as session:
        sweep(session)
    with both.session() as session:
        run = session.get_one(Run, claim.run_id)
        assert (run.status, run.wanted, run.worker_id) == (status, "", "")
        assert session.query(DeviceLease).count() == 0


def test_a_run_whose_workers_die_again_and_again_fails_with_the_cause(both, new_run):
    run_id = new_run(both)
    for _ in range(MOST_ATTEMPTS):
        assert claim_next(both.sessions, "host", CPU, "dead", -1)
        with both.session() as session:
            sweep(session)
    with both.session() as session:
        run = session.get_one(Run, run_id)
        assert run.status == "failed"
        assert run.error["code"] == "worker_lost"
        assert "3 times" in run.error["message"]
        runs.resume(session, run_id)
    with both.session() as session:
        assert session.get_one(Run, run_id).attempts == 0


def test_a_sweep_leaves_the_living_alone(both, new_run):
    new_run(both)
    claim = claim_next(both.sessions, "host", CPU, "alive", 30)
    with both.session() as session:
        sweep(session)
        assert session.get_one(Run, claim.run_id).status == "preparing"
        assert session.query(DeviceLease).count() == 1


def test_the_devices_of_this_machine_are_found():
    found = devices.find_devices()
    assert found[-1].kind == "cpu"
    assert 0 < found[-1].used_bytes < found[-1].total_bytes
