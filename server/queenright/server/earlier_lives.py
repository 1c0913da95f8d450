"""Which tickets belong to earlier lives of an agent: one that crashes is started anew. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from queenright.health.deadlines import shows_its_end
from queenright.health.findings import FindingKind
from queenright.health.tickets import EscalationTicket, TicketStatus
from queenright.health.vitals import VitalSigns

RECENT_SECONDS: Final = 3600.0
"""How far back the lives of an agent are counted."""
SHORT_SECONDS: Final = 600.0
"""A life that is longer, or begins so long after the one before it, is no part of a row of crashes."""

_SILENT_LIVES: Final = 2
"""So many lives that people were told of, one after the other, show that what falls silent has crashed."""


@dataclass(frozen=True, slots=True)
class EarlierLives:
    """What came before a ticket, of the same agent and cause."""

    tickets: tuple[str, ...] = ()
    """Those whose alert it joins if one of them fires, the latest first."""
    is_recurring: bool = False
    """Whether people were told of an earlier life within the last hour."""


def find_earlier_lives(
    ticket: EscalationTicket,
    others: Iterable[EscalationTicket],
    sessions: Mapping[str, VitalSigns],
    now: float,
) -> EarlierLives:
    """
    Find the earlier lives of a ticket's agent that the same happened to.

    A session is an earlier life if nothing was heard of it after this one began. The agent crashes again and
    again if this life was short and began soon after that one; any other trouble is told for itself. Of a
    session without heartbeats that has not said that it ended, nobody knows whether it is silent or gone; it
    counts as gone once two lives were told within the hour.

    Work that was given up is a person's, run by run: from the third within the hour on it joins what nobody
    has acknowledged yet. An incident that a person resolved in PagerDuty is closed there: nothing joins it.

    Args:
        ticket: A ticket.
        others: Tickets of the same agent and cause, the latest first.
        sessions: What is known of the agent's sessions.
        now: Seconds since the epoch.
    """
    mine = sessions.get(ticket.worker_session_id)
    if mine is None:
        return EarlierLives()
    began = mine.incarnation_started
    recent = [
        one
        for one in others
        if one.notified_at is not None
        and one.notified_at > now - RECENT_SECONDS
        and one.ticket_id != ticket.ticket_id
        and _is_earlier(one, ticket, sessions.get(one.worker_session_id), began)
    ]
    are_many = len(recent) >= _SILENT_LIVES
    resolved = {one.incident for one in recent if one.incident_resolved_at is not None}
    unresolved = [one for one in recent if one.incident not in resolved]
    if ticket.kind is FindingKind.RECOVERY_FAILED:
        joinable = [one for one in unresolved if are_many and not one.acknowledged_by]
    elif mine.last_event - began > SHORT_SECONDS:
        joinable = []
    else:
        joinable = [
            one
            for one in unresolved
            if _ended_lately(one, sessions.get(one.worker_session_id), began)
            and (are_many or _is_known_to_be_over(one, sessions.get(one.worker_session_id)))
        ]
    return EarlierLives(tuple(one.ticket_id for one in joinable), bool(recent))


def _is_earlier(
    one: EscalationTicket, ticket: EscalationTicket, session: VitalSigns | None, began: float
) -> bool:
    if one.worker_session_id == ticket.worker_session_id:
        # A session that was begun again, by another process.
        return one.closed_at is not None and one.incarnation_id != ticket.incarnation_id
    if session is not None:
        return session.last_event <= began
    return one.closed_at is not None and one.closed_at <= began


def _ended_lately(one: EscalationTicket, session: VitalSigns | None, began: float) -> bool:
    last = session.last_event if session is not None else one.closed_at or 0.0
    return began - last <= SHORT_SECONDS


def _is_known_to_be_over(one: EscalationTicket, session: VitalSigns | None) -> bool:
    return session is None or shows_its_end(session) or one.status is TicketStatus.WORKER_GONE
