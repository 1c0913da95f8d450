"""Tables of a cluster: leases, members, and the position in the telemetry stream."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; SQLite has one process only."""
    if op.get_bind().dialect.name == "sqlite":
        return
    op.add_column("store_writer", sa.Column("member_id", sa.Text))
    op.add_column("store_writer", sa.Column("renewed_at", sa.Float))
    op.create_table(
        "members",
        sa.Column("member_id", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("api_port", sa.Integer, nullable=False),
        sa.Column("otlp_port", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_table(
        "stream_position",
        sa.Column("stream", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "stored_messages",
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("stored_at", sa.Float, nullable=False),
    )
    op.create_index("ix_stored_messages_stored_at", "stored_messages", ["stored_at"])
