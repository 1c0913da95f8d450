"""Recoveries of tasks from their last valid checkpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.resource import AsyncResource
from queenright.client.responses import json_body


class AsyncRecoveries(AsyncResource):
    """The recoveries of a service."""

    def list(self, *, state: str | None = None, limit: int | None = None) -> AsyncIterator[api.Recovery]:
        """Yield recoveries, newest first."""
        return self._transport.list_models(api.Recovery, "/api/recoveries", "recoveries", limit, state=state)

    async def get(self, task_id: str) -> api.RecoveryStatus:
        """Return the recovery status of a task: attempts, limits, current attempt."""
        return await self._transport.get_model(api.RecoveryStatus, build_path("api", "recoveries", task_id))

    async def recover(
        self,
        task_id: str,
        *,
        by: str | None = None,
        reviewed: bool | None = None,
        from_start: bool | None = None,
    ) -> api.RecoveryResult:
        """
        Recover a task.

        ``reviewed``: a person has reviewed the failure, which allows one attempt beyond the limit.
        ``from_start``: without a valid checkpoint, start over and repeat completed work.
        """
        body = json_body(task_id=task_id, by=by, reviewed=reviewed, from_start=from_start)
        return await self._transport.send_for_model(api.RecoveryResult, "/api/recoveries", body)
