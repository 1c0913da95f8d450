"""The event log, with the hashes that make changes detectable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queenright import api
from queenright.client.synchronous.resource import Resource


class Audit(Resource):
    """The event log of a service."""

    def list(
        self,
        *,
        types: Iterable[str] = (),
        agent_id: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int | None = None,
    ) -> Iterator[api.AuditedEvent]:
        """
        Yield events of the log, newest first.

        Args:
            types: Event types. Default: all.
            agent_id: Only events of this worker.
            since: Start, in seconds since the epoch.
            until: End, in seconds since the epoch.
            limit: Maximum number. Default: no limit.
        """
        return self._transport.list_models(
            api.AuditedEvent,
            "/api/audit",
            "events",
            limit,
            type=tuple(types) or None,
            agent_id=agent_id,
            since=since,
            until=until,
        )
