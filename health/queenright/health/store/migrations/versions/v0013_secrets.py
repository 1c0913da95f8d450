"""Add keys that processes share, and the number of partitions of each process."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None
oldest_compatible = "0013"


def upgrade() -> None:
    """Create the table of keys, and in PostgreSQL also the column of the processes."""
    op.create_table(
        "secrets",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        # With a default, because processes of the previous version still write rows.
        op.execute("ALTER TABLE members ADD COLUMN partitions integer NOT NULL DEFAULT 1")
