"""Which tickets belong to earlier lives of an agent: one that crashes is started anew. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from queenright.health.tickets import EscalationTicket, TicketStatus
from queenright.health.vitals import VitalSigns

RECENT_SECONDS: Final = 3600.0
"""How far back the lives of an agent are counted."""

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

    A session is an earlier life if nothing was heard of it after this one began. Of one without heartbeats
    that has not said that it ended, nobody knows whether it is silent or gone; it counts as gone once two
    lives were told within the hour.

    Args:
        ticket: A ticket.
        others: Tickets of the same agent and cause, the latest first.
        sessions: What is known of the agent's sessions.
        now: Seconds since the epoch.
    """
    mine = sessions.get(ticket.worker_session_id)
    if mine is None:
        return EarlierLives()
    over = [
        one
        for one in others
        if one.notified_at is not None
        and one.ticket_id != ticket.ticket_id
        and _is_earlier(one, ticket, sessions.get(one.worker_session_id), mine.incarnation_started)
    ]
    recent = [one for one in over if (one.notified_at or 0.0) > now - RECENT_SECONDS]
    if len(recent) < _SILENT_LIVES:
        joinable = [one for one in over if _is_known_to_be_over(one, sessions.get(one.worker_session_id))]
    else:
        joinable = over
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


def _is_known_to_be_over(one: EscalationTicket, session: VitalSigns | None) -> bool:
    if session is None or session.ended or session.last_heartbeat is not None:
        return True
    return one.status is TicketStatus.WORKER_GONE
