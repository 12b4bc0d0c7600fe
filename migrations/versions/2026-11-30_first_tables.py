"""The first tables."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    create_datasets()
    create_models()
    create_runs()
    create_workers()
    create_events()
    create_leases()


def downgrade() -> None:
    op.drop_table("leases")
    op.drop_index(op.f("ix_events_run_id_events_kind_events_offset"), table_name="events")
    op.drop_table("events")
    op.drop_table("workers")
    op.drop_index(op.f("ix_runs_status_runs_created_at"), table_name="runs")
    op.drop_index(op.f("ix_runs_model_id"), table_name="runs")
    op.drop_index(op.f("ix_runs_dataset_id"), table_name="runs")
    op.drop_table("runs")
    op.drop_table("models")
    op.drop_index(op.f("ix_datasets_sha256"), table_name="datasets")
    op.drop_table("datasets")


def create_datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("filename", sa.String(length=300), nullable=False),
        sa.Column("format", sa.String(length=10), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("purpose", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("usable", sa.Integer(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("origin", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
    )
    op.create_index(op.f("ix_datasets_sha256"), "datasets", ["sha256"], unique=False)


def create_models() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.String(length=300), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("source", sa.String(length=20), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("revision", sa.String(length=80), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("progress", sa.Float(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )


def create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("model_id", sa.String(length=300), nullable=False),
        sa.Column("method", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("wanted", sa.String(length=10), nullable=False),
        sa.Column("phase", sa.String(length=40), nullable=False),
        sa.Column("phase_detail", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("total_steps", sa.Integer(), nullable=False),
        sa.Column("loss", sa.Double(), nullable=True),
        sa.Column("eval_loss", sa.Double(), nullable=True),
        sa.Column("best_eval_loss", sa.Double(), nullable=True),
        sa.Column("seconds_left", sa.Float(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=False),
        sa.Column("events_offset", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=80), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("user_metadata", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_dataset_id"), "runs", ["dataset_id"], unique=False)
    op.create_index(op.f("ix_runs_model_id"), "runs", ["model_id"], unique=False)
    op.create_index(op.f("ix_runs_status_runs_created_at"), "runs", ["status", "created_at"], unique=False)


def create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("queue", sa.String(length=20), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )


def create_events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "offset", name=op.f("pk_events")),
    )
    op.create_index(
        op.f("ix_events_run_id_events_kind_events_offset"), "events", ["run_id", "kind", "offset"], unique=False
    )


def create_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("device", sa.String(length=255), nullable=False),
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("worker_id", sa.String(length=80), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_leases_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_leases")),
    )
