"""Requests that a cluster's gateway sends to several partitions, and the responses that only it receives."""

from __future__ import annotations

from fastapi import Request, Response

from queenright.api.base_model import ApiModel
from queenright.server.http.gateway_header import GATEWAY_HEADER
from queenright.server.views.incident_parts import IncidentPart


class LocatedWorker(ApiModel):
    """The response if this partition has the worker."""

    last_activity: float


class IncidentParts(ApiModel):
    """The parts of incidents in this partition. A part may have a single worker."""

    incidents: list[IncidentPart]


class MatchingTicket(ApiModel):
    """A ticket whose id begins with an abbreviated id."""

    ticket_id: str
    agent_id: str


class MatchingTickets(ApiModel):
    """The tickets whose ids begin with an abbreviated id."""

    tickets: list[MatchingTicket]


def is_from_gateway(request: Request) -> bool:
    """Return whether the gateway sends this request to several partitions."""
    return GATEWAY_HEADER in request.headers


def make_gateway_response(model: ApiModel) -> Response:
    """Return a response that only the gateway receives. Other callers get the documented model."""
    return Response(model.model_dump_json(), media_type="application/json")
