"""Add the oldest compatible revision. Store processes as JSON, so that new attributes need no migration."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
oldest_compatible = "0016"


def upgrade() -> None:
    """
    Create the table of the oldest compatible revision. In PostgreSQL, replace the table of the processes.
    """
    op.create_table("schema_compatibility", sa.Column("oldest_compatible", sa.String(32), primary_key=True))
    if op.get_bind().dialect.name == "postgresql":
        op.drop_table("members")
        op.create_table(
            "members",
            sa.Column("member_id", sa.Text, primary_key=True),
            sa.Column("started_at", sa.Float, nullable=False),
            sa.Column("seen_at", sa.Float, nullable=False),
            sa.Column("state", sa.Text, nullable=False),
        )
