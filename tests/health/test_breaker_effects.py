"""The effects of an open circuit breaker on its worker's health and interventions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.store.store import Store
from queenright.runtime.events import EventType
from tests.health.acting import Acting

NAME = "tool_execution:bee:search"


@pytest.fixture
async def acting(tmp_path: Path) -> AsyncIterator[Acting]:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield Acting(store)
    await store.close()


async def breaker(acting: Acting, to: str, name: str = NAME) -> None:
    await acting.tell(EventType.CIRCUIT_BREAKER_STATE_CHANGED, name=name, to=to)


async def test_worker_is_failing_until_its_last_open_breaker_closes(acting: Acting) -> None:
    """A change of one breaker leaves the worker's other breakers as they are."""
    await acting.start()
    await breaker(acting, "open")
    await breaker(acting, "open", "tool_execution:bee:fetch")
    await breaker(acting, "closed", "tool_execution:bee:fetch")
    assert acting.state() is HealthState.FAILING

    await breaker(acting, "closed")
    assert acting.state() is HealthState.HEALTHY


@pytest.mark.parametrize(
    ("verdict", "after"), [("ACCEPT", HealthState.HEALTHY), ("CONTINUE", HealthState.DEGRADED)]
)
async def test_b73_worker_progressing_without_the_half_open_tool_is_not_acted_on(
    acting: Acting, verdict: str, after: HealthState
) -> None:
    """
    B73: the breaker is half-open for 90 min without a call; the working worker is escalated at most once.
    """
    await acting.start()
    await acting.pass_time(600)
    await breaker(acting, "open")
    assert acting.state() is HealthState.FAILING
    await acting.pass_time(60)
    await breaker(acting, "half_open")
    for _ in range(90):
        await acting.tell(EventType.LLM_CALL_COMPLETED, model="m")
        await acting.tell(EventType.STEP_COMPLETED, verdict=verdict)
        await acting.pass_time(60)

    assert acting.state() is after
    assert "terminate done" not in acting.done()
    assert acting.done().count("escalate done") <= 1
