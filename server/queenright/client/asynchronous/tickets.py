"""Tickets about workers, and chats about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.resource import AsyncResource
from queenright.client.responses import json_body


class AsyncTickets(AsyncResource):
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
        """Yield open and closed tickets, newest first; ``since`` is in seconds since the epoch."""
        return self._transport.list_models(
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
        """Return the incidents of the last seven days, newest first."""
        return (await self._transport.get_model(api.Incidents, "/api/incidents")).incidents

    async def get(self, ticket_id: str) -> api.Ticket:
        """Return a ticket."""
        return await self._transport.get_model(api.Ticket, _ticket_path(ticket_id))

    async def acknowledge(
        self, ticket_id: str, *, by: str | None = None, via: str | None = None, note: str | None = None
    ) -> api.Ticket:
        """Acknowledge a ticket: reminders stop."""
        return await self._transport.send_for_model(
            api.Ticket, _ticket_path(ticket_id, "acknowledge"), json_body(by=by, via=via, note=note)
        )

    async def unacknowledge(
        self, ticket_id: str, *, by: str | None = None, via: str | None = None
    ) -> api.Ticket:
        """Withdraw an acknowledgement: reminders start again."""
        return await self._transport.send_for_model(
            api.Ticket, _ticket_path(ticket_id, "unacknowledge"), json_body(by=by, via=via)
        )

    async def dismiss(self, ticket_id: str, reason: str, *, by: str | None = None) -> api.Ticket:
        """Dismiss a ticket as no problem."""
        return await self._transport.send_for_model(
            api.Ticket, _ticket_path(ticket_id, "dismiss"), json_body(reason=reason, by=by)
        )

    async def resolve(self, ticket_id: str, reason: str, *, by: str | None = None) -> api.Ticket:
        """Resolve a ticket that a person has dealt with, such as one about a failed recovery."""
        return await self._transport.send_for_model(
            api.Ticket, _ticket_path(ticket_id, "resolve"), json_body(reason=reason, by=by)
        )

    async def timeline(self, ticket_id: str) -> api.Timeline:
        """Return the timeline of a ticket, oldest first."""
        return await self._transport.get_model(api.Timeline, _ticket_path(ticket_id, "timeline"))

    async def chat(
        self, ticket_id: str, message: str, *, by: str | None = None, act: bool | None = None
    ) -> api.ChatMessage:
        """Send the queen a message about a ticket and return her answer; ``act``: it is an order."""
        return await self._transport.send_for_model(
            api.ChatMessage, _ticket_path(ticket_id, "chat"), json_body(message=message, by=by, act=act)
        )

    async def messages(
        self, ticket_id: str, *, after: str | None = None, limit: int | None = None
    ) -> Sequence[api.ChatMessage]:
        """Return the newest messages about a ticket, or those after a message, oldest first."""
        found = await self._transport.get_model(
            api.ChatMessages, _ticket_path(ticket_id, "chat"), after=after, limit=limit
        )
        return found.messages


def _ticket_path(ticket_id: str, *parts: str) -> str:
    return build_path("api", "tickets", ticket_id, *parts)
