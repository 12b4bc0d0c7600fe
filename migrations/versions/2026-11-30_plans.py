"""What a run would need, and what it was planned to need."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("model_id", sa.String(length=300), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("told", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=op.f("fk_plans_dataset_id_datasets"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_plans_model_id_models"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index(op.f("ix_plans_dataset_id"), "plans", ["dataset_id"], unique=False)
    op.create_index(op.f("ix_plans_model_id"), "plans", ["model_id"], unique=False)
    with op.batch_alter_table("runs") as table:
        table.add_column(sa.Column("planned_memory", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("runs") as table:
        table.drop_column("planned_memory")
    op.drop_index(op.f("ix_plans_model_id"), table_name="plans")
    op.drop_index(op.f("ix_plans_dataset_id"), table_name="plans")
    op.drop_table("plans")
