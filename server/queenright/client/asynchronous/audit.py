"""The event log: everything that happened, with the hashes that say that nobody changed it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from queenright import api
from queenright.client.asynchronous.group import AsyncGroup


class AsyncAudit(AsyncGroup):
    """The event log of a service."""

    def list(
        self,
        *,
        types: Iterable[str] = (),
        agent_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.AuditedEvent]:
        """
        Yield events of the log, newest first.

        Args:
            types: Of these types only; all without.
            agent_id: Of this worker only.
            since: From then on, in seconds since the epoch.
            until: Up to then.
            limit: So many at most; all without.
        """
        return self._ask.every(
            api.AuditedEvent,
            "/api/audit",
            "events",
            limit,
            type=tuple(types) or None,
            agent_id=agent_id,
            since=since,
            until=until,
        )
