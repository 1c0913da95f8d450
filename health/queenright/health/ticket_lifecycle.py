"""
The life of a ticket: every change it may go through, as pure functions that return the changed ticket.

::

    open ──intervene──▶ intervening ──acknowledge──▶ acknowledged
      └───dismiss────▶ dismissed ──worse──▶ open
    acknowledged ──unacknowledge──▶ intervening, or open if triage has not answered
    any ──cleared, and stayed so for the hold──▶ closed (resolved; a dismissed one stays dismissed)
    any ──worker ended──▶ closed (worker_gone; a dismissed one stays dismissed)
    not dismissed, about a failed recovery, failed runs or a dead worker ──resolve──▶ closed (resolved)
    intervening ──nobody acknowledges──▶ intervening, and the operator is reminded

While the hold runs the status stays what it was and ``condition_cleared_at`` is set; a relapse unsets it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from queenright.health.findings import HOLDS_AFTER_THE_END, FindingKind, Severity
from queenright.health.tickets import (
    EscalationTicket,
    TicketClosedError,
    TicketStatus,
    TicketStatusError,
    Way,
)

Change = Literal["opened", "reopened", "rose", "renewed", "counted"]
"""What a report did to a ticket: ``renewed`` is new words alone. All but ``counted`` are published."""


def report(
    ticket: EscalationTicket, *, severity: Severity, kinds: Sequence[FindingKind], now: float
) -> tuple[EscalationTicket, Change]:
    """
    Count one more report of the condition.

    Severity only rises. Within the hold a report is a relapse. A dismissed ticket is open again if the
    report is worse than what was dismissed, or if it had cleared and is high or critical: such a one can
    only have been dismissed because it had recovered.

    Args:
        ticket: A live ticket.
        severity: How bad it is now.
        kinds: What holds now, worst first; kinds the ticket does not know are folded in.
        now: Seconds since the epoch.

    Raises:
        TicketClosedError: It is closed.
    """
    _must_be_live(ticket)
    rose = severity.rank > ticket.severity.rank
    relapsed = ticket.condition_cleared_at is not None
    dismissed = ticket.status is TicketStatus.DISMISSED
    reopens = dismissed and (rose or (relapsed and severity.rank >= Severity.HIGH.rank))
    known = {ticket.kind, *ticket.related_kinds}
    update: dict[str, object] = {
        "occurrences": ticket.occurrences + 1,
        "last_seen": now,
        "updated_at": now,
        "condition_cleared_at": None,
        "active_kinds": tuple(kinds),
        "related_kinds": (*ticket.related_kinds, *(kind for kind in kinds if kind not in known)),
    }
    if reopens:
        update["status"] = TicketStatus.OPEN
    if rose:
        update["severity"] = severity
        if ticket.status in (TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED):
            update |= {"notified_severity": severity, "reminders": 0}
    if rose or relapsed:
        update["bumped_at"] = now
    change: Change = "counted"
    if rose:
        change = "rose"
    elif relapsed and (reopens or not dismissed):
        change = "reopened"
    return ticket.model_copy(update=update), change


def clear(ticket: EscalationTicket, *, now: float) -> EscalationTicket:
    """Note that the condition is gone; the hold begins, unless it runs already."""
    _must_be_live(ticket)
    if ticket.condition_cleared_at is not None:
        return ticket
    return ticket.model_copy(update={"condition_cleared_at": now, "active_kinds": (), "updated_at": now})


def hold_ends(ticket: EscalationTicket, hold: float) -> float | None:
    """Return when ``settle`` will close the ticket if nothing happens, None if it will not."""
    if not ticket.live or ticket.condition_cleared_at is None:
        return None
    return ticket.condition_cleared_at + hold


def settle(ticket: EscalationTicket, *, now: float, hold: float) -> EscalationTicket:
    """Close the ticket if its condition has been gone for ``hold`` seconds; else return it as it is."""
    ends = hold_ends(ticket, hold)
    if ends is None or now < ends:
        return ticket
    return _close(ticket, TicketStatus.RESOLVED, f"the worker recovered and that held for {hold:g} s", now)


def remind_at(ticket: EscalationTicket, *, after: float, most: int) -> float | None:
    """
    Return when the operator is to be reminded of the ticket if nothing happens, None if never.

    Args:
        ticket: Any ticket.
        after: Seconds since it was last brought up.
        most: How many reminders there may be.
    """
    if ticket.status is not TicketStatus.INTERVENING or not ticket.live:
        return None
    # What may be over by itself in a moment is not brought up again: a relapse would be.
    if ticket.condition_cleared_at is not None or ticket.reminders >= most:
        return None
    # Tickets of versions before this one know only when they were decided on.
    bumped_at = ticket.bumped_at if ticket.bumped_at is not None else ticket.triaged_at
    return None if bumped_at is None else bumped_at + after


def remind(ticket: EscalationTicket, *, now: float, is_request: bool = False) -> EscalationTicket:
    """
    Bring a ticket up again that nobody has acknowledged.

    Args:
        ticket: A ticket that people were told of.
        now: Seconds since the epoch.
        is_request: There is something to decide or do; that uses up no reminder.

    Raises:
        TicketClosedError: It is closed.
        TicketStatusError: Nobody was told of it, or somebody has it.
    """
    _must_be_live(ticket)
    if ticket.status is not TicketStatus.INTERVENING:
        raise TicketStatusError(
            ticket, "remind of", "only what was told and not acknowledged is brought up again"
        )
    told = ticket.notified_at if ticket.notified_at is not None else ticket.triaged_at
    update = {
        "notified_at": told,
        "bumped_at": now,
        "reminders": ticket.reminders + (not is_request),
        "requests": ticket.requests + is_request,
        "updated_at": now,
    }
    return ticket.model_copy(update=update)


def worker_ended(
    ticket: EscalationTicket, *, now: float, reason: str = "the worker ended"
) -> EscalationTicket:
    """Close the ticket of a worker that is no more."""
    _must_be_live(ticket)
    return _close(ticket, TicketStatus.WORKER_GONE, reason, now)


def resolve(
    ticket: EscalationTicket, *, reason: str, by: str, now: float, dead_from: float | None = None
) -> EscalationTicket:
    """
    Close a ticket about a worker that nobody could bring back, or whose runs fail: a person has settled it.

    Args:
        ticket: Such a ticket, or any of a dead worker.
        reason: How it was settled.
        by: Who settled it.
        now: Seconds since the epoch.
        dead_from: From when its worker counts as gone if nothing more is heard of it; None for never.

    Raises:
        TicketClosedError: It is closed.
        TicketStatusError: It is about something else, which closes by itself; or it was dismissed.
    """
    _must_be_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(
            ticket, "resolve", "nobody was told of it; it closes when the condition is gone"
        )
    if not can_be_resolved(ticket, now=now, dead_from=dead_from):
        stop = f'queenright terminate {ticket.worker_agent_id} --reason "..."'
        raise TicketStatusError(
            ticket, "resolve", f"{_when_it_closes(dead_from)}; to stop the worker: {stop}"
        )
    # A person's word ends it at once, also while the hold runs: nothing is held open any longer.
    ticket = ticket.model_copy(update={"condition_cleared_at": None})
    return _close(ticket, TicketStatus.RESOLVED, f"{by}: {reason}", now)


def can_be_resolved(ticket: EscalationTicket, *, now: float, dead_from: float | None) -> bool:
    """Return whether a ticket ends by a person's word alone; ``dead_from`` as for ``resolve``."""
    is_dead = dead_from is not None and dead_from <= now
    settles = is_dead or is_about_work(ticket)
    return ticket.live and ticket.status is not TicketStatus.DISMISSED and settles


def is_about_work(ticket: EscalationTicket) -> bool:
    """Return whether a ticket is about work that was given up, or about runs that failed."""
    return not HOLDS_AFTER_THE_END.isdisjoint((ticket.kind, *ticket.active_kinds))


def dismiss(
    ticket: EscalationTicket,
    *,
    reason: str,
    by: str,
    now: float,
    recovered: bool = False,
    dead_from: float | None = None,
) -> EscalationTicket:
    """
    Decide that nobody need be told.

    Args:
        ticket: An open ticket.
        reason: Why.
        by: Who decided.
        now: Seconds since the epoch.
        recovered: The condition was seen to be gone, though the ticket does not say so yet.
        dead_from: From when its worker counts as gone if nothing more is heard of it; None for never.

    Raises:
        TicketClosedError: It is closed.
        TicketStatusError: It is not open, or it is high or critical and its condition holds.
    """
    _must_be_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(ticket, "dismiss", "it was dismissed before; it opens again if it gets worse")
    may_resolve = can_be_resolved(ticket, now=now, dead_from=dead_from)
    how_to_resolve = (
        f'once it is settled, resolve it: queenright tickets resolve {ticket.ticket_id} --reason "..."'
    )
    if ticket.status is not TicketStatus.OPEN:
        is_taken = ticket.status is TicketStatus.ACKNOWLEDGED
        told = f"{ticket.acknowledged_by} has it" if is_taken else "people have been told of it"
        closes = how_to_resolve if may_resolve else _when_it_closes(dead_from)
        raise TicketStatusError(ticket, "dismiss", f"{told}; {closes}")
    holds = ticket.condition_cleared_at is None and not recovered
    if holds and ticket.severity.rank >= Severity.HIGH.rank:
        raise TicketStatusError(
            ticket,
            "dismiss",
            f"it is {ticket.severity} and still holds ({', '.join(ticket.active_kinds)}); intervene"
            + (f", or {how_to_resolve}" if may_resolve else ""),
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


def _when_it_closes(dead_from: float | None) -> str:
    """Say when a ticket can be closed that a person cannot close yet."""
    by_itself = "it closes by itself when its worker recovers or ends"
    if dead_from is None:
        return by_itself
    at = datetime.fromtimestamp(math.ceil(dead_from), UTC)
    return (
        f"{by_itself}; if its process is gone, it can be resolved from {at:%Y-%m-%d %H:%M:%S} UTC on, unless "
        "something is heard of the worker before"
    )


def intervene(
    ticket: EscalationTicket, *, analysis: str, urgency: str, by: str, now: float, untriaged: bool = False
) -> EscalationTicket:
    """
    Decide that an operator must know, or, on a ticket that one knows of, say anew what about it.

    Args:
        ticket: A ticket that is open, intervening or acknowledged.
        analysis: What the operator is told.
        urgency: How soon, in the queen's word.
        by: Who decided.
        now: Seconds since the epoch.
        untriaged: Triage did not answer in time; only of a ticket that still waits for it.

    Raises:
        TicketClosedError: It is closed.
        TicketStatusError: It was dismissed; or, with ``untriaged``, triage has answered.
    """
    _must_be_live(ticket)
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(ticket, "intervene on", "it opens again by itself if it gets worse")
    if untriaged and ticket.status is not TicketStatus.OPEN:
        raise TicketStatusError(ticket, "bypass triage of", "it has been decided")
    update: dict[str, object] = {
        "analysis": analysis,
        "urgency": urgency,
        "triage_decision": "bypass" if untriaged else "intervene",
        "triage_reason": analysis,
        "triaged_at": now,
        "triaged_by": by,
        "untriaged": untriaged,
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
    Let a ticket that people have just been told of be part of an earlier one's incident.

    Nobody is told anew, so it is reminded of as the earlier one would be, whether that is closed or not.
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
    """Return whether a reminder of a ticket is one of another, too: of one incident, brought up together."""
    return (
        other.ticket_id != ticket.ticket_id
        and other.status is TicketStatus.INTERVENING
        and other.incident == ticket.incident
        and other.bumped_at == ticket.bumped_at
    )


def acknowledge(
    ticket: EscalationTicket, *, by: str, now: float, via: Way = Way.API, note: str = ""
) -> EscalationTicket:
    """
    Note that an operator is on it: nobody is reminded of it any more.

    Args:
        ticket: A ticket that is open or intervening.
        by: Who.
        now: Seconds since the epoch.
        via: By what way it was said.
        note: What was said besides.

    Raises:
        TicketClosedError: It is closed.
        TicketStatusError: It was dismissed or acknowledged before.
    """
    _must_be_live(ticket)
    if ticket.status is TicketStatus.ACKNOWLEDGED:
        raise TicketStatusError(ticket, "acknowledge", f"{ticket.acknowledged_by} has it")
    if ticket.status is TicketStatus.DISMISSED:
        raise TicketStatusError(
            ticket, "acknowledge", "there is nothing to do; it opens again if it gets worse"
        )
    return ticket.model_copy(
        update={
            "status": TicketStatus.ACKNOWLEDGED,
            "acknowledged_at": now,
            "acknowledged_by": by,
            "acknowledged_via": via,
            "acknowledged_note": note,
            "updated_at": now,
        }
    )


def resolve_incident(
    ticket: EscalationTicket, *, by: str, now: float, via: Way, note: str = ""
) -> EscalationTicket:
    """
    Note that a person has closed the incident of a ticket whose condition holds.

    The ticket is in that person's hand, unless another has it. Nothing joins the incident any more.

    Raises:
        TicketClosedError: It is closed.
        TicketStatusError: It was dismissed before.
    """
    _must_be_live(ticket)
    if ticket.status is not TicketStatus.ACKNOWLEDGED:
        ticket = acknowledge(ticket, by=by, now=now, via=via, note=note)
    return ticket.model_copy(update={"incident_resolved_at": now, "updated_at": now})


def take_ended(
    ticket: EscalationTicket, *, by: str, now: float, via: Way, note: str = "", is_resolved: bool = False
) -> EscalationTicket:
    """
    Note that a person has the incident of a ticket that has ended, and whose alert is held open.

    What joins the incident is in the same hand; nothing joins it if the person has resolved it. Whoever had
    the ticket keeps it.
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
    Note that nobody is on it any more: it is brought up as if it had been told just now.

    Raises:
        TicketClosedError: It is closed.
        TicketStatusError: Nobody had acknowledged it.
    """
    _must_be_live(ticket)
    if ticket.status is not TicketStatus.ACKNOWLEDGED:
        raise TicketStatusError(ticket, "unacknowledge", "nobody has it in hand")
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
            # Null if it was acknowledged before triage: then nobody outside has heard of it yet.
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
    if ticket.status is not TicketStatus.DISMISSED:  # that it was dismissed must stay to be seen
        update["status"] = status
    return ticket.model_copy(update=update)


def _must_be_live(ticket: EscalationTicket) -> None:
    if not ticket.live:
        raise TicketClosedError(ticket)
