"""
Which findings a ticket covers: a dismissed ticket only the dismissed condition, an open one all that are no
worse.
"""

from dataclasses import replace

import pytest

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.tickets.ticket import TicketStatus
from queenright.judge.rules_model import DISMISS
from queenright.judge.ticket_coverage import Coverage
from tests.judge.conftest import JudgedFleet
from tests.judge.test_queen import make_deciding_model


async def start_with_ticket(fleet: JudgedFleet, *, status: TicketStatus) -> tuple[Coverage, WorkerHealth]:
    """Start a worker with a medium ticket about its bad steps, and return its coverage and health."""
    if status is TicketStatus.DISMISSED:
        fleet.queen_model = make_deciding_model(DISMISS, reason="it is only warming up")
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(11)
    ticket = await fleet.get_ticket()
    assert (ticket.severity, ticket.status) == (Severity.MEDIUM, status)
    coverage = Coverage(fleet.tickets)
    coverage.note_ticket(fleet.get_health(), ticket)
    return coverage, fleet.get_health()


def add_finding(
    health: WorkerHealth, kind: FindingKind, *, ticket: bool = True
) -> tuple[WorkerHealth, Finding]:
    """Return the worker with another finding of the same severity, and that finding."""
    [first] = health.findings
    other_finding = Finding(
        kind=kind, severity=first.severity, evidence="seen", since=first.since, ticket=ticket, shadow=False
    )
    return replace(health, findings=(first, other_finding)), other_finding


async def test_dismissed_ticket_covers_the_dismissed_condition(fleet: JudgedFleet) -> None:
    """B48: the same condition at the same severity is not judged again."""
    coverage, health = await start_with_ticket(fleet, status=TicketStatus.DISMISSED)

    assert coverage.covers(health, health.findings[0])


async def test_dismissed_ticket_does_not_cover_a_new_kind_of_equal_severity(fleet: JudgedFleet) -> None:
    """B48: a dismissal covers the dismissed condition, but no later one."""
    coverage, health = await start_with_ticket(fleet, status=TicketStatus.DISMISSED)
    changed_health, other_finding = add_finding(health, FindingKind.ERROR_STREAK)

    assert not coverage.covers(changed_health, other_finding)
    assert not coverage.covers(changed_health, health.findings[0])


async def test_dismissed_ticket_does_not_cover_a_new_kind_after_a_restart(fleet: JudgedFleet) -> None:
    coverage, health = await start_with_ticket(fleet, status=TicketStatus.DISMISSED)
    coverage = Coverage(fleet.tickets)
    coverage.adopt([await fleet.get_ticket()])
    changed_health, other_finding = add_finding(health, FindingKind.ERROR_STREAK)

    assert coverage.covers(health, health.findings[0])
    assert not coverage.covers(changed_health, other_finding)


async def test_finding_without_a_ticket_does_not_change_the_coverage(fleet: JudgedFleet) -> None:
    coverage, health = await start_with_ticket(fleet, status=TicketStatus.DISMISSED)
    changed_health, _ = add_finding(health, FindingKind.TOKEN_SPIKE, ticket=False)

    assert coverage.covers(changed_health, health.findings[0])


@pytest.mark.parametrize("severity", list(Severity))
async def test_open_ticket_covers_findings_that_are_not_worse(fleet: JudgedFleet, severity: Severity) -> None:
    coverage, health = await start_with_ticket(fleet, status=TicketStatus.INTERVENING)
    changed_health, other_finding = add_finding(health, FindingKind.ERROR_STREAK)

    is_covered = coverage.covers(changed_health, other_finding._replace(severity=severity))

    assert is_covered == (severity.rank <= Severity.MEDIUM.rank)
