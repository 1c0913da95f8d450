"""Roles, and what each may do."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """What a token is for."""

    VIEWER = "viewer"
    """Looks."""
    REPORTER = "reporter"
    """A machine of the fleet: telemetry, heartbeats, instructions, Alertmanager's webhooks, ``/metrics``."""
    OPERATOR = "operator"
    """Looks, acts on workers and tickets, and may send what a reporter sends."""
    ADMIN = "admin"
    """All of it, and what changes the service itself: agents that run inside, settings."""


class Need(StrEnum):
    """What a route asks of its caller."""

    OPEN = "open"
    """Nothing: it says nothing of the fleet, or it checks signatures of its own."""
    KNOWN = "known"
    """A token, of whatever role."""
    VIEWER = "viewer"
    REPORTER = "reporter"
    OPERATOR = "operator"
    ADMIN = "admin"


_MAY: Final[dict[Role, frozenset[Need]]] = {
    Role.VIEWER: frozenset({Need.OPEN, Need.KNOWN, Need.VIEWER}),
    Role.REPORTER: frozenset({Need.OPEN, Need.KNOWN, Need.REPORTER}),
    Role.OPERATOR: frozenset({Need.OPEN, Need.KNOWN, Need.VIEWER, Need.REPORTER, Need.OPERATOR}),
    Role.ADMIN: frozenset(Need),
}


def may(role: Role, need: Need) -> bool:
    """Return whether a role is enough."""
    return need in _MAY[role]


def enough_for(need: Need) -> list[Role]:
    """Return the roles that are enough, the least first."""
    return [role for role in Role if need in _MAY[role]]
