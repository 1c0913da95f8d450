"""Recoveries in the database: each row holds the recovery as JSON, with columns to search by."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from queenright.health.recovery.recovery import UNDER_WAY, Recovery, RecoveryState
from queenright.health.rows import Place, newest_first
from queenright.health.tables import RECOVERIES

_STATES = [state.value for state in sorted(UNDER_WAY)]


def insert_recovery(conn: Connection, recovery: Recovery) -> None:
    """Store a new recovery."""
    conn.execute(insert(RECOVERIES).values(_row(recovery)))


def update_recovery(conn: Connection, recovery: Recovery) -> None:
    """Store a changed recovery."""
    where = RECOVERIES.c.recovery_id == recovery.recovery_id
    conn.execute(update(RECOVERIES).where(where).values(_row(recovery)))


def under_way(conn: Connection) -> list[Recovery]:
    """Return open recoveries, oldest first."""
    query = select(RECOVERIES.c.body).where(RECOVERIES.c.status.in_(_STATES))
    query = query.order_by(RECOVERIES.c.created_at, RECOVERIES.c.recovery_id)
    return [Recovery.model_validate_json(body) for body in conn.execute(query).scalars()]


def of_task(conn: Connection, task_id: str) -> list[Recovery]:
    """Return all recoveries of a task, newest first."""
    query = select(RECOVERIES.c.body).where(RECOVERIES.c.task_id == task_id)
    query = query.order_by(RECOVERIES.c.created_at.desc(), RECOVERIES.c.recovery_id.desc())
    return [Recovery.model_validate_json(body) for body in conn.execute(query).scalars()]


def newest(
    conn: Connection, limit: int, *, state: RecoveryState | None = None, before: Place | None = None
) -> list[Recovery]:
    """Return recoveries of all tasks, newest first; ``before`` is the cursor of the next page."""
    table = RECOVERIES.c
    query = select(table.body)
    if state is not None:
        query = query.where(table.status == state.value)
    query = newest_first(query, table.created_at, table.recovery_id, limit=limit, before=before)
    return [Recovery.model_validate_json(body) for body in conn.execute(query).scalars()]


def _row(recovery: Recovery) -> dict[str, object]:
    return {
        "recovery_id": recovery.recovery_id,
        "task_id": recovery.task_id,
        "agent_id": recovery.agent_id,
        "session_id": recovery.session_id,
        "status": recovery.state.value,
        "created_at": recovery.created_at,
        "body": recovery.model_dump_json(),
    }
