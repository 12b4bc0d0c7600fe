"""A bench in this process, worker processes of their own, and runs to work on; every process ends with its test."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from engine.spec import RunSpec
from studio import runs
from studio.context import Studio
from studio.db.tables import Run
from studio.settings import Settings
from tests.services import wait_until
from worker.bench import Bench

SERVE = """
import json, logging, os, sys
if host := os.environ.get("NAME_OF_HOST"):
    own = tuple(os.uname())
    os.uname = lambda: os.uname_result((own[0], host, *own[2:]))
from studio.settings import Settings
from worker.main import serve
logging.basicConfig(level=logging.INFO)
sys.exit(serve(Settings(), sys.argv[1], json.loads(sys.argv[2]), resend_seconds=1.0))
"""


@pytest.fixture
def bench(both: Studio, fake_engine: list[str]) -> Iterator[Bench]:
    """A worker's insides without Celery, on both pairs."""
    made = Bench(both, fake_engine)
    yield made
    made.leaving.set()
    made.close()


@pytest.fixture
def new_run(ready: Callable[[Studio], RunSpec]) -> Callable[..., str]:
    """`new_run(studio, "crash")`: queues a run whose name tells the fake engine how to behave; its id."""
    made: dict[Studio, RunSpec] = {}

    def make(studio: Studio, name: str = "steps 5") -> str:
        if id(studio) not in made:
            made[id(studio)] = ready(studio)
        with studio.session() as session:
            return runs.create(session, made[id(studio)].model_copy(update={"name": name})).id

    return make


@pytest.fixture
def read(both: Studio) -> Callable[[str], Run]:
    """The stored run, as it is now."""

    def fresh(run_id: str) -> Run:
        with both.session() as session:
            return session.get_one(Run, run_id)

    return fresh


@pytest.fixture
def status_is(read: Callable[[str], Run]) -> Callable[..., Run]:
    """Waits until a run has one of the statuses."""

    def wait(run_id: str, *wanted: str, seconds: float = 30.0) -> Run:
        wait_until(lambda: read(run_id).status in wanted, f"{run_id} to be {wanted}", seconds)
        return read(run_id)

    return wait


@pytest.fixture
def start_worker(fake_engine: list[str], tmp_path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`start_worker(settings, "runs")`: a real worker process with the fake engine, which takes `host` for its own."""

    started: list[subprocess.Popen[bytes]] = []

    def start(settings: Settings, queue: str = "runs", host: str = "") -> subprocess.Popen[bytes]:
        told = {
            "DATA_DIR": settings.data_dir,
            "DATABASE_URL": settings.database_url,
            "BROKER_URL": settings.broker_url,
            "LEASE_SECONDS": settings.lease_seconds,
            "STOP_GRACE_SECONDS": settings.stop_grace_seconds,
            "RENDEZVOUS_ADDRESS": settings.rendezvous_address,
        }
        environment = {
            **os.environ,
            "NAME_OF_HOST": host,
            **{f"ATELIER_{name}": str(value) for name, value in told.items()},
        }
        with (tmp_path / f"worker-{len(started)}.log").open("wb") as log:
            argv = [sys.executable, "-c", SERVE, queue, json.dumps(fake_engine)]
            process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in started:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
