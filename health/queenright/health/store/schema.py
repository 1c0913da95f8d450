"""Create the schema of a new database: the tables, and the triggers that keep the event log append-only."""

from __future__ import annotations

import functools
from typing import Final

from sqlalchemy import Column, Connection, MetaData, String, Table, text
from sqlalchemy.dialects import registry
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from queenright.health.store.tables import (
    EVENT_LOG_HEAD,
    METADATA,
    OLDEST_COMPATIBLE,
    POSTGRES_TABLES,
    SCHEMA_REVISION,
)

VERSION: Final = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
"""The schema's revision, as Alembic reads it."""
COMPATIBILITY: Final = Table(
    "schema_compatibility", MetaData(), Column("oldest_compatible", String(32), primary_key=True)
)
"""The oldest revision whose code can use the schema."""

_APPEND_ONLY: Final = (
    ("events", "base_length", "the event log"),
    ("audit_archive", "archive_base_seq", "the audit archive"),
)
"""
The append-only tables: name, the head's column with the last row that may be deleted, and name in errors.
"""


def create_schema(conn: Connection) -> None:
    """Create the newest schema in an empty database. The caller commits."""
    for statement in _table_statements(conn.dialect.name):
        conn.exec_driver_sql(statement)
    conn.execute(VERSION.insert().values(version_num=SCHEMA_REVISION))
    conn.execute(COMPATIBILITY.insert().values(oldest_compatible=OLDEST_COMPATIBLE))
    conn.execute(EVENT_LOG_HEAD.insert().values(id=1, length=0, hash=bytes(32)))
    if conn.dialect.name == "sqlite":
        _create_sqlite_triggers(conn)
        return
    _create_postgresql_triggers(conn)
    # SQLite needs no such check: it stores NaN as NULL, which the column refuses.
    conn.execute(text("ALTER TABLE events ADD CONSTRAINT ck_events_time CHECK (time <> 'NaN'::float8)"))
    POSTGRES_TABLES.create_all(conn)


@functools.cache
def _table_statements(dialect_name: str) -> tuple[str, ...]:
    """
    Return the statements that create the tables and indexes. They are cached, because compiling them is slow.
    """
    dialect = registry.load(dialect_name)()
    statements: list[ExecutableDDLElement] = []
    for table in (*METADATA.sorted_tables, VERSION, COMPATIBILITY):
        statements += CreateTable(table), *(CreateIndex(index) for index in table.indexes)
    return tuple(str(statement.compile(dialect=dialect)) for statement in statements)


def _create_sqlite_triggers(conn: Connection) -> None:
    for table, base, subject in _APPEND_ONLY:
        refuse = f"BEGIN SELECT RAISE(ABORT, '{subject} is append-only'); END"
        conn.exec_driver_sql(f"CREATE TRIGGER {table}_refuse_update BEFORE UPDATE ON {table} {refuse}")
        conn.exec_driver_sql(
            f"CREATE TRIGGER {table}_refuse_delete BEFORE DELETE ON {table} "
            f"WHEN OLD.seq > COALESCE((SELECT {base} FROM event_log_head), 0) {refuse}"
        )


def _create_postgresql_triggers(conn: Connection) -> None:
    for table, base, subject in _APPEND_ONLY:
        allow_pruning = (
            f"IF OLD.seq <= COALESCE((SELECT {base} FROM event_log_head), 0) THEN RETURN OLD; END IF; "
        )
        for verb, level, exception in (
            ("update", "ROW", ""),
            ("delete", "ROW", allow_pruning),
            ("truncate", "STATEMENT", ""),
        ):
            name = f"{table}_refuse_{verb}"
            conn.exec_driver_sql(
                f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {exception}"
                f"RAISE EXCEPTION '{subject} is append-only' "
                "USING ERRCODE = 'integrity_constraint_violation'; END $$"
            )
            conn.exec_driver_sql(
                f"CREATE TRIGGER {name} BEFORE {verb.upper()} ON {table} "
                f"FOR EACH {level} EXECUTE FUNCTION {name}()"
            )
