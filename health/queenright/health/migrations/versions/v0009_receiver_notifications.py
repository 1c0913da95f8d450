"""Rename the table `told` to `receiver_notifications`, and its columns with it."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_UNIQUE = ["dedup_key", "receiver", "ticket_id", "alert_key", "status"]


def upgrade() -> None:
    """Rename the table, its columns and its indexes."""
    op.rename_table("told", "receiver_notifications")
    # Not alter_column: for SQLite, Alembic would copy the table.
    for old, new in (("first_told_at", "first_notified_at"), ("told_at", "notified_at")):
        op.execute(f"ALTER TABLE receiver_notifications RENAME COLUMN {old} TO {new}")
    for name in ("ux_told_once", "ix_told_ticket_id", "ix_told_told_at"):
        op.drop_index(name)
    op.create_index("ux_receiver_notifications_once", "receiver_notifications", _UNIQUE, unique=True)
    op.create_index("ix_receiver_notifications_ticket_id", "receiver_notifications", ["ticket_id"])
    op.create_index("ix_receiver_notifications_notified_at", "receiver_notifications", ["notified_at"])
