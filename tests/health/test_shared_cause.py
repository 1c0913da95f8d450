"""Tickets with a shared cause, such as a provider or an MCP server, form one group."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from queenright.health.findings import Finding, FindingKind, Severity, find_worst
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.tickets.incidents import INCIDENT_SECONDS, incidents_of
from queenright.health.tickets.shared_cause import list_failing, shared_cause
from queenright.health.tickets.ticket import (
    EscalationTicket,
    TicketClosedError,
    TicketStatus,
    TicketStatusError,
)
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import EventType
from tests.health import test_ticket_service as service
from tests.health.test_detectors import NO_GRACE, start_worker
from tests.health.test_ticket_service import TicketDesk, desk, make_finding
from tests.health.worker_script import START, WorkerScript

__all__ = ["desk"]

SETTINGS = HealthSettings()
PROVIDER, STREAK = FindingKind.PROVIDER_FAILURE, FindingKind.ERROR_STREAK


@pytest.fixture
def shared_cause_desk(desk: TicketDesk) -> TicketDesk:
    """Return a ticket service that groups tickets by their shared cause."""
    desk.group = lambda health, finding: shared_cause(health, finding, lambda: [health], desk.now)
    return desk


_sessions = itertools.count()


def make_session() -> WorkerScript:
    return WorkerScript(session=f"session-{next(_sessions)}", settings=NO_GRACE).start()


def make_failing_worker(**data: str) -> WorkerScript:
    script = make_session()
    for _ in range(3):
        script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "overloaded", **data})
    return script


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ({"provider": "anthropic", "model": "claude"}, "provider:anthropic"),
        ({"model": "claude"}, "provider:claude"),
        ({}, ""),
    ],
)
def test_failing_provider_is_a_shared_cause(data: dict[str, str], cause: str) -> None:
    script = make_failing_worker(**data)
    finding = script.get_finding(PROVIDER)

    assert finding is not None
    assert shared_cause(script.health, finding, lambda: [script.health], script.now) == cause


@pytest.mark.parametrize(("tool", "cause"), [("mcp__github__get_issue", "mcp:github"), ("bash", "")])
def test_mcp_server_is_a_shared_cause_and_a_private_tool_is_not(tool: str, cause: str) -> None:
    script = start_worker()
    for n in range(5):
        script.report_call(tool, args=f"{n}", result=f"{n}", outcome="error", error_type="gone")
    finding = script.get_finding(STREAK)

    assert finding is not None
    assert shared_cause(script.health, finding, lambda: [script.health], script.now) == cause


@pytest.mark.parametrize("calls", range(5, 10))
def test_repeated_failures_share_a_cause_whatever_the_worst_finding(calls: int) -> None:
    """
    B104: identical errors are also repeated results, whose severity exceeds that of a streak for a while.
    """
    script = start_worker()
    for n in range(calls):
        script.report_call(
            "mcp__github__get_issue", args=f"{n}", result="down", outcome="error", error_type="gone"
        )
    finding = find_worst(script.health.findings)

    assert finding is not None
    assert shared_cause(script.health, finding, lambda: [script.health], script.now) == "mcp:github"


def make_answered_worker(**data: str) -> WorkerScript:
    script = make_session()
    script.report_event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 5, **data})
    return script


@pytest.mark.parametrize(
    ("error", "failing_workers", "answered_workers", "cause"),
    [
        ("overloaded", 1, 0, "provider:anthropic"),
        ("overloaded", 1, 30, ""),
        ("overloaded", 3, 30, "provider:anthropic"),
        ("authentication_error", 1, 0, ""),
        ("authentication_error", 2, 0, ""),
        ("authentication_error", 3, 30, "provider:anthropic"),
        ("invalid_request_error", 1, 30, ""),
    ],
)
def test_provider_is_a_shared_cause_unless_the_caller_is_at_fault(
    error: str, failing_workers: int, answered_workers: int, cause: str
) -> None:
    """B104: a wrong API key of one worker is not an incident of the provider."""
    call_fields = {"provider": "anthropic", "model": "claude"}
    scripts = [make_failing_worker(**call_fields, error_type=error) for _ in range(failing_workers)]
    scripts += [make_answered_worker(**call_fields) for _ in range(answered_workers)]
    scripts.append(make_failing_worker(provider="openai", error_type=error))
    own_script = scripts[0]
    finding = own_script.get_finding(PROVIDER)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(own_script.health, finding, lambda: fleet, own_script.now) == cause


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("answered_workers", [31, 100])
def test_shared_provider_does_not_depend_on_worker_order(answered_workers: int, is_reversed: bool) -> None:
    call_fields = {"provider": "anthropic", "model": "claude"}
    scripts = [make_answered_worker(**call_fields) for _ in range(answered_workers)] + [
        make_failing_worker(**call_fields) for _ in range(3)
    ]
    fleet = [script.health for script in (reversed(scripts) if is_reversed else scripts)]
    finding = scripts[-1].get_finding(PROVIDER)

    assert finding is not None
    cause = shared_cause(scripts[-1].health, finding, lambda: fleet, scripts[-1].now)
    assert cause == "provider:anthropic"


@pytest.mark.parametrize(
    ("other_fields", "cause"),
    [
        ({"error_type": "overloaded"}, "provider:anthropic"),
        ({"error_type": "content_filter"}, ""),
        ({"error_type": "overloaded", "model": "haiku"}, ""),
    ],
)
def test_only_equal_errors_of_one_model_are_counted_together(
    other_fields: dict[str, str], cause: str
) -> None:
    call_fields = {"provider": "anthropic", "model": "claude"}
    scripts = [
        make_failing_worker(**call_fields),
        *(make_failing_worker(**(call_fields | other_fields)) for _ in range(4)),
    ]
    scripts += [make_answered_worker(**call_fields) for _ in range(20)]
    finding = scripts[0].get_finding(PROVIDER)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause


@pytest.mark.parametrize(
    ("texts", "cause"),
    [
        (["Error code: 529 - Overloaded (request id: {n}a)"], "provider:anthropic"),
        (["401 invalid x-api-key", "Connection refused", "prompt is malformed"], ""),
    ],
)
def test_errors_without_a_type_are_distinguished_by_their_text(texts: list[str], cause: str) -> None:
    """B104: some clients report only that a call failed."""
    call_fields = {"provider": "anthropic", "model": "claude"}
    scripts = [
        make_failing_worker(**call_fields, error_type="_OTHER", error=texts[n % len(texts)].format(n=n))
        for n in range(3)
    ]
    scripts += [make_answered_worker(**call_fields) for _ in range(30)]
    finding = scripts[0].get_finding(PROVIDER)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause


@pytest.mark.parametrize(
    ("error", "failing_workers", "answered_workers", "cause"),
    [
        ("timeout", 1, 0, "mcp:github"),
        ("timeout", 1, 9, ""),
        ("timeout", 3, 9, "mcp:github"),
        ("forbidden", 1, 0, ""),
        ("forbidden", 3, 9, "mcp:github"),
    ],
)
def test_mcp_server_is_shared_unless_others_get_answers(
    error: str, failing_workers: int, answered_workers: int, cause: str
) -> None:
    scripts = [WorkerScript(agent=f"bee-{n}").start() for n in range(failing_workers + answered_workers)]
    for n, script in enumerate(scripts):
        attributes: dict[str, Any] = {"outcome": "error", "error_type": error} if n < failing_workers else {}
        for call in range(5):
            script.report_call("mcp__github__get_issue", args=f"{call}", result=f"{call}", **attributes)
    finding = scripts[0].get_finding(STREAK)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause
    fleet.reverse()
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause


@pytest.mark.parametrize(("known_count", "cause"), [(1, ""), (2, "tool:search")])
def test_workers_of_other_services_that_fail_alike_count(known_count: int, cause: str) -> None:
    """B104: the fleet is divided among services, and each has only a few failing workers."""
    own_script, *other_scripts = make_repeating_workers("search", "unavailable", 20)
    finding = find_worst(own_script.health.findings)
    assert finding is not None
    elsewhere_failing = list_failing(
        [(other_script.health, finding) for other_script in other_scripts[:known_count]], own_script.now
    )
    assert sum(map(len, elsewhere_failing.values())) == known_count

    computed_cause = shared_cause(
        own_script.health, finding, lambda: [own_script.health], own_script.now, elsewhere=elsewhere_failing
    )

    assert computed_cause == cause


def test_items_missing_for_several_workers_are_not_an_incident() -> None:
    scripts = [WorkerScript(agent=f"bee-{n}").start() for n in range(4)]
    for script in scripts:
        for n in range(5):
            script.report_call(
                "find_user", args=f"{n}", result="none", outcome="error", error_type="user not found"
            )
    finding = scripts[0].get_finding(STREAK)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


def test_equal_errors_in_shells_of_several_workers_share_no_cause() -> None:
    scripts = [make_session() for _ in range(4)]
    for script in scripts:
        for n in range(5):
            script.report_call("Bash", args=f"{n}", result=f"{n}", outcome="error", error_type="KeyError")
    finding = scripts[0].get_finding(STREAK)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


def make_repeating_workers(tool: str, error: str, times: int) -> list[WorkerScript]:
    """Return four workers that repeat one failing call."""
    scripts = [WorkerScript(agent=f"bee-{n}").start() for n in range(4)]
    for script in scripts:
        script.stay_silent(130)  # past the start grace
        for _ in range(times):
            script.report_call(tool, outcome="error", error_type=error)
    return scripts


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("times", [3, 5, 20])
@pytest.mark.parametrize(
    ("tool", "error", "cause"),
    [
        ("search", "unavailable", "tool:search"),
        ("mcp__github__get", "unavailable", "mcp:github"),
        ("bash", "KeyError", ""),
    ],
)
def test_equal_calls_that_fail_share_a_cause(
    tool: str, error: str, cause: str, times: int, is_reversed: bool
) -> None:
    """B104: if a call is repeated during an outage, the loop is the worst finding."""
    scripts = make_repeating_workers(tool, error, times)
    finding = next(finding for finding in scripts[0].health.findings if finding.kind is FindingKind.DOOM_LOOP)
    fleet = [script.health for script in scripts][:: -1 if is_reversed else 1]

    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause


def test_loop_of_calls_that_succeed_is_not_shared() -> None:
    scripts = make_repeating_workers("search", "unavailable", 5)
    for _ in range(5):
        scripts[0].report_call("visit", args="page", result="text")
    finding = find_worst(scripts[0].health.findings)
    fleet = [script.health for script in scripts]

    assert finding is not None
    assert finding.kind is FindingKind.DOOM_LOOP
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


async def test_forty_workers_of_one_provider_have_tickets_of_one_group(shared_cause_desk: TicketDesk) -> None:
    """
    B104: the group includes the first ticket, however slowly they open; an individual loop is not in it.
    """
    storm_ids = []
    for n in range(40):
        health = service.make_worker(make_finding(PROVIDER), agent=f"bee-{n}")
        health.vitals.provider = "anthropic"
        storm_ids.append((await shared_cause_desk.raise_(health)).ticket.storm_id)
    own_worker = service.make_worker(make_finding(FindingKind.DOOM_LOOP), agent="other")
    own_worker.vitals.provider = "anthropic"

    assert set(storm_ids) == {"provider:anthropic"}
    assert (await shared_cause_desk.raise_(own_worker)).ticket.storm_id == ""


async def test_condition_after_the_provider_recovers_is_a_new_ticket(shared_cause_desk: TicketDesk) -> None:
    """While the provider fails, conditions that it may cause are attributed to it."""
    failing_worker = service.make_worker(make_finding(PROVIDER), make_finding(FindingKind.STALL))
    failing_worker.vitals.provider = "anthropic"
    shared_ticket = (await shared_cause_desk.raise_(failing_worker)).ticket
    stalled_worker = service.make_worker(make_finding(FindingKind.STALL))
    await shared_cause_desk.tickets.observe(stalled_worker)
    ticket_after_recovery = shared_cause_desk.tickets.get(shared_ticket.ticket_id)
    shared_cause_desk.now += service.HOLD
    [closed_ticket] = await shared_cause_desk.tickets.settle(shared_cause_desk.now)
    own_ticket = (await shared_cause_desk.raise_(stalled_worker)).ticket

    assert ticket_after_recovery is not None
    assert ticket_after_recovery.condition_cleared_at is not None
    assert (closed_ticket.ticket_id, own_ticket.storm_id, own_ticket.kind) == (
        shared_ticket.ticket_id,
        "",
        FindingKind.STALL,
    )


@pytest.mark.parametrize("is_first", [True, False], ids=["from the start", "later"])
async def test_individual_condition_is_a_separate_ticket_while_the_provider_fails(
    shared_cause_desk: TicketDesk, is_first: bool
) -> None:
    """B104: a provider does not cause loops, however severe its failure is."""
    provider_finding, loop_finding = (
        make_finding(PROVIDER, Severity.CRITICAL),
        make_finding(FindingKind.DOOM_LOOP, Severity.HIGH),
    )
    workers = (
        [service.make_worker(provider_finding, loop_finding)]
        if is_first
        else [service.make_worker(provider_finding), service.make_worker(provider_finding, loop_finding)]
    )
    for health in workers:
        health.vitals.provider = "anthropic"
        await shared_cause_desk.tickets.observe(health)
        await shared_cause_desk.raise_(health)

    [own_ticket] = shared_cause_desk.tickets.open_tickets()
    assert (own_ticket.kind, own_ticket.storm_id) == (FindingKind.DOOM_LOOP, "")
    assert list(own_ticket.related_kinds) == [PROVIDER]

    # The provider has recovered, and the worker's own condition continues.
    await shared_cause_desk.tickets.observe(service.make_worker(loop_finding))
    shared_cause_desk.now += service.HOLD
    assert await shared_cause_desk.tickets.settle(shared_cause_desk.now) == []


async def report_failing_workers(desk: TicketDesk, count: int) -> list[EscalationTicket]:
    """Report workers, one by one, whose calls of one tool fail, and return their tickets."""
    desk.group = lambda health, finding: shared_cause(health, finding, desk.workers.values, desk.now)
    ids = []
    for n in range(count):
        script = WorkerScript(agent=f"bee-{n}", at=desk.now, settings=NO_GRACE).start()
        for call in range(6):
            script.report_call("search", args=f"{call}", outcome="error", error_type="gone")
        desk.workers[script.health.key] = script.health
        desk.now = script.now
        ids.append((await desk.raise_(script.health)).ticket.ticket_id)
    return [ticket for ticket_id in ids if (ticket := desk.tickets.get(ticket_id)) is not None]


async def test_incident_adopts_the_tickets_that_were_opened_before_it(desk: TicketDesk) -> None:
    """B104: the third worker shows that the cause is shared, and the tickets of the first two join it."""
    first = await report_failing_workers(desk, 2)
    assert [ticket.storm_id for ticket in first] == ["", ""]

    tickets = await report_failing_workers(desk, 3)

    assert {ticket.storm_id for ticket in tickets} == {"tool:search"}
    [incident] = incidents_of(tickets, now=desk.now)
    assert (incident.cause, incident.workers) == ("tool:search", 3)
    await desk.restart()
    assert {ticket.storm_id for ticket in desk.tickets.open_tickets()} == {"tool:search"}


async def test_only_tickets_that_could_share_the_cause_are_compared_with_the_fleet(desk: TicketDesk) -> None:
    """Many unrelated tickets do not slow down an incident."""
    compared_agents: list[str] = []

    def group(health: WorkerHealth, finding: Finding) -> str:
        compared_agents.append(health.vitals.agent_id)
        return shared_cause(health, finding, desk.workers.values, desk.now)

    desk.group = group
    for name in [f"other-{n}" for n in range(20)] + ["bee-0", "bee-1", "bee-2"]:
        script = WorkerScript(agent=name, at=desk.now, settings=NO_GRACE).start()
        for call in range(6):
            tool = "search" if name.startswith("bee") else f"tool-{name}"
            script.report_call(tool, args=f"{call}", outcome="error", error_type="gone")
        desk.workers[script.health.key] = script.health
        desk.now = script.now
        compared_agents.clear()
        await desk.raise_(script.health)

    assert {ticket.storm_id for ticket in desk.tickets.open_tickets()} == {"", "tool:search"}
    assert set(compared_agents) == {"bee-0", "bee-1", "bee-2"}


def test_search_for_workers_with_a_cause_ends_with_enough_of_them() -> None:
    first, *other_workers, last = [
        script.health for script in make_repeating_workers("search", "unavailable", 20)
    ]
    fleet = iter([first, *other_workers, last])

    cause = shared_cause(first, first.findings[0], lambda: fleet, first.vitals.last_activity)

    assert cause == "tool:search"
    assert list(fleet) == [last]


async def end_incident_workers(desk: TicketDesk) -> None:
    """End the sessions of an incident while calls still fail."""
    desk.group = lambda health, finding: "provider:anthropic"
    for n in range(2):
        await desk.raise_(service.make_worker(make_finding(PROVIDER), agent=f"bee-{n}"))
        ended_worker = service.make_worker(agent=f"bee-{n}")
        ended_worker.vitals.status, ended_worker.vitals.ended_at = WorkerStatus.FAILED, desk.now
        await desk.tickets.observe(ended_worker)
        await desk.tickets.settle(desk.now)


async def test_incident_of_ended_sessions_is_acknowledged_while_its_cause_may_hold(desk: TicketDesk) -> None:
    """B104: the tickets of the incident stay closed."""
    await end_incident_workers(desk)
    first, second = desk.tickets.recent_tickets()

    acknowledged_ticket = await desk.tickets.acknowledge(first.ticket_id, by="ada")

    assert (acknowledged_ticket.status, acknowledged_ticket.acknowledged_by) == (
        TicketStatus.WORKER_GONE,
        "ada",
    )
    assert acknowledged_ticket.closed_at == first.closed_at
    with pytest.raises(TicketStatusError, match="ada acknowledged it already"):
        await desk.tickets.acknowledge(first.ticket_id, by="bob")
    desk.now += INCIDENT_SECONDS
    with pytest.raises(TicketClosedError):
        await desk.tickets.acknowledge(second.ticket_id, by="ada")


def list_closings(desk: TicketDesk) -> list[tuple[str, object]]:
    incidents = [event.data for event in desk.published_events if event.type is EventType.INCIDENT_CLOSED]
    return [(str(event["cause"]), event["closed_at"]) for event in incidents]


@pytest.mark.parametrize("restarts", [(), (300.0,), (900.0,), (300.0, 900.0, 901.0)])
async def test_incident_that_closes_after_its_window_is_reported_once(
    desk: TicketDesk, restarts: tuple[float, ...]
) -> None:
    """B104: this holds if the service runs at that time, restarts before it, or starts after it."""
    await end_incident_workers(desk)
    start_time = desk.now

    for after in sorted({*restarts, *(() if 900.0 in restarts else (599.0, 600.0)), 1000.0}):
        desk.now = start_time + after
        if after in restarts:
            before = {recent_ticket.ticket_id for recent_ticket in desk.tickets.recent_tickets()}
            await desk.restart()
            assert {recent_ticket.ticket_id for recent_ticket in desk.tickets.recent_tickets()} == before
        await desk.tickets.settle(desk.now)
        assert list_closings(desk) == ([] if after < 600 else [("provider:anthropic", start_time + 600)])

    assert [
        event for event in await desk.list_logged_events() if event.type is EventType.INCIDENT_CLOSED
    ] == [event for event in desk.published_events if event.type is EventType.INCIDENT_CLOSED]


async def test_incident_that_closes_with_its_last_ticket_is_reported(desk: TicketDesk) -> None:
    desk.group = lambda health, finding: "provider:anthropic"
    for n in range(2):
        await desk.raise_(service.make_worker(make_finding(PROVIDER), agent=f"bee-{n}"))
        await desk.tickets.settle(desk.now)
    for n in range(2):
        desk.now += 10
        await desk.tickets.observe(service.make_worker(agent=f"bee-{n}"))
    desk.now += service.HOLD
    await desk.tickets.settle(desk.now)

    assert list_closings(desk) == [("provider:anthropic", desk.now)]


async def test_incident_adopts_no_ticket_about_something_else(desk: TicketDesk) -> None:
    """B104."""
    other_worker = service.make_worker(make_finding(FindingKind.DOOM_LOOP), agent="other")
    desk.workers[other_worker.key] = other_worker
    own_ticket = (await desk.raise_(other_worker)).ticket
    await report_failing_workers(desk, 3)

    ticket_after = desk.tickets.get(own_ticket.ticket_id)
    assert ticket_after is not None
    assert ticket_after.storm_id == ""


async def test_less_severe_loop_is_attributed_to_the_provider(shared_cause_desk: TicketDesk) -> None:
    health = service.make_worker(make_finding(PROVIDER), make_finding(FindingKind.DOOM_LOOP, Severity.MEDIUM))
    health.vitals.provider = "anthropic"
    ticket = (await shared_cause_desk.raise_(health)).ticket

    assert (ticket.kind, ticket.storm_id) == (PROVIDER, "provider:anthropic")


async def test_worse_individual_condition_is_notified_when_the_provider_recovers(
    shared_cause_desk: TicketDesk,
) -> None:
    failing_worker = service.make_worker(make_finding(PROVIDER))
    failing_worker.vitals.provider = "anthropic"
    shared_ticket = (await shared_cause_desk.raise_(failing_worker)).ticket
    looping_worker = service.make_worker(make_finding(FindingKind.DOOM_LOOP, Severity.CRITICAL))
    await shared_cause_desk.tickets.observe(looping_worker)
    own_ticket = (await shared_cause_desk.raise_(looping_worker)).ticket

    [open_ticket] = shared_cause_desk.tickets.open_tickets()
    shared_ticket_after = shared_cause_desk.tickets.get(shared_ticket.ticket_id)
    assert (open_ticket.ticket_id, own_ticket.storm_id) == (own_ticket.ticket_id, "")
    assert shared_ticket_after is not None
    assert shared_ticket_after.status is TicketStatus.RESOLVED


async def test_provider_that_fails_again_within_the_hold_reopens_its_ticket(
    shared_cause_desk: TicketDesk,
) -> None:
    failing_worker = service.make_worker(make_finding(PROVIDER), make_finding(FindingKind.STALL))
    failing_worker.vitals.provider = "anthropic"
    ticket = (await shared_cause_desk.raise_(failing_worker)).ticket
    await shared_cause_desk.tickets.observe(service.make_worker(make_finding(FindingKind.STALL)))
    await shared_cause_desk.tickets.observe(failing_worker)

    [reopened_ticket] = shared_cause_desk.tickets.open_tickets()
    assert (reopened_ticket.ticket_id, reopened_ticket.condition_cleared_at) == (ticket.ticket_id, None)


@pytest.mark.parametrize(
    ("error", "quiet_seconds", "cause"),
    [("gone", 0, "tool:search"), ("busy", 0, ""), ("gone", 700, "")],
)
def test_tool_that_fails_equally_for_several_workers_is_shared(
    error: str, quiet_seconds: float, cause: str
) -> None:
    fleet = []
    for n in range(3):
        script = WorkerScript(agent=f"bee-{n}").start()
        for _ in range(5):
            script.report_call("search", outcome="error", error_type=error if n == 0 else "gone")
        fleet.append(script)
    finding = fleet[0].get_finding(STREAK)

    assert finding is not None
    now = fleet[0].now + quiet_seconds
    workers = [script.health for script in fleet]
    assert shared_cause(workers[0], finding, lambda: workers, now) == cause


@pytest.mark.parametrize(("error", "cause"), [("overloaded", "provider:anthropic"), ("", "")])
def test_short_runs_that_fail_on_one_provider_share_it(error: str, cause: str) -> None:
    """B104: each run ends before it gets a ticket; the agent's failed runs have one."""
    monitor = HealthMonitor(SETTINGS)
    calls = {"provider": "anthropic", "model": "claude"} | ({"error_type": error} if error else {})
    for agent in range(4):
        for run in range(4):
            script = WorkerScript(
                agent=f"{agent}", session=f"{agent}-{run}", monitor=monitor, at=START + 35 * agent
            )
            script.start()
            script.report_event(EventType.LLM_CALL_COMPLETED, calls)
            script.report_event(EventType.EXECUTION_FAILED, {"error": "failed"})
    finding = script.get_finding(FindingKind.RUNS_FAILED)

    assert finding is not None
    assert shared_cause(script.health, finding, monitor.workers, script.now) == cause


def test_equal_errors_of_different_tools_share_no_cause() -> None:
    """B104: if one tool is unavailable, another may still work."""
    scripts = [WorkerScript(agent=f"bee-{n}").start() for n in range(4)]
    for script, tool in zip(scripts, ("search", "search", "visit", "visit"), strict=True):
        for n in range(5):
            script.report_call(tool, args=f"{n}", result=f"{n}", outcome="error", error_type="unavailable")
    finding = scripts[0].get_finding(STREAK)
    fleet = [script.health for script in scripts]

    assert finding is not None
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


@pytest.mark.parametrize(("agents", "cause"), [(1, ""), (3, "provider:anthropic")])
def test_consecutive_failed_runs_of_one_agent_count_as_one_worker(agents: int, cause: str) -> None:
    """B104: the provider answers all other workers."""
    monitor = HealthMonitor(SETTINGS)
    call_fields = {"provider": "anthropic", "model": "claude"}
    for n in range(30):
        other = WorkerScript(agent=f"other-{n}", monitor=monitor).start()
        other.report_event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 5, **call_fields})
    for agent in range(agents):
        for run in range(4):
            script = WorkerScript(
                agent=f"bee-{agent}", session=f"{agent}-{run}", monitor=monitor, at=START + 35 * run
            ).start()
            script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "overloaded", **call_fields})
            script.report_event(EventType.EXECUTION_FAILED, {"error": "failed"})
    finding = script.get_finding(FindingKind.RUNS_FAILED)

    assert finding is not None
    assert shared_cause(script.health, finding, monitor.workers, script.now) == cause


def test_one_session_with_two_findings_counts_as_one_worker() -> None:
    """B104."""
    scripts = make_repeating_workers("search", "unavailable", 20)[:2]
    kinds = [finding.kind for finding in scripts[0].health.findings]
    fleet = [script.health for script in scripts]

    assert {FindingKind.DOOM_LOOP, STREAK} <= set(kinds)
    for finding in scripts[0].health.findings:
        assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""
