"""The effects of an open circuit breaker on its worker's health and interventions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.store.store import Store
from queenright.runtime.events import EventType
from tests.health.monitored_fleet import MonitoredFleet

NAME = "tool_execution:bee:search"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[MonitoredFleet]:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield MonitoredFleet(store)
    await store.close()


async def change_breaker(fleet: MonitoredFleet, state: str, name: str = NAME) -> None:
    await fleet.publish_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, name=name, to=state)


async def test_worker_is_failing_until_its_last_open_breaker_closes(fleet: MonitoredFleet) -> None:
    """A change of one breaker leaves the worker's other breakers as they are."""
    await fleet.start_worker()
    await change_breaker(fleet, "open")
    await change_breaker(fleet, "open", "tool_execution:bee:fetch")
    await change_breaker(fleet, "closed", "tool_execution:bee:fetch")
    assert fleet.get_state() is HealthState.FAILING

    await change_breaker(fleet, "closed")
    assert fleet.get_state() is HealthState.HEALTHY


@pytest.mark.parametrize(
    ("verdict", "expected_state"), [("ACCEPT", HealthState.HEALTHY), ("CONTINUE", HealthState.DEGRADED)]
)
async def test_b73_worker_progressing_beside_a_half_open_breaker_is_not_acted_on(
    fleet: MonitoredFleet, verdict: str, expected_state: HealthState
) -> None:
    """
    B73: the breaker is half-open for 90 min without a call; the working worker is escalated at most once.
    """
    await fleet.start_worker()
    await fleet.pass_time(600)
    await change_breaker(fleet, "open")
    assert fleet.get_state() is HealthState.FAILING
    await fleet.pass_time(60)
    await change_breaker(fleet, "half_open")
    for _ in range(90):
        await fleet.publish_event(EventType.LLM_CALL_COMPLETED, model="m")
        await fleet.publish_event(EventType.STEP_COMPLETED, verdict=verdict)
        await fleet.pass_time(60)

    assert fleet.get_state() is expected_state
    assert "terminate done" not in fleet.list_actions()
    assert fleet.list_actions().count("escalate done") <= 1
