"""Tickets over HTTP: what there is, and what a person says about one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from queenright import api
from queenright.alerting.notification_ledger import told_of
from queenright.api.operations import Timeline
from queenright.health.findings import Severity
from queenright.health.tickets import (
    EscalationTicket,
    TicketClosedError,
    TicketError,
    TicketNotFoundError,
    TicketRejectedError,
    TicketStatus,
    TicketStatusError,
    Way,
)
from queenright.server.access.caller import who
from queenright.server.routes.openapi import says, to
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import AgentId, Body, By, OfAgent, Reason
from queenright.server.routes.problems import problem
from queenright.server.service import Service
from queenright.server.views.ticket_timeline import timeline
from queenright.server.views.view import ticket_row

TicketId = Annotated[str, Path(description="Which ticket.")]
_LATEST = 253_402_300_799.0
_NEXT = (
    "get_ticket",
    "get_ticket_timeline",
    "acknowledge_ticket",
    "unacknowledge_ticket",
    "dismiss_ticket",
    "resolve_ticket",
    "list_ticket_messages",
)
_OF_FIRST = {name: to(name, ticket_id="tickets/0/ticket_id") for name in _NEXT}
_OF_PATH = {name: to(name, ticket_id="path.ticket_id") for name in _NEXT if name != "get_ticket"}

_STATUS: dict[type[TicketError], int] = {
    TicketNotFoundError: 404,
    TicketClosedError: 409,
    TicketStatusError: 409,
    TicketRejectedError: 422,
}


def _by_ada(**more: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [{"by": "ada", **more}]})


class Acknowledged(Body):
    """Who has it in hand."""

    by: By = "operator"


class Said(Acknowledged):
    """Who has it in hand, or not any more, and by which command."""

    model_config = _by_ada()

    # That somebody said it in Slack or PagerDuty, only a signature shows.
    via: Literal["api", "cli"] = "api"


class InHand(Said):
    """Who has it in hand."""

    model_config = _by_ada(note="looking at it")

    note: Annotated[str, Field(max_length=1000)] = ""


class Dismissed(Acknowledged):
    """Who says that it is nothing, and why."""

    model_config = _by_ada(reason="it is slow, not stuck")

    reason: Reason


class Resolved(Acknowledged):
    """Who has settled it, and how."""

    model_config = _by_ada(reason="the task was done by hand")

    reason: Reason


def add_ticket_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of tickets, and the status codes of what they refuse."""
    for kind in _STATUS:
        app.add_exception_handler(kind, _refused)
    app.include_router(_routes(service), tags=["tickets"])


async def found_ticket(service: Service, ticket_id: str) -> dict[str, Any]:
    """Return a ticket as it is shown; raises ``HTTPException`` if there is none."""
    ticket = await service.tickets.find(ticket_id)
    if ticket is None:
        raise HTTPException(404, f"there is no ticket {ticket_id!r}")
    [row] = await _rows(service, [ticket])
    return row


async def _rows(service: Service, tickets: Sequence[EscalationTicket]) -> list[dict[str, Any]]:
    """Return tickets as they are shown, with what came of telling people."""
    ids = [ticket.ticket_id for ticket in tickets]
    told = await service.store.read(lambda conn: told_of(conn, ids)) if ids else {}
    now = service.clock()
    return [
        ticket_row(
            ticket,
            now,
            silenced=service.silences.of_ticket(ticket.ticket_id),
            told=told.get(ticket.ticket_id, ()),
        )
        for ticket in tickets
    ]


async def _refused(request: Request, error: Exception) -> JSONResponse:
    status = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
    return problem(status, str(error))


def _routes(service: Service) -> APIRouter:
    router = APIRouter()

    async def listed(limit: int, cursor: str | None, **which: Any) -> Response:
        before = place_of(cursor, "tickets", float, str)
        found = await _rows(service, await service.tickets.history(limit + 1, before=before, **which))
        return await page(
            "tickets",
            found,
            limit,
            row=dict,
            place=lambda one: (one["first_seen"], one["ticket_id"]),
        )

    @router.get("/api/tickets", **says("list_tickets", api.TicketsPage, links=_OF_FIRST))
    async def tickets(
        status: Annotated[
            list[TicketStatus] | None, Query(description="Only those that stand so; may be given again.")
        ] = None,
        severity: Annotated[Severity | None, Query(description="Only of this severity.")] = None,
        agent_id: OfAgent = None,
        since: Annotated[
            float | None,
            Query(ge=0, le=_LATEST, allow_inf_nan=False, description="Opened then or later; epoch seconds."),
        ] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        """Tickets, newest first, open or not."""
        return await listed(limit, cursor, statuses=status, severity=severity, agent_id=agent_id, since=since)

    @router.get(
        "/api/agents/{agent_id:agent}/escalations",
        **says(
            "list_agent_escalations",
            api.TicketsPage,
            links={
                "ticket": to(
                    "get_agent_escalation", agent_id="path.agent_id", ticket_id="tickets/0/ticket_id"
                )
            },
        ),
    )
    async def of_agent(agent_id: AgentId, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """The escalation tickets of one worker, newest first, open or not."""
        return await listed(limit, cursor, agent_id=agent_id)

    @router.get(
        "/api/agents/{agent_id:agent}/escalations/{ticket_id}",
        **says("get_agent_escalation", api.Ticket, refused=(404,)),
    )
    async def one_of_agent(agent_id: AgentId, ticket_id: TicketId) -> dict[str, Any]:
        """One ticket of a worker; 404 if it is of another one."""
        found = await found_ticket(service, ticket_id)
        if found["worker_agent_id"] != agent_id:
            raise HTTPException(
                404, f"ticket {ticket_id!r} is of {found['worker_agent_id']!r}, not of {agent_id!r}"
            )
        return found

    @router.get("/api/tickets/{ticket_id}", **says("get_ticket", api.Ticket, refused=(404,), links=_OF_PATH))
    async def ticket(ticket_id: TicketId) -> dict[str, Any]:
        """One ticket."""
        return await found_ticket(service, ticket_id)

    @router.post(
        "/api/tickets/{ticket_id}/acknowledge",
        **says("acknowledge_ticket", api.Ticket, refused=(404, 409), links=_OF_PATH),
    )
    async def acknowledge(
        request: Request, ticket_id: TicketId, body: InHand | None = None
    ) -> dict[str, Any]:
        """Say that a person has it in hand: nobody is reminded of it any more."""
        said = body or InHand()
        await service.tickets.acknowledge(
            ticket_id, by=who(request, said.by), via=Way(said.via), note=said.note
        )
        return await found_ticket(service, ticket_id)

    @router.post(
        "/api/tickets/{ticket_id}/unacknowledge",
        **says("unacknowledge_ticket", api.Ticket, refused=(404, 409)),
    )
    async def unacknowledge(
        request: Request, ticket_id: TicketId, body: Said | None = None
    ) -> dict[str, Any]:
        """Say that nobody has it in hand any more: reminders count anew."""
        said = body or Said()
        await service.tickets.unacknowledge(ticket_id, by=who(request, said.by), via=Way(said.via))
        return await found_ticket(service, ticket_id)

    @router.post(
        "/api/tickets/{ticket_id}/dismiss",
        **says("dismiss_ticket", api.Ticket, refused=(404, 409)),
    )
    async def dismiss(ticket_id: TicketId, body: Dismissed, request: Request) -> dict[str, Any]:
        """
        Say that it is nothing: nobody is told, and it opens again if it gets worse.

        As for the queen: not of one that is high or critical and still holds, nor of one that an operator
        was told of. One of a dead worker is resolved by it, however bad it was, but not work that was given
        up, nor runs that failed in a row: of these somebody says how they were settled.
        """
        ticket = await service.tickets.find(ticket_id)
        if ticket is not None and service.tickets.is_about_dead_worker(ticket):
            await service.tickets.resolve(ticket_id, f"dismissed: {body.reason}", by=who(request, body.by))
            return await found_ticket(service, ticket_id)
        await service.tickets.dismiss(ticket_id, body.reason, by=who(request, body.by))
        return await found_ticket(service, ticket_id)

    @router.get(
        "/api/tickets/{ticket_id}/timeline",
        **says("get_ticket_timeline", Timeline, refused=(404,)),
    )
    async def get_timeline(ticket_id: TicketId) -> dict[str, Any]:
        """The story of a ticket, oldest first: opened, triaged, told, acknowledged, what was done, closed."""
        ticket = await service.tickets.find(ticket_id)
        if ticket is None:
            raise HTTPException(404, f"there is no ticket {ticket_id!r}")
        entries, more = await service.store.read(lambda conn: timeline(conn, ticket))
        return {"timeline": entries, "more": more}

    @router.post(
        "/api/tickets/{ticket_id}/resolve",
        **says("resolve_ticket", api.Ticket, refused=(404, 409)),
    )
    async def resolve(request: Request, ticket_id: TicketId, body: Resolved) -> dict[str, Any]:
        """Close a ticket about a dead worker or a failed recovery: a person has settled it."""
        await service.tickets.resolve(ticket_id, body.reason, by=who(request, body.by))
        return await found_ticket(service, ticket_id)

    return router
