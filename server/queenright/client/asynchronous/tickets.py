"""Tickets about workers, and what is said about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.asynchronous.group import AsyncGroup


class AsyncTickets(AsyncGroup):
    """The tickets of a service."""

    def list(
        self,
        *,
        status: str | None = None,
        severity: str | None = None,
        agent_id: str | None = None,
        since: float | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.Ticket]:
        """Yield tickets, newest first, open or not; ``since``: seconds since the epoch."""
        return self._ask.every(
            api.Ticket,
            "/api/tickets",
            "tickets",
            limit,
            status=status,
            severity=severity,
            agent_id=agent_id,
            since=since,
        )

    async def incidents(self) -> Sequence[api.Incident]:
        """Return the incidents of the last seven days, newest first: tickets that share a cause."""
        return (await self._ask.one(api.Incidents, "/api/incidents")).incidents

    async def get(self, ticket_id: str) -> api.Ticket:
        """Return one ticket."""
        return await self._ask.one(api.Ticket, _of(ticket_id))

    async def acknowledge(
        self, ticket_id: str, *, by: str | None = None, via: str | None = None, note: str | None = None
    ) -> api.Ticket:
        """Say that a person has it in hand: nobody is reminded of it any more."""
        return await self._ask.acted(
            api.Ticket, _of(ticket_id, "acknowledge"), body(by=by, via=via, note=note)
        )

    async def unacknowledge(
        self, ticket_id: str, *, by: str | None = None, via: str | None = None
    ) -> api.Ticket:
        """Say that nobody has it in hand any more: reminders count anew."""
        return await self._ask.acted(api.Ticket, _of(ticket_id, "unacknowledge"), body(by=by, via=via))

    async def dismiss(self, ticket_id: str, reason: str, *, by: str | None = None) -> api.Ticket:
        """Say that it is nothing."""
        return await self._ask.acted(api.Ticket, _of(ticket_id, "dismiss"), body(reason=reason, by=by))

    async def resolve(self, ticket_id: str, reason: str, *, by: str | None = None) -> api.Ticket:
        """Close a ticket about a failed recovery: a person has settled it some other way."""
        return await self._ask.acted(api.Ticket, _of(ticket_id, "resolve"), body(reason=reason, by=by))

    async def timeline(self, ticket_id: str) -> api.Timeline:
        """Return what happened to a ticket, oldest first."""
        return await self._ask.one(api.Timeline, _of(ticket_id, "timeline"))

    async def chat(
        self, ticket_id: str, message: str, *, by: str | None = None, act: bool | None = None
    ) -> api.ChatMessage:
        """Ask the queen about a ticket, and return what she answers; ``act``: it is an order."""
        return await self._ask.acted(
            api.ChatMessage, _of(ticket_id, "chat"), body(message=message, by=by, act=act)
        )

    async def messages(
        self, ticket_id: str, *, after: str | None = None, limit: int | None = None
    ) -> Sequence[api.ChatMessage]:
        """Return what was said about a ticket, oldest first: the newest, or what came after a message."""
        found = await self._ask.one(api.ChatMessages, _of(ticket_id, "chat"), after=after, limit=limit)
        return found.messages


def _of(ticket_id: str, *parts: str) -> str:
    return path("api", "tickets", ticket_id, *parts)
