"""Tasks that are brought back from their last valid checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.asynchronous.group import AsyncGroup


class AsyncRecoveries(AsyncGroup):
    """The recoveries of a service."""

    def list(self, *, state: str | None = None, limit: int | None = None) -> AsyncIterator[api.Recovery]:
        """Yield recoveries, newest first."""
        return self._ask.every(api.Recovery, "/api/recoveries", "recoveries", limit, state=state)

    async def get(self, task_id: str) -> api.RecoveryStatus:
        """Return how bringing a task back stands: attempts, limits, what is under way."""
        return await self._ask.one(api.RecoveryStatus, path("api", "recoveries", task_id))

    async def recover(
        self,
        task_id: str,
        *,
        by: str | None = None,
        reviewed: bool | None = None,
        from_start: bool | None = None,
    ) -> api.RecoveryResult:
        """
        Bring a task back.

        ``reviewed``: a person looked at it, and it is tried once beyond its limit. ``from_start``: without a
        valid checkpoint it may begin again from its start, though what it did is repeated.
        """
        sent = body(task_id=task_id, by=by, reviewed=reviewed, from_start=from_start)
        return await self._ask.acted(api.RecoveryResult, "/api/recoveries", sent)
