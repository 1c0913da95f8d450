"""Breakers in the store: a change is durable with its event, and survives a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from queenright.health.breakers import BreakerState, CircuitOpenError
from queenright.health.breakers.store import BreakerStore
from queenright.health.detection.health_state import HealthState
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import CircuitBreakerSettings, HealthSettings
from queenright.health.store.event_chain import verify
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store
from queenright.health.store.tables import BREAKERS
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import change
from tests.runtime.conftest import FakeTime

CLOSED, OPEN, HALF_OPEN = BreakerState
SEARCH = ("tool_execution", "bee", "search")
NAME = "tool_execution:bee:search"


class Service:
    """A service with breakers on a database, which can be restarted after any time."""

    def __init__(self, url: str, time: FakeTime) -> None:
        self.url, self.time = url, time
        self.wall_jump = 0.0
        self.published_events: list[AgentEvent] = []

    async def start(self, **settings: Any) -> None:
        self.store = Store.open(self.url)
        # Another process has another monotonic clock.
        boot_time = self.time.now - 7.0
        self.breakers = BreakerStore(
            self.store,
            settings=CircuitBreakerSettings.model_validate(settings),
            clock=lambda: self.time.now + self.wall_jump,
            monotonic=lambda: self.time.now - boot_time,
            publish=lambda *events: self.published_events.extend(events),
            sleep=self.time.sleep,
        )
        await self.breakers.load()
        self.registry = self.breakers.registry

    async def stop(self) -> None:
        await self.breakers.close()
        await self.store.close()

    async def trip(self, *words: str) -> None:
        while (breaker := self.registry.get(*(words or SEARCH))).state is not OPEN:
            breaker.admit().record_failure(OSError("no route"))
        await self.settle()

    async def settle(self) -> None:
        await asyncio.sleep(0)
        await self.breakers.flush()

    async def read_states(self) -> dict[str, str]:
        query = select(BREAKERS.c.name, BREAKERS.c.state)
        return {row.name: row.state for row in await self.store.read(lambda conn: conn.execute(query).all())}

    async def list_logged_changes(self) -> list[AgentEvent]:
        types = [EventType.CIRCUIT_BREAKER_STATE_CHANGED]
        return [event for _, event in await self.store.read(lambda conn: read_events(conn, types=types))]


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    service = Service(database_url, FakeTime())
    await service.start()
    yield service
    await service.stop()


async def test_change_is_published_once_row_and_event_are_durable(service: Service) -> None:
    await service.trip()

    assert await service.read_states() == {NAME: "open"}
    [event] = await service.list_logged_changes()
    assert service.published_events == [event]
    assert (event.agent_id, event.session_id, event.time) == ("bee", "", service.time.now)
    assert event.data == {
        "name": NAME,
        "kind": "tool_execution",
        "from": "closed",
        "to": "open",
        "reason": "3 failures in a row, the last: OSError: no route",
        "failures": 3,
    }
    assert (await service.store.read(verify)).ok


async def test_breaker_that_closes_leaves_no_row(service: Service) -> None:
    await service.trip()
    await service.time.advance(60)

    service.registry.get(*SEARCH).admit().record_success()
    await service.settle()

    assert await service.read_states() == {}
    assert [event.data["to"] for event in await service.list_logged_changes()] == [
        "open",
        "half_open",
        "closed",
    ]


@pytest.mark.parametrize(("jump", "remaining"), [(0.0, 40.0), (-1e6, 60.0), (1e6, 0.0)])
async def test_open_breaker_keeps_its_remaining_timeout_after_a_restart(
    service: Service, jump: float, remaining: float
) -> None:
    """However the wall clock changes during the restart, the breaker stays open for at most one timeout."""
    await service.trip()
    await service.stop()
    await service.time.advance(20)
    service.wall_jump = jump

    await service.start()

    status = service.registry.status(NAME)
    assert (status.state, status.failures, status.agent_id, status.target) == (OPEN, 3, "bee", "search")
    assert status.half_open_at == pytest.approx(service.time.now + jump + remaining)
    assert service.registry.next_deadline() == pytest.approx(remaining)
    if remaining:
        with pytest.raises(CircuitOpenError, match="no route"):
            service.registry.get(*SEARCH).admit()
        await service.time.advance(remaining)
    service.registry.get(*SEARCH).admit().record_success()
    await service.settle()
    assert await service.read_states() == {}


async def test_half_open_breaker_admits_a_probe_after_a_restart(service: Service) -> None:
    await service.trip()
    await service.time.advance(60)
    service.registry.get(*SEARCH).admit()  # the outcome is never reported
    await service.settle()
    await service.stop()

    await service.start()

    assert service.registry.status(NAME).state is HALF_OPEN
    service.registry.get(*SEARCH).admit()
    with pytest.raises(CircuitOpenError):
        service.registry.get(*SEARCH).admit()


async def test_changes_made_in_threads_are_written_too(service: Service) -> None:
    def trip_breaker(n: int) -> None:
        for _ in range(3):
            service.registry.get("recovery", f"bee{n}").admit().record_failure("x")

    await asyncio.gather(*(asyncio.to_thread(trip_breaker, n) for n in range(20)))
    await service.settle()

    assert await service.read_states() == {f"recovery:bee{n}": "open" for n in range(20)}
    assert len(service.published_events) == 20


async def test_b73_operator_reset_is_durable(service: Service) -> None:
    """B73: a breaker that a person reset is still closed after a restart, and the log names the person."""
    await service.trip()

    service.registry.reset(NAME, "anna")
    await service.settle()
    await service.stop()
    await service.start()

    assert service.registry.all() == []
    assert (await service.list_logged_changes())[-1].data["reason"] == "reset by anna"


async def test_b73_open_breaker_finding_ends_without_calls(service: Service) -> None:
    """
    B73: the worker is failing while its breaker is open, degraded after the timeout, and healthy after
    progress.
    """
    monitor = HealthMonitor(HealthSettings())
    wakeup_task = asyncio.create_task(service.breakers.run())

    def update_state(type_: EventType | None = None, **data: Any) -> HealthState:
        events, service.published_events = service.published_events, []
        if type_ is not None:
            events.append(
                AgentEvent(
                    type=type_,
                    time=service.time.now,
                    agent_id="bee",
                    session_id="s",
                    incarnation_id="i",
                    data=data,
                )
            )
        for event in events:
            monitor.apply(event, service.time.now)
        worker = monitor.get("bee", "s")
        assert worker is not None
        return worker.state

    assert update_state(EventType.EXECUTION_STARTED, start_records=True) is HealthState.HEALTHY
    await service.trip()
    await service.time.advance(59)
    assert service.registry.status(NAME).state is OPEN
    assert update_state() is HealthState.FAILING
    await service.time.advance(2)
    await service.settle()

    assert await service.read_states() == {NAME: "half_open"}
    assert update_state() is HealthState.DEGRADED
    assert update_state(EventType.STEP_COMPLETED, verdict="ACCEPT") is HealthState.HEALTHY
    wakeup_task.cancel()
    await asyncio.wait([wakeup_task])


async def test_b76_breakers_work_without_the_database_and_are_written_afterwards(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """B76: a store that is unavailable for an hour blocks no call, and no change is lost."""
    change(service.url, "ALTER TABLE breakers RENAME TO away")
    for n in range(5):
        for _ in range(3):
            service.registry.get("recovery", f"bee{n}").admit().record_failure("x")
    for _ in range(120):
        await service.time.advance(30)
        while service.store.depth:
            await asyncio.to_thread(lambda: None)
    assert service.published_events == []
    assert caplog.text.count("cannot write circuit breaker changes, retrying") == 1

    change(service.url, "ALTER TABLE away RENAME TO breakers")
    await service.time.advance(30)
    await service.settle()

    assert await service.read_states() == {f"recovery:bee{n}": "open" for n in range(5)}
    assert [event.agent_id for event in service.published_events] == [f"bee{n}" for n in range(5)]


async def test_close_writes_waiting_changes(service: Service) -> None:
    for _ in range(3):
        service.registry.get(*SEARCH).admit().record_failure("x")

    await service.breakers.close()

    assert await service.read_states() == {NAME: "open"}
    assert len(service.published_events) == 1


async def test_unreadable_row_is_skipped(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    bodies = ["nonsense", "{}", "[]", json.dumps({"name": "x", "state": "ajar"})]

    def insert_rows(conn: Connection) -> None:
        for n, body in enumerate(bodies):
            conn.execute(insert(BREAKERS).values(name=f"b{n}", state="open", updated_at=1.0, body=body))

    await service.store.transact(insert_rows)
    await service.trip()
    await service.stop()

    await service.start()

    assert [status.name for status in service.registry.all()] == [NAME]
    assert caplog.text.count("cannot be read and starts closed") == 4
