"""The event log: everything that happened, with the hashes that say that nobody changed it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright.api.operations import AuditedEvent
from queenright.client.asynchronous.group import AsyncGroup


class AsyncAudit(AsyncGroup):
    """The event log of a service."""

    def list(
        self,
        *,
        kind: str | None = None,
        agent_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[AuditedEvent]:
        """Yield events of the log, newest first; ``since`` and ``until``: seconds since the epoch."""
        return self._ask.every(
            AuditedEvent,
            "/api/audit",
            "events",
            limit,
            type=kind,
            agent_id=agent_id,
            since=since,
            until=until,
        )
