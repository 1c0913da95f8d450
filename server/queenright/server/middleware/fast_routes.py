"""
Short ways through the router for what is asked most.

The router looks at some ninety routes one after the other, the included ones twice. What is asked for many
times a second is led straight to the route that the router would find; and the shortest answers, which take
nothing but a path, are given without it. Everything else, and whatever is unusual, goes the ordinary way.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from queenright.instrumentation.identity import clean_name

WAYS: Final = (
    "/api/agents",
    "/api/agents/{agent}/health",
    "/api/agents/{agent}/history",
    "/api/breakers",
    "/api/events",
    "/api/interventions",
    "/api/status",
    "/api/tickets",
    "/healthz",
    "/metrics",
    "/readyz",
)
"""Paths of GETs; ``{agent}`` is a worker's name without a slash: with one, several routes might fit."""
_OF_AGENT: Final = re.compile(r"/api/agents/([^/]+)/([a-z]+)")

Answer = Callable[[Scope, str], Response | None]
"""Answers a request without a query, of which the worker's name is given too; None: the ordinary way."""


class FastRoutes:
    """
    Stands before the router of an app, within what turns errors into answers.

    Args:
        app: All of whose routes are there by now.
        answers: What is answered without the router, by path as in ``WAYS``.
    """

    def __init__(self, app: FastAPI, answers: Mapping[str, Answer]) -> None:
        self._ordinary: ASGIApp = app.router.middleware_stack
        self._answers = answers
        self._ways = {way: alone for way in WAYS if (alone := _only_route_of(app, way)) is not None}

    @property
    def known(self) -> Iterable[str]:
        """The paths, as in ``WAYS``, whose route was found."""
        return self._ways.keys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or lead it to its route."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope.get("root_path"):
            await self._ordinary(scope, receive, send)
            return
        path, agent = scope["path"], ""
        if path not in self._ways and (found := _OF_AGENT.fullmatch(path)):
            path, agent = f"/api/agents/{{agent}}/{found[2]}", clean_name(found[1])
        if path in self._answers and not scope["query_string"]:
            response = self._answers[path](scope, agent)
            if response is not None:
                await response(scope, receive, send)
                return
        await self._ways.get(path, self._ordinary)(scope, receive, send)


def add_short_ways(app: FastAPI, answers: Mapping[str, Answer]) -> None:
    """Put short ways before the router of an app that has all its routes."""
    app.router.middleware_stack = FastRoutes(app, answers)


def _only_route_of(app: FastAPI, way: str) -> ASGIApp | None:
    """Return a router with the one route, or group of routes, that the app's would find for a path."""
    path = way.replace("{agent}", "a")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "root_path": "",
        "headers": [],
        "query_string": b"",
    }
    for route in app.router.routes:
        if route.matches(scope)[0] is Match.FULL:
            alone = copy.copy(app.router)
            alone.routes = [route]
            return alone.app
    return None
