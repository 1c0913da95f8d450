"""Read the events of a session from the event log."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Integer,
    Select,
    bindparam,
    literal_column,
    select,
    union_all,
)

from queenright.health.store.event_log import EVENT_COLUMNS, event_of
from queenright.health.store.former_names import all_names
from queenright.health.store.tables import EVENTS
from queenright.runtime.events import AgentEvent, EventType


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
    Return the events of a session, including those under its former names, with sequence numbers, oldest
    first.

    Args:
        types: Only these types.
        after: Only events with a higher sequence number.
        before: Only events with a lower sequence number.
        newest: If there are more than ``limit`` events, return the last ones instead of the first.
    """
    query = _build_query(frozenset(types), newest, before is not None)
    parameters = {"after": after, "before": before, "most": limit}
    rows = [
        row
        for agent, session in all_names(conn, agent_id, session_id)
        for row in conn.execute(query, {**parameters, "agent": agent, "session": session})
    ]
    rows.sort(key=lambda row: row.seq)
    page = rows[-limit:] if newest else rows[:limit]
    return [(row.seq, event) for row in page if (event := event_of(row)) is not None]


@lru_cache(maxsize=32)
def _build_query(types: frozenset[EventType], newest: bool, has_before: bool) -> CompoundSelect[Any]:
    """
    Return the query for the events of each type. It is cached, because building it takes longer than running
    it.

    Within each type, the index of an agent's events is in the log's order.
    """
    seq = EVENTS.c.seq
    parts: list[Select[Any]] = []
    for kind in sorted(types):
        query = select(*EVENT_COLUMNS).where(
            EVENTS.c.agent_id == bindparam("agent"),
            EVENTS.c.type == literal_column(f"'{kind.value}'", EVENTS.c.type.type),
            EVENTS.c.session_id == bindparam("session"),
            seq > bindparam("after"),
        )
        if has_before:
            query = query.where(seq < bindparam("before"))
        query = query.order_by(seq.desc() if newest else seq).limit(bindparam("most", type_=Integer()))
        parts.append(select(query.subquery()))
    return union_all(*parts)


def latest_session(conn: Connection, agent_id: str) -> str | None:
    """Return the session of an agent that started last, or None if the log has no start."""
    query = select(EVENTS.c.session_id).where(EVENTS.c.agent_id == agent_id)
    query = query.where(EVENTS.c.type == EventType.EXECUTION_STARTED.value)
    session_id: str | None = conn.execute(query.order_by(EVENTS.c.seq.desc()).limit(1)).scalar()
    return session_id
