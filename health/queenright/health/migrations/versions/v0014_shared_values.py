"""What the partitions of a cluster share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of shared values, in PostgreSQL only."""
    if op.get_bind().dialect.name == "postgresql":
        op.create_table(
            "shared_values",
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("value", sa.Text, nullable=False),
            sa.Column("changed_at", sa.Float, nullable=False),
        )
        op.create_index("ix_shared_values_changed_at", "shared_values", ["changed_at"])
