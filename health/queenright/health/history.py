"""A worker's history: its changes of state, and what was done about it, from event log and archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Integer,
    Select,
    Table,
    bindparam,
    literal_column,
    select,
    union_all,
)

from queenright.health.event_log import event_of
from queenright.health.findings import HealthState
from queenright.health.tables import AUDIT_ARCHIVE, EVENTS
from queenright.runtime.events import AgentEvent, EventType

TOLD: Final[frozenset[EventType]] = frozenset(
    {
        EventType.HEALTH_STATE_CHANGED,
        EventType.NUDGE_SENT,
        EventType.ESCALATION_TRIGGERED,
        EventType.ESCALATION_DECIDED,
        EventType.TERMINATION_REQUESTED,
        EventType.TERMINATION_DECIDED,
        EventType.AGENT_TERMINATED,
        EventType.RECOVERY_INITIATED,
        EventType.RECOVERY_COMPLETED,
        EventType.RECOVERY_FAILED,
        EventType.CIRCUIT_BREAKER_STATE_CHANGED,
        EventType.INTERVENTION_RECORDED,
    }
)
"""What a history tells of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """One thing that happened to a worker's health, and the state that it was in from then on."""

    seq: int
    """Its place in the event log."""
    time: float
    """Seconds since the epoch."""
    type: EventType
    state: HealthState | None
    """None: nothing was logged of its state up to then."""
    reason: str
    session_id: str
    incarnation_id: str
    event_id: str
    data: Mapping[str, Any]
    """What the event says; its keys by type are in ``docs/events.md``."""


def health_history(
    conn: Connection,
    agent_id: str,
    since: float,
    until: float | None = None,
    limit: int = 1000,
    before: int | None = None,
) -> list[HealthSnapshot]:
    """
    Return the newest ``limit`` entries of a worker's history, oldest first, of all its sessions.

    Args:
        conn: A connection that sees one state of the database for as long as this takes.
        agent_id: Whose history.
        since: From when on, in seconds since the epoch.
        until: Up to when, exclusively; None is up to the last event.
        limit: At most so many.
        before: Only entries with a smaller ``seq``: what comes before a page.

    Raises:
        ValueError: ``limit`` is not positive.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    given = {"agent": agent_id, "since": since, "until": until, "before": before, "most": limit}
    rows = conn.execute(_newest(until is not None, before is not None), given)
    found = [(row.seq, event) for row in rows if (event := event_of(row)) is not None]
    found.sort(key=lambda entry: entry[0])
    found = found[-limit:]
    if not found:
        return []
    states = _states_before(conn, agent_id, found)
    entries = []
    for seq, event in found:
        if event.type is EventType.HEALTH_STATE_CHANGED:
            states[event.session_id] = _state(event.data.get("to"))
        entries.append(_snapshot(seq, event, states.get(event.session_id)))
    return entries


@lru_cache(maxsize=4)
def _newest(has_until: bool, has_before: bool) -> CompoundSelect[Any]:
    """
    Return the query for the newest events of each type: made once, as that takes longer than to answer it.

    The index of the log holds an agent's events of one type together, in the order of the log.
    """
    kinds = sorted(kind.value for kind in TOLD)
    each = [EVENTS.c.type == literal_column(f"'{kind}'", EVENTS.c.type.type) for kind in kinds]
    parts = [(EVENTS, only) for only in each]
    parts.append((AUDIT_ARCHIVE, AUDIT_ARCHIVE.c.type.in_(kinds)))
    return union_all(*(_part(table, only, has_until, has_before) for table, only in parts))


def _part(table: Table, only: ColumnElement[bool], has_until: bool, has_before: bool) -> Select[Any]:
    query = select(*(table.c[column.name] for column in EVENTS.columns))
    query = query.where(table.c.agent_id == bindparam("agent"), only, table.c.time >= bindparam("since"))
    if has_until:
        query = query.where(table.c.time < bindparam("until"))
    if has_before:
        query = query.where(table.c.seq < bindparam("before"))
    most = bindparam("most", type_=Integer())
    return select(query.order_by(table.c.seq.desc()).limit(most).subquery())


def _states_before(
    conn: Connection, agent_id: str, found: Iterable[tuple[int, AgentEvent]]
) -> dict[str, HealthState | None]:
    """Return each session's state before its first entry: from the next change, or from the last before."""
    first: dict[str, int] = {}
    states: dict[str, HealthState | None] = {}
    for seq, event in found:
        first.setdefault(event.session_id, seq)
        if event.type is EventType.HEALTH_STATE_CHANGED and event.session_id not in states:
            states[event.session_id] = _state(event.data.get("from"))
    for session_id in first.keys() - states.keys():
        states[session_id] = _state(_last_change(conn, agent_id, session_id, first[session_id]))
    return states


def _last_change(conn: Connection, agent_id: str, session_id: str, before: int) -> object:
    for table in (EVENTS, AUDIT_ARCHIVE):
        query = (
            select(*(table.c[column.name] for column in EVENTS.columns))
            .where(table.c.agent_id == agent_id, table.c.session_id == session_id, table.c.seq < before)
            .where(table.c.type == EventType.HEALTH_STATE_CHANGED.value)
            .order_by(table.c.seq.desc())
        )
        row = conn.execute(query.limit(1)).first()
        if row is not None and (event := event_of(row)) is not None:
            return event.data.get("to")
    return None


def _state(value: Any) -> HealthState | None:
    try:
        return HealthState(value)
    except ValueError:
        return None


def _snapshot(seq: int, event: AgentEvent, state: HealthState | None) -> HealthSnapshot:
    return HealthSnapshot(
        seq=seq,
        time=event.time,
        type=event.type,
        state=state,
        reason=str(event.data.get("reason") or ""),
        session_id=event.session_id,
        incarnation_id=event.incarnation_id,
        event_id=event.id,
        data=event.data,
    )
