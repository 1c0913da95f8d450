"""The outbox is looked up by ticket and by alert, however many notifications are active."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Index active notifications by ticket, by alert and by the time of their last change."""
    op.drop_index("ix_outbox_ticket_id", "outbox")
    op.drop_index("ix_outbox_active", "outbox")
    op.create_index("ix_outbox_ticket", "outbox", ["ticket_id", "active"])
    op.create_index("ix_outbox_alert", "outbox", ["alert_key", "active"])
    op.create_index("ix_outbox_changed", "outbox", ["active", "updated_at"])
