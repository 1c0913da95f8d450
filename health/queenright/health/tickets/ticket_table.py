"""Tickets in the database. Each row has the ticket as JSON, and columns for searches."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import Column, Connection, Select, bindparam, select

from queenright.health.findings import FindingKind, Severity
from queenright.health.store.rows import ModelTable, Place, batches, newest_first
from queenright.health.store.tables import TICKETS
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus

_MAX_RECENT: Final = 20
"""The maximum number of tickets of one agent and cause to read."""

# Statements are built once, because that takes several times longer than running them in SQLite.
_TABLE: Final = ModelTable(TICKETS, EscalationTicket)
_LIVE_QUERY: Final = (
    select(TICKETS.c.body)
    .where(TICKETS.c.closed_at.is_(None))
    .order_by(TICKETS.c.first_seen, TICKETS.c.ticket_id)
)
_WORKER_QUERY: Final = _LIVE_QUERY.where(
    TICKETS.c.agent_id == bindparam("agent"), TICKETS.c.session_id == bindparam("session")
)
_RECENT_QUERY: Final = (
    select(TICKETS.c.body)
    .where(TICKETS.c.agent_id == bindparam("agent"), TICKETS.c.kind == bindparam("cause"))
    .where((TICKETS.c.first_seen >= bindparam("since")) | TICKETS.c.closed_at.is_(None))
    .order_by(TICKETS.c.first_seen.desc(), TICKETS.c.ticket_id.desc())
    .limit(_MAX_RECENT)
)


def insert_ticket(conn: Connection, ticket: EscalationTicket) -> None:
    """
    Store a new ticket.

    Raises:
        sqlalchemy.exc.IntegrityError: The worker's session has an open ticket, or the condition has a live
            ticket.
    """
    _TABLE.insert(conn, ticket)


def write_ticket(conn: Connection, ticket: EscalationTicket) -> None:
    """Store a new or changed ticket. Raises ``IntegrityError`` like ``insert_ticket``."""
    _TABLE.write(conn, ticket)


def find_ticket(conn: Connection, ticket_id: str) -> EscalationTicket | None:
    """Return the ticket with this id, or None."""
    return _TABLE.find(conn, ticket_id)


def tickets_by_prefix(conn: Connection, prefix: str, limit: int) -> list[EscalationTicket]:
    """Return up to ``limit`` tickets whose id begins with ``prefix``, sorted by id."""
    return _TABLE.find_by_prefix(conn, prefix, limit)


def live_tickets(conn: Connection, *, agent_id: str | None = None) -> list[EscalationTicket]:
    """Return the live tickets of one agent, or of all agents, oldest first."""
    query = _LIVE_QUERY if agent_id is None else _LIVE_QUERY.where(TICKETS.c.agent_id == agent_id)
    return _TABLE.read(conn, query)


def live_tickets_of_worker(conn: Connection, agent_id: str, session_id: str) -> list[EscalationTicket]:
    """Return live tickets of one worker's session, oldest first."""
    return _TABLE.read(conn, _WORKER_QUERY, {"agent": agent_id, "session": session_id})


def tickets_of_worker(conn: Connection, agent_id: str, session_id: str) -> list[EscalationTicket]:
    """Return all tickets of one worker's session."""
    query = select(TICKETS.c.body).where(TICKETS.c.agent_id == agent_id, TICKETS.c.session_id == session_id)
    return _TABLE.read(conn, query)


def live_tickets_of_incidents(conn: Connection, tickets: Collection[str]) -> list[EscalationTicket]:
    """Return live tickets of the incidents that the given tickets belong to, oldest first."""
    members = _read_with(conn, select(TICKETS.c.body), TICKETS.c.ticket_id, tickets)
    incidents = {ticket.incident for ticket in members}
    live = _read_with(conn, _LIVE_QUERY, TICKETS.c.agent_id, {ticket.agent_id for ticket in members})
    return sorted(
        (ticket for ticket in live if ticket.incident in incidents),
        key=lambda ticket: (ticket.first_seen, ticket.ticket_id),
    )


def ended_tickets_of_incidents(
    conn: Connection, tickets: Collection[str], among: Collection[str]
) -> list[EscalationTicket]:
    """Return the tickets in ``among`` that have closed and belong to the incidents of the given tickets."""
    body = select(TICKETS.c.body)
    incidents = {ticket.incident for ticket in _read_with(conn, body, TICKETS.c.ticket_id, tickets)}
    candidates = _read_with(conn, body, TICKETS.c.ticket_id, among)
    return [ticket for ticket in candidates if not ticket.is_live and ticket.incident in incidents]


def recent_tickets(
    conn: Connection, agent_id: str, kind: FindingKind, since: float
) -> list[EscalationTicket]:
    """
    Return an agent's tickets with one cause that are live or were opened at or after ``since``, newest first.
    """
    parameters = {"agent": agent_id, "cause": kind.value, "since": since}
    return _TABLE.read(conn, _RECENT_QUERY, parameters)


def ticket_history(
    conn: Connection,
    *,
    limit: int,
    agent_id: str | None = None,
    statuses: Collection[TicketStatus] | None = None,
    severity: Severity | None = None,
    since: float | None = None,
    before: Place | None = None,
) -> list[EscalationTicket]:
    """
    Return a page of tickets, newest first, including closed ones. ``before`` is the cursor of the page.

    With ``since``, only tickets that were opened at or after this time are returned (seconds since the
    epoch).
    """
    query = select(TICKETS.c.body)
    if agent_id is not None:
        query = query.where(TICKETS.c.agent_id == agent_id)
    if statuses is not None:
        query = query.where(TICKETS.c.status.in_([status.value for status in statuses]))
    if severity is not None:
        query = query.where(TICKETS.c.severity == severity.value)
    if since is not None:
        query = query.where(TICKETS.c.first_seen >= since)
    query = newest_first(query, TICKETS.c.first_seen, TICKETS.c.ticket_id, limit=limit, before=before)
    return _TABLE.read(conn, query)


def _read_with(
    conn: Connection, query: Select[tuple[str]], column: Column[str], values: Collection[str]
) -> list[EscalationTicket]:
    return [row for batch in batches(values) for row in _TABLE.read(conn, query.where(column.in_(batch)))]
