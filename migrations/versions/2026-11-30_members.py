"""Runs on several hosts: who takes part, and where hosts reach one another."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "members",
        sa.Column("run_id", sa.String(length=40), nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("worker_id", sa.String(length=80), nullable=False),
        sa.Column("leader", sa.String(length=80), nullable=False),
        sa.Column("holder", sa.String(length=80), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("hosts", sa.Integer(), nullable=False),
        sa.Column("endpoint", sa.String(length=80), nullable=False),
        sa.Column("key", sa.String(length=80), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_members_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "place", name=op.f("pk_members")),
    )
    op.create_index(op.f("ix_members_worker_id"), "members", ["worker_id"], unique=False)
    with op.batch_alter_table("workers") as table:
        table.add_column(sa.Column("address", sa.String(length=40), server_default="", nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("workers") as table:
        table.drop_column("address")
    op.drop_index(op.f("ix_members_worker_id"), table_name="members")
    op.drop_table("members")
