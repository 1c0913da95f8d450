"""Tasks that are brought back from their last valid checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.synchronous.group import Group


class Recoveries(Group):
    """The recoveries of a service."""

    def list(self, *, state: str | None = None, limit: int | None = None) -> Iterator[api.Recovery]:
        """Yield recoveries, newest first."""
        return self._ask.every(api.Recovery, "/api/recoveries", "recoveries", limit, state=state)

    def get(self, task_id: str) -> api.RecoveryStatus:
        """Return how bringing a task back stands: attempts, limits, what is under way."""
        return self._ask.one(api.RecoveryStatus, path("api", "recoveries", task_id))

    def recover(
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
        return self._ask.acted(api.RecoveryResult, "/api/recoveries", sent)
