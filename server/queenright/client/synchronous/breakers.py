"""Circuit breakers of workers' calls."""

from __future__ import annotations

from collections.abc import Iterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.synchronous.group import Group


class Breakers(Group):
    """The circuit breakers of a service."""

    def list(self, *, only_open: bool | None = None, limit: int | None = None) -> Iterator[api.Breaker]:
        """Yield circuit breakers by name; with ``only_open`` those that are not closed."""
        asked = {"open": only_open}
        return self._ask.every(api.Breaker, "/api/breakers", "breakers", limit, **asked)

    def get(self, name: str) -> api.Breaker:
        """Return one circuit breaker."""
        return self._ask.one(api.Breaker, path("api", "breakers", name))

    def reset(self, name: str, *, by: str | None = None) -> api.Breaker:
        """Close one by hand; the next calls pass."""
        return self._ask.acted(api.Breaker, path("api", "breakers", name, "reset"), body(by=by))
