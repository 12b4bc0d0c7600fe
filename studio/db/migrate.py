"""Bringing the database to the shape that this code expects, with Alembic; one migration at a time per database."""

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

import migrations
from studio.db import make_engine, ping
from studio.db.tables import Base
from studio.errors import Conflict
from studio.settings import Settings

LOCK = 0x41_74_65_6C  # any number that all Atelier processes agree on


def upgrade(settings: Settings) -> None:
    """Bring the database to the newest revision; harmless when it is there.

    Raises Unavailable when the database is out of reach and Conflict when it is newer than this code.
    """
    with _connected(settings) as connection:
        refuse_newer(connection)
        command.upgrade(_config(connection), "head")


def downgrade(settings: Settings, revision: str) -> None:
    """Take the database back to a revision; "base" empties it."""
    with _connected(settings) as connection:
        refuse_newer(connection)
        command.downgrade(_config(connection), revision)


def check(settings: Settings) -> None:
    """Raise Conflict when the database is newer than the code, older, or differs from the tables in the code."""
    with _connected(settings) as connection:
        refuse_newer(connection)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        scripts = ScriptDirectory.from_config(_config(connection))
        if set(context.get_current_heads()) != set(scripts.get_heads()):
            raise Conflict("The database has not been migrated to this version.", code="database_older")
        differing = compare_metadata(context, Base.metadata)
        if differing:
            raise Conflict(f"The database differs from the tables in the code: {differing}", code="database_differs")


def refuse_newer(connection: Connection) -> None:
    """Raise Conflict when the database has a revision that this code does not know."""
    known = {script.revision for script in ScriptDirectory.from_config(_config(connection)).walk_revisions()}
    unknown = [head for head in MigrationContext.configure(connection).get_current_heads() if head not in known]
    if unknown:
        raise Conflict(
            f"The database is newer than this Atelier: it has the revision {', '.join(unknown)}, unknown here.",
            code="database_newer",
            advice="Start the newer version again, or choose another data folder.",
        )


@contextmanager
def _connected(settings: Settings) -> Iterator[Connection]:
    """One transaction that nobody else migrates in; committed at the end."""
    engine = make_engine(settings)
    try:
        ping(engine)
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                # Rebuilding a table drops the old one, which must not cascade. SQLite takes this only outside of a
                # transaction.
                connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
                connection.commit()
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
            yield connection
            connection.commit()
    finally:
        engine.dispose()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", _folder().replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _folder() -> str:
    """Where the revisions lie; by the package's path, which an editable install has too."""
    return next(iter(migrations.__path__))
