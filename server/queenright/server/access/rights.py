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

from queenright.server.access.roles import AccessLevel

_READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_NAME: Final = r"[\s\S]*"
"""A worker's name: it may hold slashes, as in the routes."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """What a route asks; ``path`` has ``{agent}`` for a worker's name, and ``{}`` for one part of a path."""

    methods: str
    path: str
    level: AccessLevel


ACCESS_RULES: Final = (
    # Whether the process lives; how one logs in, and what the page for that looks like.
    AccessRule("GET", "/healthz", AccessLevel.OPEN),
    AccessRule("GET", "/readyz", AccessLevel.OPEN),
    AccessRule("GET POST", "/login", AccessLevel.OPEN),
    AccessRule("GET", "/static/{}", AccessLevel.OPEN),
    # Signed by whoever sends them.
    AccessRule("POST", "/api/slack/actions", AccessLevel.OPEN),
    AccessRule("POST", "/api/pagerduty/webhook", AccessLevel.OPEN),
    # A browser's own: one's name on this browser, and leaving.
    AccessRule("GET POST", "/you", AccessLevel.VIEWER),
    AccessRule("POST", "/logout", AccessLevel.KNOWN),
    # Machines.
    AccessRule("GET", "/metrics", AccessLevel.KNOWN),
    AccessRule("POST", "/v1/{}", AccessLevel.REPORTER),
    AccessRule("POST", "/api/heartbeats", AccessLevel.REPORTER),
    AccessRule("POST", "/api/alertmanager/webhook", AccessLevel.REPORTER),
    AccessRule("POST", "/api/alertmanager/told", AccessLevel.REPORTER),
    AccessRule("POST", "/api/deadman", AccessLevel.REPORTER),
    AccessRule("GET", "/api/agents/{agent}/instructions", AccessLevel.REPORTER),
    AccessRule("POST", "/api/agents/{agent}/instructions/{}/answer", AccessLevel.REPORTER),
    # The service itself: whose code runs in it, and by what settings.
    AccessRule("POST", "/api/agents", AccessLevel.ADMIN),
    AccessRule("POST DELETE", "/api/agents/{agent}/graphs", AccessLevel.ADMIN),
    AccessRule("DELETE", "/api/agents/{agent}/graphs/{}", AccessLevel.ADMIN),
    AccessRule("DELETE", "/api/agents/{agent}/sessions/{}", AccessLevel.OPERATOR),
    AccessRule("DELETE", "/api/agents/{agent}", AccessLevel.ADMIN),
    AccessRule("GET PUT POST DELETE", "/api/settings", AccessLevel.ADMIN),
    AccessRule("POST", "/-/reload", AccessLevel.ADMIN),
)
"""The first that fits holds."""


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{agent\}|\{\})", path)
    known = {"{agent}": _NAME, "{}": r"[^/]+"}
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts))


_TABLE: Final = tuple(
    (frozenset(right.methods.split()), _pattern(right.path), right.level) for right in ACCESS_RULES
)


@lru_cache(maxsize=4096)
def required_level(method: str, path: str) -> AccessLevel:
    """
    Return what a request asks of its caller.

    Args:
        method: HTTP's; ``HEAD`` is as ``GET``.
        path: Decoded, as ASGI gives it; or a template of a route.
    """
    asked = "GET" if method == "HEAD" else method
    for methods, pattern, level in _TABLE:
        if asked in methods and pattern.fullmatch(path):
            return level
    return AccessLevel.VIEWER if method in _READ_METHODS else AccessLevel.OPERATOR
