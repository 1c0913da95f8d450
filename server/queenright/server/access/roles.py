"""Roles and their access levels. ``rights.py`` has the access level of each route."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """The role of a token."""

    VIEWER = "viewer"
    """May view."""
    REPORTER = "reporter"
    """For machines: telemetry, heartbeats, instructions, Alertmanager's webhooks and ``/metrics``."""
    OPERATOR = "operator"
    """May view, act on workers and tickets, and report."""
    ADMIN = "admin"
    """May do everything, including changes to the settings and to the agents that run in the service."""


class AccessLevel(StrEnum):
    """The access level that a route requires."""

    OPEN = "open"
    """No token: the route shows nothing about the fleet, or verifies a signature."""
    KNOWN = "known"
    """A token of any role."""
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
    """Return whether a role has an access level."""
    return level in _GRANTS[role]


def list_roles(level: AccessLevel) -> list[Role]:
    """Return the roles that have an access level, lowest first."""
    return [role for role in Role if level in _GRANTS[role]]
