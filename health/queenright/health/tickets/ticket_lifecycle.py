"""
The life cycle of a ticket: every change as a pure function that returns the changed ticket.

::

    open ──intervene──▶ intervening ──acknowledge──▶ acknowledged
      └───dismiss────▶ dismissed ──worse──▶ open
    acknowledged ──unacknowledge──▶ intervening, or open if triage has not answered
    any ──condition gone for the hold──▶ closed (resolved; a dismissed one stays dismissed)
    any ──worker ended──▶ closed (worker_gone; a dismissed one stays dismissed)
    not dismissed, about a failed recovery, failed runs or a dead worker ──resolve──▶ closed (resolved)
    intervening ──not acknowledged──▶ intervening, with a reminder to the operator
    worker_gone, its incident open ──acknowledge──▶ worker_gone

The hold does not change the status; it sets ``condition_cleared_at``, and a relapse unsets it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from queenright.health.findings import KINDS_AFTER_END, FindingKind, Severity
from queenright.health.tickets.incidents import counts_after_its_end
from queenright.health.tickets.ticket import (
    AckChannel,
    EscalationTicket,
    TicketClosedError,
    TicketStatus,
    TicketStatusError,
    fingerprint,
)

TicketChange = Literal["opened", "reopened", "rose", "renewed", "counted"]
"""What a report did to a ticket. ``renewed``: only its text changed. All but ``counted`` are published."""


def report(
    ticket: EscalationTicket, *, severity: Severity, kinds: Sequence[FindingKind], now: float
) -> tuple[EscalationTicket, TicketChange]:
    """
    Count one more report of the condition.

    Severity only rises. A report within the hold is a relapse. A dismissed ticket reopens if the report is
    worse than what was dismissed, or if it had cleared and is high or critical: it can only have been
    dismissed because the worker had recovered.

    Args:
        kinds: The current findings, worst first; new kinds are added to the ticket.

    Raises:
        TicketClosedError: The ticket is closed.
    """
    _must_be_live(ticket)
    rose = severity.rank > ticket.severity.rank
    is_relapse = ticket.condition_cleared_at is not None
    is_dismissal = ticket.status is TicketStatus.DISMISSED
    reopens = is_dismissal and (rose or (is_relapse and severity.rank >= Severity.HIGH.rank))
    known_kinds = {ticket.kind, *ticket.related_kinds}
    update: dict[str, object] = {
        "occurrences": ticket.occurrences + 1,
        "last_seen": now,
        "updated_at": now,
        "condition_cleared_at": None,
        "active_kinds": tuple(kinds),
        "related_kinds": (*ticket.related_kinds, *(kind for kind in kinds if kind not in known_kinds)),
    }
    if reopens:
        update["status"] = TicketStatus.OPEN
    if rose:
        update["severity"] = severity
        if ticket.status in (TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED):
            update |= {"notified_severity": severity, "reminders": 0}
    if rose or is_relapse:
        update["bumped_at"] = now
    change: TicketChange = "counted"
    if rose:
        change = "rose"
    elif is_relapse and (reopens or not is_dismissal):
        change = "reopened"
    return ticket.model_copy(update=update), change


def clear(ticket: EscalationTicket, *, now: float) -> EscalationTicket:
    """Record that the condition has cleared, which starts the hold if it is not running."""
    _must_be_live(ticket)
    if ticket.condition_cleared_at is not None:
        return ticket
    return ticket.model_copy(update={"condition_cleared_at": now, "active_kinds": (), "updated_at": now})


def hold_ends(ticket: EscalationTicket, hold: float) -> float | None:
    """Return when the hold ends and ``settle`` closes the ticket, or None."""
    if not ticket.is_live or ticket.condition_cleared_at is None:
        return None
    return ticket.condition_cleared_at + hold


def settle(ticket: EscalationTicket, *, now: float, hold: float) -> EscalationTicket:
    """
    Close the ticket if its condition has been clear for ``hold`` seconds, otherwise return it unchanged.
    """
    ends = hold_ends(ticket, hold)
    if ends is None or now < ends:
        return ticket
    return _close(ticket, TicketStatus.RESOLVED, f"the worker has been healthy for {hold:g} s", now)


def remind_at(ticket: EscalationTicket, *, after: float, most: int) -> float | None:
    """
    Return when to remind the operator of the ticket if nothing happens, or None.

    Args:
        after: Seconds after the last notification or reminder.
    """
    if ticket.status is not TicketStatus.INTERVENING or not ticket.is_live:
        return None
    # No reminder during the hold, because the ticket may close soon.
    if ticket.condition_cleared_at is not None or ticket.reminders >= most:
        return None
    # Tickets of earlier versions have only the time of triage.
    bumped_at = ticket.bumped_at if ticket.bumped_at is not None else ticket.triaged_at
    return None if bumped_at is None else bumped_at + after


def remind(ticket: EscalationTicket, *, now: float, is_request: bool = False) -> EscalationTicket:
    """
    Remind people of a ticket that nobody has acknowledged.

    Args:
        ticket: A ticket that people were notified of.
        is_request: It asks for a decision or an action; this does not count as a reminder.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: No one was notified of it, or somebody acknowledged it.
    """
    _must_be_live(ticket)
    if ticket.status is not TicketStatus.INTERVENING:
        raise TicketStatusError(ticket, "remind of", "reminders are for notified, unacknowledged tickets")
    notified_at = ticket.notified_at if ticket.notified_at is not None else ticket.triaged_at
    update = {
        "notified_at": notified_at,
        "bumped_at": now,
        "reminders": ticket.reminders + (not is_request),
        "requests": ticket.requests + is_request,
        "updated_at": now,
    }
    return ticket.model_copy(update=update)


RUN_COMPLETED: Final = "the run completed"
"""The reason of a closed ticket whose worker completed its run."""


def worker_ended(
    ticket: EscalationTicket, *, now: float, reason: str = "the worker ended"
) -> EscalationTicket:
    """Close the ticket of a worker that has ended."""
    _must_be_live(ticket)
    return _close(ticket, TicketStatus.WORKER_GONE, reason, now)


def rename(ticket: EscalationTicket, agent_id: str, session_id: str) -> EscalationTicket:
    """Return a ticket with the new names of its worker."""
    identity = fingerprint(agent_id, session_id, ticket.node_id, ticket.kind)
    return ticket.model_copy(update={"agent_id": agent_id, "session_id": session_id, "fingerprint": identity})


def resolve(
    ticket: EscalationTicket, *, reason: str, by: str, now: float, dead_from: float | None = None
) -> EscalationTicket:
    """
    Resolve a ticket about a failed recovery, failed runs or a dead worker.

    Args:
        reason: How the problem was settled.
        dead_from: When its worker counts as dead if it stays silent, or None.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket is about something else and closes by itself, or it was dismissed.
    """
    _must_be_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(
            ticket, "resolve", "nobody was notified of it; it closes when the condition is gone"
        )
    if not can_be_resolved(ticket, now=now, dead_from=dead_from):
        raise TicketStatusError(ticket, "resolve", f"{_when_it_closes(dead_from)}; {_how_to_stop(ticket)}")
    # Ends the hold too.
    ticket = ticket.model_copy(update={"condition_cleared_at": None})
    return _close(ticket, TicketStatus.RESOLVED, f"{by}: {reason}", now)


def can_be_resolved(ticket: EscalationTicket, *, now: float, dead_from: float | None) -> bool:
    """Return whether a person can resolve the ticket; ``dead_from`` as for ``resolve``."""
    is_dead = dead_from is not None and dead_from <= now
    settles = is_dead or is_about_work(ticket)
    return ticket.is_live and ticket.status is not TicketStatus.DISMISSED and settles


def can_be_acknowledged(ticket: EscalationTicket, *, now: float) -> bool:
    """Return whether a person can acknowledge the ticket."""
    try:
        acknowledge(ticket, by="", now=now)
    except (TicketClosedError, TicketStatusError):
        return False
    return True


def can_be_dismissed(ticket: EscalationTicket) -> bool:
    """Return whether a person can dismiss the ticket."""
    try:
        dismiss(ticket, reason="", by="", now=0.0)
    except (TicketClosedError, TicketStatusError):
        return False
    return True


def is_about_work(ticket: EscalationTicket) -> bool:
    """Return whether the ticket is about a task that could not be recovered, or about failed runs."""
    return not KINDS_AFTER_END.isdisjoint((ticket.kind, *ticket.active_kinds))


def dismiss(
    ticket: EscalationTicket,
    *,
    reason: str,
    by: str,
    now: float,
    has_recovered: bool = False,
    dead_from: float | None = None,
) -> EscalationTicket:
    """
    Dismiss a ticket: no one is notified.

    Args:
        has_recovered: The condition was seen to be gone, though the ticket does not record it yet.
        dead_from: When its worker counts as dead if it stays silent, or None.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket is not open, or it is high or critical and its condition holds.
    """
    _must_be_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(ticket, "dismiss", "it is dismissed already; it reopens if it gets worse")
    may_resolve = can_be_resolved(ticket, now=now, dead_from=dead_from)
    command = f'queenright tickets resolve {ticket.ticket_id} --reason "..."'
    how_to_resolve = f"once the problem is settled, resolve it: {command}"
    how_to_stop = _how_to_stop(ticket)
    if ticket.status is not TicketStatus.OPEN:
        is_acknowledged = ticket.status is TicketStatus.ACKNOWLEDGED
        obstacle = f"{ticket.acknowledged_by} acknowledged it" if is_acknowledged else "people were notified"
        closes = how_to_resolve if may_resolve else f"{_when_it_closes(dead_from)}; {how_to_stop}"
        raise TicketStatusError(ticket, "dismiss", f"{obstacle}; {closes}")
    holds = ticket.condition_cleared_at is None and not has_recovered
    if holds and ticket.severity.rank >= Severity.HIGH.rank:
        raise TicketStatusError(
            ticket,
            "dismiss",
            f"it is {ticket.severity} and still holds ({', '.join(ticket.active_kinds)}); intervene"
            + (f", or {how_to_resolve}" if may_resolve else f"; {how_to_stop}"),
        )
    return ticket.model_copy(
        update={
            "status": TicketStatus.DISMISSED,
            "triage_decision": "dismiss",
            "triage_reason": reason,
            "triaged_at": now,
            "triaged_by": by,
            "updated_at": now,
        }
    )


def _how_to_stop(ticket: EscalationTicket) -> str:
    return f'to stop the worker: queenright terminate {shlex.quote(ticket.agent_id)} --reason "..."'


def _when_it_closes(dead_from: float | None) -> str:
    """Describe when a ticket closes that a person cannot resolve yet."""
    by_itself = "it closes by itself when its worker recovers or ends"
    if dead_from is None:
        return by_itself
    at = datetime.fromtimestamp(math.ceil(dead_from), UTC)
    return (
        f"{by_itself}; if its process is dead, it can be resolved from {at:%Y-%m-%d %H:%M:%S} UTC, unless "
        "the worker sends an event before"
    )


def intervene(
    ticket: EscalationTicket, *, analysis: str, urgency: str, by: str, now: float, is_untriaged: bool = False
) -> EscalationTicket:
    """
    Notify an operator, or update the analysis of a ticket that was notified before.

    Args:
        ticket: A ticket that is open, intervening or acknowledged.
        is_untriaged: Triage did not answer in time; only for a ticket that waits for it.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket was dismissed; or, with ``is_untriaged``, triage has decided.
    """
    _must_be_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(ticket, "intervene on", "it reopens by itself if it gets worse")
    if is_untriaged and ticket.status is not TicketStatus.OPEN:
        raise TicketStatusError(ticket, "bypass triage of", "triage has decided")
    update: dict[str, object] = {
        "analysis": analysis,
        "urgency": urgency,
        "triage_decision": "bypass" if is_untriaged else "intervene",
        "triage_reason": analysis,
        "triaged_at": now,
        "triaged_by": by,
        "untriaged": is_untriaged,
        "updated_at": now,
    }
    if ticket.status is TicketStatus.OPEN:
        update |= {
            "status": TicketStatus.INTERVENING,
            "notified_severity": ticket.severity,
            "notified_at": now,
            "bumped_at": now,
        }
    return ticket.model_copy(update=update)


def join(ticket: EscalationTicket, earlier: EscalationTicket) -> EscalationTicket:
    """
    Make a ticket part of an earlier one's incident.

    No one is notified again, so its reminders continue those of the earlier ticket, closed or not.
    """
    since = earlier.notified_at if earlier.incident_since is None else earlier.incident_since
    return ticket.model_copy(
        update={
            "incident_id": earlier.incident,
            "incident_since": since,
            "bumped_at": earlier.bumped_at if earlier.bumped_at is not None else earlier.triaged_at,
            "reminders": earlier.reminders,
            "requests": earlier.requests,
        }
    )


def is_reminded_with(ticket: EscalationTicket, other: EscalationTicket) -> bool:
    """Return whether a reminder of ``ticket`` covers ``other``: same incident, same last notification."""
    return (
        other.ticket_id != ticket.ticket_id
        and other.status is TicketStatus.INTERVENING
        and other.incident == ticket.incident
        and other.bumped_at == ticket.bumped_at
    )


def acknowledge(
    ticket: EscalationTicket,
    *,
    by: str,
    now: float,
    via: AckChannel = AckChannel.API,
    note: str = "",
) -> EscalationTicket:
    """
    Acknowledge a ticket: its reminders stop.

    Args:
        ticket: A ticket that is open or intervening; or one of an incident whose session has ended, while it
            counts for the incident. That one stays closed.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket was dismissed or acknowledged already.
    """
    if not counts_after_its_end(ticket, now):
        _must_be_live(ticket)
    if ticket.status is TicketStatus.ACKNOWLEDGED or (not ticket.is_live and ticket.acknowledged_by):
        raise TicketStatusError(ticket, "acknowledge", f"{ticket.acknowledged_by} acknowledged it already")
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(ticket, "acknowledge", "there is nothing to do; it reopens if it gets worse")
    return ticket.model_copy(
        update={
            "status": TicketStatus.ACKNOWLEDGED if ticket.is_live else ticket.status,
            "acknowledged_at": now,
            "acknowledged_by": by,
            "acknowledged_via": via,
            "acknowledged_note": note,
            "updated_at": now,
        }
    )


def resolve_incident(
    ticket: EscalationTicket, *, by: str, now: float, via: AckChannel, note: str = ""
) -> EscalationTicket:
    """
    Record that a person resolved the incident of a ticket whose condition holds.

    It acknowledges the ticket, unless somebody has. Nothing joins the incident any more.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket was dismissed.
    """
    _must_be_live(ticket)
    if ticket.status is not TicketStatus.ACKNOWLEDGED:
        ticket = acknowledge(ticket, by=by, now=now, via=via, note=note)
    return ticket.model_copy(update={"incident_resolved_at": now, "updated_at": now})


def acknowledge_ended(
    ticket: EscalationTicket,
    *,
    by: str,
    now: float,
    via: AckChannel,
    note: str = "",
    is_resolved: bool = False,
) -> EscalationTicket:
    """
    Record that a person acknowledged the incident of a closed ticket whose alert is held open.

    Tickets that join the incident are acknowledged too; if the incident is resolved, none joins. An earlier
    acknowledgement stays.
    """
    update: dict[str, object] = {"updated_at": now}
    if not ticket.acknowledged_by:
        update |= {
            "acknowledged_at": now,
            "acknowledged_by": by,
            "acknowledged_via": via,
            "acknowledged_note": note,
        }
    if is_resolved:
        update["incident_resolved_at"] = now
    return ticket.model_copy(update=update)


def unacknowledge(ticket: EscalationTicket, *, now: float) -> EscalationTicket:
    """
    Withdraw an acknowledgement: reminders start over from now.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket is not acknowledged.
    """
    _must_be_live(ticket)
    if ticket.status is not TicketStatus.ACKNOWLEDGED:
        raise TicketStatusError(ticket, "unacknowledge", "nobody acknowledged it")
    update: dict[str, object] = {
        "status": TicketStatus.OPEN,
        "acknowledged_at": None,
        "acknowledged_by": "",
        "acknowledged_via": None,
        "acknowledged_note": "",
        "incident_resolved_at": None,
        "updated_at": now,
    }
    if ticket.triage_decision in ("intervene", "bypass"):
        update |= {
            "status": TicketStatus.INTERVENING,
            # Null if it was acknowledged before triage: no one was notified yet.
            "notified_severity": ticket.notified_severity or ticket.severity,
            "notified_at": ticket.notified_at if ticket.notified_at is not None else now,
            "bumped_at": now,
            "reminders": 0,
        }
    return ticket.model_copy(update=update)


def _close(ticket: EscalationTicket, status: TicketStatus, reason: str, now: float) -> EscalationTicket:
    update: dict[str, object] = {
        "closed_at": now,
        "closed_reason": reason,
        "updated_at": now,
        "active_kinds": (),
    }
    if ticket.status is not TicketStatus.DISMISSED:  # a dismissal stays visible
        update["status"] = status
    return ticket.model_copy(update=update)


def _must_be_live(ticket: EscalationTicket) -> None:
    if not ticket.is_live:
        raise TicketClosedError(ticket)
