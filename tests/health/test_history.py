"""A worker's history: states and interventions, from the log and the archive."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy import event as sqlalchemy_event

from queenright.health.detection.health_state import HealthState
from queenright.health.monitoring.history import HealthSnapshot, health_history
from queenright.health.settings import RetentionSettings as Settings
from queenright.health.store.event_log import read_history
from queenright.health.store.retention import prune
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType

DAY = 86_400.0
NOW = 1_000 * DAY


def make_event(
    age: float, kind: EventType, agent_id: str = "bee", session_id: str = "s1", **data: Any
) -> AgentEvent:
    """Return an event that is ``age`` days old."""
    return AgentEvent(
        type=kind,
        time=NOW - age * DAY,
        agent_id=agent_id,
        session_id=session_id,
        incarnation_id="i1",
        id=f"{kind.value}-{agent_id}-{session_id}-{age:g}",
        data=data,
    )


def make_state_change(age: float, before: str, after: str, **fields: Any) -> AgentEvent:
    return make_event(
        age, EventType.HEALTH_STATE_CHANGED, **fields, **{"from": before, "to": after, "reason": f"{after}!"}
    )


LOGGED_EVENTS = [
    make_event(60, EventType.EXECUTION_STARTED),
    make_state_change(50, "healthy", "degraded"),
    make_event(49, EventType.NUDGE_SENT, attempt=1, message="How far are you?"),
    make_state_change(48, "degraded", "stuck", agent_id="wasp"),
    make_event(47, EventType.STEP_COMPLETED),
    make_state_change(20, "degraded", "stuck"),
    make_event(19.5, EventType.INTERVENTION_RECORDED, outcome="unreachable", reason="it is silent"),
    make_event(19, EventType.ESCALATION_TRIGGERED, reason="it is silent"),
    make_event(18.5, EventType.CIRCUIT_BREAKER_STATE_CHANGED, session_id="", to="open", reason="3 failures"),
    make_event(18, EventType.AGENT_TERMINATED, reason="no answer"),
    make_state_change(18, "stuck", "terminated"),
    make_event(17, EventType.RECOVERY_INITIATED, session_id="s2", attempt=1),
    make_state_change(1, "healthy", "stuck", session_id="s2"),
]
HISTORY_ENTRIES = [
    event for event in LOGGED_EVENTS if event.agent_id == "bee" and event.type is not EventType.STEP_COMPLETED
][1:]


async def history(url: str, *, is_pruned: bool = False, **options: Any) -> list[HealthSnapshot]:
    def prune_events(conn: Connection) -> None:
        prune(conn, NOW, Settings(days=30, audit_days=365))

    store = Store.open(url)
    try:
        await store.append(LOGGED_EVENTS)
        if is_pruned:
            await store.transact(prune_events)
        return await store.read(
            lambda conn: health_history(conn, **{"agent_id": "bee", "since": 0.0, **options})
        )
    finally:
        await store.close()


@pytest.mark.parametrize("is_pruned", [False, True])
async def test_history_has_every_state_and_intervention(database_url: str, is_pruned: bool) -> None:
    snapshots = await history(database_url, is_pruned=is_pruned)

    assert [entry.event_id for entry in snapshots] == [event.id for event in HISTORY_ENTRIES]
    assert [(entry.type.value, entry.state, entry.reason) for entry in snapshots] == [
        ("health_state_changed", HealthState.DEGRADED, "degraded!"),
        ("nudge_sent", HealthState.DEGRADED, ""),
        ("health_state_changed", HealthState.STUCK, "stuck!"),
        ("intervention_recorded", HealthState.STUCK, "it is silent"),
        ("escalation_triggered", HealthState.STUCK, "it is silent"),
        ("circuit_breaker_state_changed", None, "3 failures"),
        ("agent_terminated", HealthState.STUCK, "no answer"),
        ("health_state_changed", HealthState.TERMINATED, "terminated!"),
        ("recovery_initiated", HealthState.HEALTHY, ""),
        ("health_state_changed", HealthState.STUCK, "stuck!"),
    ]
    assert (snapshots[1].time, snapshots[1].session_id, snapshots[1].incarnation_id) == (
        NOW - 49 * DAY,
        "s1",
        "i1",
    )
    assert snapshots[1].data["message"] == "How far are you?"


@pytest.mark.parametrize("is_pruned", [False, True])
async def test_history_page_starts_with_the_state_before_it(database_url: str, is_pruned: bool) -> None:
    snapshots = await history(database_url, is_pruned=is_pruned, since=NOW - 49 * DAY, until=NOW - 20 * DAY)

    assert [(entry.type.value, entry.state) for entry in snapshots] == [("nudge_sent", HealthState.DEGRADED)]


async def test_newest_entries_are_kept_oldest_first(database_url: str) -> None:
    snapshots = await history(database_url, limit=2)

    assert [entry.event_id for entry in snapshots] == [event.id for event in HISTORY_ENTRIES[-2:]]


async def test_unknown_worker_has_no_history(database_url: str) -> None:
    assert await history(database_url, agent_id="nobody") == []
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        await history(database_url, limit=0)


async def test_log_is_searched_by_worker_with_an_index(tmp_path: Any) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'hive.db'}")
    await store.append(LOGGED_EVENTS)

    def list_plans(conn: Connection, **filters: str) -> set[str]:
        statements: list[tuple[str, Any]] = []

        def record_statement(_c: Any, _cursor: Any, sql: str, parameters: Any, *_rest: Any) -> None:
            statements.append((sql, parameters))

        sqlalchemy_event.listen(conn, "before_cursor_execute", record_statement)
        read_history(conn, where=filters)
        sqlalchemy_event.remove(conn, "before_cursor_execute", record_statement)
        return {
            row[3]
            for sql, parameters in statements
            for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters)
        }

    by_agent = await store.read(lambda conn: list_plans(conn, agent_id="bee"))

    assert by_agent == {"SEARCH events USING INDEX ix_events_agent_id_type (agent_id=? AND type=?)"}
    await store.close()
