"""Silences at Alertmanager."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.resource import AsyncResource
from queenright.client.responses import json_body


class AsyncSilences(AsyncResource):
    """The silences of a service's Alertmanagers."""

    def list(self) -> AsyncIterator[api.Silence]:
        """Yield active and pending silences, ordered by end."""
        return self._transport.list_models(api.Silence, "/api/silences", "silences")

    async def snapshot(self) -> api.Silences:
        """Return the silences, and which Alertmanagers did not answer."""
        return await self._transport.get_model(api.Silences, "/api/silences")

    async def add(
        self, ticket_id: str, *, seconds: float, comment: str, by: str | None = None
    ) -> api.SilenceResult:
        """Silence a ticket, and further tickets of its agent with the same cause."""
        body = json_body(ticket_id=ticket_id, seconds=seconds, comment=comment, by=by)
        return await self._transport.send_for_model(api.SilenceResult, "/api/silences", body)

    async def remove(self, silence_id: str) -> None:
        """End a silence now."""
        await self._transport.send(build_path("api", "silences", silence_id), method="DELETE")
