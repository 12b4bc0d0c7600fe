"""Opening the database: SQLite in the data folder, or PostgreSQL; the tables themselves are in `studio.db.tables`."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from studio.db.tables import Base
from studio.errors import Invalid, Unavailable
from studio.settings import Settings

BUSY_SECONDS = 30  # how long a SQLite writer waits for another one
EXAMPLE = "Leave it empty for SQLite, or use postgresql+psycopg://user:password@host/name."
CONNECT_SECONDS = 5  # a PostgreSQL that does not answer is reported, not waited for


def make_engine(settings: Settings) -> Engine:
    """An engine for `settings.database`; connects on first use.

    SQLite runs in WAL mode (readers never wait for the writer) with foreign keys on. Raises Invalid for any other
    database than the two, Unavailable when the data folder cannot be made.
    """
    url = _url(settings)
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")  # the only driver that comes along
        return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_SECONDS})
    if url.get_backend_name() != "sqlite":
        raise Invalid(
            f"ATELIER_DATABASE_URL names {url.get_backend_name()!r}; Atelier runs on SQLite and PostgreSQL.",
            advice=EXAMPLE,
        )
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"The data folder {settings.data_dir} cannot be made: {error.strerror}.") from error
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _url(settings: Settings) -> URL:
    """The database's address in parts; Invalid, without repeating it (it holds a password), when it is none."""
    try:
        return make_url(settings.database)
    except (ArgumentError, ValueError) as error:
        raise Invalid("ATELIER_DATABASE_URL is not the address of a database.", advice=EXAMPLE) from error


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    """Pragmas hold per connection; WAL stays with the file."""
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={BUSY_SECONDS * 1000}"):
        connection.execute(f"PRAGMA {pragma}")


def make_sessions(engine: Engine) -> sessionmaker[Session]:
    """Sessions whose objects stay readable after the commit."""
    return sessionmaker(engine, expire_on_commit=False)


def insert_new(session: Session, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
    """Insert the rows whose primary key is not there yet."""
    session.execute(_insert_or_nothing(session, table), list(rows))


def insert_one(session: Session, table: type[Base], row: dict[str, Any]) -> bool:
    """Insert a row; False when its primary key is there already."""
    key = inspect(table).primary_key[0]
    return session.execute(_insert_or_nothing(session, table).values(row).returning(key)).first() is not None


def _insert_or_nothing(session: Session, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


def ping(engine: Engine) -> None:
    """Raise Unavailable, in words, when the database does not answer."""
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0] if error.orig else "no answer"
        raise Unavailable(
            f"The database {engine.url.render_as_string(hide_password=True)} is out of reach: {reason}",
            code="database_unavailable",
            advice="Start the database, or correct ATELIER_DATABASE_URL or the data folder.",
        ) from error


def when_over(
    session: Session, *, committed: Callable[[], None] | None = None, undone: Callable[[], None] | None = None
) -> None:
    """Call one of the two after the session's present transaction: for files that belong to rows."""
    waiting = [True]

    def end(action: Callable[[], None] | None) -> None:
        if waiting and waiting.pop() and action is not None:
            action()

    event.listen(session, "after_commit", lambda _session: end(committed), once=True)
    event.listen(session, "after_rollback", lambda _session: end(undone), once=True)
