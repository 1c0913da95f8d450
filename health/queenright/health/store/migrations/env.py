"""Alembic's entry: runs the migrations on the connection the store hands over, in one transaction."""

from __future__ import annotations

from alembic import context

from queenright.health.store.schema import COMPATIBILITY
from queenright.health.store.tables import METADATA

conn = context.config.attributes["connection"]
context.configure(
    connection=conn,
    target_metadata=METADATA,
    # SQLite's DDL is transactional; Alembic assumes that it is not. A kill leaves nothing half.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
    # Code that cannot use the schema after one migration cannot use it after the next ones.
    oldest = max(script.module.oldest_compatible for script in context.script.walk_revisions())
    conn.execute(COMPATIBILITY.delete())
    conn.execute(COMPATIBILITY.insert().values(oldest_compatible=oldest))
