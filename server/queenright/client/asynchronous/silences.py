"""Silences at Alertmanager: of which tickets nobody hears."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.asynchronous.group import AsyncGroup


class AsyncSilences(AsyncGroup):
    """The silences of a service's Alertmanagers."""

    def list(self) -> AsyncIterator[api.Silence]:
        """Yield silences that hold or will, the first to end first."""
        return self._ask.every(api.Silence, "/api/silences", "silences")

    async def known(self) -> api.Silences:
        """Return the silences, and which Alertmanager could not be asked for its own."""
        return await self._ask.one(api.Silences, "/api/silences")

    async def add(
        self, ticket_id: str, *, seconds: float, comment: str, by: str | None = None
    ) -> api.SilenceMade:
        """Let nobody hear of a ticket for a while, nor of its agent for the same cause."""
        sent = body(ticket_id=ticket_id, seconds=seconds, comment=comment, by=by)
        return await self._ask.acted(api.SilenceMade, "/api/silences", sent)

    async def remove(self, silence_id: str) -> None:
        """Let one end now."""
        await self._ask.act(path("api", "silences", silence_id), method="DELETE")
