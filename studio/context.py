"""What requests, page handlers and tasks work with: settings, database, folders and queue, built once per process."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from studio.db import make_engine, make_sessions
from studio.queue import make_celery
from studio.settings import Settings
from studio.storage import Storage


@dataclass(frozen=True)
class Studio:
    """The parts of one installation, as one process sees them."""

    settings: Settings
    engine: Engine
    sessions: sessionmaker[Session]
    storage: Storage
    celery: Celery

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session that commits once at the end, and rolls back on an error."""
        with self.sessions.begin() as session:
            yield session

    def close(self) -> None:
        """Give back every connection."""
        self.celery.close()
        self.engine.dispose()


def make_studio(settings: Settings) -> Studio:
    """Build the parts. Makes the folders; connects to neither database nor broker.

    Raises Unavailable when the data folder cannot be written.
    """
    storage = Storage(settings.data_dir)
    storage.prepare()
    engine = make_engine(settings)
    return Studio(settings, engine, make_sessions(engine), storage, make_celery(settings))
