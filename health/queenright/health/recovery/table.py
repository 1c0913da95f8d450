"""Recoveries in the database."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select

from queenright.health.recovery.recovery import UNDER_WAY, Recovery
from queenright.health.store.rows import ModelTable
from queenright.health.store.tables import RECOVERIES

recovery_table: Final = ModelTable(RECOVERIES, Recovery, status="state")

_STATES = [state.value for state in sorted(UNDER_WAY)]


def under_way(conn: Connection) -> list[Recovery]:
    """Return open recoveries, oldest first."""
    query = select(RECOVERIES.c.body).where(RECOVERIES.c.status.in_(_STATES))
    return recovery_table.read(conn, query.order_by(RECOVERIES.c.created_at, RECOVERIES.c.recovery_id))


def of_task(conn: Connection, task_id: str) -> list[Recovery]:
    """Return all recoveries of a task, newest first."""
    query = select(RECOVERIES.c.body).where(RECOVERIES.c.task_id == task_id)
    query = query.order_by(RECOVERIES.c.created_at.desc(), RECOVERIES.c.recovery_id.desc())
    return recovery_table.read(conn, query)
