from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.health.store.event_log import read_events
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.ops.arrivals import REBUILD_SECONDS
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.server.conftest import HOUR, looping
from tests.warm import queenright

SCRIPT = Path(__file__).with_name("dying_service.py")


Kill = Callable[[list[AgentEvent]], None]


@pytest.fixture(params=["log", "old snapshot", "new snapshot"])
def kill_after(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Kill:
    """
    Yield a function that runs a service in a separate process on the same storage. The service ingests the
    events and is then killed.
    """

    def run_and_kill(events: list[AgentEvent]) -> None:
        file = tmp_path / "settings.json"
        file.write_text(settings.model_dump_json(), encoding="utf-8")
        counts = {"log": [], "old snapshot": [len(events) // 2], "new snapshot": [len(events)]}
        input_lines = json.dumps([asdict(event) for event in events])
        dead_process = queenright(file, *map(str, counts[request.param]), script=SCRIPT, typed=input_lines)
        assert dead_process.returncode == -9, dead_process.stderr

    return run_and_kill


async def test_third_identical_call_after_a_kill_is_a_loop(settings: Settings, kill_after: Kill) -> None:
    """B33: the kill is between calls two and three, and the counters continue."""
    clock_time = time.time()
    events = list(looping(clock_time, times=3))
    third_call = [event for event in events if event.type is EventType.TOOL_CALL_COMPLETED][2]
    events_before = events[: events.index(third_call)]

    kill_after(events_before)
    service = await build(settings)
    await service.start()
    try:
        await service.ingest([third_call])
        health = service.monitor.get("looper")
    finally:
        await service.stop()

    assert health is not None
    assert FindingKind.DOOM_LOOP in [finding.kind for finding in health.findings]


async def test_ticket_opened_before_a_kill_resolves_after_it(settings: Settings, kill_after: Kill) -> None:
    """
    B43, B77: the ticket is opened or triaged before the kill, notified after it, and closed when the worker
    recovers.
    """
    clock_time = time.time()
    events = list(looping(clock_time))
    kill_after(events)

    service = await build(settings)
    await service.start()
    try:
        await wait_for_triaged_ticket(service)
        [ticket] = service.tickets.open_tickets()
        clock_time = time.time()  # the start may take longer than the stall limit
        recovery_events = [
            replace(
                events[1],
                id=f"new-{number}",
                time=clock_time + number / 10,
                data=dict(events[1].data) | {"result_hash": f"{number:016x}", "turn": f"new-{number}"},
            )
            for number in range(10)
        ]
        accept_event = replace(events[2], id="accepted", time=clock_time + 2, data={"verdict": "ACCEPT"})
        await service.ingest([*recovery_events, accept_event])
        await wait_until_closed(service)
        history = await service.tickets.history(10)
    finally:
        await service.stop()

    assert [item.ticket_id for item in history] == [ticket.ticket_id]
    assert history[0].status.value == "resolved"


async def test_ticket_of_a_worker_that_ended_before_a_kill_closes_after_it(
    settings: Settings, kill_after: Kill
) -> None:
    """B40, B77: the kill is between the end of the worker and the consequences of the end."""
    clock_time = time.time()
    kill_after(list(looping(clock_time)))
    service = await build(settings)
    await service.start()
    try:
        await wait_for_triaged_ticket(service)
    finally:
        await service.stop()
    end_event = AgentEvent(
        type=EventType.EXECUTION_COMPLETED,
        time=time.time(),
        agent_id="looper",
        session_id="looper-session",
        incarnation_id="one",
    )
    kill_after([end_event])

    service = await build(settings)
    await service.start()
    try:
        await wait_until_closed(service)
        [ticket] = await service.tickets.history(10)
    finally:
        await service.stop()

    assert ticket.status.value == "worker_gone"


# A snapshot would have the arrival time of the events, which are two hours old.
@pytest.mark.parametrize("kill_after", ["log"], indirect=True)
async def test_stall_found_before_a_restart_is_kept(settings: Settings, kill_after: Kill) -> None:
    """B23: downtime is excluded from all times, and removes no finding."""
    clock_time = time.time()
    stalled_events = list(looping(clock_time - 2 * HOUR, times=2))
    witness_events = AgentEvent(
        type=EventType.EXECUTION_STARTED, time=clock_time, agent_id="other", session_id="s"
    )
    kill_after([*stalled_events, witness_events])

    service = await build(settings)
    await service.start()
    try:
        health = service.monitor.get("looper")
        other_worker = service.monitor.get("other")
    finally:
        await service.stop()

    assert health is not None
    assert other_worker is not None
    assert FindingKind.STALL in [finding.kind for finding in health.findings]
    assert other_worker.findings == ()


async def test_breaker_that_opened_before_the_replayed_day_is_known(settings: Settings) -> None:
    """B77: one day of the log is replayed, but a breaker may be open for longer."""
    start_time = time.time()
    old_service = await build(settings, clock=lambda: start_time - 2 * REBUILD_SECONDS)
    await old_service.start()
    try:
        for name, fails in (("search", True), ("fetch", True), ("read", False)):
            breaker = old_service.breakers.get("tool_execution", "looper", name)
            for _ in range(3 if fails else 0):
                with pytest.raises(ZeroDivisionError):
                    breaker.call(lambda: 1 // 0)
        await old_service.health.reset_circuit_breaker("tool_execution:looper:fetch", by="ada")
    finally:
        await old_service.stop()

    service = await build(settings, clock=lambda: start_time)
    await service.start()
    try:
        await service.ingest(list(looping(start_time, times=2)))
        health = service.monitor.get("looper")
        logged_changes = await list_breaker_changes(service)
    finally:
        await service.stop()

    assert health is not None
    assert health.vitals.open_breakers == ("tool_execution:looper:search",)
    assert health.state is HealthState.FAILING
    assert logged_changes.count("open") == 2


async def list_breaker_changes(service: Service) -> list[str]:
    types = [EventType.CIRCUIT_BREAKER_STATE_CHANGED]
    rows = await service.store.read(lambda connection: read_events(connection, types=types, limit=100))
    return [event.data["to"] for _, event in rows]


async def wait_for_triaged_ticket(service: Service) -> None:
    for _ in range(3000):
        if any(ticket.analysis for ticket in service.tickets.open_tickets()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("within 60 s: the ticket is triaged")


async def wait_until_closed(service: Service) -> None:
    for _ in range(3000):
        if not service.tickets.open_tickets():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("within 60 s: the ticket closes")
