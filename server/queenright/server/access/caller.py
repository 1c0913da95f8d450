"""The caller of a request, and its name in the audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

from queenright.server.access.roles import AccessLevel, Role, is_allowed

SCOPE_KEY: Final = "queenright.caller"
"""The key of the caller in a request's scope."""

DEFAULT_NAME: Final = "operator"
"""The name of a caller that gives none."""

MAX_NAME_LENGTH: Final = 100
"""Maximum characters of a name in the audit trail."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, with its role and address."""

    role: Role | None
    """None for an unauthenticated caller, who may use only open routes."""
    address: str
    name: str = ""
    """The token's name; "" without a token."""
    token_id: str = ""

    @property
    def key(self) -> str:
        """The key that identifies this caller: the token, otherwise the address."""
        return f"token {self.token_id}" if self.token_id else f"address {self.address}"


def find_caller(request: HTTPConnection) -> Caller:
    """Return the caller of a request. If the app runs without ``ApiGuard``, the caller is an admin."""
    caller = request.scope.get(SCOPE_KEY)
    if isinstance(caller, Caller):
        return caller
    return Caller(Role.ADMIN, get_client_address(request.scope.get("client")))


def can_view_fleet(request: HTTPConnection) -> bool:
    """Return whether the caller may view the fleet."""
    role = find_caller(request).role
    return role is not None and is_allowed(role, AccessLevel.VIEWER)


def get_client_address(client: object) -> str:
    """Return the address in ASGI's ``client`` value, or ""."""
    return str(client[0]) if isinstance(client, tuple | list) and client else ""


def get_person_name(request: HTTPConnection, claimed_name: str = DEFAULT_NAME) -> str:
    """
    Return the name of the person who performs an action.

    Args:
        request: The request.
        claimed_name: The name that the caller gave.

    Returns:
        The token's name: ``ada``, or ``ada (as bob)`` if another name is claimed. Without a token, the
        claimed name.
    """
    caller = find_caller(request)
    return _compose_name(caller, claimed_name, "") if caller.name else claimed_name


def get_audit_name(request: HTTPConnection, claimed_name: str = DEFAULT_NAME) -> str:
    """
    Return the name for a critical action: with a token, also the caller's role and address.

    Returns:
        ``ada (operator, 192.0.2.7)``; with another claimed name ``ada (as bob; operator, 192.0.2.7)``.
    """
    caller = find_caller(request)
    if not caller.name or caller.role is None:
        return claimed_name
    return _compose_name(
        caller, claimed_name, f"{caller.role.value}, {caller.address.partition('%')[0] or 'no address'}"
    )


def _compose_name(caller: Caller, claimed_name: str, details: str) -> str:
    """Compose a name with its details; only the claimed name is truncated."""
    alias = "" if claimed_name in (caller.name, DEFAULT_NAME, "") else f"as {claimed_name}"
    available = MAX_NAME_LENGTH - len(f"{caller.name} ({details})") - (len("; ") if details else 0)
    if len(alias) > available:
        alias = f"{alias[: available - 1]}…" if available > len("as x…") else ""
    suffix = "; ".join(part for part in (alias, details) if part)
    return f"{caller.name} ({suffix})" if suffix else caller.name
