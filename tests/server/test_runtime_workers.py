"""Workers that are graphs on the service's own runtime: equals of those that send telemetry."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from queenright.health.findings import FindingKind
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.up import Running, serving
from tests.server.conftest import looping
from tests.server.test_step_logs import DEAD_END, works


async def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"within 10 s: {what}"
        await asyncio.sleep(0.02)


def findings(service: Service, agent: str) -> list[FindingKind]:
    health = service.monitor.get(agent)
    return [] if health is None else [finding.kind for finding in health.findings]


# -- what is published on the bus ---------------------------------------------------------------


async def test_an_event_on_the_bus_has_moved_vital_signs_before_any_subscriber_acts_on_it(
    running: Running,
) -> None:
    service = running.service
    [first, *_] = looping(service.clock())
    known_then: list[bool] = []
    service.bus.subscribe(
        lambda _: known_then.append(service.monitor.get("looper") is not None),
        name="test",
        types={EventType.EXECUTION_STARTED},
    )

    await service.bus.publish(first)
    await service.bus.drain()

    assert known_then == [True]


async def test_what_the_monitor_says_of_it_is_in_the_event_log_before_anyone_acts_on_it(
    running: Running,
) -> None:
    service = running.service
    logged: list[bool] = []

    async def look(event: AgentEvent) -> None:
        rows = await service.store.read(
            lambda conn: conn.exec_driver_sql("select id from events where id = ?", (event.id,)).all()
        )
        logged.append(bool(rows))

    service.bus.subscribe(look, name="test", types={EventType.FINDING_OPENED})
    for event in looping(service.clock(), times=5):
        await service.bus.publish(event)
    await until(lambda: logged, "the finding is told")

    assert set(logged) == {True}
    assert FindingKind.DOOM_LOOP in findings(service, "looper")


async def test_what_the_monitor_says_while_the_store_refuses_is_told_when_it_takes_again(
    running: Running, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """B76: the condition is said once, so it must not be lost."""
    service = running.service
    told: list[AgentEvent] = []
    service.bus.subscribe(told.append, name="test", types={EventType.FINDING_OPENED})

    with sqlite3.connect(settings.storage / "queenright.db") as other:
        other.execute("create trigger refuse before insert on events begin select raise(abort, 'full'); end")
        other.commit()
        service.bus.fan_out(*looping(service.clock(), times=5))
        await until(lambda: "are tried again" in caplog.text, "the store refuses")
        told_while_refusing = list(told)
        other.execute("drop trigger refuse")
        other.commit()
        await until(lambda: told, "the finding is told")

    assert told_while_refusing == []
    assert FindingKind.DOOM_LOOP in [event.data["kind"] for event in told]


async def test_a_worker_on_the_bus_and_one_over_otlp_get_the_same_findings(running: Running) -> None:
    service = running.service
    now = service.clock()

    for event in looping(now, agent="ours"):
        await service.bus.publish(event)
    await service.ingest(list(looping(now, agent="theirs")))

    assert findings(service, "ours") == findings(service, "theirs") != []


async def test_events_without_an_agent_are_no_workers(running: Running) -> None:
    await running.service.bus.publish(
        AgentEvent(type=EventType.STEP_COMPLETED, time=1.0, graph_id="queen", data={"verdict": "RETRY"})
    )

    assert list(running.service.monitor.workers()) == []


async def test_a_worker_on_the_bus_that_writes_a_step_log_is_counted_once(
    settings: Settings, tmp_path: Path
) -> None:
    agents = tmp_path / "agents"
    followed = settings.model_copy(update={"step_logs": (agents,)})
    async with serving(followed) as running:
        service = running.service
        step = AgentEvent(
            type=EventType.STEP_COMPLETED,
            time=service.clock(),
            agent_id="scribe",
            session_id="both",
            node_id="write",
            data={"verdict": "RETRY"},
        )
        await service.bus.publish(step)
        await asyncio.to_thread(works, agents, DEAD_END, session="both", steps=3)
        await asyncio.to_thread(works, agents, DEAD_END, session="silent", steps=3)
        await until(lambda: service.monitor.get("scribe", "silent"), "the other log is read")
        health = service.monitor.get("scribe", "both")

    assert health is not None
    assert health.vitals.steps_total == 1
