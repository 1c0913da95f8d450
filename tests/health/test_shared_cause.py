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
from tests.health.test_detectors import NO_GRACE, worker
from tests.health.test_ticket_service import TicketDesk, desk, finding
from tests.health.worker_script import START, WorkerScript

__all__ = ["desk"]

SETTINGS = HealthSettings()
PROVIDER, STREAK = FindingKind.PROVIDER_FAILURE, FindingKind.ERROR_STREAK


@pytest.fixture
def groups(desk: TicketDesk) -> TicketDesk:
    """Return the ticket service with knowledge of shared causes."""
    desk.group = lambda health, finding: shared_cause(health, finding, lambda: [health], desk.now)
    return desk


_sessions = itertools.count()


def session() -> WorkerScript:
    return WorkerScript(session=f"session-{next(_sessions)}", settings=NO_GRACE).start()


def failing(**data: str) -> WorkerScript:
    script = session()
    for _ in range(3):
        script.event(EventType.LLM_CALL_COMPLETED, {"error_type": "overloaded", **data})
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
    script = failing(**data)
    finding = script.finding(PROVIDER)

    assert finding is not None
    assert shared_cause(script.health, finding, lambda: [script.health], script.now) == cause


@pytest.mark.parametrize(("tool", "cause"), [("mcp__github__get_issue", "mcp:github"), ("bash", "")])
def test_mcp_server_is_a_shared_cause_and_a_private_tool_is_not(tool: str, cause: str) -> None:
    script = worker()
    for n in range(5):
        script.call(tool, args=f"{n}", result=f"{n}", outcome="error", error_type="gone")
    finding = script.finding(STREAK)

    assert finding is not None
    assert shared_cause(script.health, finding, lambda: [script.health], script.now) == cause


@pytest.mark.parametrize("calls", range(5, 10))
def test_repeated_failures_share_a_cause_whatever_the_worst_finding(calls: int) -> None:
    """
    B104: identical errors are also repeated results, whose severity exceeds that of a streak for a while.
    """
    script = worker()
    for n in range(calls):
        script.call("mcp__github__get_issue", args=f"{n}", result="down", outcome="error", error_type="gone")
    finding = find_worst(script.health.findings)

    assert finding is not None
    assert shared_cause(script.health, finding, lambda: [script.health], script.now) == "mcp:github"


def answered(**data: str) -> WorkerScript:
    script = session()
    script.event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 5, **data})
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
    called = {"provider": "anthropic", "model": "claude"}
    scripts = [failing(**called, error_type=error) for _ in range(failing_workers)]
    scripts += [answered(**called) for _ in range(answered_workers)]
    scripts.append(failing(provider="openai", error_type=error))
    mine = scripts[0]
    finding = mine.finding(PROVIDER)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(mine.health, finding, lambda: fleet, mine.now) == cause


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("answered_workers", [31, 100])
def test_shared_provider_does_not_depend_on_worker_order(answered_workers: int, is_reversed: bool) -> None:
    called = {"provider": "anthropic", "model": "claude"}
    scripts = [answered(**called) for _ in range(answered_workers)] + [failing(**called) for _ in range(3)]
    fleet = [script.health for script in (reversed(scripts) if is_reversed else scripts)]
    finding = scripts[-1].finding(PROVIDER)

    assert finding is not None
    cause = shared_cause(scripts[-1].health, finding, lambda: fleet, scripts[-1].now)
    assert cause == "provider:anthropic"


@pytest.mark.parametrize(
    ("others", "cause"),
    [
        ({"error_type": "overloaded"}, "provider:anthropic"),
        ({"error_type": "content_filter"}, ""),
        ({"error_type": "overloaded", "model": "haiku"}, ""),
    ],
)
def test_only_equal_errors_of_one_model_are_counted_together(others: dict[str, str], cause: str) -> None:
    called = {"provider": "anthropic", "model": "claude"}
    scripts = [failing(**called), *(failing(**(called | others)) for _ in range(4))]
    scripts += [answered(**called) for _ in range(20)]
    finding = scripts[0].finding(PROVIDER)

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
def test_errors_without_a_type_are_told_apart_by_their_text(texts: list[str], cause: str) -> None:
    """B104: some clients report only that a call failed."""
    called = {"provider": "anthropic", "model": "claude"}
    scripts = [
        failing(**called, error_type="_OTHER", error=texts[n % len(texts)].format(n=n)) for n in range(3)
    ]
    scripts += [answered(**called) for _ in range(30)]
    finding = scripts[0].finding(PROVIDER)

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
            script.call("mcp__github__get_issue", args=f"{call}", result=f"{call}", **attributes)
    finding = scripts[0].finding(STREAK)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause
    fleet.reverse()
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause


@pytest.mark.parametrize(("known", "cause"), [(1, ""), (2, "tool:search")])
def test_workers_of_other_services_that_fail_alike_count(known: int, cause: str) -> None:
    """B104: the fleet is divided among services, and each has only a few failing workers."""
    mine, *others = workers_that_repeat("search", "unavailable", 20)
    finding = find_worst(mine.health.findings)
    assert finding is not None
    elsewhere = list_failing([(one.health, finding) for one in others[:known]], mine.now)
    assert sum(map(len, elsewhere.values())) == known

    found = shared_cause(mine.health, finding, lambda: [mine.health], mine.now, elsewhere=elsewhere)

    assert found == cause


def test_items_missing_for_several_workers_are_not_an_incident() -> None:
    scripts = [WorkerScript(agent=f"bee-{n}").start() for n in range(4)]
    for script in scripts:
        for n in range(5):
            script.call("find_user", args=f"{n}", result="none", outcome="error", error_type="user not found")
    finding = scripts[0].finding(STREAK)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


def test_equal_errors_in_shells_of_several_workers_share_no_cause() -> None:
    scripts = [session() for _ in range(4)]
    for script in scripts:
        for n in range(5):
            script.call("Bash", args=f"{n}", result=f"{n}", outcome="error", error_type="KeyError")
    finding = scripts[0].finding(STREAK)

    assert finding is not None
    fleet = [script.health for script in scripts]
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


def workers_that_repeat(tool: str, error: str, times: int) -> list[WorkerScript]:
    """Return four workers that repeat one failing call."""
    scripts = [WorkerScript(agent=f"bee-{n}").start() for n in range(4)]
    for script in scripts:
        script.silence(130)  # past the start grace
        for _ in range(times):
            script.call(tool, outcome="error", error_type=error)
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
    scripts = workers_that_repeat(tool, error, times)
    finding = next(finding for finding in scripts[0].health.findings if finding.kind is FindingKind.DOOM_LOOP)
    fleet = [script.health for script in scripts][:: -1 if is_reversed else 1]

    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == cause


def test_loop_of_calls_that_succeed_is_not_shared() -> None:
    scripts = workers_that_repeat("search", "unavailable", 5)
    for _ in range(5):
        scripts[0].call("visit", args="page", result="text")
    finding = find_worst(scripts[0].health.findings)
    fleet = [script.health for script in scripts]

    assert finding is not None
    assert finding.kind is FindingKind.DOOM_LOOP
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


async def test_forty_workers_of_one_provider_have_tickets_of_one_group(groups: TicketDesk) -> None:
    """
    B104: the group includes the first ticket, however slowly they open; an individual loop is not in it.
    """
    shared = []
    for n in range(40):
        health = service.worker(finding(PROVIDER), agent=f"bee-{n}")
        health.vitals.provider = "anthropic"
        shared.append((await groups.raise_(health)).ticket.storm_id)
    own = service.worker(finding(FindingKind.DOOM_LOOP), agent="other")
    own.vitals.provider = "anthropic"

    assert set(shared) == {"provider:anthropic"}
    assert (await groups.raise_(own)).ticket.storm_id == ""


async def test_condition_after_the_provider_recovers_is_a_new_ticket(groups: TicketDesk) -> None:
    """While the provider fails, conditions that it may cause are attributed to it."""
    both = service.worker(finding(PROVIDER), finding(FindingKind.STALL))
    both.vitals.provider = "anthropic"
    shared = (await groups.raise_(both)).ticket
    left = service.worker(finding(FindingKind.STALL))
    await groups.tickets.observe(left)
    cleared = groups.tickets.get(shared.ticket_id)
    groups.now += service.HOLD
    [closed] = await groups.tickets.settle(groups.now)
    own = (await groups.raise_(left)).ticket

    assert cleared is not None
    assert cleared.condition_cleared_at is not None
    assert (closed.ticket_id, own.storm_id, own.kind) == (shared.ticket_id, "", FindingKind.STALL)


@pytest.mark.parametrize("is_first", [True, False], ids=["from the start", "later"])
async def test_individual_condition_is_a_separate_ticket_while_the_provider_fails(
    groups: TicketDesk, is_first: bool
) -> None:
    """B104: a provider does not cause loops, however severe its failure is."""
    down, loop = finding(PROVIDER, Severity.CRITICAL), finding(FindingKind.DOOM_LOOP, Severity.HIGH)
    workers = [service.worker(down, loop)] if is_first else [service.worker(down), service.worker(down, loop)]
    for health in workers:
        health.vitals.provider = "anthropic"
        await groups.tickets.observe(health)
        await groups.raise_(health)

    [own] = groups.tickets.open_tickets()
    assert (own.kind, own.storm_id) == (FindingKind.DOOM_LOOP, "")
    assert list(own.related_kinds) == [PROVIDER]

    # The provider has recovered, and the worker's own condition continues.
    await groups.tickets.observe(service.worker(loop))
    groups.now += service.HOLD
    assert await groups.tickets.settle(groups.now) == []


async def failing_workers(desk: TicketDesk, count: int) -> list[EscalationTicket]:
    """Report workers, one by one, whose calls of one tool fail, and return their tickets."""
    desk.group = lambda health, finding: shared_cause(health, finding, desk.workers.values, desk.now)
    ids = []
    for n in range(count):
        script = WorkerScript(agent=f"bee-{n}", at=desk.now, settings=NO_GRACE).start()
        for call in range(6):
            script.call("search", args=f"{call}", outcome="error", error_type="gone")
        desk.workers[script.health.key] = script.health
        desk.now = script.now
        ids.append((await desk.raise_(script.health)).ticket.ticket_id)
    return [ticket for ticket_id in ids if (ticket := desk.tickets.get(ticket_id)) is not None]


async def test_incident_adopts_the_tickets_that_were_opened_before_it(desk: TicketDesk) -> None:
    """B104: the third worker shows that the cause is shared, and the tickets of the first two join it."""
    first = await failing_workers(desk, 2)
    assert [ticket.storm_id for ticket in first] == ["", ""]

    tickets = await failing_workers(desk, 3)

    assert {ticket.storm_id for ticket in tickets} == {"tool:search"}
    [incident] = incidents_of(tickets, now=desk.now)
    assert (incident.cause, incident.workers) == ("tool:search", 3)
    await desk.restart()
    assert {ticket.storm_id for ticket in desk.tickets.open_tickets()} == {"tool:search"}


async def test_only_tickets_that_could_share_the_cause_are_compared_with_the_fleet(desk: TicketDesk) -> None:
    """Many unrelated tickets do not slow down an incident."""
    compared: list[str] = []

    def group(health: WorkerHealth, finding: Finding) -> str:
        compared.append(health.vitals.agent_id)
        return shared_cause(health, finding, desk.workers.values, desk.now)

    desk.group = group
    for name in [f"other-{n}" for n in range(20)] + ["bee-0", "bee-1", "bee-2"]:
        script = WorkerScript(agent=name, at=desk.now, settings=NO_GRACE).start()
        for call in range(6):
            tool = "search" if name.startswith("bee") else f"tool-{name}"
            script.call(tool, args=f"{call}", outcome="error", error_type="gone")
        desk.workers[script.health.key] = script.health
        desk.now = script.now
        compared.clear()
        await desk.raise_(script.health)

    assert {ticket.storm_id for ticket in desk.tickets.open_tickets()} == {"", "tool:search"}
    assert set(compared) == {"bee-0", "bee-1", "bee-2"}


def test_search_for_workers_with_a_cause_ends_with_enough_of_them() -> None:
    first, *others, last = [script.health for script in workers_that_repeat("search", "unavailable", 20)]
    fleet = iter([first, *others, last])

    cause = shared_cause(first, first.findings[0], lambda: fleet, first.vitals.last_activity)

    assert cause == "tool:search"
    assert list(fleet) == [last]


async def ended_in_incident(desk: TicketDesk) -> None:
    """End the sessions of an incident while calls still fail."""
    desk.group = lambda health, finding: "provider:anthropic"
    for n in range(2):
        await desk.raise_(service.worker(finding(PROVIDER), agent=f"bee-{n}"))
        gone = service.worker(agent=f"bee-{n}")
        gone.vitals.status, gone.vitals.ended_at = WorkerStatus.FAILED, desk.now
        await desk.tickets.observe(gone)
        await desk.tickets.settle(desk.now)


async def test_incident_of_ended_sessions_is_acknowledged_while_its_cause_may_hold(desk: TicketDesk) -> None:
    """B104: the tickets of the incident stay closed."""
    await ended_in_incident(desk)
    first, second = desk.tickets.recent_tickets()

    acknowledged = await desk.tickets.acknowledge(first.ticket_id, by="ada")

    assert (acknowledged.status, acknowledged.acknowledged_by) == (TicketStatus.WORKER_GONE, "ada")
    assert acknowledged.closed_at == first.closed_at
    with pytest.raises(TicketStatusError, match="ada acknowledged it already"):
        await desk.tickets.acknowledge(first.ticket_id, by="bob")
    desk.now += INCIDENT_SECONDS
    with pytest.raises(TicketClosedError):
        await desk.tickets.acknowledge(second.ticket_id, by="ada")


def closings(desk: TicketDesk) -> list[tuple[str, object]]:
    incidents = [event.data for event in desk.published if event.type is EventType.INCIDENT_CLOSED]
    return [(str(event["cause"]), event["closed_at"]) for event in incidents]


@pytest.mark.parametrize("restarts", [(), (300.0,), (900.0,), (300.0, 900.0, 901.0)])
async def test_incident_that_closes_by_the_clock_is_reported_once(
    desk: TicketDesk, restarts: tuple[float, ...]
) -> None:
    """B104: this holds if the service runs then, restarts before, or starts later."""
    await ended_in_incident(desk)
    began = desk.now

    for after in sorted({*restarts, *(() if 900.0 in restarts else (599.0, 600.0)), 1000.0}):
        desk.now = began + after
        if after in restarts:
            before = {recent_ticket.ticket_id for recent_ticket in desk.tickets.recent_tickets()}
            await desk.restart()
            assert {recent_ticket.ticket_id for recent_ticket in desk.tickets.recent_tickets()} == before
        await desk.tickets.settle(desk.now)
        assert closings(desk) == ([] if after < 600 else [("provider:anthropic", began + 600)])

    assert [event for event in await desk.logged() if event.type is EventType.INCIDENT_CLOSED] == [
        event for event in desk.published if event.type is EventType.INCIDENT_CLOSED
    ]


async def test_incident_that_closes_with_its_last_ticket_is_reported(desk: TicketDesk) -> None:
    desk.group = lambda health, finding: "provider:anthropic"
    for n in range(2):
        await desk.raise_(service.worker(finding(PROVIDER), agent=f"bee-{n}"))
        await desk.tickets.settle(desk.now)
    for n in range(2):
        desk.now += 10
        await desk.tickets.observe(service.worker(agent=f"bee-{n}"))
    desk.now += service.HOLD
    await desk.tickets.settle(desk.now)

    assert closings(desk) == [("provider:anthropic", desk.now)]


async def test_incident_adopts_no_ticket_about_something_else(desk: TicketDesk) -> None:
    """B104"""
    other = service.worker(finding(FindingKind.DOOM_LOOP), agent="other")
    desk.workers[other.key] = other
    own = (await desk.raise_(other)).ticket
    await failing_workers(desk, 3)

    left = desk.tickets.get(own.ticket_id)
    assert left is not None
    assert left.storm_id == ""


async def test_lesser_loop_counts_to_the_provider(groups: TicketDesk) -> None:
    health = service.worker(finding(PROVIDER), finding(FindingKind.DOOM_LOOP, Severity.MEDIUM))
    health.vitals.provider = "anthropic"
    ticket = (await groups.raise_(health)).ticket

    assert (ticket.kind, ticket.storm_id) == (PROVIDER, "provider:anthropic")


async def test_worse_individual_condition_is_notified_when_the_provider_recovers(groups: TicketDesk) -> None:
    failed = service.worker(finding(PROVIDER))
    failed.vitals.provider = "anthropic"
    shared = (await groups.raise_(failed)).ticket
    worse = service.worker(finding(FindingKind.DOOM_LOOP, Severity.CRITICAL))
    await groups.tickets.observe(worse)
    own = (await groups.raise_(worse)).ticket

    [open_] = groups.tickets.open_tickets()
    over = groups.tickets.get(shared.ticket_id)
    assert (open_.ticket_id, own.storm_id) == (own.ticket_id, "")
    assert over is not None
    assert over.status is TicketStatus.RESOLVED


async def test_provider_that_fails_again_within_the_hold_reopens_its_ticket(groups: TicketDesk) -> None:
    failed = service.worker(finding(PROVIDER), finding(FindingKind.STALL))
    failed.vitals.provider = "anthropic"
    ticket = (await groups.raise_(failed)).ticket
    await groups.tickets.observe(service.worker(finding(FindingKind.STALL)))
    await groups.tickets.observe(failed)

    [again] = groups.tickets.open_tickets()
    assert (again.ticket_id, again.condition_cleared_at) == (ticket.ticket_id, None)


@pytest.mark.parametrize(
    ("error", "quiet_for", "cause"),
    [("gone", 0, "tool:search"), ("busy", 0, ""), ("gone", 700, "")],
)
def test_tool_that_fails_equally_for_several_workers_is_shared(
    error: str, quiet_for: float, cause: str
) -> None:
    fleet = []
    for n in range(3):
        script = WorkerScript(agent=f"bee-{n}").start()
        for _ in range(5):
            script.call("search", outcome="error", error_type=error if n == 0 else "gone")
        fleet.append(script)
    finding = fleet[0].finding(STREAK)

    assert finding is not None
    now = fleet[0].now + quiet_for
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
            script.event(EventType.LLM_CALL_COMPLETED, calls)
            script.event(EventType.EXECUTION_FAILED, {"error": "failed"})
    finding = script.finding(FindingKind.RUNS_FAILED)

    assert finding is not None
    assert shared_cause(script.health, finding, monitor.workers, script.now) == cause


def test_equal_errors_of_different_tools_share_no_cause() -> None:
    """B104: if one tool is unavailable, another need not be."""
    scripts = [WorkerScript(agent=f"bee-{n}").start() for n in range(4)]
    for script, tool in zip(scripts, ("search", "search", "visit", "visit"), strict=True):
        for n in range(5):
            script.call(tool, args=f"{n}", result=f"{n}", outcome="error", error_type="unavailable")
    finding = scripts[0].finding(STREAK)
    fleet = [script.health for script in scripts]

    assert finding is not None
    assert shared_cause(scripts[0].health, finding, lambda: fleet, scripts[0].now) == ""


@pytest.mark.parametrize(("agents", "cause"), [(1, ""), (3, "provider:anthropic")])
def test_consecutive_failed_runs_of_one_agent_count_as_one_worker(agents: int, cause: str) -> None:
    """B104: the provider answers all other workers."""
    monitor = HealthMonitor(SETTINGS)
    called = {"provider": "anthropic", "model": "claude"}
    for n in range(30):
        other = WorkerScript(agent=f"other-{n}", monitor=monitor).start()
        other.event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 5, **called})
    for agent in range(agents):
        for run in range(4):
            script = WorkerScript(
                agent=f"bee-{agent}", session=f"{agent}-{run}", monitor=monitor, at=START + 35 * run
            ).start()
            script.event(EventType.LLM_CALL_COMPLETED, {"error_type": "overloaded", **called})
            script.event(EventType.EXECUTION_FAILED, {"error": "failed"})
    finding = script.finding(FindingKind.RUNS_FAILED)

    assert finding is not None
    assert shared_cause(script.health, finding, monitor.workers, script.now) == cause


def test_one_session_with_two_findings_counts_as_one_worker() -> None:
    """B104"""
    scripts = workers_that_repeat("search", "unavailable", 20)[:2]
    kinds = [finding.kind for finding in scripts[0].health.findings]
    fleet = [script.health for script in scripts]

    assert {FindingKind.DOOM_LOOP, STREAK} <= set(kinds)
    for trouble in scripts[0].health.findings:
        assert shared_cause(scripts[0].health, trouble, lambda: fleet, scripts[0].now) == ""
