"""Who asks, as the routes see it; and by whom something is done, as the audit keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

from queenright.server.access.roles import AccessLevel, Role, is_allowed

KEY: Final = "queenright.caller"
"""Where a request's scope has its caller."""

ANYBODY: Final = "operator"
"""What a route says of a caller who gave no name."""


MAX_NAME_LENGTH: Final = 100
"""Characters that a name may have in the audit."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asks."""

    role: Role | None
    """None: nobody that we know, which is enough for what is open."""
    address: str
    name: str = ""
    """The token's; empty without one."""
    token_id: str = ""

    @property
    def key(self) -> str:
        """What tells this caller from others: the token, or else the address."""
        return f"token {self.token_id}" if self.token_id else f"address {self.address}"


def caller_of(request: HTTPConnection) -> Caller:
    """Return who asks; without a guard before the app, everybody may do everything."""
    found = request.scope.get(KEY)
    if isinstance(found, Caller):
        return found
    return Caller(Role.ADMIN, address_of(request.scope.get("client")))


def may_look(request: HTTPConnection) -> bool:
    """Return whether the caller may see what the fleet does."""
    role = caller_of(request).role
    return role is not None and is_allowed(role, AccessLevel.VIEWER)


def address_of(client: object) -> str:
    """Return the address in what ASGI says of a client."""
    return str(client[0]) if isinstance(client, tuple | list) and client else ""


def who(request: HTTPConnection, claimed_name: str = ANYBODY) -> str:
    """
    Return by whom something is done.

    Args:
        request: What was asked.
        claimed_name: The name that the caller gave.

    Returns:
        With a token its name (``ada``; with another name said: ``ada (as bob)``); without one what was said.
    """
    caller = caller_of(request)
    return _compose_name(caller, claimed_name, "") if caller.name else claimed_name


def who_from(request: HTTPConnection, claimed_name: str = ANYBODY) -> str:
    """
    Return by whom something grave is done: with a token, its role and where it came from, too.

    Returns:
        ``ada (operator, 192.0.2.7)``; with another name said: ``ada (as bob; operator, 192.0.2.7)``.
    """
    caller = caller_of(request)
    if not caller.name or caller.role is None:
        return claimed_name
    return _compose_name(
        caller, claimed_name, f"{caller.role.value}, {caller.address.partition('%')[0] or 'no address'}"
    )


def _compose_name(caller: Caller, claimed_name: str, more: str) -> str:
    """Return a name with what belongs to it; what was said is cut, and never what we know."""
    alias = "" if claimed_name in (caller.name, ANYBODY, "") else f"as {claimed_name}"
    room = MAX_NAME_LENGTH - len(f"{caller.name} ({more})") - (len("; ") if more else 0)
    if len(alias) > room:
        alias = f"{alias[: room - 1]}…" if room > len("as x…") else ""
    inside = "; ".join(part for part in (alias, more) if part)
    return f"{caller.name} ({inside})" if inside else caller.name
