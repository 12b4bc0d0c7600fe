"""Fixtures for the studio and the workers: settings, a migrated studio, both pairs of servers, and a fake engine."""

import itertools
import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as property_settings
from sqlalchemy import create_engine, text

from engine.spec import Data, RunSpec
from studio.context import Studio, make_studio
from studio.db.migrate import upgrade
from studio.db.tables import Dataset, Model, now
from studio.settings import Settings
from tests.services import Redis, postgres_server, redis_server

ROWS = b"".join(
    json.dumps({"messages": [{"role": "user", "content": f"hi {n}"}, {"role": "assistant", "content": "yo"}]}).encode()
    + b"\n"
    for n in range(20)
)
databases = itertools.count()

# How long a case takes says nothing about whether it holds.
property_settings.register_profile("atelier", deadline=None, suppress_health_check=[HealthCheck.too_slow])
property_settings.load_profile("atelier")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings come from the test alone."""
    for name in ("DATA_DIR", "DATABASE_URL", "BROKER_URL", "HOST", "PORT", "PASSWORD", "RENDEZVOUS_ADDRESS"):
        monkeypatch.delenv(f"ATELIER_{name}", raising=False)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """SQLite and the file broker in a fresh data folder; short leases and grace."""
    return Settings(data_dir=tmp_path / "data", lease_seconds=3, stop_grace_seconds=5)


@pytest.fixture
def studio(settings: Settings) -> Iterator[Studio]:
    """A migrated studio on `settings`."""
    upgrade(settings)
    built = make_studio(settings)
    yield built
    built.close()


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """One private Redis for the session."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """One private PostgreSQL for the session: its URL without a database."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def postgres_database(postgres: str) -> Iterator[str]:
    """The URL of an empty database, dropped at the end."""
    name = f"test_{next(databases)}"
    admin = create_engine(f"{postgres}/postgres", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield f"{postgres}/{name}"
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture(params=["sqlite+files", "postgres+redis"])
def backend(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    """Settings of the embedded pair, then of the real servers; the database is empty."""
    if request.param == "sqlite+files":
        return settings
    server: Redis = request.getfixturevalue("redis")
    server.flush()
    urls = {"database_url": request.getfixturevalue("postgres_database"), "broker_url": server.url}
    return settings.model_copy(update=urls)


@pytest.fixture
def both(backend: Settings) -> Iterator[Studio]:
    """A migrated studio on each pair of `backend`."""
    upgrade(backend)
    built = make_studio(backend)
    yield built
    built.close()


@pytest.fixture
def fake_engine() -> list[str]:
    """The command of an engine that needs no torch: see tests/fake_engine.py."""
    return [sys.executable, "-S", str(Path(__file__).parent / "fake_engine.py")]


@pytest.fixture
def model_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder that looks like a model: `model_folder("name", architecture=..., readme=...)`."""

    def make(name: str = "tiny", architecture: str = "LlamaForCausalLM", readme: str = "") -> Path:
        folder = tmp_path / "models-elsewhere" / name
        folder.mkdir(parents=True)
        config = {
            "architectures": [architecture],
            "model_type": "llama",
            "max_position_embeddings": 2048,
            "hidden_size": 8,
        }
        (folder / "config.json").write_text(json.dumps(config))
        header = json.dumps({"w": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(30))
        (folder / "tokenizer.json").write_text("{}")
        if readme:
            (folder / "README.md").write_text(readme)
        return folder

    return make


@pytest.fixture
def ready(model_folder: Callable[..., Path]) -> Callable[[Studio], RunSpec]:
    """Puts a ready dataset and a ready model into a studio and gives a spec that uses them."""

    def prepare(studio: Studio) -> RunSpec:
        dataset = Dataset(
            id="file-0123456789abcdef",
            name="rows",
            filename="rows.jsonl",
            format="jsonl",
            sha256="",
            bytes=len(ROWS),
            created_at=now(),
            status="ready",
            kind="chat",
            rows=20,
            usable=20,
        )
        path = studio.storage.dataset_file(dataset)
        path.parent.mkdir(parents=True)
        path.write_bytes(ROWS)
        model = Model(
            id="tiny", name="Tiny", source="folder", path=str(model_folder()), created_at=now(), status="ready"
        )
        with studio.session() as session:
            session.add_all([dataset, model])
        return RunSpec(model="tiny", data=Data(dataset=dataset.id))

    return prepare
