"""Circuit breakers of workers' calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.resource import AsyncResource
from queenright.client.responses import json_body


class AsyncBreakers(AsyncResource):
    """The circuit breakers of a service."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> AsyncIterator[api.Breaker]:
        """Yield circuit breakers, ordered by name; with ``only_open``, those that are not closed."""
        params = {"open": only_open}
        return self._transport.list_models(api.Breaker, "/api/breakers", "breakers", limit, **params)

    async def get(self, name: str) -> api.Breaker:
        """Return a circuit breaker."""
        return await self._transport.get_model(api.Breaker, build_path("api", "breakers", name))

    async def reset(self, name: str, *, by: str | None = None) -> api.Breaker:
        """Close a circuit breaker; calls go through again."""
        return await self._transport.send_for_model(
            api.Breaker, build_path("api", "breakers", name, "reset"), json_body(by=by)
        )
