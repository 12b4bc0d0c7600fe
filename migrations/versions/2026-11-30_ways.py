"""Previews by all that changes how rows are rendered, page by page. Old ones are made again when they are wanted."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    _anew(sa.Column("way", sa.String(length=400), nullable=False), sa.Column("row", sa.Integer(), nullable=False))


def downgrade() -> None:
    _anew(sa.Column("level", sa.String(length=200), nullable=False))


def _anew(*own: sa.Column[str] | sa.Column[int]) -> None:
    op.drop_index(op.f("ix_previews_model_id"), table_name="previews")
    op.drop_table("previews")
    op.create_table(
        "previews",
        sa.Column("dataset_id", sa.String(length=40), nullable=False),
        sa.Column("model_id", sa.String(length=300), nullable=False),
        *own,
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("survey", sa.JSON(), nullable=True),
        sa.Column("rows", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=op.f("fk_previews_dataset_id_datasets"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["model_id"], ["models.id"], name=op.f("fk_previews_model_id_models"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("dataset_id", "model_id", *(column.name for column in own), name=op.f("pk_previews")),
    )
    op.create_index(op.f("ix_previews_model_id"), "previews", ["model_id"], unique=False)
