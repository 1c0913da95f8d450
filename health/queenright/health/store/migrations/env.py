"""Alembic's entry point, which runs the migrations in one transaction on the connection of the store."""

from __future__ import annotations

from alembic import context

from queenright.health.store.schema import COMPATIBILITY
from queenright.health.store.tables import METADATA

conn = context.config.attributes["connection"]
context.configure(
    connection=conn,
    target_metadata=METADATA,
    # Alembic assumes that SQLite's DDL is not transactional. It is, so a killed migration changes nothing.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
    # Code that cannot use the schema after one migration cannot use it after later ones.
    oldest = max(script.module.oldest_compatible for script in context.script.walk_revisions())
    conn.execute(COMPATIBILITY.delete())
    conn.execute(COMPATIBILITY.insert().values(oldest_compatible=oldest))
