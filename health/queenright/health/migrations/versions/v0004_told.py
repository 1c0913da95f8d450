"""What Alertmanager told people, and what Slack and PagerDuty said back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of what was told, and of what was said back and has been acted on."""
    op.create_table(
        "told",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("dedup_key", sa.Text, nullable=False),
        sa.Column("receiver", sa.Text, nullable=False),
        sa.Column("ticket_id", sa.Text, nullable=False),
        sa.Column("alert_key", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("first_told_at", sa.Float, nullable=False),
        sa.Column("told_at", sa.Float, nullable=False),
    )
    once = ["dedup_key", "receiver", "ticket_id", "alert_key", "status"]
    op.create_index("ux_told_once", "told", once, unique=True)
    op.create_index("ix_told_ticket_id", "told", ["ticket_id"])
    op.create_index("ix_told_told_at", "told", ["told_at"])
    op.create_table(
        "callbacks",
        sa.Column("callback_id", sa.Text, primary_key=True),
        sa.Column("received_at", sa.Float, nullable=False),
        sa.Column("answer", sa.JSON, nullable=False),
    )
    op.create_index("ix_callbacks_received_at", "callbacks", ["received_at"])
