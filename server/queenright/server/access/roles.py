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


class AccessLevel(StrEnum):
    """What a route asks of its caller."""

    OPEN = "open"
    """Nothing: it says nothing of the fleet, or it checks signatures of its own."""
    KNOWN = "known"
    """A token, of whatever role."""
    VIEWER = "viewer"
    REPORTER = "reporter"
    OPERATOR = "operator"
    ADMIN = "admin"


_GRANTS: Final[dict[Role, frozenset[AccessLevel]]] = {
    Role.VIEWER: frozenset({AccessLevel.OPEN, AccessLevel.KNOWN, AccessLevel.VIEWER}),
    Role.REPORTER: frozenset({AccessLevel.OPEN, AccessLevel.KNOWN, AccessLevel.REPORTER}),
    Role.OPERATOR: frozenset(
        {AccessLevel.OPEN, AccessLevel.KNOWN, AccessLevel.VIEWER, AccessLevel.REPORTER, AccessLevel.OPERATOR}
    ),
    Role.ADMIN: frozenset(AccessLevel),
}


def is_allowed(role: Role, level: AccessLevel) -> bool:
    """Return whether a role is enough."""
    return level in _GRANTS[role]


def roles_for(level: AccessLevel) -> list[Role]:
    """Return the roles that are enough, the least first."""
    return [role for role in Role if level in _GRANTS[role]]
