"""
The life cycle of a ticket. Each change is a pure function that returns the changed ticket.

::

    open ──intervene──▶ intervening ──acknowledge──▶ acknowledged
      └───dismiss────▶ dismissed ──worse──▶ open
    acknowledged ──unacknowledge──▶ intervening, or open if triage has not answered
    any ──condition gone for the hold──▶ closed (resolved; a dismissed one stays dismissed)
    any ──worker ended──▶ closed (worker_gone; a dismissed one stays dismissed)
    not dismissed, about a failed recovery, failed runs or a dead worker ──resolve──▶ closed (resolved)
    intervening ──not acknowledged──▶ intervening, with a reminder to the operator
    worker_gone, its incident open ──acknowledge──▶ worker_gone

The hold does not change the status. It sets ``condition_cleared_at``, which a relapse unsets.
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
"""
The effect of a report on a ticket. ``renewed`` means that only its text changed. ``counted`` is not
published.
"""


def report(
    ticket: EscalationTicket, *, severity: Severity, kinds: Sequence[FindingKind], now: float
) -> tuple[EscalationTicket, TicketChange]:
    """
    Count a report of the condition.

    The severity only rises. A report within the hold is a relapse. A dismissed ticket reopens if the report
    is worse than the dismissed condition. It also reopens if the condition had cleared and is high or
    critical again, because such a ticket could only be dismissed after the worker had recovered.

    Args:
        kinds: The kinds of the current findings, worst first. New kinds are added to the ticket.

    Raises:
        TicketClosedError: The ticket is closed.
    """
    _require_live(ticket)
    has_risen = severity.rank > ticket.severity.rank
    is_relapse = ticket.condition_cleared_at is not None
    is_dismissal = ticket.status is TicketStatus.DISMISSED
    is_reopened = is_dismissal and (has_risen or (is_relapse and severity.rank >= Severity.HIGH.rank))
    known_kinds = {ticket.kind, *ticket.related_kinds}
    update: dict[str, object] = {
        "occurrences": ticket.occurrences + 1,
        "last_seen": now,
        "updated_at": now,
        "condition_cleared_at": None,
        "active_kinds": tuple(kinds),
        "related_kinds": (*ticket.related_kinds, *(kind for kind in kinds if kind not in known_kinds)),
    }
    if is_reopened:
        update["status"] = TicketStatus.OPEN
    if has_risen:
        update["severity"] = severity
        if ticket.status in (TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED):
            update |= {"notified_severity": severity, "reminders": 0}
    if has_risen or is_relapse:
        update["bumped_at"] = now
    change: TicketChange = "counted"
    if has_risen:
        change = "rose"
    elif is_relapse and (is_reopened or not is_dismissal):
        change = "reopened"
    return ticket.model_copy(update=update), change


def clear(ticket: EscalationTicket, *, now: float) -> EscalationTicket:
    """Record that the condition has cleared. This starts the hold unless it is running."""
    _require_live(ticket)
    if ticket.condition_cleared_at is not None:
        return ticket
    return ticket.model_copy(update={"condition_cleared_at": now, "active_kinds": (), "updated_at": now})


def hold_ends(ticket: EscalationTicket, hold: float) -> float | None:
    """Return when the hold ends, so that ``settle`` closes the ticket, or None without a hold."""
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
    Return when to remind the operator of the ticket if it does not change, or None.

    Args:
        after: The seconds between the last notification or reminder and the next reminder.
    """
    if ticket.status is not TicketStatus.INTERVENING or not ticket.is_live:
        return None
    # There are no reminders during the hold, because the ticket may close soon.
    if ticket.condition_cleared_at is not None or ticket.reminders >= most:
        return None
    # Tickets of earlier versions have only the time of triage.
    bumped_at = ticket.bumped_at if ticket.bumped_at is not None else ticket.triaged_at
    return None if bumped_at is None else bumped_at + after


def remind(ticket: EscalationTicket, *, now: float, is_request: bool = False) -> EscalationTicket:
    """
    Record a reminder of a ticket that is not acknowledged.

    Args:
        ticket: A ticket that people were notified of.
        is_request: Whether it requests a decision or an action. If so, it does not count as a reminder.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: No one was notified of the ticket, or it is acknowledged.
    """
    _require_live(ticket)
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
"""The ``closed_reason`` of a ticket whose worker completed its run."""


def worker_ended(
    ticket: EscalationTicket, *, now: float, reason: str = "the worker ended"
) -> EscalationTicket:
    """Close the ticket of a worker that has ended."""
    _require_live(ticket)
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
        reason: How the problem was solved.
        dead_from: When the worker counts as dead if it stays silent, or None.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket is about something else and closes by itself, or it was dismissed.
    """
    _require_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(
            ticket, "resolve", "nobody was notified of it; it closes when the condition is gone"
        )
    if not can_be_resolved(ticket, now=now, dead_from=dead_from):
        raise TicketStatusError(
            ticket, "resolve", f"{_describe_close_time(dead_from)}; {_describe_how_to_stop(ticket)}"
        )
    # This also ends the hold.
    ticket = ticket.model_copy(update={"condition_cleared_at": None})
    return _close(ticket, TicketStatus.RESOLVED, f"{by}: {reason}", now)


def can_be_resolved(ticket: EscalationTicket, *, now: float, dead_from: float | None) -> bool:
    """Return whether a person can resolve the ticket. ``dead_from`` is that of ``resolve``."""
    is_dead = dead_from is not None and dead_from <= now
    has_resolvable_cause = is_dead or is_about_work(ticket)
    return ticket.is_live and ticket.status is not TicketStatus.DISMISSED and has_resolvable_cause


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
    Dismiss a ticket, so that no one is notified.

    Args:
        has_recovered: Whether the condition is gone, although the ticket does not record this yet.
        dead_from: When the worker counts as dead if it stays silent, or None.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket is not open, or it is high or critical and its condition holds.
    """
    _require_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(ticket, "dismiss", "it is dismissed already; it reopens if it gets worse")
    may_resolve = can_be_resolved(ticket, now=now, dead_from=dead_from)
    command = f'queenright tickets resolve {ticket.ticket_id} --reason "..."'
    how_to_resolve = f"once the problem is settled, resolve it: {command}"
    how_to_stop = _describe_how_to_stop(ticket)
    if ticket.status is not TicketStatus.OPEN:
        is_acknowledged = ticket.status is TicketStatus.ACKNOWLEDGED
        obstacle = f"{ticket.acknowledged_by} acknowledged it" if is_acknowledged else "people were notified"
        how_to_close = how_to_resolve if may_resolve else f"{_describe_close_time(dead_from)}; {how_to_stop}"
        raise TicketStatusError(ticket, "dismiss", f"{obstacle}; {how_to_close}")
    is_active = ticket.condition_cleared_at is None and not has_recovered
    if is_active and ticket.severity.rank >= Severity.HIGH.rank:
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


def _describe_how_to_stop(ticket: EscalationTicket) -> str:
    return f'to stop the worker: queenright terminate {shlex.quote(ticket.agent_id)} --reason "..."'


def _describe_close_time(dead_from: float | None) -> str:
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
        is_untriaged: Whether triage did not answer in time. The ticket must be waiting for triage.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket was dismissed, or ``is_untriaged`` is set although triage has decided.
    """
    _require_live(ticket)
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
    Make a ticket part of an earlier ticket's incident.

    No one is notified again, so its reminders continue those of the earlier ticket, which may be closed.
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
    """
    Return whether a reminder of ``ticket`` also covers ``other``: same incident, same last notification.
    """
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
    Acknowledge a ticket, which stops its reminders.

    Args:
        ticket: A ticket that is open or intervening. Or a ticket whose session has ended, while it counts for
            its incident; it stays closed.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket was already dismissed or acknowledged.
    """
    if not counts_after_its_end(ticket, now):
        _require_live(ticket)
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
    Record that a person resolved the incident of a ticket whose condition still holds.

    This also acknowledges the ticket, unless it is acknowledged. No ticket joins the incident any more.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket was dismissed.
    """
    _require_live(ticket)
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

    Tickets that join the incident are also acknowledged. If the incident is resolved, no ticket joins it. An
    earlier acknowledgement stays.
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
    Withdraw an acknowledgement. Reminders restart from now.

    Raises:
        TicketClosedError: The ticket is closed.
        TicketStatusError: The ticket is not acknowledged.
    """
    _require_live(ticket)
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
            # None if it was acknowledged before triage, when no one had been notified.
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


def _require_live(ticket: EscalationTicket) -> None:
    if not ticket.is_live:
        raise TicketClosedError(ticket)
