"""Requests that are to be done once, and what they were answered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of requests that carried an idempotency key."""
    op.create_table(
        "keyed_requests",
        sa.Column("caller", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("began_at", sa.Float, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("headers", sa.JSON),
        sa.Column("body", sa.LargeBinary),
    )
    op.create_index("ix_keyed_requests_began_at", "keyed_requests", ["began_at"])
