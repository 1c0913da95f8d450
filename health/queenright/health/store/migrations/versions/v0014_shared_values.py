"""Add values that the partitions of a cluster share, and the partitions that each process serves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
oldest_compatible = "0014"


def upgrade() -> None:
    """In PostgreSQL, create the table of shared values and the columns of the processes."""
    if op.get_bind().dialect.name == "postgresql":
        op.create_table(
            "shared_values",
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("value", sa.Text, nullable=False),
            sa.Column("changed_at", sa.Float, nullable=False),
        )
        # With defaults, because processes of the previous version still write rows.
        op.execute("ALTER TABLE members ADD COLUMN serving text NOT NULL DEFAULT ''")
        op.execute("ALTER TABLE members ADD COLUMN has_failed boolean NOT NULL DEFAULT false")
        op.create_index("ix_shared_values_changed_at", "shared_values", ["changed_at"])
