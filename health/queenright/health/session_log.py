"""The events of one session in the event log."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import Connection, select

from queenright.health.event_log import event_of
from queenright.health.tables import EVENTS
from queenright.runtime.events import AgentEvent, EventType

_COLUMNS: Final = tuple(column for column in EVENTS.columns if column.name != "hash")


def read_session(
    conn: Connection,
    agent_id: str,
    session_id: str,
    *,
    types: Collection[EventType],
    after: int = 0,
    before: int | None = None,
    limit: int,
    newest: bool = True,
) -> list[tuple[int, AgentEvent]]:
    """
    Return events of and about a session with their sequence numbers, oldest first.

    Args:
        types: Only these types.
        after: Only events with a higher sequence number.
        before: Only events with a lower sequence number.
        newest: Beyond ``limit``: return the last events instead of the first.
    """
    order = EVENTS.c.seq.desc() if newest else EVENTS.c.seq
    query = select(*_COLUMNS).where(EVENTS.c.agent_id == agent_id, EVENTS.c.session_id == session_id)
    query = query.where(EVENTS.c.seq > after).order_by(order).limit(limit)
    if before is not None:
        query = query.where(EVENTS.c.seq < before)
    # One query for each type: the index of an agent's events by type is in the log's order within each.
    rows = [row for kind in types for row in conn.execute(query.where(EVENTS.c.type == kind.value))]
    rows.sort(key=lambda row: row.seq)
    kept = rows[-limit:] if newest else rows[:limit]
    return [(row.seq, event) for row in kept if (event := event_of(row)) is not None]


def latest_session(conn: Connection, agent_id: str) -> str | None:
    """Return the session of an agent that started last, None if no start is in the log."""
    query = select(EVENTS.c.session_id).where(EVENTS.c.agent_id == agent_id)
    query = query.where(EVENTS.c.type == EventType.EXECUTION_STARTED.value)
    found: str | None = conn.execute(query.order_by(EVENTS.c.seq.desc()).limit(1)).scalar()
    return found
