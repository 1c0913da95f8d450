"""
The tables of the store in SQLAlchemy Core.

``schema`` creates them in a new database. ``migrations/`` updates an older database.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TextClause,
    text,
)
from sqlalchemy.types import TypeEngine

SCHEMA_REVISION: Final = "0016"
"""
The newest migration. It is repeated here so that opening an up-to-date database does not import Alembic.
"""
OLDEST_COMPATIBLE: Final = "0016"
"""The oldest revision whose code can use this schema: the highest ``oldest_compatible`` of all migrations."""

METADATA: Final = MetaData()

_SEQ = BigInteger().with_variant(Integer(), "sqlite")  # in SQLite, only INTEGER PRIMARY KEY is the row id


def _required_columns(kind: type[TypeEngine[Any]], *names: str) -> Iterator[Column[Any]]:
    """Return columns of one type that are not nullable."""
    return (Column(name, kind, nullable=False) for name in names)


def _unique_where(name: str, *columns: str, where: TextClause) -> Index:
    """Return a unique index over the rows that match ``where``."""
    return Index(name, *columns, unique=True, sqlite_where=where, postgresql_where=where)


EVENTS: Final = Table(
    "events",
    METADATA,
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    *_required_columns(Text, "id", "type"),
    Column("time", Float, nullable=False),
    *_required_columns(Text, "agent_id", "session_id", "incarnation_id", "graph_id", "stream_id", "node_id"),
    *_required_columns(Text, "execution_id", "trace_id", "span_id"),
    # Text rather than JSON, because the hash covers the exact bytes.
    Column("data", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index("ix_events_id", "id", unique=True),
    # The type is included to find an agent's events of rare types.
    Index("ix_events_agent_id_type", "agent_id", "type"),
    Index("ix_events_type", "type"),
    Index("ix_events_time", "time"),
)
"""The event log: append-only, hash-chained (``queenright.health.store.event_log``)."""

EVENT_LOG_HEAD: Final = Table(
    "event_log_head",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("length", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("base_length", BigInteger, nullable=False, server_default="0"),
    Column("base_hash", LargeBinary),
    Column("archive_hash", LargeBinary),
    Column("archive_base_seq", BigInteger, nullable=False, server_default="0"),
    Column("archive_base_hash", LargeBinary),
    Column("archive_base_check", LargeBinary),
    CheckConstraint("id = 1", name="ck_event_log_head_one_row"),
)
"""
A single row with the length and the last hash of the event log, so that a truncated log is detected.

Retention has deleted the first ``base_length`` rows, the last of which has ``base_hash``. ``archive_hash`` is
the last hash of the audit archive. The archive's rows up to ``archive_base_seq`` were deleted, the last of
which has ``archive_base_hash``. ``archive_base_check`` is SHA-256 over that hash and that number in decimal
digits, and null if no row was deleted. A null hash stands for 32 zero bytes.
"""

AUDIT_ARCHIVE: Final = Table(
    "audit_archive",
    METADATA,
    *(
        Column(c.name, c.type, primary_key=c.primary_key, nullable=c.nullable, autoincrement=False)
        for c in EVENTS.columns
    ),
    # ``previous_hash`` is the hash of the previous row in the log, which verifies ``hash``. That row may not
    # be archived.
    *_required_columns(LargeBinary, "previous_hash", "archive_hash"),
    Index("ix_audit_archive_agent_id", "agent_id"),
    Index("ix_audit_archive_time", "time"),
)
"""The events of the audit trail that retention deleted from the log, with their own hash chain."""

_TICKET_OPEN = text("status IN ('open', 'intervening', 'acknowledged')")
_TICKET_LIVE = text("closed_at IS NULL")

TICKETS: Final = Table(
    "tickets",
    METADATA,
    Column("ticket_id", Text, primary_key=True),
    *_required_columns(Text, "fingerprint", "agent_id", "session_id", "kind", "severity", "status"),
    *_required_columns(Float, "first_seen", "updated_at"),
    Column("closed_at", Float),
    # The ticket as JSON. The columns above are for searches.
    Column("body", Text, nullable=False),
    _unique_where("ux_tickets_one_open_per_session", "agent_id", "session_id", where=_TICKET_OPEN),
    _unique_where("ux_tickets_one_live_per_fingerprint", "fingerprint", where=_TICKET_LIVE),
    Index("ix_tickets_first_seen", "first_seen"),
    Index("ix_tickets_agent", "agent_id", "first_seen"),
)
"""Escalation tickets (``queenright.health.tickets.ticket``)."""

OUTBOX: Final = Table(
    "outbox",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required_columns(Text, "ticket_id", "alert_key"),
    *_required_columns(JSON, "labels", "annotations"),
    Column("starts_at", Float, nullable=False),
    Column("ends_at", Float),
    *_required_columns(Float, "created_at", "updated_at"),
    Column("active", Boolean, nullable=False),
    # ``active`` is in each index, so that SQLite does not scan all rows when all are active.
    Index("ix_outbox_ticket", "ticket_id", "active"),
    Index("ix_outbox_alert", "alert_key", "active"),
    Index("ix_outbox_changed", "active", "updated_at"),
)
"""Notifications. Each is written in the transaction of the decision that causes it."""

OUTBOX_DELIVERIES: Final = Table(
    "outbox_deliveries",
    METADATA,
    Column("outbox_id", Integer, ForeignKey("outbox.id"), primary_key=True),
    Column("peer", Text, primary_key=True),
    Column("status", Text, primary_key=True),
    Column("attempts", Integer, nullable=False),
    Column("last_attempt_at", Float),
    Column("delivered_at", Float),
    Column("last_error", Text),
)
"""The deliveries of each notification to each Alertmanager peer, firing and resolved."""

RECEIVER_NOTIFICATIONS: Final = Table(
    "receiver_notifications",
    METADATA,
    Column("id", Integer, primary_key=True),
    *_required_columns(Text, "dedup_key", "receiver", "ticket_id", "alert_key", "status"),
    *_required_columns(Float, "first_notified_at", "notified_at"),
    Index(
        "ux_receiver_notifications_once",
        "dedup_key",
        "receiver",
        "ticket_id",
        "alert_key",
        "status",
        unique=True,
    ),
    Index("ix_receiver_notifications_ticket_id", "ticket_id"),
    Index("ix_receiver_notifications_notified_at", "notified_at"),
)
"""
The messages that Alertmanager sent to people: receiver, alert, ticket, and the first and last time.

``dedup_key`` identifies Alertmanager's group, and the incident in PagerDuty.
"""

CALLBACKS: Final = Table(
    "callbacks",
    METADATA,
    Column("callback_id", Text, primary_key=True),
    Column("received_at", Float, nullable=False),
    Column("answer", JSON, nullable=False),
    Index("ix_callbacks_received_at", "received_at"),
)
"""Processed requests from Slack and PagerDuty, so that none is processed twice."""

KEYED_REQUESTS: Final = Table(
    "keyed_requests",
    METADATA,
    Column("caller", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    # A hash of the request, because reusing a key for another request is an error.
    Column("request", Text, nullable=False),
    Column("began_at", Float, nullable=False),
    # Null until the request is answered. An interrupted request may or may not have been carried out.
    Column("status", Integer),
    Column("headers", JSON(none_as_null=True)),
    Column("body", LargeBinary),
    Index("ix_keyed_requests_began_at", "began_at"),
)
"""Requests with an idempotency key, and their responses."""

SWITCHES: Final = Table(
    "switches",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("is_on", Boolean, nullable=False),
    *_required_columns(Text, "by", "reason"),
    Column("changed_at", Float, nullable=False),
)
"""Switches that survive restarts: the emergency stop."""

SECRETS: Final = Table(
    "secrets",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
"""Random keys that outlive a process (``queenright.health.cluster.shared_secrets``)."""

LADDERS: Final = Table(
    "ladders",
    METADATA,
    Column("agent_id", Text, primary_key=True),
    Column("session_id", Text, primary_key=True),
    Column("level", Text, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("body", Text, nullable=False),
)
"""The intervention ladder of each worker (``queenright.health.interventions.ladder``)."""

INTERVENTIONS: Final = Table(
    "interventions",
    METADATA,
    Column("intervention_id", Text, primary_key=True),
    *_required_columns(Text, "agent_id", "session_id", "incarnation_id", "kind", "outcome"),
    Column("created_at", Float, nullable=False),
    Column("body", Text, nullable=False),
    Index("ix_interventions_agent", "agent_id", "created_at"),
    Index("ix_interventions_created_at", "created_at"),
)
"""Interventions, executed or simulated."""

INSTRUCTIONS: Final = Table(
    "instructions",
    METADATA,
    Column("instruction_id", Text, primary_key=True),
    *_required_columns(Text, "agent_id", "session_id", "incarnation_id", "kind"),
    *_required_columns(Float, "created_at", "expires_at"),
    *_required_columns(Text, "status", "body"),
    Index("ix_instructions_worker", "agent_id", "session_id"),
    Index("ix_instructions_expires_at", "expires_at"),
)
"""Nudges and requests to stop that workers in other processes fetch."""

ESCALATIONS: Final = Table(
    "escalations",
    METADATA,
    Column("escalation_id", Text, primary_key=True),
    *_required_columns(Text, "agent_id", "session_id", "status"),
    *_required_columns(Float, "created_at", "deadline"),
    Column("body", Text, nullable=False),
    Index("ix_escalations_status", "status"),
    Index("ix_escalations_created_at", "created_at"),
)
"""Escalations to the orchestrator, and its decisions."""

_APPROVAL_OPEN: Final = text("is_open")

APPROVALS: Final = Table(
    "approvals",
    METADATA,
    Column("approval_id", Text, primary_key=True),
    *_required_columns(Text, "agent_id", "session_id", "status"),
    # Whether it waits for an answer, or for the approved termination.
    Column("is_open", Boolean, nullable=False),
    *_required_columns(Float, "created_at", "expires_at"),
    Column("body", Text, nullable=False),
    _unique_where("ux_approvals_one_open_per_session", "agent_id", "session_id", where=_APPROVAL_OPEN),
    Index("ix_approvals_is_open", "is_open"),
    Index("ix_approvals_worker", "agent_id", "session_id", "created_at"),
    Index("ix_approvals_created_at", "created_at"),
)
"""Requests for approval, and their results."""

BREAKERS: Final = Table(
    "breakers",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("state", Text, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("body", Text, nullable=False),
)
"""Circuit breakers that are not closed."""

RECOVERIES: Final = Table(
    "recoveries",
    METADATA,
    Column("recovery_id", Text, primary_key=True),
    *_required_columns(Text, "task_id", "agent_id", "session_id", "status"),
    Column("created_at", Float, nullable=False),
    Column("body", Text, nullable=False),
    Index("ix_recoveries_task_id", "task_id"),
    Index("ix_recoveries_created_at", "created_at"),
)
"""Recoveries of tasks."""

SNAPSHOT_PARTS: Final = Table(
    "snapshot_parts",
    METADATA,
    Column("snapshot_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)
"""The snapshot of the monitor (``queenright.health.monitoring.snapshot_table``)."""

POSTGRES_TABLES: Final = MetaData()
"""Tables that exist only in PostgreSQL, about the processes that write. They are not copied."""

STORE_WRITER: Final = Table(
    "store_writer",
    POSTGRES_TABLES,
    Column("token", Text, primary_key=True),
    Column("who", Text, nullable=False),
    # Null unless the writer is a member of a cluster, which renews its lease.
    Column("member_id", Text),
    Column("renewed_at", Float),
)
"""
The last writer. SQLite has a lock file instead.

Each time the database is opened for writing, ``token`` is a new one (``health.store.postgres``).
"""

MEMBERS: Final = Table(
    "members",
    POSTGRES_TABLES,
    Column("member_id", Text, primary_key=True),
    Column("started_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    # JSON, so that new fields need no migration, and older processes can read the fields that they know.
    Column("state", Text, nullable=False),
)
"""
The processes of a cluster. Times are those of the database (``queenright.health.cluster.cluster_lease``).
"""

SHARED_VALUES: Final = Table(
    "shared_values",
    POSTGRES_TABLES,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("changed_at", Float, nullable=False),
    Index("ix_shared_values_changed_at", "changed_at"),
)
"""
Values that the partitions of a cluster share, as JSON (``queenright.health.cluster.shared_values``).

Only the table in the default schema is used.
"""

STREAM_POSITION: Final = Table(
    "stream_position",
    POSTGRES_TABLES,
    Column("stream", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
)
"""
The last stored message of a cluster's telemetry stream, by the identity of the stream.

It is written in the transaction that stores the events of the messages, so that none is stored twice or lost.
"""

STORED_MESSAGES: Final = Table(
    "stored_messages",
    POSTGRES_TABLES,
    Column("message_id", Text, primary_key=True),
    Column("stored_at", Float, nullable=False),
    Index("ix_stored_messages_stored_at", "stored_at"),
)
"""
The latest stored messages of the telemetry stream, by a hash of the sent bytes.

A sender that got no response sends the same bytes again, possibly after both NATS and the owner were
replaced.
"""
