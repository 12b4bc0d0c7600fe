"""Alembic's revisions of the database, newest last by file name; run by `studio.db.migrate`."""
