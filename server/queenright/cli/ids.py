"""Tickets by their ids, or by how these begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queenright.cli.service import named
from queenright.instrumentation.errors import QueenrightError

if TYPE_CHECKING:
    from queenright.api.tickets import Ticket
    from queenright.client.synchronous.client import Queenright

_NEWEST = 1000
_SHOWN = 5


class NoMatchingTicketError(QueenrightError):
    """Raised when an id is that of no ticket, and begins none or several."""


def find_ticket(service: Queenright, given: str) -> Ticket:
    """
    Return the ticket with this id, or the only one of the newest 1,000 whose id begins so.

    Raises:
        BadParameter: ``given`` is empty.
        NoMatchingTicketError: There is none, or more than one: names the first matches.
    """
    from queenright.client.errors import RequestRefusedError

    given = named(given.strip(), "ticket's id")
    try:
        return service.tickets.get(given)
    except RequestRefusedError as refused:
        if refused.status != 404:
            raise
    found = [one for one in service.tickets.list(limit=_NEWEST) if one.ticket_id.startswith(given)]
    if not found:
        raise NoMatchingTicketError(
            f"there is no ticket {given[:80]!r}, and none begins so; `queenright tickets --all` lists them"
        )
    if len(found) > 1:
        matches = ", ".join(f"{one.ticket_id} ({one.worker_agent_id})" for one in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise NoMatchingTicketError(
            f"{len(found)} tickets begin with {given!r}: {matches}{more}; give more of the id"
        )
    return found[0]


def find_ticket_id(service: Queenright, given: str) -> str:
    """Return the whole id of a ticket; see `find_ticket`."""
    return find_ticket(service, given).ticket_id
