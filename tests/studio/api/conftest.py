"""An API over a fresh installation, in process and as a live server, and a worker with a fake engine."""

import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import select
from starlette.testclient import TestClient

from studio.app import build_api
from studio.cli.listener import listen
from studio.context import Studio
from studio.db.migrate import upgrade
from studio.db.tables import Dataset, Model, now
from studio.settings import Settings
from worker.bench import Bench
from worker.prepare import check_dataset
from worker.tasks import work

ADDRESS = "http://127.0.0.1:7860"
MODEL_ID = "tiny-model"
CHAT = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n' * 20


@pytest.fixture
def app(settings) -> FastAPI:
    upgrade(settings)
    return build_api(settings)


@pytest.fixture
def studio(app) -> Studio:
    return app.state.studio


@pytest.fixture
def client(app):
    with TestClient(app, base_url=ADDRESS) as client:
        yield client


@pytest.fixture
def model(studio) -> str:
    """A model that is ready, as far as the database knows."""
    with studio.session() as session:
        folder = studio.storage.model_dir(MODEL_ID)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        facts = {"parameters": 1000, "context_length": 512}
        row = Model(
            id=MODEL_ID, name="Tiny", source="folder", path=str(folder), created_at=now(), status="ready", facts=facts
        )
        session.add(row)
    return MODEL_ID


@pytest.fixture
def file_id(client) -> str:
    answer = client.post("/v1/files", files={"file": ("rows.jsonl", CHAT)}, data={"purpose": "fine-tune"})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


@pytest.fixture
def checked_file_id(studio, file_id) -> str:
    check_dataset(Bench(studio), file_id)
    return file_id


@contextmanager
def serving(app: FastAPI, settings: Settings):
    """The address of a server that really listens."""
    listener = listen(settings.host, 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield "http://{}:{}".format(*listener.getsockname())
    server.should_exit = True
    thread.join(timeout=10)
    listener.close()


@pytest.fixture
def live(app, settings):
    with serving(app, settings) as address:
        yield address


@pytest.fixture
def live_with_password(settings):
    settings = settings.model_copy(update={"password": SecretStr("open sesame")})
    upgrade(settings)
    with serving(build_api(settings), settings) as address:
        yield address


@pytest.fixture
def working(studio, fake_engine):
    """A worker beside the server: checks files and runs the fake engine until the test ends."""
    bench = Bench(studio, engine=fake_engine)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            for dataset_id in waiting_datasets(studio):
                check_dataset(bench, dataset_id)
            work(bench)
            time.sleep(0.05)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    ended.set()
    bench.leaving.set()
    thread.join(timeout=20)


def waiting_datasets(studio: Studio) -> list[str]:
    with studio.session() as session:
        return list(session.scalars(select(Dataset.id).where(Dataset.status == "checking")))
