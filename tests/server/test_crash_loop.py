"""A crash loop is one incident, with the reminders and the acknowledgement of one ticket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from queenright.alerting.notification_table import read_active
from queenright.demo import DEMO_FRAMEWORK
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import TicketSettings
from queenright.health.store.tables import OUTBOX
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus, TicketStatusError
from queenright.health.tickets.ticket_rules import has_new_trouble
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.up import end_former_demo_runs
from queenright.server.views.ticket_timeline import build_timeline
from tests.server.conftest import demo_settings
from tests.waiting import until

MINUTE = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def consecutive_failures() -> int:
    return 1000


@pytest.fixture
def settings(tmp_path: Path, consecutive_failures: int) -> Settings:
    base_settings = demo_settings(tmp_path / "storage")
    # Consecutive failed runs would be a separate incident.
    check = base_settings.health_monitoring.health_check.model_copy(
        update={"consecutive_failures": consecutive_failures}
    )
    health = base_settings.health_monitoring.model_copy(
        update={"tickets": TicketSettings(), "health_check": check}
    )
    return base_settings.model_copy(update={"health_monitoring": health})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def service(settings: Settings, clock: Clock) -> AsyncIterator[Service]:
    """Yield a service whose clock only the test advances."""
    service_run = await build(settings, clock=clock)
    await service_run.start()
    yield service_run
    await service_run.stop()


def run_once(clock: Clock, number: int, agent: str = "bee", seconds: float = 30) -> list[AgentEvent]:
    """Return the events of a session that starts and repeats one call for ``seconds``."""

    def make_event(kind: EventType, event_time: float, **data: object) -> AgentEvent:
        return AgentEvent(
            type=kind,
            time=event_time,
            agent_id=agent,
            session_id=f"{agent}-{number}",
            incarnation_id="one",
            node_id="search",
            data=data,
        )

    start_event = make_event(EventType.EXECUTION_STARTED, clock.now, framework="test", start_records=True)
    call = {"tool": "search", "args_hash": "a" * 16, "result_hash": "b" * 16, "outcome": "ok"}
    calls = [
        item
        for turn in range(20)
        for item in (
            make_event(
                EventType.TOOL_CALL_COMPLETED, clock.now + turn * seconds / 20, turn=str(turn), **call
            ),
            make_event(
                EventType.STEP_COMPLETED, clock.now + turn * seconds / 20, index=turn, verdict="RETRY"
            ),
        )
    ]
    clock.now += seconds
    return [start_event, *calls]


async def start_looping_session(
    service: Service, clock: Clock, number: int, agent: str = "bee", seconds: float = 30
) -> EscalationTicket:
    """Start a session that loops, and return its ticket once it is notified."""
    await service.ingest(run_once(clock, number, agent, seconds))

    def find_ticket() -> EscalationTicket | None:
        return service.tickets.open_for(agent, f"{agent}-{number}")

    await until(
        lambda: (open_ticket := find_ticket()) and open_ticket.notified_at,
        f"the ticket of session {number} is notified",
    )
    open_ticket = find_ticket()
    assert open_ticket is not None
    return open_ticket


async def report_session(
    service: Service, clock: Clock, number: int, *kinds: EventType, agent: str = "bee"
) -> None:
    """Report that a session has started, ended, or both."""
    session = f"{agent}-{number}"
    await service.ingest(
        [
            AgentEvent(type=kind, time=clock.now, agent_id=agent, session_id=session, incarnation_id="one")
            for kind in kinds
        ]
    )


async def report_crash(
    service: Service, clock: Clock, number: int, agent: str = "bee", *, ends: bool = True
) -> None:
    await report_session(service, clock, number, EventType.EXECUTION_FAILED, agent=agent)
    if not ends:
        return
    await until(
        lambda: service.tickets.open_for(agent, f"{agent}-{number}") is None, f"session {number} ends"
    )


async def list_alerts(service: Service, agent: str = "bee") -> list[tuple[str, str]]:
    """Return the reminder number and the title of each alert, in the order of their starts."""
    rows = await service.store.read(
        lambda conn: conn.execute(select(OUTBOX.c.alert_key, OUTBOX.c.labels, OUTBOX.c.annotations)).all()
    )
    alerts: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.labels["agent"] == agent:
            alerts.setdefault(row.alert_key, (row.labels.get("reminder", ""), row.annotations["summary"]))
    return list(alerts.values())


async def test_crash_loop_has_the_reminders_of_one_ticket(service: Service, clock: Clock) -> None:
    """B123, B41: the ticket of each session closes long before a reminder is due."""
    for number in range(15):
        ticket = await start_looping_session(service, clock, number)
        await service.tickets.settle(clock.now)
        clock.now += 4.5 * MINUTE
        await report_crash(service, clock, number)

    stored_ticket = service.tickets.get(ticket.ticket_id)
    assert stored_ticket is not None
    assert (stored_ticket.reminders, stored_ticket.incident_since) == (
        1,
        clock.now - 13 * 5 * MINUTE - 4.5 * MINUTE,
    )
    assert [turn for turn, _ in await list_alerts(service)] == ["", "", "1"]
    reminders = [event for event in service.recent if event.type is EventType.TICKET_REESCALATED]
    assert [event.data["unacknowledged_seconds"] for event in reminders] == [60 * MINUTE]


@pytest.mark.parametrize("reports_end", [True, False], ids=["fails", "killed"])
async def test_crash_loop_that_keeps_its_session_pages_twice(
    tmp_path: Path, settings: Settings, clock: Clock, reports_end: bool
) -> None:
    """B123: the next incarnation of a session continues a crash loop, like the next session does."""
    tickets = TicketSettings(hold_seconds=5)
    health = settings.health_monitoring.model_copy(update={"tickets": tickets})
    service = await build(settings.model_copy(update={"health_monitoring": health}), clock=clock)
    await service.start()
    try:
        for number in range(4):
            restart_events = run_once(clock, 1, seconds=10)
            await service.ingest([replace(event, incarnation_id=f"i{number}") for event in restart_events])
            await until(partial(has_notified, service, "bee-1"), f"the ticket of incarnation {number}")
            if reports_end:
                end_event = replace(
                    restart_events[0], type=EventType.EXECUTION_FAILED, time=clock.now, data={}
                )
                await service.ingest([replace(end_event, incarnation_id=f"i{number}")])
                await service.bus.drain()
            clock.now += 1
            start_event = replace(restart_events[0], time=clock.now, incarnation_id=f"i{number + 1}")
            await service.ingest([start_event])
            await service.bus.drain()
            clock.now += 15
            await service.tickets.settle(clock.now)
            assert service.tickets.open_tickets() == []
        await service.bus.drain()
        assert [turn for turn, _ in await list_alerts(service)] == ["", ""]

        clock.now += 11 * MINUTE
        assert not [row for row in await service.store.read(read_active) if row.is_firing(clock.now)]
    finally:
        await service.stop()


async def test_tickets_of_killed_sessions_have_one_reminder(service: Service, clock: Clock) -> None:
    """B123, B41: tickets of killed sessions stay open. They are due together, and have one reminder."""
    for number in range(8):
        await start_looping_session(service, clock, number)
        clock.now += MINUTE
    joined_tickets = [ticket for ticket in service.tickets.open_tickets() if ticket.incident_id]
    assert len(joined_tickets) == 6, "only the first two tickets page"
    for _ in range(5 * 60):
        clock.now += MINUTE
        await service.tickets.settle(clock.now)

    assert {ticket.reminders for ticket in service.tickets.open_tickets()} == {3}
    titles = await list_alerts(service)
    assert [turn for turn, _ in titles] == ["", "", "1", "1", "2", "2", "3", "3"]
    assert all(phrase in titles[-1][1] for phrase in ("3 h", "7 sessions"))


async def test_timeline_of_a_joined_ticket_names_the_ticket_of_its_alert(
    service: Service, clock: Clock
) -> None:
    """B123: the ticket sent no notification of its own, and its timeline shows this."""
    joined_ticket = [await start_looping_session(service, clock, number) for number in range(4)][-1]

    ticket_timeline = await service.store.read(lambda conn: build_timeline(conn, joined_ticket))

    assert joined_ticket.incident_id
    [entry] = [
        entry_ticket for entry_ticket in ticket_timeline.timeline if entry_ticket.what == "incident_joined"
    ]
    assert str(joined_ticket.incident_id) in entry.text
    assert entry.at == joined_ticket.triaged_at


async def test_unacknowledged_ticket_stays_unacknowledged(service: Service, clock: Clock) -> None:
    """B123: a ticket is acknowledged automatically only when it joins an incident, not at later decisions."""
    await start_looping_session(service, clock, 1)
    await report_crash(service, clock, 1)
    clock.now += MINUTE
    second_ticket = await start_looping_session(service, clock, 2)
    await service.tickets.acknowledge(second_ticket.ticket_id, by="ada")
    await report_crash(service, clock, 2)
    clock.now += MINUTE
    third_ticket = await start_looping_session(service, clock, 3)
    assert (third_ticket.acknowledged_by, third_ticket.incident_id) == ("ada", second_ticket.ticket_id)

    await service.tickets.unacknowledge(third_ticket.ticket_id, by="ada")
    await service.tickets.intervene(third_ticket.ticket_id, "It still loops.", "high")
    await service.bus.drain()
    stored_ticket = service.tickets.get(third_ticket.ticket_id)
    assert stored_ticket is not None
    assert (stored_ticket.status, stored_ticket.acknowledged_by) == (TicketStatus.INTERVENING, "")


async def test_crash_loop_of_one_agent_is_not_a_storm(service: Service, clock: Clock) -> None:
    """B123, B71: five sessions within the window of a storm are a problem of one agent."""
    for number in range(8):
        ticket = await start_looping_session(service, clock, number, seconds=6)
        await report_crash(service, clock, number)
        assert ticket.storm_id == ""


async def test_concurrent_sessions_are_a_storm(service: Service, clock: Clock) -> None:
    """B71: many concurrent sessions of one agent are one incident too."""
    start_time = clock.now
    for number in range(6):
        clock.now = start_time
        ticket = await start_looping_session(service, clock, number)
    assert ticket.storm_id


async def test_storm_continues_after_a_restart(
    service: Service, settings: Settings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the next unhealthy worker would page separately, or start a second storm."""
    start_time = clock.now
    for number in range(6):
        clock.now = start_time
        last_ticket = await start_looping_session(service, clock, number)
    await service.stop()
    clock.now += 20

    restarted = await build(settings, clock=clock)
    await restarted.start()
    storm = restarted.remediation.storm.current
    storm_after = await start_looping_session(restarted, clock, 7)
    await restarted.stop()

    assert last_ticket.storm_id
    assert storm is not None
    assert (storm[0], storm_after.storm_id) == (last_ticket.storm_id, last_ticket.storm_id)
    assert caplog.text.count("a storm:") == 1


async def test_storm_has_ended_after_a_long_restart(
    service: Service, settings: Settings, clock: Clock
) -> None:
    start_time = clock.now
    for number in range(6):
        clock.now = start_time
        await start_looping_session(service, clock, number)
    await service.stop()
    clock.now += 10 * MINUTE

    restarted = await build(settings, clock=clock)
    await restarted.start()
    storm = restarted.remediation.storm.current
    await restarted.stop()

    assert storm is None


async def test_session_that_starts_in_a_storm_joins_the_incident_of_the_previous_session(
    service: Service, clock: Clock
) -> None:
    """B123: a storm does not notify about a crash loop again."""
    for number in range(3):
        await start_looping_session(service, clock, number)
        await report_crash(service, clock, number)
        clock.now += MINUTE
    for number in range(6):
        service.remediation.storm.record_worse((f"other-{number}", "s"), clock.now)
    for number in range(3, 6):
        ticket = await start_looping_session(service, clock, number)
        assert ticket.storm_id
        assert ticket.incident_id
        await report_crash(service, clock, number)
    assert len(await list_alerts(service)) == 2, "only the first two tickets page"


async def test_crash_loop_that_outlasts_a_storm_is_a_separate_incident(
    service: Service, clock: Clock
) -> None:
    """B123: it is notified once more, because the incident of the storm has ended for the other workers."""
    for number in range(6):
        service.remediation.storm.record_worse((f"other-{number}", "s"), clock.now)
    for number in range(3):
        ticket = await start_looping_session(service, clock, number)
        await report_crash(service, clock, number)
    assert ticket.storm_id
    assert ticket.incident_id
    clock.now += 3 * MINUTE
    for number in range(3, 6):
        ticket = await start_looping_session(service, clock, number)
        await report_crash(service, clock, number)
    assert ticket.storm_id == ""
    assert len(await list_alerts(service)) == 3, "two in the storm, one after it"


@pytest.mark.parametrize("ending", ["a run completes", "a person resolves it"])
async def test_crash_loop_with_default_settings_pages_three_times(
    tmp_path: Path, clock: Clock, ending: str
) -> None:
    """B123, B41: the first two sessions page, and then the consecutive failures, which have reminders."""
    base_settings = demo_settings(tmp_path / "storage")
    health = base_settings.health_monitoring.model_copy(update={"tickets": TicketSettings()})
    service = await build(base_settings.model_copy(update={"health_monitoring": health}), clock=clock)
    await service.start()
    try:
        for number in range(8):
            await start_looping_session(service, clock, number)
            clock.now += MINUTE
            await report_session(service, clock, number, EventType.EXECUTION_FAILED)
            if number < 3:
                await until(lambda: not service.tickets.open_tickets(), f"session {number} ends")
            else:
                await until(
                    lambda: has_only_failed_runs_ticket(service), f"the ticket after session {number}"
                )
        last_ticket = await wait_for_failed_runs_ticket(service)
        assert [turn for turn, _ in await list_alerts(service)] == ["", "", ""]
        assert (last_ticket.session_id, last_ticket.incident) == ("bee-3", last_ticket.ticket_id)

        for _ in range(5 * 60):
            clock.now += MINUTE
            await service.tickets.settle(clock.now)
        assert [turn for turn, _ in await list_alerts(service)] == ["", "", "", "1", "2", "3"]

        if ending == "a run completes":
            await report_session(
                service, clock, 8, EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED
            )
        else:
            await service.tickets.resolve(last_ticket.ticket_id, "rolled back", by="ada")
        await service.bus.drain()
        clock.now += 11 * MINUTE
        await service.tickets.settle(clock.now)
        assert service.tickets.open_tickets() == []
        rows = await service.store.read(read_active)
        assert not [row.annotations["summary"] for row in rows if row.is_firing(clock.now)]
    finally:
        await service.stop()


def has_only_failed_runs_ticket(service: Service) -> bool:
    """Return whether the only open ticket is about consecutive failed runs."""
    kinds = [ticket.active_kinds for ticket in service.tickets.open_tickets()]
    return kinds == [(FindingKind.RUNS_FAILED,)]


async def wait_for_failed_runs_ticket(service: Service) -> EscalationTicket:
    """Wait for the notified ticket about consecutive failed runs, and return it."""

    def find_ticket() -> EscalationTicket | None:
        kind = FindingKind.RUNS_FAILED
        return next((ticket for ticket in service.tickets.open_tickets() if ticket.kind is kind), None)

    await until(
        lambda: (open_ticket := find_ticket()) and open_ticket.notified_at,
        "the ticket about failed runs is notified",
    )
    open_ticket = find_ticket()
    assert open_ticket is not None
    return open_ticket


@pytest.mark.parametrize("consecutive_failures", [3])
async def test_loop_ticket_closes_with_its_incarnation_and_failed_runs_have_a_separate_ticket(
    service: Service, clock: Clock
) -> None:
    """
    B122: a session that has ended no longer loops. The condition of consecutive failures lasts until a run
    completes.
    """
    for number in range(4):
        loop_ticket = await start_looping_session(service, clock, number)
        clock.now += MINUTE
        await report_crash(service, clock, number, ends=number < 3)
    ticket = await wait_for_failed_runs_ticket(service)
    ended_ticket = await service.tickets.find(loop_ticket.ticket_id)
    assert ended_ticket is not None
    assert (ended_ticket.kind, ended_ticket.status) == (FindingKind.DOOM_LOOP, TicketStatus.WORKER_GONE)
    assert (ticket.severity, ticket.active_kinds) == (Severity.HIGH, (FindingKind.RUNS_FAILED,))
    assert [ticket.ticket_id for ticket in service.tickets.open_tickets()] == [ticket.ticket_id]

    clock.now += MINUTE
    await report_session(service, clock, 4, EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED)
    await service.bus.drain()
    held_ticket = service.tickets.get(ticket.ticket_id)
    assert held_ticket is not None
    assert held_ticket.is_live, "the end of the condition must hold, as for any other"
    clock.now += 10 * MINUTE
    await service.tickets.settle(clock.now)
    closed_ticket = await service.tickets.find(ticket.ticket_id)
    assert closed_ticket is not None
    assert closed_ticket.status is TicketStatus.RESOLVED


@pytest.mark.parametrize("consecutive_failures", [3])
async def test_dismiss_error_names_when_the_ticket_can_be_resolved(service: Service, clock: Clock) -> None:
    """B122: the worker has ended, so the ticket cannot close because the worker recovers or ends."""
    for number in range(4):
        await start_looping_session(service, clock, number)
        await report_crash(service, clock, number, ends=number < 3)
    ticket = await wait_for_failed_runs_ticket(service)
    with pytest.raises(TicketStatusError) as error:
        await service.tickets.dismiss(ticket.ticket_id, "the service knows it", by="ada")
    assert f"queenright tickets resolve {ticket.ticket_id} --reason" in str(error.value)


@pytest.mark.parametrize("consecutive_failures", [3])
async def test_crash_after_failed_runs_were_resolved_is_notified_again(
    service: Service, clock: Clock
) -> None:
    """B123: resolving the ticket also ends the alert that was held open for the next crash."""
    for number in range(5):
        await start_looping_session(service, clock, number)
        clock.now += MINUTE
        await report_crash(service, clock, number, ends=number != 3)
    ticket = await wait_for_failed_runs_ticket(service)
    count_before = len(await list_alerts(service))
    await service.tickets.resolve(ticket.ticket_id, "mended", by="ada")
    assert not [row for row in await service.store.read(read_active) if row.is_firing(clock.now)]

    first_ticket = await start_looping_session(service, clock, 5)
    assert (first_ticket.incident_id, len(await list_alerts(service))) == ("", count_before + 1)
    await report_crash(service, clock, 5)
    second_ticket = await start_looping_session(service, clock, 6)
    assert (second_ticket.incident_id, len(await list_alerts(service))) == (
        first_ticket.ticket_id,
        count_before + 1,
    )


@pytest.mark.parametrize("consecutive_failures", [3])
async def test_agent_that_fails_four_of_five_runs_pages_twice(service: Service, clock: Clock) -> None:
    """B123: there is one incident with a count, not a page for every four failures."""
    for row in range(0, 30, 5):
        for number in range(row, row + 4):
            await report_session(service, clock, number, EventType.EXECUTION_STARTED)
            clock.now += 30
            await report_session(service, clock, number, EventType.EXECUTION_FAILED)
        await wait_for_failed_runs_ticket(service)
        clock.now += 30
        await report_session(
            service, clock, row + 4, EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED
        )
        await until(lambda: is_clear(service), "the condition of the ticket has cleared")
        clock.now += 2.5 * MINUTE
        await service.tickets.settle(clock.now)
        assert service.tickets.open_tickets() == []
    alerts = await list_alerts(service)
    assert [turn for turn, _ in alerts] == ["", ""]

    clock.now += 11 * MINUTE
    assert not [row for row in await service.store.read(read_active) if row.is_firing(clock.now)]


@pytest.mark.parametrize("consecutive_failures", [3])
async def test_resolving_a_held_ticket_ends_its_alert_immediately(service: Service, clock: Clock) -> None:
    """B124: a ticket that a person resolved has no firing alert, and the alert names that person."""
    for row in (0, 5):
        for number in range(row, row + 4):
            await report_session(service, clock, number, EventType.EXECUTION_STARTED)
            clock.now += 30
            await report_session(service, clock, number, EventType.EXECUTION_FAILED)
        ticket = await wait_for_failed_runs_ticket(service)
        clock.now += 30
        await report_session(
            service, clock, row + 4, EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED
        )
        await until(lambda: is_clear(service), "the condition of the ticket has cleared")
        if row == 0:
            clock.now += 2.5 * MINUTE
            await service.tickets.settle(clock.now)
    resolved_ticket = await service.tickets.resolve(ticket.ticket_id, "mended", by="ada")
    assert (resolved_ticket.status, resolved_ticket.closed_reason) == (TicketStatus.RESOLVED, "ada: mended")
    assert not [row for row in await service.store.read(read_active) if row.is_firing(clock.now)]


@pytest.mark.parametrize("consecutive_failures", [3])
async def test_loop_in_the_session_of_failed_runs_is_reported_on_their_ticket(
    service: Service, clock: Clock
) -> None:
    """B102: a session has one ticket, so another notification is sent, and its text has both conditions."""
    for number in range(4):
        await report_session(service, clock, number, EventType.EXECUTION_STARTED)
        clock.now += 30
        await report_session(service, clock, number, EventType.EXECUTION_FAILED)
    ticket = await wait_for_failed_runs_ticket(service)
    alerts_before = await list_alerts(service)

    clock.now += MINUTE
    loop_events = [replace(event, incarnation_id="two") for event in run_once(clock, 3)]
    await service.ingest(loop_events)
    await until(
        lambda: (entry := service.tickets.get(ticket.ticket_id)) and entry.requests,
        "another notification is sent",
    )
    await service.bus.drain()
    alerts_after = await list_alerts(service)
    assert len(alerts_after) == len(alerts_before) + 1
    assert "bee fails run after run, and now it is in a loop" in alerts_after[-1][1]
    stored_ticket = service.tickets.get(ticket.ticket_id)
    assert stored_ticket is not None
    assert (stored_ticket.requests, stored_ticket.reminders) == (1, 0)

    # Later conditions are added to the ticket, as with any other ticket.
    kinds = [FindingKind.RETRY_STORM, *stored_ticket.related_kinds]
    ticket_with_kinds = stored_ticket.model_copy(update={"related_kinds": kinds})
    assert has_new_trouble(ticket, stored_ticket)
    assert not has_new_trouble(stored_ticket, ticket_with_kinds)


def is_clear(service: Service) -> bool:
    return all(ticket.condition_cleared_at is not None for ticket in service.tickets.open_tickets())


async def test_failing_loop_that_cannot_be_recovered_has_one_ticket_per_incarnation(
    service: Service, clock: Clock
) -> None:
    """The loop is notified. The failed run opens no second ticket, which nothing would close."""
    ladders = service.interventions.ledger.ladders

    for number in range(3):
        await start_looping_session(service, clock, number)
        clock.now += (
            3 * MINUTE
        )  # The time is past the limit for a restart, during which the service may also be down.
        await service.interventions.advance(clock.now)
        await service.interventions.wait_until_idle()
        assert list(ladders) == [("bee", f"bee-{number}")]
        await report_crash(service, clock, number)
        await until(lambda: not ladders, "the run has ended")
        await service.bus.drain()
        assert service.tickets.open_tickets() == []
    assert await service.store.history(types={EventType.RECOVERY_FAILED}) == []


@pytest.fixture
async def demo(tmp_path: Path, clock: Clock) -> AsyncIterator[Service]:
    """Yield a service with the short hold of the demo."""
    service_run = await build(demo_settings(tmp_path / "demo"), clock=clock)
    await service_run.start()
    yield service_run
    await service_run.stop()


def make_courier_session(clock: Clock, number: int) -> list[AgentEvent]:
    """Return the events of a courier's session, whose provider fails every request after a while."""

    def make_event(kind: EventType, **data: object) -> AgentEvent:
        clock.now += 1
        return AgentEvent(
            type=kind,
            time=clock.now,
            agent_id="courier",
            session_id=f"courier-{number}",
            incarnation_id=f"i{number}",
            node_id="deliver",
            data=data,
        )

    model = {"provider": "demo", "model": "scripted"}
    events = [make_event(EventType.EXECUTION_STARTED, framework="test", start_records=True)]
    for turn in range(10):
        events.append(make_event(EventType.LLM_CALL_COMPLETED, **model))
        events.append(make_event(EventType.STEP_COMPLETED, index=turn, verdict="ACCEPT"))
    error = {"error": "529 overloaded_error", "error_type": "ProviderError"}
    for turn in range(10, 22):
        events.append(make_event(EventType.LLM_CALL_COMPLETED, **model, **error))
        events.append(make_event(EventType.STEP_COMPLETED, index=turn, verdict="RETRY"))
    return events


def make_model_answer(clock: Clock, agent: str) -> AgentEvent:
    return AgentEvent(
        type=EventType.LLM_CALL_COMPLETED,
        time=clock.now,
        agent_id=agent,
        session_id="s",
        incarnation_id="i",
        data={"provider": "demo", "model": "scripted", "output_tokens": 8, "duration": 1.0},
    )


async def test_killed_demo_keeps_the_ticket_about_failed_runs(demo: Service, clock: Clock) -> None:
    for number in range(4):
        await demo.ingest(make_courier_session(clock, number))
        await report_session(demo, clock, number, EventType.EXECUTION_FAILED, agent="courier")
    ticket = await wait_for_failed_runs_ticket(demo)
    first_event = make_courier_session(clock, 4)[0]
    await demo.ingest([replace(first_event, data={**first_event.data, "framework": DEMO_FRAMEWORK})])

    await end_former_demo_runs(demo)
    await demo.bus.drain()
    clock.now += MINUTE
    await demo.tickets.settle(clock.now)

    worker = demo.monitor.get("courier", "courier-4")
    assert worker is not None
    assert worker.vitals.has_ended
    assert [ticket.ticket_id for ticket in demo.tickets.open_tickets()] == [ticket.ticket_id]


def has_notified(service: Service, session_id: str) -> bool:
    tickets = service.tickets.open_tickets()
    return any(ticket.notified_at and ticket.session_id == session_id for ticket in tickets)


@pytest.mark.parametrize(("other_runs", "pages"), [(0, 2), (4, 3)])
async def test_agent_whose_runs_fail_every_few_minutes_pages_only_a_few_times(
    demo: Service, clock: Clock, other_runs: int, pages: int
) -> None:
    """B123: even with a short hold, the first two runs page, and then the consecutive failures."""
    for number in range(12):
        await demo.ingest([make_model_answer(clock, f"librarian{index}") for index in range(other_runs)])
        await demo.ingest(make_courier_session(clock, number))
        await until(partial(has_notified, demo, f"courier-{number}"), f"a ticket of run {number}")
        await report_session(demo, clock, number, EventType.EXECUTION_FAILED, agent="courier")
        if number < 3:
            await until(lambda: not demo.tickets.open_tickets(), f"the end of run {number}")
        for _ in range(12):
            clock.now += 10
            await demo.tickets.settle(clock.now)
    await demo.bus.drain()

    titles = [title for _, title in await list_alerts(demo, "courier")]
    assert len(titles) == pages, titles


@pytest.mark.parametrize(("minutes", "pages"), [(2, 2), (20, 3)])
async def test_alert_that_waits_for_the_next_run_outlasts_a_restart_of_the_service(
    tmp_path: Path, clock: Clock, minutes: int, pages: int
) -> None:
    """B123: the alert is neither lost nor repeated, and ends in time while the service is down."""
    first_service = await build(demo_settings(tmp_path / "demo"), clock=clock)
    await first_service.start()
    for number in range(2):
        await start_looping_session(first_service, clock, number)
        await report_crash(first_service, clock, number)
    alerts_before = [
        alert for alert in await first_service.store.read(read_active) if alert.is_firing(clock.now)
    ]
    await first_service.stop()
    clock.now += minutes * MINUTE

    second_service = await build(demo_settings(tmp_path / "demo"), clock=clock)
    await second_service.start()
    try:
        alerts_after = [
            alert for alert in await second_service.store.read(read_active) if alert.is_firing(clock.now)
        ]
        ticket = await start_looping_session(second_service, clock, 2)

        assert [alert.key for alert in alerts_after] == [alert.key for alert in alerts_before] * (
            minutes < 10
        )
        assert bool(ticket.incident_id) is (minutes < 10)
        assert len(await list_alerts(second_service)) == pages
    finally:
        await second_service.stop()
