"""
What each route asks of its caller, in one table by method and path.

Whoever looks is a viewer, whoever changes something an operator; the table has what is otherwise. A route
that nobody thought of here is therefore not open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from queenright.server.access.roles import Need

_LOOKING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NAME: Final = r"[\s\S]*"
"""A worker's name: it may hold slashes, as in the routes."""


@dataclass(frozen=True, slots=True)
class Right:
    """What a route asks; ``path`` has ``{agent}`` for a worker's name, and ``{}`` for one part of a path."""

    methods: str
    path: str
    need: Need


RIGHTS: Final = (
    # Whether the process lives; how one logs in, and what the page for that looks like.
    Right("GET", "/healthz", Need.OPEN),
    Right("GET", "/readyz", Need.OPEN),
    Right("GET POST", "/login", Need.OPEN),
    Right("GET", "/static/{}", Need.OPEN),
    # Signed by whoever sends them.
    Right("POST", "/api/slack/actions", Need.OPEN),
    Right("POST", "/api/pagerduty/webhook", Need.OPEN),
    # A browser's own: one's name on this browser, and leaving.
    Right("GET POST", "/you", Need.VIEWER),
    Right("POST", "/logout", Need.KNOWN),
    # Machines.
    Right("GET", "/metrics", Need.KNOWN),
    Right("POST", "/v1/{}", Need.REPORTER),
    Right("POST", "/api/heartbeats", Need.REPORTER),
    Right("POST", "/api/alertmanager/webhook", Need.REPORTER),
    Right("POST", "/api/alertmanager/told", Need.REPORTER),
    Right("POST", "/api/deadman", Need.REPORTER),
    Right("GET", "/api/agents/{agent}/instructions", Need.REPORTER),
    Right("POST", "/api/agents/{agent}/instructions/{}/answer", Need.REPORTER),
    # The service itself: whose code runs in it, and by what settings.
    Right("POST", "/api/agents", Need.ADMIN),
    Right("POST DELETE", "/api/agents/{agent}/graphs", Need.ADMIN),
    Right("DELETE", "/api/agents/{agent}/graphs/{}", Need.ADMIN),
    Right("DELETE", "/api/agents/{agent}/sessions/{}", Need.OPERATOR),
    Right("DELETE", "/api/agents/{agent}", Need.ADMIN),
    Right("GET PUT POST DELETE", "/api/settings", Need.ADMIN),
    Right("POST", "/-/reload", Need.ADMIN),
)
"""The first that fits holds."""


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{agent\}|\{\})", path)
    known = {"{agent}": _NAME, "{}": r"[^/]+"}
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts))


_TABLE: Final = tuple(
    (frozenset(right.methods.split()), _pattern(right.path), right.need) for right in RIGHTS
)


@lru_cache(maxsize=4096)
def need_of(method: str, path: str) -> Need:
    """
    Return what a request asks of its caller.

    Args:
        method: HTTP's; ``HEAD`` is as ``GET``.
        path: Decoded, as ASGI gives it; or a template of a route.
    """
    asked = "GET" if method == "HEAD" else method
    for methods, pattern, need in _TABLE:
        if asked in methods and pattern.fullmatch(path):
            return need
    return Need.VIEWER if method in _LOOKING else Need.OPERATOR
