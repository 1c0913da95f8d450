"""What several workers share, over HTTP: incidents, and how their model providers do."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter

from queenright import api
from queenright.health.incidents import incidents_of
from queenright.server.routes.openapi import says, to
from queenright.server.service import Service
from queenright.server.views.view import incident_row, provider_row

_DAYS: Final = 7 * 86_400.0
_TICKETS: Final = 10_000


def shared_router(service: Service) -> APIRouter:
    """Return the routes of incidents and of model providers."""
    router = APIRouter()

    @router.get(
        "/api/incidents",
        tags=["tickets"],
        **says(
            "list_incidents",
            api.Incidents,
            links={"ticket": to("get_ticket", ticket_id="incidents/0/ticket_ids/0")},
        ),
    )
    async def incidents() -> Any:
        """Incidents of the last seven days, newest first: tickets of several workers that share a cause."""
        since = service.clock() - _DAYS
        tickets = await service.tickets.history(_TICKETS, since=since)
        return {"incidents": [incident_row(one) for one in incidents_of(tickets)]}

    @router.get("/api/providers", tags=["health"], **says("list_providers", api.Providers))
    async def providers() -> Any:
        """How each model provider does, by the fleet's own calls of the last ten minutes."""
        return {"providers": [provider_row(one) for one in service.providers.providers(service.clock())]}

    return router
