"""Read the telemetry stream of an owned partition, and store the events of each message exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert

from queenright.health.store.store import RefusedEventsError, Store, StoreError
from queenright.health.store.tables import STORED_MESSAGES, STREAM_POSITION
from queenright.runtime.events import AgentEvent, Clock
from queenright.server.cluster.stream import StreamMessage, StreamUnavailableError, TelemetryStream
from queenright.server.otlp.receiver import OtlpReceiver
from queenright.server.webhooks.hooks import HOOK_PATH_PREFIX, HookReceiver

_log = logging.getLogger(__name__)

_MAX_GROUP_BYTES: Final = 256 * 1024
"""Maximum bytes stored in one transaction, unless a single message is longer."""
_RETRY_SECONDS: Final = 1.0
_PRUNE_SECONDS: Final = 60.0
_KEEP_ID_SECONDS: Final = 900.0
"""Seconds for which the id of a stored message is kept. Senders give up retrying earlier."""
_REMOVE_SECONDS: Final = 2.0
"""Seconds between removals of stored messages."""


class IngestWith(Protocol):
    """Stores events, and runs a function in the same transaction; see ``EventPipeline.ingest``."""

    async def __call__(self, events: Sequence[AgentEvent], *, also: Callable[[Connection], None]) -> None:
        """Return once the events are durable."""


class UnknownCommitError(Exception):
    """Raised when events were stored but did not reach the monitor, which must be rebuilt from the log."""


class StreamConsumer:
    """
    Stores the messages of the stream, in order.

    Args:
        stream: The stream.
        store: Holds the position in the stream.
        receiver: Reads OTLP messages.
        hooks: Reads hook calls.
        ingest: Stores events.
        on_drop: Called with the path of a message that cannot be stored.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        stream: TelemetryStream,
        *,
        store: Store,
        receiver: OtlpReceiver,
        hooks: HookReceiver,
        ingest: IngestWith,
        on_drop: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._stream = stream
        self._store = store
        self._receiver = receiver
        self._hooks = hooks
        self._ingest = ingest
        self._on_drop = on_drop
        self._clock = clock
        self._is_blocked = False

    async def run(self) -> None:
        """
        Store messages as they arrive, until cancelled. A recreated stream is read from its start.

        Raises:
            UnknownCommitError: Stored events did not reach the monitor.
        """
        while True:
            try:
                identity = (await self._stream.state()).identity
                position = await self._store.read(partial(read_position, stream=identity))
            except (StreamUnavailableError, StoreError) as error:
                _log.warning("cannot read the telemetry stream yet: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await self._run(identity, position)

    async def _run(self, identity: str, position: int) -> None:
        removed_at = pruned_at = time.monotonic()
        stored_seq = removed_seq = position
        async for messages in self._stream.read(position, identity):
            for group in _group_messages(messages):
                await self._store_group(group, identity)
                stored_seq = group[-1].seq
            now = time.monotonic()
            if now - pruned_at >= _PRUNE_SECONDS:
                pruned_at = now
                with contextlib.suppress(StoreError):
                    await self._store.transact(
                        partial(delete_stored_ids, before=self._clock() - _KEEP_ID_SECONDS)
                    )
            if stored_seq > removed_seq and now - removed_at >= _REMOVE_SECONDS:
                await self._stream.remove_stored(stored_seq)
                removed_at, removed_seq = now, stored_seq

    async def _store_group(self, group: Sequence[StreamMessage], identity: str) -> None:
        """
        Store messages. Retry while the database is unavailable, and skip messages that cannot be stored.

        Raises:
            UnknownCommitError: The messages are stored, but their events did not reach the monitor.
        """
        while True:
            try:
                await self._store_once(group, identity)
            except UnknownCommitError:
                raise
            except RefusedEventsError as error:
                return await self._store_each(group, identity, error)
            except StoreError as error:
                if not self._is_blocked:
                    self._is_blocked = True
                    _log.error("cannot store telemetry; it waits in the stream: %s", error)
                if await self._is_committed(group, identity):
                    raise UnknownCommitError from error
            except Exception as error:
                return await self._store_each(group, identity, error)
            else:
                self._is_blocked = False
                return None

    async def _store_each(self, group: Sequence[StreamMessage], identity: str, error: Exception) -> None:
        """Store messages one by one, to find the one that cannot be stored."""
        if len(group) == 1:
            path = group[0].path
            _log.error("a message to %s cannot be stored and is dropped", path[:100], exc_info=error)
            self._on_drop(path)
        else:
            for message in group:
                await self._store_group([message], identity)

    async def _is_committed(self, group: Sequence[StreamMessage], identity: str) -> bool:
        """Wait for the database. Return whether messages were stored although the response was lost."""
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            with contextlib.suppress(StoreError):
                # The writer waits for the end of the broken session, which may still be committing.
                return await self._store.transact(partial(read_position, stream=identity)) >= group[-1].seq

    async def _store_once(self, group: Sequence[StreamMessage], identity: str) -> None:
        path, _, query = group[0].path.partition("?")
        has_failed = False
        if path.startswith(HOOK_PATH_PREFIX):
            # Another process may have forwarded this call, and published it because the answer was late.
            has_failed = await self._hooks.end_call(group[0].message_id)
        ids = {message.message_id for message in group if message.message_id}
        # The writer waits for the end of a broken session, which may still be committing the call.
        run_query = self._store.transact if has_failed else self._store.read
        stored_ids = await run_query(partial(list_stored_ids, message_ids=ids))
        # A retried message may be in the group twice.
        new_messages = {message.message_id or message.seq: message for message in group}

        def write_positions(conn: Connection) -> None:
            write_position(conn, stream=identity, seq=group[-1].seq)
            record_stored_ids(conn, message_ids=ids - stored_ids, now=self._clock())

        async def ingest(events: Sequence[AgentEvent]) -> None:
            await self._ingest(events, also=write_positions)

        if path.startswith(HOOK_PATH_PREFIX):
            [call] = group
            if call.message_id in stored_ids:
                if has_failed:
                    raise UnknownCommitError
                return
            await self._hooks.store_call(path, query.encode("latin-1"), call.body, call.time, ingest)
        elif bodies := [
            message.body for message in new_messages.values() if message.message_id not in stored_ids
        ]:
            await self._receiver.store_pieces(path, bodies, ingest)


def _group_messages(messages: Sequence[StreamMessage]) -> Iterator[list[StreamMessage]]:
    """Yield groups to store together: consecutive messages with the same OTLP path, or a single hook call."""
    group: list[StreamMessage] = []
    size = 0
    for message in messages:
        is_hook = message.path.startswith(HOOK_PATH_PREFIX)
        if group and (
            is_hook or message.path != group[0].path or size + len(message.body) > _MAX_GROUP_BYTES
        ):
            yield group
            group, size = [], 0
        group.append(message)
        size += len(message.body)
    if group:
        yield group


def read_position(conn: Connection, *, stream: str) -> int:
    """Return the sequence number of a stream's last stored message; 0 if there is none."""
    condition = STREAM_POSITION.c.stream == stream
    return conn.execute(select(STREAM_POSITION.c.seq).where(condition)).scalar() or 0


def write_position(conn: Connection, *, stream: str, seq: int) -> None:
    """Write the sequence number of a stream's last stored message. Delete those of other streams."""
    statement = insert(STREAM_POSITION).values(stream=stream, seq=seq)
    conn.execute(statement.on_conflict_do_update(index_elements=["stream"], set_={"seq": seq}))
    conn.execute(delete(STREAM_POSITION).where(STREAM_POSITION.c.stream != stream))


def list_stored_ids(conn: Connection, *, message_ids: Collection[str]) -> set[str]:
    """Return the ids of the messages that are already stored."""
    if not message_ids:
        return set()
    column = STORED_MESSAGES.c.message_id
    return set(conn.execute(select(column).where(column.in_(message_ids))).scalars())


def record_stored_ids(conn: Connection, *, message_ids: Collection[str], now: float) -> None:
    """Record the ids of stored messages."""
    if message_ids:
        rows = [{"message_id": message_id, "stored_at": now} for message_id in message_ids]
        conn.execute(insert(STORED_MESSAGES).on_conflict_do_nothing(), rows)


def delete_stored_ids(conn: Connection, *, before: float) -> None:
    """Delete the ids of messages that were stored before a time."""
    conn.execute(delete(STORED_MESSAGES).where(STORED_MESSAGES.c.stored_at < before))
