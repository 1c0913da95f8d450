"""
The access level of each route, by method and path.

By default, reads require the role viewer and changes the role operator. The table lists the exceptions, so a
route that is missing from it is never open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from queenright.server.access.roles import AccessLevel

_READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_WORKER_NAME_PATTERN: Final = r"[\s\S]*"
"""A worker's name, which may contain slashes."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The access level of a route; ``{agent}`` in ``path`` is a worker's name, ``{}`` is one path segment."""

    methods: str
    path: str
    level: AccessLevel


ACCESS_RULES: Final = (
    # Probes, and the sign-in page with its styles.
    AccessRule("GET", "/healthz", AccessLevel.OPEN),
    AccessRule("GET", "/readyz", AccessLevel.OPEN),
    AccessRule("GET POST", "/login", AccessLevel.OPEN),
    AccessRule("GET", "/static/{}", AccessLevel.OPEN),
    # These requests are signed by their senders.
    AccessRule("POST", "/api/slack/actions", AccessLevel.OPEN),
    AccessRule("POST", "/api/pagerduty/webhook", AccessLevel.OPEN),
    # Sign-out.
    AccessRule("POST", "/logout", AccessLevel.KNOWN),
    # A computation without side effects whose arguments do not fit in a query string.
    AccessRule("POST", "/api/agents/{agent}/evaluation", AccessLevel.VIEWER),
    # Machine clients.
    AccessRule("GET", "/metrics", AccessLevel.KNOWN),
    AccessRule("POST", "/v1/{}", AccessLevel.REPORTER),
    AccessRule("POST", "/api/heartbeats", AccessLevel.REPORTER),
    AccessRule("POST", "/api/alertmanager/webhook", AccessLevel.REPORTER),
    AccessRule("POST", "/api/alertmanager/notifications", AccessLevel.REPORTER),
    AccessRule("POST", "/api/deadman", AccessLevel.REPORTER),
    AccessRule("GET", "/api/agents/{agent}/instructions", AccessLevel.REPORTER),
    AccessRule("POST", "/api/agents/{agent}/instructions/{}/answer", AccessLevel.REPORTER),
    # The service itself: the agents that run in it, and its settings.
    AccessRule("POST", "/api/agents", AccessLevel.ADMIN),
    AccessRule("POST DELETE", "/api/agents/{agent}/graphs", AccessLevel.ADMIN),
    AccessRule("DELETE", "/api/agents/{agent}/graphs/{}", AccessLevel.ADMIN),
    AccessRule("DELETE", "/api/agents/{agent}/sessions/{}", AccessLevel.OPERATOR),
    AccessRule("DELETE", "/api/agents/{agent}", AccessLevel.ADMIN),
    AccessRule("GET PUT POST DELETE", "/api/settings", AccessLevel.ADMIN),
    AccessRule("POST", "/-/reload", AccessLevel.ADMIN),
)
"""The first matching rule applies."""


def _compile_path(path: str) -> re.Pattern[str]:
    parts = re.split(r"(\{agent\}|\{\})", path)
    patterns = {"{agent}": _WORKER_NAME_PATTERN, "{}": r"[^/]+"}
    return re.compile("".join(patterns.get(part, re.escape(part)) for part in parts))


_COMPILED_RULES: Final = tuple(
    (frozenset(right.methods.split()), _compile_path(right.path), right.level) for right in ACCESS_RULES
)


@lru_cache(maxsize=4096)
def find_required_level(method: str, path: str) -> AccessLevel:
    """
    Return the access level that a request requires.

    Args:
        method: The HTTP method; ``HEAD`` is treated as ``GET``.
        path: The decoded path, or a route's template.
    """
    effective_method = "GET" if method == "HEAD" else method
    for methods, pattern, level in _COMPILED_RULES:
        if effective_method in methods and pattern.fullmatch(path):
            return level
    return AccessLevel.VIEWER if method in _READ_METHODS else AccessLevel.OPERATOR
