"""Both databases: migrations there and back, one winner, and words for a person when something is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from studio.context import make_studio
from studio.db import make_engine, ping
from studio.db.migrate import check, downgrade, upgrade
from studio.db.tables import Base
from studio.errors import Conflict, Invalid, Unavailable
from studio.settings import Settings


def test_migrations_go_up_down_and_up_again(backend):
    upgrade(backend)
    check(backend)
    downgrade(backend, "base")
    engine = make_engine(backend)
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    upgrade(backend)
    upgrade(backend)
    check(backend)
    assert set(Base.metadata.tables) < set(inspect(engine).get_table_names())
    engine.dispose()


def test_a_database_newer_than_the_code_is_refused_by_name(backend):
    upgrade(backend)
    engine = make_engine(backend)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999_from_the_future'"))
    for refused in (upgrade, check):
        with pytest.raises(Conflict, match=r"newer than this Atelier.*9999_from_the_future"):
            refused(backend)
    engine.dispose()


def test_an_unmigrated_database_is_told_by_check(backend):
    with pytest.raises(Conflict, match="has not been migrated"):
        check(backend)


def test_two_processes_may_migrate_at_once(backend):
    code = (
        "import sys; from studio.settings import Settings; from studio.db.migrate import upgrade; upgrade(Settings())"
    )
    environment = {
        "ATELIER_DATA_DIR": str(backend.data_dir),
        "ATELIER_DATABASE_URL": backend.database_url,
        "PATH": "/usr/bin:/bin",
    }
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    check(backend)


def test_sqlite_runs_in_wal_mode_with_foreign_keys(studio):
    with studio.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000


def test_a_database_that_is_down_is_told_in_words(settings):
    away = settings.model_copy(update={"database_url": "postgresql+psycopg://me:secret@127.0.0.1:9/x"})
    engine = make_engine(away)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9") as caught:
        ping(engine)
    assert "secret" not in caught.value.message
    with pytest.raises(Unavailable):
        upgrade(away)


def test_an_unknown_kind_of_database_is_refused(settings):
    with pytest.raises(Invalid, match="SQLite and PostgreSQL"):
        make_engine(settings.model_copy(update={"database_url": "mysql://x/y"}))


def test_a_data_folder_that_cannot_be_made_is_told_in_words(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable, match="cannot be"):
        make_studio(Settings(data_dir=tmp_path / "file" / "data"))


def test_postgres_and_sqlite_get_the_same_columns(settings, postgres_database):
    shapes = []
    for url in ("", postgres_database):
        on = settings.model_copy(update={"database_url": url})
        upgrade(on)
        engine = create_engine(on.database)
        found = inspect(engine)
        shapes.append(
            {table: {column["name"] for column in found.get_columns(table)} for table in found.get_table_names()}
        )
        engine.dispose()
    assert shapes[0] == shapes[1]


def test_a_word_that_is_no_address_is_refused_without_being_repeated(settings, monkeypatch):
    with pytest.raises(Invalid, match="not the address of a database") as caught:
        make_engine(settings.model_copy(update={"database_url": "s3cret"}))
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("ATELIER_BROKER_URL", "redis-host")
    with pytest.raises(ValueError, match="must be an address such as redis://"):
        Settings()


def test_postgresql_without_a_driver_takes_the_one_that_comes_along(settings):
    engine = make_engine(settings.model_copy(update={"database_url": "postgresql://u:p@host/name"}))
    assert engine.url.drivername == "postgresql+psycopg"
    engine.dispose()
