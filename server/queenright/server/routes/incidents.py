"""Attention items, incidents, and the health of model providers."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from queenright import api
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.gateway_requests import IncidentParts, is_from_gateway, make_gateway_response
from queenright.server.routes.params import AgentQuery, SessionQuery
from queenright.server.views.api_models import make_provider_row
from queenright.server.views.attention import find_incidents, list_attention_items, list_attention_part
from queenright.server.views.incident_parts import IncidentPart

router = APIRouter(prefix="/api")

_HISTORY_SECONDS: Final = 7 * 86_400.0
_MAX_TICKETS: Final = 10_000


# Not tagged "tickets", because most items have no ticket id, so links to ticket operations would be wrong.
@router.get("/attention", tags=["service"], response_model=api.AttentionList)
async def list_attention(
    service: ServiceDep, request: Request, agent_id: AgentQuery = None, session_id: SessionQuery = None
) -> api.AttentionList | Response:
    """List what needs a person, most urgent first: requests, questions, decisions, tickets, incidents."""
    if is_from_gateway(request):
        return make_gateway_response(list_attention_part(service, agent_id=agent_id, session_id=session_id))
    return list_attention_items(service, agent_id=agent_id, session_id=session_id)


@router.get("/incidents", tags=["tickets"], response_model=api.Incidents)
async def list_incidents(service: ServiceDep, request: Request) -> api.Incidents | Response:
    """
    List incidents, newest first: tickets of several workers that share a cause.

    Includes open incidents of any age, and all of the last seven days.
    """
    history = await service.tickets.history(_MAX_TICKETS, since=service.clock() - _HISTORY_SECONDS)
    # An incident that is still open may be older.
    tickets = {ticket.ticket_id: ticket for ticket in (*history, *service.tickets.recent_tickets())}.values()
    if not is_from_gateway(request):
        incidents = find_incidents(service, tickets)
        return api.Incidents(incidents=[api.Incident.of(incident) for incident in incidents])
    # The gateway joins the parts of an incident, so it also needs parts with a single worker.
    parts = find_incidents(service, tickets, least_workers=1)
    return make_gateway_response(IncidentParts(incidents=[IncidentPart.of(part) for part in parts]))


@router.get("/providers", tags=["health"])
async def list_providers(service: ServiceDep) -> api.Providers:
    """List model providers with their health, from the fleet's calls of the last ten minutes."""
    providers = service.providers.providers(service.clock())
    return api.Providers(providers=[make_provider_row(provider) for provider in providers])
