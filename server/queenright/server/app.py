"""The HTTP API and the pages."""

from __future__ import annotations

import functools
from typing import Final

from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware

from queenright.server.access.access import Access
from queenright.server.access.openapi import add_access_requirements
from queenright.server.console import api_page, login
from queenright.server.console.browser_app import add_console
from queenright.server.console.pages import add_pages
from queenright.server.console.templates import render_error
from queenright.server.middleware.guarded_app import build_guarded_app
from queenright.server.middleware.idempotency import Idempotency, add_idempotency_header
from queenright.server.middleware.shutdown import ShutdownMiddleware
from queenright.server.routes import (
    approvals,
    breakers,
    callbacks,
    chat,
    cluster,
    events,
    heartbeats,
    incidents,
    instructions,
    interventions,
    judge,
    notifications,
    permissions,
    probes,
    recoveries,
    silences,
    steps,
    tickets,
    workers,
)
from queenright.server.routes import service as service_routes
from queenright.server.routes.errors import add_exception_handlers
from queenright.server.routes.events import MAX_STREAMS, StreamQuota
from queenright.server.routes.loaded_agents import agents, execution, graphs, logs, sessions
from queenright.server.routes.openapi import set_openapi
from queenright.server.service import Service

# An agent's name may contain slashes, so the longest paths below /api/agents come first.
_ROUTERS: Final[tuple[APIRouter, ...]] = (
    probes.router,
    service_routes.router,
    cluster.router,
    graphs.router,
    logs.router,
    sessions.router,
    execution.router,
    agents.router,
    workers.router,
    heartbeats.router,
    steps.router,
    tickets.router,
    chat.router,
    events.router,
    interventions.router,
    approvals.router,
    permissions.router,
    instructions.router,
    incidents.router,
    notifications.router,
    breakers.router,
    recoveries.router,
    judge.router,
    silences.router,
    callbacks.router,
    agents.agent_router,
)


@functools.cache
def create_routes() -> FastAPI:
    """
    Return the app with all routes. It is cached, because FastAPI analyzes each route at its first request.

    Routes read ``service``, ``access``, ``cluster`` and ``stream_quota`` from ``request.state``.
    """
    app = FastAPI(
        title="Queenright",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    add_exception_handlers(app, render_error)
    for router in _ROUTERS:
        app.include_router(router)
    app.include_router(login.router)
    app.include_router(api_page.router)
    add_console(app)
    add_pages(app)
    set_openapi(app, add_idempotency_header, add_access_requirements)
    return app


def create_app(
    service: Service,
    *,
    bind_address: str,
    access: Access | None = None,
) -> Starlette:
    """
    Return the ASGI app of a service: its middleware, and the routes.

    Args:
        service: The service.
        bind_address: The address that the API port listens on.
        access: Authenticates and authorizes callers; by default from the service's settings.
    """
    access = access or Access(service.settings, clock=service.clock)
    state = {
        "service": service,
        "access": access,
        "cluster": None,
        "stream_quota": StreamQuota(MAX_STREAMS),
    }
    app = build_guarded_app(
        create_routes(),
        state,
        access=access,
        bind_address=bind_address,
        page=render_error,
        outer=[Middleware(ShutdownMiddleware, is_stopping=service.stopping.is_set)],
        inner=[Middleware(Idempotency, store=service.store, clock=service.clock)],
    )
    add_exception_handlers(app, render_error)
    return app
