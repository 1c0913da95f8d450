"""Tickets are looked up by agent."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Index tickets by agent and time."""
    op.create_index("ix_tickets_agent", "tickets", ["agent_id", "first_seen"])
