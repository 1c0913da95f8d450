"""
The initial schema.

Its revision is that of the last of the migrations that it replaces, so that their databases stay valid.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None

_APPEND_ONLY: Final = (
    ("events", "base_length", "the event log"),
    ("audit_archive", "archive_base_seq", "the audit archive"),
)
"""Table, the column of the head up to which retention deletes its rows, and its name in errors."""


def upgrade() -> None:
    """Create every table, and the triggers that keep the event log append-only."""
    _create_event_log()
    _create_tickets_and_outbox()
    _create_interventions()
    if op.get_bind().dialect.name == "sqlite":
        _create_sqlite_triggers()
    else:
        _create_postgresql_triggers()
        # SQLite stores NaN as NULL, and so refuses it.
        op.execute("ALTER TABLE events ADD CONSTRAINT ck_events_time CHECK (time <> 'NaN'::float8)")
        # Names the writer, as the lock file of SQLite does.
        op.create_table("store_writer", _text("token", primary_key=True), _text("who"))


def _create_event_log() -> None:
    op.create_table("events", *_log_columns())
    op.create_index("ix_events_id", "events", ["id"], unique=True)
    op.create_index("ix_events_agent_id_type", "events", ["agent_id", "type"])
    op.create_index("ix_events_type", "events", ["type"])
    op.create_index("ix_events_time", "events", ["time"])
    op.create_table(
        "event_log_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("base_length", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("base_hash", sa.LargeBinary),
        sa.Column("archive_hash", sa.LargeBinary),
        sa.Column("archive_base_seq", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("archive_base_hash", sa.LargeBinary),
        sa.Column("archive_base_check", sa.LargeBinary),
        sa.CheckConstraint("id = 1", name="ck_event_log_head_one_row"),
    )
    head = sa.table("event_log_head", sa.column("id"), sa.column("length"), sa.column("hash", sa.LargeBinary))
    op.execute(head.insert().values(id=1, length=0, hash=bytes(32)))
    op.create_table(
        "audit_archive",
        *_log_columns(),
        sa.Column("previous_hash", sa.LargeBinary, nullable=False),
        sa.Column("archive_hash", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_audit_archive_agent_id", "audit_archive", ["agent_id"])
    op.create_index("ix_audit_archive_time", "audit_archive", ["time"])


def _create_tickets_and_outbox() -> None:
    op.create_table(
        "tickets",
        _text("ticket_id", primary_key=True),
        *map(_text, ("fingerprint", "agent_id", "session_id", "kind", "severity", "status")),
        *map(_float, ("first_seen", "updated_at")),
        sa.Column("closed_at", sa.Float),
        _text("body"),
    )
    worker = ["agent_id", "session_id"]
    is_open, is_live = "status IN ('open', 'intervening', 'acknowledged')", "closed_at IS NULL"
    _create_unique_index("ux_tickets_one_open_per_session", "tickets", worker, where=is_open)
    _create_unique_index("ux_tickets_one_live_per_fingerprint", "tickets", ["fingerprint"], where=is_live)
    op.create_index("ix_tickets_first_seen", "tickets", ["first_seen"])
    op.create_index("ix_tickets_agent", "tickets", ["agent_id", "first_seen"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True),
        *map(_text, ("ticket_id", "alert_key")),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("annotations", sa.JSON, nullable=False),
        _float("starts_at"),
        sa.Column("ends_at", sa.Float),
        *map(_float, ("created_at", "updated_at")),
        sa.Column("active", sa.Boolean, nullable=False),
    )
    op.create_index("ix_outbox_ticket", "outbox", ["ticket_id", "active"])
    op.create_index("ix_outbox_alert", "outbox", ["alert_key", "active"])
    op.create_index("ix_outbox_changed", "outbox", ["active", "updated_at"])
    op.create_table(
        "outbox_deliveries",
        sa.Column("outbox_id", sa.Integer, sa.ForeignKey("outbox.id"), primary_key=True),
        _text("peer", primary_key=True),
        _text("status", primary_key=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("last_attempt_at", sa.Float),
        sa.Column("delivered_at", sa.Float),
        sa.Column("last_error", sa.Text),
    )
    unique = ["dedup_key", "receiver", "ticket_id", "alert_key", "status"]
    op.create_table(
        "receiver_notifications",
        sa.Column("id", sa.Integer, primary_key=True),
        *map(_text, unique),
        *map(_float, ("first_notified_at", "notified_at")),
    )
    op.create_index("ux_receiver_notifications_once", "receiver_notifications", unique, unique=True)
    op.create_index("ix_receiver_notifications_ticket_id", "receiver_notifications", ["ticket_id"])
    op.create_index("ix_receiver_notifications_notified_at", "receiver_notifications", ["notified_at"])
    op.create_table(
        "callbacks",
        _text("callback_id", primary_key=True),
        _float("received_at"),
        sa.Column("answer", sa.JSON, nullable=False),
    )
    op.create_index("ix_callbacks_received_at", "callbacks", ["received_at"])
    op.create_table(
        "keyed_requests",
        _text("caller", primary_key=True),
        _text("key", primary_key=True),
        _text("request"),
        _float("began_at"),
        sa.Column("status", sa.Integer),
        sa.Column("headers", sa.JSON),
        sa.Column("body", sa.LargeBinary),
    )
    op.create_index("ix_keyed_requests_began_at", "keyed_requests", ["began_at"])


def _create_interventions() -> None:
    op.create_table(
        "switches",
        _text("name", primary_key=True),
        sa.Column("is_on", sa.Boolean, nullable=False),
        *map(_text, ("by", "reason")),
        _float("changed_at"),
    )
    op.create_table(
        "ladders",
        _text("agent_id", primary_key=True),
        _text("session_id", primary_key=True),
        _text("level"),
        _float("updated_at"),
        _text("body"),
    )
    op.create_table(
        "interventions",
        _text("intervention_id", primary_key=True),
        *map(_text, ("agent_id", "session_id", "incarnation_id", "kind", "outcome")),
        _float("created_at"),
        _text("body"),
    )
    op.create_index("ix_interventions_agent", "interventions", ["agent_id", "created_at"])
    op.create_index("ix_interventions_created_at", "interventions", ["created_at"])
    op.create_table(
        "instructions",
        _text("instruction_id", primary_key=True),
        *map(_text, ("agent_id", "session_id", "incarnation_id", "kind")),
        *map(_float, ("created_at", "expires_at")),
        *map(_text, ("status", "body")),
    )
    op.create_index("ix_instructions_worker", "instructions", ["agent_id", "session_id"])
    op.create_index("ix_instructions_expires_at", "instructions", ["expires_at"])
    op.create_table(
        "escalations",
        _text("escalation_id", primary_key=True),
        *map(_text, ("agent_id", "session_id", "status")),
        *map(_float, ("created_at", "deadline")),
        _text("body"),
    )
    op.create_index("ix_escalations_status", "escalations", ["status"])
    op.create_index("ix_escalations_created_at", "escalations", ["created_at"])
    op.create_table(
        "approvals",
        _text("approval_id", primary_key=True),
        *map(_text, ("agent_id", "session_id", "status")),
        sa.Column("is_open", sa.Boolean, nullable=False),
        *map(_float, ("created_at", "expires_at")),
        _text("body"),
    )
    worker = ["agent_id", "session_id"]
    _create_unique_index("ux_approvals_one_open_per_session", "approvals", worker, where="is_open")
    op.create_index("ix_approvals_is_open", "approvals", ["is_open"])
    op.create_index("ix_approvals_worker", "approvals", [*worker, "created_at"])
    op.create_index("ix_approvals_created_at", "approvals", ["created_at"])
    op.create_table(
        "breakers", _text("name", primary_key=True), _text("state"), _float("updated_at"), _text("body")
    )
    op.create_table(
        "recoveries",
        _text("recovery_id", primary_key=True),
        *map(_text, ("task_id", "agent_id", "session_id", "status")),
        _float("created_at"),
        _text("body"),
    )
    op.create_index("ix_recoveries_task_id", "recoveries", ["task_id"])
    op.create_index("ix_recoveries_created_at", "recoveries", ["created_at"])


def _text(name: str, *, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=primary_key, nullable=False)


def _float(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float, nullable=False)


def _log_columns() -> list[sa.Column[Any]]:
    """Return the columns that the event log and its archive share."""
    # Only INTEGER PRIMARY KEY is SQLite's own row id.
    seq = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    ids = ("agent_id", "session_id", "incarnation_id", "graph_id", "stream_id", "node_id")
    return [
        sa.Column("seq", seq, primary_key=True, autoincrement=False),
        *map(_text, ("id", "type")),
        _float("time"),
        *map(_text, (*ids, "execution_id", "trace_id", "span_id", "data")),
        sa.Column("hash", sa.LargeBinary, nullable=False),
    ]


def _create_unique_index(name: str, table: str, columns: list[str], *, where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=True, sqlite_where=condition, postgresql_where=condition)


def _create_sqlite_triggers() -> None:
    for table, base, subject in _APPEND_ONLY:
        refuse = f"BEGIN SELECT RAISE(ABORT, '{subject} is append-only'); END"
        op.execute(f"CREATE TRIGGER {table}_refuse_update BEFORE UPDATE ON {table} {refuse}")
        op.execute(
            f"CREATE TRIGGER {table}_refuse_delete BEFORE DELETE ON {table} "
            f"WHEN OLD.seq > COALESCE((SELECT {base} FROM event_log_head), 0) {refuse}"
        )


def _create_postgresql_triggers() -> None:
    for table, base, subject in _APPEND_ONLY:
        pruned = f"IF OLD.seq <= COALESCE((SELECT {base} FROM event_log_head), 0) THEN RETURN OLD; END IF; "
        for verb, level, exception in (
            ("update", "ROW", ""),
            ("delete", "ROW", pruned),
            ("truncate", "STATEMENT", ""),
        ):
            name = f"{table}_refuse_{verb}"
            op.execute(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {exception}"
                f"RAISE EXCEPTION '{subject} is append-only' "
                "USING ERRCODE = 'integrity_constraint_violation'; END $$"
            )
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {verb.upper()} ON {table} "
                f"FOR EACH {level} EXECUTE FUNCTION {name}()"
            )
