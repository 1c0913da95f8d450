"""What a member answers for itself while another one is the owner: probes, its metrics, and the cluster."""

from __future__ import annotations

import functools

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette

from queenright import api
from queenright.server.access.access import Access
from queenright.server.access.caller import can_view_fleet
from queenright.server.console.templates import render_error
from queenright.server.metrics.metrics import PROMETHEUS_TEXT
from queenright.server.middleware.guarded_app import guarded_app
from queenright.server.routes import cluster, probes
from queenright.server.routes.errors import add_exception_handlers

router = APIRouter()
router.add_api_route("/healthz", probes.get_alive)


@router.get("/readyz")
async def get_ready(request: Request, response: Response, state: cluster.ClusterDep) -> api.Ready:
    """Return whether this process can take telemetry and pass requests on."""
    missing = state.faults() if state is not None else []
    if missing:
        response.status_code = 503
    return api.Ready(ready=not missing, missing=missing if can_view_fleet(request) else [])


@router.get("/metrics")
async def get_metrics(request: Request) -> Response:
    """Return the metrics of this process; those of the workers are the owner's."""
    registry: CollectorRegistry = request.state.registry
    return Response(generate_latest(registry), headers={"Content-Type": PROMETHEUS_TEXT})


@functools.cache
def _create_routes() -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    add_exception_handlers(app, render_error)
    app.include_router(router)
    app.include_router(cluster.router)
    return app


def create_standby_app(
    state: cluster.ClusterState, registry: CollectorRegistry, *, access: Access, bound: str
) -> Starlette:
    """
    Return the app for ``front.LOCAL_PATHS``.

    Args:
        state: The cluster.
        registry: The metrics of this process.
        access: Authenticates and authorises callers.
        bound: The address of the port.
    """
    return guarded_app(
        _create_routes(),
        {"cluster": state, "registry": registry},
        access=access,
        bound=bound,
        page=render_error,
    )
