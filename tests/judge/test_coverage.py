"""What a ticket speaks for: a dismissed one for what was dismissed, and for nothing that comes after."""

from dataclasses import replace

import pytest

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.tickets.ticket import TicketStatus
from queenright.judge.rules_model import DISMISS
from queenright.judge.ticket_coverage import Coverage
from tests.judge.conftest import JudgedFleet
from tests.judge.test_queen import deciding


async def covered(fleet: JudgedFleet, *, by: TicketStatus) -> tuple[Coverage, WorkerHealth]:
    """A worker with a medium ticket about its bad steps, and what speaks for it."""
    if by is TicketStatus.DISMISSED:
        fleet.queen_model = deciding(DISMISS, reason="it is only warming up")
    await fleet.start()
    await fleet.begin()
    await fleet.bad_steps(11)
    ticket = await fleet.ticket()
    assert (ticket.severity, ticket.status) == (Severity.MEDIUM, by)
    coverage = Coverage(fleet.tickets)
    coverage.note_ticket(fleet.health(), ticket)
    return coverage, fleet.health()


def also(health: WorkerHealth, kind: FindingKind, *, ticket: bool = True) -> tuple[WorkerHealth, Finding]:
    """The worker with one more finding, as bad as its first."""
    [first] = health.findings
    more = Finding(
        kind=kind, severity=first.severity, evidence="seen", since=first.since, ticket=ticket, shadow=False
    )
    return replace(health, findings=(first, more)), more


async def test_dismissed_ticket_covers_the_dismissed_condition(fleet: JudgedFleet) -> None:
    """B48: the same condition at the same severity is not judged again."""
    coverage, health = await covered(fleet, by=TicketStatus.DISMISSED)

    assert coverage.covers(health, health.findings[0])


async def test_dismissed_ticket_does_not_cover_a_new_kind_of_equal_severity(fleet: JudgedFleet) -> None:
    """B48: what was dismissed was the one condition, and not whatever else the worker comes to."""
    coverage, health = await covered(fleet, by=TicketStatus.DISMISSED)
    now, more = also(health, FindingKind.ERROR_STREAK)

    assert not coverage.covers(now, more)
    assert not coverage.covers(now, health.findings[0])


async def test_dismissed_ticket_does_not_cover_a_new_kind_after_a_restart(fleet: JudgedFleet) -> None:
    coverage, health = await covered(fleet, by=TicketStatus.DISMISSED)
    coverage = Coverage(fleet.tickets)
    coverage.adopt([await fleet.ticket()])
    now, more = also(health, FindingKind.ERROR_STREAK)

    assert coverage.covers(health, health.findings[0])
    assert not coverage.covers(now, more)


async def test_warning_needs_no_new_ticket(fleet: JudgedFleet) -> None:
    coverage, health = await covered(fleet, by=TicketStatus.DISMISSED)
    now, _ = also(health, FindingKind.TOKEN_SPIKE, ticket=False)

    assert coverage.covers(now, health.findings[0])


@pytest.mark.parametrize("severity", list(Severity))
async def test_open_ticket_covers_everything_that_is_not_worse(
    fleet: JudgedFleet, severity: Severity
) -> None:
    coverage, health = await covered(fleet, by=TicketStatus.INTERVENING)
    now, more = also(health, FindingKind.ERROR_STREAK)

    covers = coverage.covers(now, more._replace(severity=severity))

    assert covers == (severity.rank <= Severity.MEDIUM.rank)
