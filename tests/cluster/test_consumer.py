"""The owner's reader of the stream, when the database's answer to a commit is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast
from unittest.mock import Mock

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from queenright.health.store.store import Store, StoreError
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.cluster import consumer as consuming
from queenright.server.cluster.consumer import StreamConsumer, UnknownCommitError
from queenright.server.cluster.stream import StreamMessage, StreamState, TelemetryStream
from queenright.server.otlp.receiver import OtlpReceiver
from tests.databases import Postgres

pytestmark = pytest.mark.asyncio

EVENT = AgentEvent(
    type=EventType.AGENT_HEARTBEAT, time=time.time(), agent_id="clerk", session_id="s-1", data={}
)


class EndOfStreamError(Exception):
    """Raised when everything was read and stored."""


class Stream:
    """A stream with one message."""

    async def state(self) -> StreamState:
        return StreamState(identity="stream", messages=1, bytes=2, last_seq=1)

    async def read(self, after: int, identity: str) -> AsyncIterator[list[StreamMessage]]:
        yield [StreamMessage(1, "/v1/traces", b"{}", message_id="one", time=time.time(), delivery=1)]
        raise EndOfStreamError


class Receiver:
    """Reads the event of the message."""

    async def store_pieces(
        self, path: str, pieces: Sequence[bytes], ingest: Callable[[Sequence[AgentEvent]], Awaitable[None]]
    ) -> None:
        await ingest([EVENT])


class Pipeline:
    """
    Stores events. The answer to the first commit is lost, and then the answers to some reads.

    Args:
        store: The store.
        commits: Whether the first commit is made.
    """

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, *, commits: bool) -> None:
        self.store = store
        self.watched: list[AgentEvent] = []
        """What the monitor got."""
        self._commits = commits
        self._lost_reads: int | None = None
        self._read = store.read
        monkeypatch.setattr(store, "read", self._read_when_back)

    async def ingest(self, events: Sequence[AgentEvent], *, also: Callable[[Connection], None]) -> None:
        if self._lost_reads is None:
            self._lost_reads = 3
            if self._commits:
                await self.store.append(events, also=also)
            raise StoreError("the connection is lost")
        await self.store.append(events, also=also)
        self.watched += events

    async def _read_when_back(self, fn: Callable[[Connection], object]) -> object:
        if self._lost_reads:
            self._lost_reads -= 1
            raise StoreError("the database is away")
        return await self._read(fn)


@pytest_asyncio.fixture
async def store(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(consuming, "_RETRY_SECONDS", 0.01)
    url = postgres.migrated()
    found = Store.open(url)
    yield found
    await found.close()
    postgres.drop(url)


async def consume(pipeline: Pipeline) -> None:
    consumer = StreamConsumer(
        cast(TelemetryStream, Stream()),
        store=pipeline.store,
        receiver=cast(OtlpReceiver, Receiver()),
        hooks=Mock(),
        ingest=pipeline.ingest,
        on_drop=Mock(),
        clock=time.time,
    )
    async with asyncio.timeout(60):
        await consumer.run()


async def test_events_that_were_committed_without_an_answer_are_noticed_when_the_database_is_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor would never get them: they count as stored when the message is read again."""
    pipeline = Pipeline(store, monkeypatch, commits=True)

    with pytest.raises(UnknownCommitError):
        await consume(pipeline)

    assert [event.id for event in await store.history()] == [EVENT.id]
    assert pipeline.watched == []


async def test_events_that_were_not_committed_are_stored_when_the_database_is_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(store, monkeypatch, commits=False)

    with pytest.raises(EndOfStreamError):
        await consume(pipeline)

    assert [event.id for event in await store.history()] == [EVENT.id]
    assert pipeline.watched == [EVENT]
