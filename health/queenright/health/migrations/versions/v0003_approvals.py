"""Approvals: what the queen asks an operator to allow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TO_DO = sa.text("is_open")


def upgrade() -> None:
    """Create the table of approvals; at most one of a worker's session is open."""
    op.create_table(
        "approvals",
        sa.Column("approval_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("is_open", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index(
        "ux_approvals_one_open_per_session",
        "approvals",
        ["agent_id", "session_id"],
        unique=True,
        sqlite_where=_TO_DO,
        postgresql_where=_TO_DO,
    )
    op.create_index("ix_approvals_is_open", "approvals", ["is_open"])
    op.create_index("ix_approvals_worker", "approvals", ["agent_id", "session_id", "created_at"])
    op.create_index("ix_approvals_created_at", "approvals", ["created_at"])
