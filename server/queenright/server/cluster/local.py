"""Routes that each process of a cluster answers itself: probes, metrics, cluster state, emergency stop."""

from __future__ import annotations

import functools
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.applications import Starlette

from queenright import api
from queenright.server.access.access import Access
from queenright.server.access.caller import can_view_fleet, get_audit_name
from queenright.server.console.templates import render_error
from queenright.server.metrics.metrics import choose_content_type
from queenright.server.middleware.guarded_app import build_guarded_app
from queenright.server.routes import cluster, probes
from queenright.server.routes.errors import add_exception_handlers
from queenright.server.routes.interventions import EmergencyStopRequest

LOCAL_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics", "/api/cluster"})
"""Paths that each process answers for itself."""
EMERGENCY_STOP_PATH: Final = "/api/emergency-stop"
"""The path that each process answers for the whole fleet, if the fleet has several partitions."""

router = APIRouter()
router.add_api_route("/healthz", probes.get_alive)


@router.get("/readyz")
async def get_ready(request: Request, response: Response) -> api.Ready:
    """Return whether this process can accept telemetry and answer requests."""
    state: cluster.ClusterState = request.state.cluster
    reasons = state.ready()
    if reasons:
        response.status_code = 503
    return api.Ready(ready=not reasons, missing=reasons if can_view_fleet(request) else [])


@router.get("/metrics")
async def get_metrics(request: Request) -> Response:
    """Return the metrics of this process, with those of the workers that it watches."""
    state: cluster.ClusterState = request.state.cluster
    content_type = choose_content_type(request.headers.get("accept", ""))
    return Response(await state.render_metrics(content_type), headers={"Content-Type": content_type})


@router.get(EMERGENCY_STOP_PATH)
async def get_emergency_stop(request: Request) -> api.EmergencyStop:
    """Return whether interventions are frozen, since when, by whom and why."""
    state: cluster.ClusterState = request.state.cluster
    return api.EmergencyStop.of(await state.emergency_stop())


@router.put(EMERGENCY_STOP_PATH)
async def set_emergency_stop(request: Request, body: EmergencyStopRequest) -> api.EmergencyStop:
    """Freeze or resume the interventions of the fleet, even while partitions have no owner."""
    state: cluster.ClusterState = request.state.cluster
    by = get_audit_name(request, body.by)
    return api.EmergencyStop.of(await state.set_emergency_stop(body.on, by=by, reason=body.reason))


@functools.cache
def _create_routes() -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    add_exception_handlers(app, render_error)
    app.include_router(router)
    app.include_router(cluster.router)
    return app


def create_local_app(state: cluster.ClusterState, *, access: Access, bind_address: str) -> Starlette:
    """
    Return the app for `LOCAL_PATHS` and `EMERGENCY_STOP_PATH`.

    Args:
        state: The cluster.
        access: Authenticates and authorizes callers.
        bind_address: The address of the port.
    """
    return build_guarded_app(
        _create_routes(), {"cluster": state}, access=access, bind_address=bind_address, page=render_error
    )
