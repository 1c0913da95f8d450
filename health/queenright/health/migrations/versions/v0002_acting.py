"""Acting on workers: interventions, escalations, breakers, recoveries; a log that lets old events go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_GUARDED = (
    ("events", "base_length", "the event log"),
    ("audit_archive", "archive_base_seq", "the audit archive"),
)


def upgrade() -> None:
    """Create what acting on workers needs, and let old events go."""
    op.add_column(
        "event_log_head", sa.Column("base_length", sa.BigInteger, nullable=False, server_default="0")
    )
    op.add_column("event_log_head", sa.Column("base_hash", sa.LargeBinary))
    op.add_column("event_log_head", sa.Column("archive_hash", sa.LargeBinary))
    op.add_column(
        "event_log_head", sa.Column("archive_base_seq", sa.BigInteger, nullable=False, server_default="0")
    )
    op.add_column("event_log_head", sa.Column("archive_base_hash", sa.LargeBinary))
    op.drop_index("ix_events_agent_id", "events")
    op.create_index("ix_events_agent_id_type", "events", ["agent_id", "type"])
    op.create_table(
        "audit_archive",
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
        sa.Column("previous_hash", sa.LargeBinary, nullable=False),
        sa.Column("archive_hash", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_audit_archive_agent_id", "audit_archive", ["agent_id"])
    op.create_index("ix_audit_archive_time", "audit_archive", ["time"])
    op.create_table(
        "switches",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("is_on", sa.Boolean, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    op.create_table(
        "ladders",
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("session_id", sa.Text, primary_key=True),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "interventions",
        sa.Column("intervention_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("incarnation_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_interventions_agent", "interventions", ["agent_id", "created_at"])
    op.create_index("ix_interventions_created_at", "interventions", ["created_at"])
    op.create_table(
        "instructions",
        sa.Column("instruction_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("incarnation_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_instructions_worker", "instructions", ["agent_id", "session_id"])
    op.create_index("ix_instructions_expires_at", "instructions", ["expires_at"])
    op.create_table(
        "escalations",
        sa.Column("escalation_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("deadline", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_escalations_status", "escalations", ["status"])
    op.create_index("ix_escalations_created_at", "escalations", ["created_at"])
    op.create_table(
        "breakers",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "recoveries",
        sa.Column("recovery_id", sa.Text, primary_key=True),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("ix_recoveries_task_id", "recoveries", ["task_id"])
    op.create_index("ix_recoveries_created_at", "recoveries", ["created_at"])
    dialect = op.get_bind().dialect.name
    if dialect == "sqlite":
        _guard_on_sqlite()
    elif dialect == "postgresql":
        _guard_on_postgresql()


def _guard_on_sqlite() -> None:
    """Let go of nothing but what the head says was let go of; change nothing at all."""
    op.execute("DROP TRIGGER events_refuse_delete")
    for table, base, what in _GUARDED:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_delete BEFORE DELETE ON {table} "
            f"WHEN OLD.seq > COALESCE((SELECT {base} FROM event_log_head), 0) "
            f"BEGIN SELECT RAISE(ABORT, '{what} is append-only'); END"
        )
    op.execute(
        "CREATE TRIGGER audit_archive_refuse_update BEFORE UPDATE ON audit_archive "
        "BEGIN SELECT RAISE(ABORT, 'the audit archive is append-only'); END"
    )


def _guard_on_postgresql() -> None:
    """Do the same."""
    op.execute("DROP TRIGGER IF EXISTS events_refuse_delete ON events")
    for table, base, what in _GUARDED:
        _refuse_on_postgresql(
            f"{table}_refuse_delete",
            f"BEFORE DELETE ON {table} FOR EACH ROW",
            f"IF OLD.seq <= COALESCE((SELECT {base} FROM event_log_head), 0) THEN RETURN OLD; END IF;",
            what,
        )
    _refuse_on_postgresql(
        "audit_archive_refuse_update", "BEFORE UPDATE ON audit_archive FOR EACH ROW", "", "the audit archive"
    )
    _refuse_on_postgresql(
        "audit_archive_refuse_truncate",
        "BEFORE TRUNCATE ON audit_archive FOR EACH STATEMENT",
        "",
        "the audit archive",
    )


def _refuse_on_postgresql(name: str, when: str, unless: str, what: str) -> None:
    op.execute(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {unless} "
        f"RAISE EXCEPTION '{what} is append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION {name}()")
