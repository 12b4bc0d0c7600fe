"""Runs on several hosts: leased on all or on none, stopped everywhere, and put right when a host is lost."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import Started, Step
from engine.rundir import RunDir
from engine.spec import Layout, RunSpec
from engine.train import train
from studio import runs
from studio.db.tables import DeviceLease, Member, Model, Run, Worker, now
from studio.settings import Settings
from studio.storage import Storage
from tests.engine.models import make_tiny
from tests.engine.runs import said
from tests.services import wait_until
from worker import hosts, membership, supervise
from worker.bench import Bench
from worker.claims import claim_next
from worker.devices import Device
from worker.keeper import Keeper
from worker.launch import ENGINE
from worker.shares import fewest
from worker.tasks import work

CPU = Device("cpu", "cpu", "CPU", 8, 0)
GPUS = [Device(f"cuda:{n}", "cuda", "GPU", 8, 0) for n in range(2)]
LOOPBACK = "127.0.0.1"
ONE = pytest.mark.parametrize("backend", ["postgres+redis"], indirect=True)  # what several hosts have


@pytest.fixture
def new_run(new_run):
    """`new_run(studio, "long", hosts=2)`: a queued run on that many hosts."""

    def make(studio, name="steps 5", device="auto", **layout):
        run_id = new_run(studio, name)
        with studio.session() as session:
            run = session.get_one(Run, run_id)
            split = Layout(**{"data": 2, "hosts": 2, **layout}).model_dump()
            run.spec = {**run.spec, "layout": split, "training": {**run.spec["training"], "device": device}}
        return run_id

    return make


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"rendezvous_address": LOOPBACK})


@pytest.fixture
def bench(both, fake_engine):
    """`bench("alpha")`: the insides of a worker on a host of that name, beating, without Celery."""
    made = []

    def make(host, engine=fake_engine):
        bench = Bench(both, engine, host=host, devices=[CPU])
        keeper = Keeper(bench, "runs", resend_seconds=1.0)
        keeper._stand_by = lambda free: None
        keeper.start()
        made.append((bench, keeper))
        return bench

    yield make
    for bench, keeper in made:
        bench.leaving.set()
        keeper.join(10)
        for guest in bench.guests:
            guest.join(10)
        bench.close()


@pytest.fixture
def leading():
    """Works at a bench in a thread, as Celery would have it."""
    threads = []

    def start(bench):
        threads.append(Thread(target=work, args=(bench,), daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(20)


def hello(studio, host, devices=(CPU,), address=LOOPBACK):
    """A worker on this host says that it lives."""
    told = [device.told() for device in devices]
    with studio.session() as session:
        values = {"host": host, "queue": "runs", "seen_at": now(), "devices": told, "address": address}
        session.merge(Worker(id=f"worker-{host}", **values))


def leases(studio):
    with studio.session() as session:
        return sorted(lease.device for lease in session.query(DeviceLease))


def claim(studio, host, found=(CPU,), holder="mine.1", seconds=30, address=LOOPBACK):
    return claim_next(studio.sessions, host, found, holder, seconds, address)


def test_devices_are_leased_on_all_hosts_or_on_none(both, new_run, read):
    run_id = new_run(both)
    assert claim(both, "alpha") is None  # nobody else is there
    hello(both, "beta", address="")
    hello(both, "gamma", address="10.0.0.3")
    hello(both, "delta", devices=GPUS)
    assert claim(both, "alpha") is None  # one is reached by nobody, one not from loopback, one has no CPU to lend
    hello(both, "beta")
    with both.session() as session:
        session.add(
            DeviceLease(device="beta/cpu", run_id=run_id, worker_id="else", expires_at=now().replace(year=2100))
        )
    assert claim(both, "alpha") is None
    assert (leases(both), read(run_id).status) == (["beta/cpu"], "queued")
    with both.session() as session:
        session.query(DeviceLease).delete()
    assert claim(both, "alpha", address="") is None
    won = claim(both, "alpha")
    assert (won.device, won.members) == ("alpha/cpu", ("mine.1/1",))
    assert leases(both) == ["alpha/cpu", "beta/cpu"]
    with both.session() as session:
        (member,) = session.query(Member)
        assert (member.host, member.worker_id, member.device) == ("beta", "worker-beta", "beta/cpu")
        assert (member.leader, member.place, member.hosts, member.status) == ("mine.1", 1, 2, "asked")


def test_of_many_who_claim_two_runs_from_both_sides_one_wins_one(both, new_run):
    new_run(both), new_run(both)
    for host in ("alpha", "beta"):
        hello(both, host)
    barrier = Barrier(12)

    def attempt(number):
        barrier.wait()
        return claim(both, ("alpha", "beta")[number % 2], holder=f"w.{number}")

    with ThreadPoolExecutor(12) as pool:
        won = [one for one in pool.map(attempt, range(12)) if one]
    assert len(won) == 1
    assert leases(both) == ["alpha/cpu", "beta/cpu"]
    with both.session() as session:
        assert session.query(Run).filter_by(status="queued").count() == 1


def test_a_layout_that_no_host_can_carry_alone_takes_as_few_hosts_as_have_its_devices(both, new_run):
    run_id = new_run(both, data=1, shard=4, hosts="auto")
    hello(both, "beta", GPUS)
    won = claim(both, "alpha", GPUS)
    assert won.run_id == run_id
    assert leases(both) == [f"{host}/cuda:{n}" for host in ("alpha", "beta") for n in (0, 1)]
    small = new_run(both, data=1, shard=2, hosts="auto")
    assert claim(both, "gamma", GPUS).run_id == small
    many = new_run(both, data=4, hosts="auto", device="cpu")
    assert (claim(both, "gamma").run_id, leases(both)[-3]) == (many, "gamma/cpu")  # a CPU serves all its processes


@given(st.integers(1, 64), st.lists(st.integers(1, 16), max_size=8))
def test_the_fewest_hosts_have_an_even_share_each_and_one_less_would_not_do(count, sizes):
    def do(ways):
        return count % ways == 0 and sum(size >= count // ways for size in sizes) >= ways

    found = fewest(count, sizes)
    assert not found or do(found)
    assert not any(do(ways) for ways in range(2, (found or len(sizes) + 1)))


def test_a_run_on_two_hosts_goes_from_queued_to_succeeded(bench, both, new_run, read):
    alpha, _ = bench("alpha"), bench("beta")
    run_id = new_run(both)
    wait_until(lambda: work(alpha), "both hosts to be there", 10)
    assert read(run_id).status == "succeeded"
    wait_until(lambda: not leases(both), "both devices to be free", 5)
    assert json.loads((both.storage.run_dir(run_id).path / "spec.json").read_text())["layout"]["hosts"] == 2
    with both.session() as session:
        (member,) = session.query(Member)
        assert (member.host, member.status, member.exit_code, member.error) == ("beta", "ended", 0, "")


def started(both, run_id, bench, leading, status_is):
    """A long run under way on two hosts."""
    alpha, beta = bench("alpha"), bench("beta")
    wait_until(lambda: both_seen(both), "both hosts to be there", 10)
    thread = leading(alpha)
    status_is(run_id, "running")
    assert leases(both) == ["alpha/cpu", "beta/cpu"]
    return alpha, beta, thread


def both_seen(studio):
    with studio.session() as session:
        return session.query(Worker).count() == 2


@ONE
@pytest.mark.parametrize(("wish", "status"), [(runs.cancel, "cancelled"), (runs.pause, "paused")])
def test_a_wish_to_stop_reaches_every_host(bench, both, new_run, leading, status_is, wish, status):
    run_id = new_run(both, "long")
    _, _, thread = started(both, run_id, bench, leading, status_is)
    with both.session() as session:
        wish(session, run_id)
    thread.join(20)
    assert status_is(run_id, status).error is None
    wait_until(lambda: not leases(both), "both devices to be free", 5)


@ONE
def test_a_host_whose_worker_is_to_end_has_the_run_saved_and_queued(bench, both, new_run, leading, status_is):
    run_id = new_run(both, "long")
    _, beta, thread = started(both, run_id, bench, leading, status_is)
    beta.leaving.set()
    thread.join(20)
    run = status_is(run_id, "queued")
    assert (run.attempts, run.step > 0) == (0, True)
    wait_until(lambda: not leases(both), "both devices to be free", 5)


@ONE
def test_a_run_that_is_led_by_nobody_any_more_ends_elsewhere_too(bench, both, new_run, leading, status_is):
    run_id = new_run(both, "long")
    _, beta, thread = started(both, run_id, bench, leading, status_is)
    with both.session() as session:
        session.query(Run).update({"worker_id": "somebody else"})
    thread.join(20)
    wait_until(lambda: leases(both) == ["alpha/cpu"], "the other host's device to be free", 5)
    wait_until(lambda: not any(guest.is_alive() for guest in beta.guests), "its part to end", 5)


@ONE
def test_a_host_without_the_run_s_folder_is_refused_in_a_sentence(bench, both, new_run, read, monkeypatch, tmp_path):
    monkeypatch.setattr(membership, "SEEN_SECONDS", 0.5)
    alpha, beta = bench("alpha"), bench("beta")
    beta.studio = replace(both, storage=Storage(tmp_path / "elsewhere"))
    run_id = new_run(both, "long")
    wait_until(lambda: work(alpha), "both hosts to be there", 10)
    error = read(run_id).error
    assert error["code"] == "host_refused"
    assert error["message"].startswith("The host beta does not see the folder of this run, ")
    assert "same path" in error["advice"][0]
    wait_until(lambda: not leases(both), "both devices to be free", 5)


@ONE
def test_a_host_of_another_version_that_cannot_read_the_settings_refuses(both, new_run, fake_engine, monkeypatch):
    run_id = new_run(both, "long")
    hello(both, "beta")
    won = claim(both, "alpha")
    folder = both.storage.run_dir(run_id)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.spec.write_text('{"version": 99}')
    with both.session() as session:
        member = session.query(Member).one()
        member.status, member.key = "joined", folder.meeting_key()
    membership.take_part(Bench(both, fake_engine, host="beta", devices=[CPU]), member)
    with both.session() as session:
        told = session.query(Member).one()
        assert told.status == "ended"
        assert told.error.startswith("The host beta cannot read the settings of this run: ")
    assert leases(both) == ["alpha/cpu"]
    assert won.members == (member.holder,)


@ONE
def test_an_engine_that_dies_on_another_host_is_told_with_its_last_words(bench, both, new_run, read):
    alpha, _ = bench("alpha"), bench("beta")
    run_id = new_run(both, "elsewhere")
    wait_until(lambda: work(alpha), "both hosts to be there", 10)
    run = read(run_id)
    assert run.status == "failed"
    assert "On the host beta it ended with exit code 1: RuntimeError: the sky fell elsewhere" in run.error["message"]
    wait_until(lambda: not leases(both), "both devices to be free", 5)


@ONE
def test_an_engine_that_waits_in_vain_for_one_elsewhere_is_ended_and_never_said_to_lack_memory(
    bench, both, new_run, read, monkeypatch
):
    monkeypatch.setattr(hosts, "GRACE_SECONDS", 0.2)
    alpha, _ = bench("alpha"), bench("beta")
    run_id = new_run(both, "unnoticed")
    wait_until(lambda: work(alpha), "both hosts to be there", 10)
    run = read(run_id)
    assert run.status == "failed"
    assert run.error["message"] == (
        "The engine here was ended, since one that it works with ended on another host. On the host beta it ended with "
        "exit code 1: RuntimeError: the sky fell elsewhere"
    )
    wait_until(lambda: not leases(both), "both devices to be free", 5)


def test_a_layout_that_hosts_cannot_share_fails_with_a_sentence_and_does_not_wait_for_ever(
    both, new_run, fake_engine, read
):
    run_id = new_run(both, data="auto")  # as when it was made before its model was ready
    bench = Bench(both, fake_engine, host="alpha", devices=[CPU])
    assert work(bench) == 1
    error = read(run_id).error
    assert error["message"] == "How a run is split over several hosts is not planned for you."
    assert error["advice"] == ["Set Data to 2, and Shard to the number of devices of each host."]
    assert leases(both) == []


def test_what_another_host_has_not_begun_is_given_back_with_a_run_that_fails_before_its_start(
    both, new_run, fake_engine
):
    run_id = new_run(both)
    hello(both, "beta")
    bench = Bench(both, fake_engine, host="alpha", devices=[CPU])
    won = claim(both, "alpha", holder=bench.new_holder())
    next((both.storage.data_dir / "datasets").rglob("data.jsonl")).unlink()
    supervise.supervise(bench, won)
    assert leases(both) == []
    with both.session() as session:
        assert session.get_one(Run, run_id).error["code"] == "file_gone"
        assert session.query(Member).one().status == "ended"


@ONE
def test_a_killed_host_sends_the_run_back_and_it_goes_on_with_another(both, new_run, start_worker, status_is, read):
    workers = {host: start_worker(both.settings, host=host) for host in ("alpha", "beta")}
    wait_until(lambda: both_seen(both), "both hosts to be there", 20)
    run_id = new_run(both, "long")
    leads = status_is(run_id, "running", seconds=20).worker_id.partition("-")[0]
    (killed,) = {*workers} - {leads}
    workers[killed].kill()
    workers[killed].wait()
    start_worker(both.settings, host="gamma")
    new = sorted({"alpha/cpu", "beta/cpu", "gamma/cpu"} - {f"{killed}/cpu"})
    wait_until(lambda: leases(both) == new and read(run_id).status == "running", "the run on the hosts there are", 40)
    step = read(run_id).step
    wait_until(lambda: read(run_id).step > step > 0, "the run to go on", 10)
    with both.session() as session:
        runs.cancel(session, run_id)
    status_is(run_id, "cancelled")
    wait_until(lambda: not leases(both), "all devices to be free", 10)


@pytest.mark.parametrize("backend", ["sqlite+files"], indirect=True)
def test_two_hosts_train_to_the_losses_of_one_process(bench, both, ready, read, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spec = ready(both)
    with both.session() as session:
        session.get_one(Model, spec.model).path = str(make_tiny("llama", tmp_path / "llama"))
        asked = {
            "data": {**spec.data.model_dump(), "eval_fraction": 0.0},
            "training": {"max_steps": 4, "dtype": "float32", "device": "cpu", "gradient_accumulation_steps": 1},
            "saving": {"sample_prompts": 0},
            "layout": {"data": 2, "hosts": 2},
        }
        run_id = runs.create(session, RunSpec.model_validate({"model": spec.model, **asked})).id
    alpha, _ = bench("alpha", ENGINE), bench("beta", ENGINE)
    wait_until(lambda: work(alpha), "both hosts to be there", 10)
    run, folder = read(run_id), both.storage.run_dir(run_id)
    assert run.status == "succeeded", (run.error, run.log_tail)
    (begun,) = said(folder, Started)
    assert (begun.devices, len(begun.hosts), begun.layout) == (2, 2, "data 2")
    here = begun.hosts[0]
    assert [one.device for one in said(folder, Step)[-1].memory] == [f"{here}/cpu", f"{here}/cpu:1"]

    alone = folder.read_spec()
    training = alone.training.model_copy(update={"gradient_accumulation_steps": 2})
    single = RunDir(tmp_path / "single")
    single.write_spec(alone.model_copy(update={"layout": Layout(), "training": training}))
    monkeypatch.setattr("engine.train.verify_result", lambda *_: {"divergence": 0.0, "effect": 1.0})
    assert train(single.path) == 0
    losses = [[step.loss for step in said(one, Step)] for one in (folder, single)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert len(losses[0]) == 4


@pytest.mark.parametrize("address", ["0.0.0.0", "224.0.0.1", "alpha.example", "::1"])
def test_hosts_meet_at_one_address_of_a_host_and_at_nothing_else(address):
    with pytest.raises(ValueError, match=r"address|octets"):
        Settings(rendezvous_address=address)
    assert Settings(rendezvous_address=LOOPBACK).rendezvous_address == LOOPBACK
