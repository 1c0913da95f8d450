"""Heartbeats over HTTP, for workers that send no telemetry."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from queenright import api
from queenright.health.monitoring.heartbeat import parse_heartbeat
from queenright.server.http.gateway_header import GATEWAY_HEADER, LOCATE_WORKER
from queenright.server.routes.dependencies import HealthDep, ServiceDep
from queenright.server.routes.gateway_requests import LocatedWorker, is_from_gateway, make_gateway_response
from queenright.server.routes.openapi import make_request_body, operation
from queenright.server.routes.params import AgentId
from queenright.server.routes.preconditions import require_known_worker

router = APIRouter(prefix="/api", tags=["health"])

_TIMESTAMP = {"type": ["number", "string", "null"], "description": "Seconds since the epoch, or ISO 8601."}
_EMPTY = {"const": ""}
_COUNT = {"anyOf": [{"type": ["integer", "null"], "minimum": 0}, _EMPTY]}
_SECONDS = {"anyOf": [{"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 604_800}, _EMPTY]}
_NAME = {"type": ["string", "null"], "maxLength": 256}
_HEARTBEAT: dict[str, Any] = {
    "type": "object",
    "description": "Activity of a worker. An empty value means unknown. `camelCase` names are also accepted.",
    "required": ["agent_id"],
    "properties": {
        "agent_id": {"type": "string", "minLength": 1, "maxLength": 256},
        "session_id": _NAME,
        "incarnation_id": _NAME,
        "task_id": _NAME,
        "service_name": _NAME,
        "service_namespace": _NAME,
        "timestamp": _TIMESTAMP,
        "phase": _NAME,
        "last_tool_call": _TIMESTAMP,
        "token_count": _COUNT,
        "error_count": _COUNT,
        "progress_indicator": {"type": ["string", "number", "null"], "maxLength": 1000},
        "interval": _SECONDS,
    },
    "examples": [{"agent_id": "researcher", "task_id": "report-7", "token_count": 1200, "interval": 300}],
}


@router.get(
    "/agents/{agent_id:agent}/heartbeat",
    **operation(errors={404: "No heartbeat of this worker has been received."}),
)
async def get_last_heartbeat(health: HealthDep, agent_id: AgentId) -> api.Heartbeat:
    """Return the last heartbeat of a worker."""
    heartbeat = await health.get_last_heartbeat(agent_id)
    if heartbeat is None:
        raise HTTPException(404, f"no heartbeat of {agent_id!r} has been received")
    return api.Heartbeat.of(heartbeat)


@router.post(
    "/heartbeats",
    response_model=api.HeartbeatReceipt,
    **operation(status=202),
    openapi_extra=make_request_body(_HEARTBEAT, description="One heartbeat."),
)
async def record_heartbeat(request: Request, service: ServiceDep) -> api.HeartbeatReceipt | Response:
    """Record a heartbeat, in ``snake_case`` or ``camelCase``. It is durable when this returns."""
    heartbeat = parse_heartbeat(await request.body())
    if is_from_gateway(request):
        worker = require_known_worker(service, heartbeat.agent_id, heartbeat.session_id)
        if request.headers[GATEWAY_HEADER] == LOCATE_WORKER:
            return make_gateway_response(LocatedWorker(last_activity=worker.vitals.last_activity))
    await service.health.record_heartbeat(heartbeat)
    return api.HeartbeatReceipt(agent_id=heartbeat.agent_id)
