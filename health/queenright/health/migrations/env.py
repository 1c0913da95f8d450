"""Alembic's entry: runs the migrations on the connection the store hands over, in one transaction."""

from __future__ import annotations

from alembic import context

from queenright.health.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # SQLite's DDL is transactional; Alembic assumes that it is not. A kill leaves nothing half.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
