"""A worker's history: state changes and interventions from the event log and its archive."""

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

from queenright.health.detection.health_state import HealthState
from queenright.health.store.event_log import event_of
from queenright.health.store.former_names import former_names
from queenright.health.store.tables import AUDIT_ARCHIVE, EVENTS
from queenright.runtime.events import AgentEvent, EventType

HISTORY_EVENTS: Final[frozenset[EventType]] = frozenset(
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
"""The event types in a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """An event in a worker's history, and the health state after it."""

    seq: int
    """The event's sequence number in the event log."""
    time: float
    """Seconds since the epoch."""
    type: EventType
    state: HealthState | None
    """None if no state had been logged by then."""
    reason: str
    session_id: str
    incarnation_id: str
    event_id: str
    data: Mapping[str, Any]
    """The event's data. ``docs/events.md`` lists the keys of each type."""


def health_history(
    conn: Connection,
    agent_id: str,
    since: float,
    until: float | None = None,
    limit: int = 1000,
    before: int | None = None,
) -> list[HealthSnapshot]:
    """
    Return the newest ``limit`` entries of a worker's history over all its sessions, oldest first.

    Args:
        until: The end of the period, exclusive; None for no end.
        before: Return only entries with a smaller ``seq``, for paging.

    Raises:
        ValueError: ``limit`` is not positive.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    parameters = {"agent": agent_id, "since": since, "until": until, "before": before, "most": limit}
    query = _build_query(until is not None, before is not None)
    former_sessions = former_names(conn, agent_id)
    rows = list(conn.execute(query, parameters))
    for name in {name for name, _ in former_sessions} - {agent_id}:
        rows_of_name = conn.execute(query, {**parameters, "agent": name})
        rows += [row for row in rows_of_name if (name, row.session_id) in former_sessions]
    events = [(row.seq, event) for row in rows if (event := event_of(row)) is not None]
    events.sort(key=lambda entry: entry[0])
    events = events[-limit:]
    if not events:
        return []
    states = _find_states_before(conn, agent_id, events)
    entries = []
    for seq, event in events:
        if event.type is EventType.HEALTH_STATE_CHANGED:
            states[event.session_id] = _parse_state(event.data.get("to"))
        entries.append(_make_snapshot(seq, event, states.get(event.session_id)))
    return entries


@lru_cache(maxsize=4)
def _build_query(has_until: bool, has_before: bool) -> CompoundSelect[Any]:
    """
    Return the query for the newest events of each type. It is cached, because building it takes longer than
    running it.

    The log has an index of each agent's events by type, in the order of the log.
    """
    kinds = sorted(kind.value for kind in HISTORY_EVENTS)
    conditions = [EVENTS.c.type == literal_column(f"'{kind}'", EVENTS.c.type.type) for kind in kinds]
    filters = [(EVENTS, condition) for condition in conditions]
    filters.append((AUDIT_ARCHIVE, AUDIT_ARCHIVE.c.type.in_(kinds)))
    return union_all(*(_build_part(table, condition, has_until, has_before) for table, condition in filters))


def _build_part(
    table: Table, condition: ColumnElement[bool], has_until: bool, has_before: bool
) -> Select[Any]:
    query = select(*(table.c[column.name] for column in EVENTS.columns))
    query = query.where(table.c.agent_id == bindparam("agent"), condition, table.c.time >= bindparam("since"))
    if has_until:
        query = query.where(table.c.time < bindparam("until"))
    if has_before:
        query = query.where(table.c.seq < bindparam("before"))
    most = bindparam("most", type_=Integer())
    return select(query.order_by(table.c.seq.desc()).limit(most).subquery())


def _find_states_before(
    conn: Connection, agent_id: str, events: Iterable[tuple[int, AgentEvent]]
) -> dict[str, HealthState | None]:
    """Return the state of each session before its first event, from the next or the previous state change."""
    first_seqs: dict[str, int] = {}
    states: dict[str, HealthState | None] = {}
    for seq, event in events:
        first_seqs.setdefault(event.session_id, seq)
        if event.type is EventType.HEALTH_STATE_CHANGED and event.session_id not in states:
            states[event.session_id] = _parse_state(event.data.get("from"))
    for session_id in first_seqs.keys() - states.keys():
        states[session_id] = _parse_state(
            _find_last_state(conn, agent_id, session_id, first_seqs[session_id])
        )
    return states


def _find_last_state(conn: Connection, agent_id: str, session_id: str, before: int) -> object:
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


def _parse_state(value: Any) -> HealthState | None:
    try:
        return HealthState(value)
    except ValueError:
        return None


def _make_snapshot(seq: int, event: AgentEvent, state: HealthState | None) -> HealthSnapshot:
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
