"""Alembic's entry: migrates over the connection that `studio.db.migrate` opened."""

from alembic import context

from studio.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    compare_type=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
