"""Routes for tickets, and for operators' actions on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import Field

from queenright import api
from queenright.alerting.alert import trace_link
from queenright.alerting.notification_ledger import list_deliveries
from queenright.health.findings import Severity
from queenright.health.store.former_names import find_current_name
from queenright.health.tickets.ticket import AckChannel, EscalationTicket, TicketNotFoundError, TicketStatus
from queenright.runtime.events import LATEST_TIME
from queenright.server.access.caller import get_person_name
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.gateway_requests import (
    MatchingTicket,
    MatchingTickets,
    is_from_gateway,
    make_gateway_response,
)
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import AgentId, AgentQuery, By, ExpectedWorker, Reason, TicketId
from queenright.server.routes.preconditions import require_unchanged_ticket
from queenright.server.routes.short_ids import MAX_CANDIDATES, complete_id
from queenright.server.service import Service
from queenright.server.views.api_models import make_ticket_row
from queenright.server.views.possible_actions import list_ticket_actions
from queenright.server.views.ticket_timeline import build_timeline

router = APIRouter(prefix="/api", tags=["tickets"])


class TicketRequest(ExpectedWorker):
    """Who acts on the ticket."""

    by: By = "operator"


class Unacknowledge(TicketRequest):
    """Who withdraws the acknowledgement, and through which client."""

    # Slack and PagerDuty are not accepted here, because their signed requests have their own routes.
    via: Literal["api", "cli"] = "api"


class Acknowledge(Unacknowledge):
    """Who acknowledges the ticket, with a note."""

    note: Annotated[str, Field(max_length=1000)] = ""


class Dismiss(TicketRequest):
    """Who dismisses the ticket, and why."""

    reason: Reason


class Resolve(TicketRequest):
    """Who resolves the ticket, and how."""

    reason: Reason


async def find_ticket(service: Service, ticket_id: str) -> EscalationTicket:
    """Return a ticket. Raises ``TicketNotFoundError`` if there is none."""
    ticket = await service.tickets.find(ticket_id)
    if ticket is None:
        raise TicketNotFoundError(ticket_id)
    return ticket


async def find_ticket_by_prefix(service: Service, prefix: str) -> EscalationTicket:
    """
    Return the ticket with this id, or the only one whose id begins with ``prefix``.

    Raises:
        TicketNotFoundError: There is no match.
        HTTPException: 409 with candidates if there are several.
    """
    matches = {
        ticket.ticket_id: ticket
        for ticket in await service.tickets.find_by_prefix(prefix, MAX_CANDIDATES + 1)
    }
    agents = {ticket_id: ticket.agent_id for ticket_id, ticket in matches.items()}
    ticket = matches.get(complete_id(prefix, "tickets", agents))
    if ticket is None:
        raise TicketNotFoundError(prefix)
    return ticket


async def read_ticket(service: Service, ticket_id: str) -> api.Ticket:
    """Return a ticket as a model of the API. Raises ``TicketNotFoundError`` if there is none."""
    [row] = await _make_ticket_rows(service, [await find_ticket(service, ticket_id)])
    return row


async def _make_ticket_rows(service: Service, tickets: Sequence[EscalationTicket]) -> list[api.Ticket]:
    ids = [ticket.ticket_id for ticket in tickets]
    deliveries = await service.store.read(lambda conn: list_deliveries(conn, ids)) if ids else {}
    return [
        make_ticket_row(
            ticket,
            active_silence=service.silences.find_silence(ticket.ticket_id),
            delivered_notifications=deliveries.get(ticket.ticket_id, ()),
            trace_url=trace_link(ticket, service.settings.alerting),
            actions=list_ticket_actions(service, ticket),
        )
        for ticket in tickets
    ]


async def _build_tickets_page(
    service: Service, limit: int, cursor: str | None, **filters: Any
) -> api.TicketsPage:
    before = decode_cursor(cursor, "tickets", float, str)
    tickets = await service.tickets.history(limit + 1, before=before, **filters)
    if not tickets and (name := filters.get("agent_id")):
        current_name = await service.store.read(lambda conn: find_current_name(conn, name))
        if current_name is not None:
            tickets = await service.tickets.history(
                limit + 1, before=before, **filters | {"agent_id": current_name[0]}
            )
    return await build_page(
        api.TicketsPage,
        "tickets",
        await _make_ticket_rows(service, tickets),
        limit,
        row=lambda row: row,
        position=lambda row: (row.first_seen, row.ticket_id),
        descending=True,
    )


@router.get("/tickets")
async def list_tickets(
    service: ServiceDep,
    status: Annotated[
        list[TicketStatus] | None, Query(description="Only tickets with this status; repeatable.")
    ] = None,
    severity: Annotated[Severity | None, Query(description="Only tickets of this severity.")] = None,
    agent_id: AgentQuery = None,
    since: Annotated[
        float | None,
        Query(
            ge=0,
            le=LATEST_TIME,
            allow_inf_nan=False,
            description="Only tickets opened at or after this time, in epoch seconds.",
        ),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.TicketsPage:
    """List tickets, newest first, open or closed."""
    filters = {"statuses": status, "severity": severity, "agent_id": agent_id, "since": since}
    return await _build_tickets_page(service, limit, cursor, **filters)


@router.get("/agents/{agent_id:agent}/escalations")
async def list_agent_escalations(
    service: ServiceDep, agent_id: AgentId, limit: Limit = 100, cursor: Cursor = None
) -> api.TicketsPage:
    """List the tickets of a worker, newest first, open or closed."""
    return await _build_tickets_page(service, limit, cursor, agent_id=agent_id)


@router.get("/agents/{agent_id:agent}/escalations/{ticket_id}", **operation(errors=(404,)))
async def get_agent_escalation(service: ServiceDep, agent_id: AgentId, ticket_id: TicketId) -> api.Ticket:
    """Return a ticket of a worker; a 404 if the ticket belongs to another worker."""
    ticket = await read_ticket(service, ticket_id)
    if ticket.agent_id != agent_id:
        raise HTTPException(404, f"ticket {ticket_id!r} belongs to {ticket.agent_id!r}, not to {agent_id!r}")
    return ticket


@router.get(
    "/tickets/{ticket_id}",
    response_model=api.Ticket,
    **operation(errors={404: "There is no such ticket.", 409: "Several tickets' ids begin with this id."}),
)
async def get_ticket(
    request: Request,
    service: ServiceDep,
    ticket_id: Annotated[
        str, Path(description="The ticket's id, or its unique beginning (8 characters or more).")
    ],
) -> api.Ticket | Response:
    """Return a ticket."""
    if is_from_gateway(request):
        matches = await service.tickets.find_by_prefix(ticket_id, MAX_CANDIDATES + 1)
        return make_gateway_response(
            MatchingTickets(tickets=[MatchingTicket.of(ticket) for ticket in matches])
        )
    [row] = await _make_ticket_rows(service, [await find_ticket_by_prefix(service, ticket_id)])
    return row


@router.post("/tickets/{ticket_id}/acknowledge", **operation(errors=(404, 409)))
async def acknowledge_ticket(
    request: Request, service: ServiceDep, ticket_id: TicketId, body: Acknowledge | None = None
) -> api.Ticket:
    """Acknowledge a ticket. Its reminders stop."""
    change = body or Acknowledge()
    await require_unchanged_ticket(service, change, ticket_id)
    await service.tickets.acknowledge(
        ticket_id, by=get_person_name(request, change.by), via=AckChannel(change.via), note=change.note
    )
    return await read_ticket(service, ticket_id)


@router.post("/tickets/{ticket_id}/unacknowledge", **operation(errors=(404, 409)))
async def unacknowledge_ticket(
    request: Request, service: ServiceDep, ticket_id: TicketId, body: Unacknowledge | None = None
) -> api.Ticket:
    """Withdraw an acknowledgement. Reminders start again."""
    change = body or Unacknowledge()
    await require_unchanged_ticket(service, change, ticket_id)
    await service.tickets.unacknowledge(
        ticket_id, by=get_person_name(request, change.by), via=AckChannel(change.via)
    )
    return await read_ticket(service, ticket_id)


@router.post("/tickets/{ticket_id}/dismiss", **operation(errors=(404, 409)))
async def dismiss_ticket(
    request: Request, service: ServiceDep, ticket_id: TicketId, body: Dismiss
) -> api.Ticket:
    """
    Dismiss a ticket. Nobody is notified, and the ticket reopens if its condition gets worse.

    Neither the queen nor an operator can dismiss a ticket that is high or critical while its condition holds,
    or that an operator was notified of. The ticket of a dead worker is resolved instead, regardless of
    its severity. Close tickets about abandoned recoveries and failed runs with `resolve`.
    """
    await require_unchanged_ticket(service, body, ticket_id)
    ticket, by = await service.tickets.find(ticket_id), get_person_name(request, body.by)
    if ticket is not None and service.tickets.is_about_dead_worker(ticket):
        await service.tickets.resolve(ticket_id, f"dismissed: {body.reason}", by=by)
    else:
        await service.tickets.dismiss(ticket_id, body.reason, by=by)
    return await read_ticket(service, ticket_id)


@router.get("/tickets/{ticket_id}/timeline", **operation(errors=(404,)))
async def get_ticket_timeline(service: ServiceDep, ticket_id: TicketId) -> api.Timeline:
    """Return the timeline of a ticket, oldest first: triage, notifications, interventions, and its end."""
    ticket = await find_ticket(service, ticket_id)
    return await service.store.read(lambda conn: build_timeline(conn, ticket))


@router.post("/tickets/{ticket_id}/resolve", **operation(errors=(404, 409)))
async def resolve_ticket(
    request: Request, service: ServiceDep, ticket_id: TicketId, body: Resolve
) -> api.Ticket:
    """Close a ticket about a dead worker, an abandoned recovery or failed runs."""
    await require_unchanged_ticket(service, body, ticket_id)
    await service.tickets.resolve(ticket_id, body.reason, by=get_person_name(request, body.by))
    return await read_ticket(service, ticket_id)
