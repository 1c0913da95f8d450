"""Event log, tickets and outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_OPEN = sa.text("status IN ('open', 'intervening', 'acknowledged')")
_LIVE = sa.text("closed_at IS NULL")


def upgrade() -> None:
    """Create every table, and the triggers that refuse to change the event log."""
    op.create_table(
        "events",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=False
        ),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("incarnation_id", sa.Text, nullable=False),
        sa.Column("graph_id", sa.Text, nullable=False),
        sa.Column("stream_id", sa.Text, nullable=False),
        sa.Column("node_id", sa.Text, nullable=False),
        sa.Column("execution_id", sa.Text, nullable=False),
        sa.Column("trace_id", sa.Text, nullable=False),
        sa.Column("span_id", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_events_id", "events", ["id"], unique=True)
    op.create_index("ix_events_agent_id", "events", ["agent_id"])
    op.create_index("ix_events_type", "events", ["type"])
    op.create_index("ix_events_time", "events", ["time"])
    op.create_table(
        "event_log_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.CheckConstraint("id = 1", name="ck_event_log_head_one_row"),
    )
    head = sa.table("event_log_head", sa.column("id"), sa.column("length"), sa.column("hash", sa.LargeBinary))
    op.execute(head.insert().values(id=1, length=0, hash=bytes(32)))
    op.create_table(
        "tickets",
        sa.Column("ticket_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("first_seen", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("closed_at", sa.Float),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index(
        "ux_tickets_one_open_per_session",
        "tickets",
        ["agent_id", "session_id"],
        unique=True,
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_index(
        "ux_tickets_one_live_per_fingerprint",
        "tickets",
        ["fingerprint"],
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.create_index("ix_tickets_first_seen", "tickets", ["first_seen"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("ticket_id", sa.Text, nullable=False),
        sa.Column("alert_key", sa.Text, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("annotations", sa.JSON, nullable=False),
        sa.Column("starts_at", sa.Float, nullable=False),
        sa.Column("ends_at", sa.Float),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("active", sa.Boolean, nullable=False),
    )
    op.create_index("ix_outbox_ticket_id", "outbox", ["ticket_id"])
    op.create_index("ix_outbox_active", "outbox", ["active"])
    op.create_table(
        "outbox_deliveries",
        sa.Column("outbox_id", sa.Integer, sa.ForeignKey("outbox.id"), primary_key=True),
        sa.Column("peer", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, primary_key=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("last_attempt_at", sa.Float),
        sa.Column("delivered_at", sa.Float),
        sa.Column("last_error", sa.Text),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER events_refuse_{verb.lower()} BEFORE {verb} ON events "
                "BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END"
            )
    else:
        _on_postgresql()


def _on_postgresql() -> None:
    """Refuse what SQLite refuses, and keep who writes: there is no file to lock."""
    for verb, level in (("update", "ROW"), ("delete", "ROW"), ("truncate", "STATEMENT")):
        # A function each, so that a later migration can change what one of them refuses.
        op.execute(
            f"CREATE FUNCTION events_refuse_{verb}() RETURNS trigger LANGUAGE plpgsql AS $$ "
            "BEGIN RAISE EXCEPTION 'the event log is append-only' "
            "USING ERRCODE = 'integrity_constraint_violation'; END $$"
        )
        op.execute(
            f"CREATE TRIGGER events_refuse_{verb} BEFORE {verb.upper()} ON events "
            f"FOR EACH {level} EXECUTE FUNCTION events_refuse_{verb}()"
        )
    # SQLite turns NaN into NULL, and so refuses it.
    op.execute("ALTER TABLE events ADD CONSTRAINT ck_events_time CHECK (time <> 'NaN'::float8)")
    op.create_table(
        "store_writer",
        sa.Column("token", sa.Text, primary_key=True),
        sa.Column("who", sa.Text, nullable=False),
    )
