"""Add snapshots of the monitor."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
oldest_compatible = "0015"


def upgrade() -> None:
    """Create the table of snapshots."""
    op.create_table(
        "snapshot_parts",
        sa.Column("snapshot_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
