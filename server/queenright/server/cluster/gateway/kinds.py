"""Decide which partitions of a cluster answer a request."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final
from urllib.parse import unquote

from queenright.instrumentation.identity import clean_name
from queenright.server.cluster.gateway.summaries import MERGE_FUNCTIONS


class RouteKind(Enum):
    """The partitions that answer a request."""

    ANY = auto()
    """Any partition, because all give the same answer."""
    FIRST = auto()
    """The first partition, where agents are loaded."""
    AGENT = auto()
    """All partitions: each may have sessions of the agent in the path."""
    SESSION = auto()
    """The partition of the session, or of the latest session of the agent, in the request."""
    POLL = auto()
    """As ``SESSION``, but the worker may be new."""
    FIND = auto()
    """The partition that has the item in the path or body. The partitions are asked in turn."""
    HEARTBEAT = auto()
    """The partition of the agent in the body."""
    ALL = auto()
    """All partitions: the request changes each of them."""
    CLICK = auto()
    """All partitions: any of them may have the tickets of a click in Slack."""
    PAGE = auto()
    """All partitions: their pages are merged."""
    SUMMARY = auto()
    """All partitions: their summaries are merged."""
    STREAM = auto()
    """All partitions: their events are merged into one stream."""


_PAGE_PATHS: Final = frozenset(
    {
        "/api/agents",
        "/api/agents/health",
        "/api/approvals",
        "/api/audit",
        "/api/breakers",
        "/api/escalations",
        "/api/interventions",
        "/api/judge/checks",
        "/api/notifications",
        "/api/permissions",
        "/api/recoveries",
        "/api/tickets",
    }
)
_ALL_ROUTES: Final = frozenset(
    {
        ("POST", "/-/reload"),
        ("POST", "/api/alertmanager/webhook"),
        ("POST", "/api/alertmanager/notifications"),
        ("POST", "/api/pagerduty/webhook"),
    }
)
_FIRST_ROUTES: Final = frozenset({("GET", "/api/discover"), ("POST", "/api/agents")})
_FIND_PATTERN: Final = re.compile(
    r"/api/(tickets|escalations|approvals|permissions|recoveries|silences)(/.*)?", re.DOTALL
)
_AGENT_PATTERN: Final = re.compile(r"/api/agents/(?P<agent>.+)", re.DOTALL)
_AGENT_SUBPATH_PATTERN: Final = re.compile(
    r"/(active-graph|agents|chat|entry-points|escalations|evaluation|events|executions|goal-progress|graphs"
    r"|health|heartbeat|history|inject|instructions|logs|nudge|escalate|terminate|queen|recording|replay"
    r"|resume|sessions|stats|steps|stop|trigger)(/.*)?$",
    re.DOTALL,
)


def classify_route(method: str, path: str) -> RouteKind:
    """
    Return which partitions answer a request.

    Args:
        method: The HTTP method. HEAD is treated as GET.
        path: The decoded path.
    """
    is_read = method in ("GET", "HEAD")
    if (method, path) in _ALL_ROUTES:
        return RouteKind.ALL
    if (method, path) in _FIRST_ROUTES:
        return RouteKind.FIRST
    if is_read and path in _PAGE_PATHS:
        return RouteKind.PAGE
    if is_read and path in MERGE_FUNCTIONS:
        return RouteKind.SUMMARY
    if is_read and path == "/api/events":
        return RouteKind.STREAM
    if path.startswith("/api/breakers/"):
        # Several partitions may have a breaker with this name.
        return RouteKind.SUMMARY if is_read else RouteKind.ALL
    if path == "/api/heartbeats":
        return RouteKind.HEARTBEAT
    if path == "/api/slack/actions":
        return RouteKind.CLICK
    if (match := _AGENT_PATTERN.fullmatch(path)) is not None:
        if not is_read:
            return RouteKind.SESSION
        if path.endswith("/events"):
            return RouteKind.STREAM
        if path.endswith("/instructions"):
            return RouteKind.POLL
        if path.endswith(("/escalations", "/history")):
            return RouteKind.PAGE
        return RouteKind.SESSION if _AGENT_SUBPATH_PATTERN.search(match["agent"]) else RouteKind.AGENT
    return RouteKind.FIND if _FIND_PATTERN.fullmatch(path) else RouteKind.ANY


def read_agent_name(path: str, raw_path: bytes | None) -> str:
    """
    Return the agent in a path, or "".

    Args:
        path: The path, decoded.
        raw_path: The path as sent, in which slashes of the name are still encoded.
    """
    if raw_path is not None:
        parts = raw_path.split(b"?")[0].split(b"/")
        if len(parts) > 3 and b"%2f" in parts[3].lower():
            return clean_name(unquote(parts[3].decode("latin-1")))
    match = _AGENT_PATTERN.fullmatch(path)
    return "" if match is None else clean_name(_AGENT_SUBPATH_PATTERN.sub("", match["agent"], count=1))
