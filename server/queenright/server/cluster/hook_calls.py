"""Store hook calls, which an owner may receive twice: from another process and from the stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from queenright.runtime.events import AgentEvent, Clock
from queenright.server.cluster.consumer import IngestWith, record_stored_ids
from queenright.server.cluster.stream import TelemetryStream


class HookCalls:
    """
    Implements `CallKeeper` for the owner of a partition.

    Args:
        stream: The stream of the partition.
        ingest: Stores events.
        clock: Seconds since the epoch.
    """

    def __init__(self, stream: TelemetryStream, ingest: IngestWith, clock: Clock) -> None:
        self._stream = stream
        self._ingest = ingest
        self._clock = clock

    async def ingest(self, events: Sequence[AgentEvent], call_id: str) -> None:
        """Store the events of a call, and record its id as stored."""
        now = self._clock()
        await self._ingest(events, also=partial(record_stored_ids, message_ids=[call_id], now=now))

    async def keep(self, path: str, body: bytes, call_id: str) -> None:
        """Publish a call to the stream. The owner stores it later."""
        await self._stream.publish(path, body, message_id=call_id)
