"""Tickets over HTTP: what there is, and what a person says about one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from queenright.alerting.told_book import told_of
from queenright.health.tickets import (
    EscalationTicket,
    TicketClosed,
    TicketError,
    TicketRefused,
    TicketUnknown,
    Way,
    WrongStatus,
)
from queenright.server.health_api import Body, By, Reason
from queenright.server.paging import Cursor, Limit, page, place_of
from queenright.server.problems import problem
from queenright.server.service import Service
from queenright.server.view import ticket_row

_STATUS: dict[type[TicketError], int] = {
    TicketUnknown: 404,
    TicketClosed: 409,
    WrongStatus: 409,
    TicketRefused: 422,
}


class Acknowledged(Body):
    """Who has it in hand."""

    by: By = "operator"


class Said(Acknowledged):
    """Who has it in hand, or not any more, and by which command."""

    # That somebody said it in Slack or PagerDuty, only a signature shows.
    via: Literal["api", "cli"] = "api"


class InHand(Said):
    """Who has it in hand."""

    note: Annotated[str, Field(max_length=1000)] = ""


class Resolved(Acknowledged):
    """Who has settled it, and how."""

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
    told = await service.store.read(lambda conn: told_of(conn, ids))
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

    @router.get("/api/tickets")
    async def tickets(limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Tickets, newest first, open or not."""
        before = place_of(cursor, "tickets", float, str)
        found = await _rows(service, await service.tickets.history(limit + 1, before=before))
        return await page(
            "tickets",
            found,
            limit,
            row=dict,
            place=lambda one: (one["first_seen"], one["ticket_id"]),
        )

    @router.get("/api/tickets/{ticket_id}")
    async def ticket(ticket_id: str) -> dict[str, Any]:
        """One ticket."""
        return await found_ticket(service, ticket_id)

    @router.post("/api/tickets/{ticket_id}/acknowledge")
    async def acknowledge(ticket_id: str, body: InHand | None = None) -> dict[str, Any]:
        """Say that a person has it in hand: nobody is reminded of it any more."""
        said = body or InHand()
        await service.tickets.acknowledge(ticket_id, by=said.by, via=Way(said.via), note=said.note)
        return await found_ticket(service, ticket_id)

    @router.post("/api/tickets/{ticket_id}/unacknowledge")
    async def unacknowledge(ticket_id: str, body: Said | None = None) -> dict[str, Any]:
        """Say that nobody has it in hand any more: reminders count anew."""
        said = body or Said()
        await service.tickets.unacknowledge(ticket_id, by=said.by, via=Way(said.via))
        return await found_ticket(service, ticket_id)

    @router.post("/api/tickets/{ticket_id}/resolve")
    async def resolve(ticket_id: str, body: Resolved) -> dict[str, Any]:
        """Close a ticket about a failed recovery: a person has settled it some other way."""
        await service.tickets.resolve(ticket_id, body.reason, by=body.by)
        return await found_ticket(service, ticket_id)

    return router
