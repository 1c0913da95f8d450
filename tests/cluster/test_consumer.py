"""The owner's reader of the stream, when the response of the database to a commit is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import cast
from unittest.mock import Mock

import psycopg
import pytest
import pytest_asyncio
from sqlalchemy import Connection

from queenright.health.store.store import Store, StoreError
from queenright.instrumentation.identity import new_id
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.cluster import consumer as consuming
from queenright.server.cluster.consumer import IngestWith, StreamConsumer, UnknownCommitError
from queenright.server.cluster.hook_calls import HookCalls
from queenright.server.cluster.stream import StreamMessage, StreamState, TelemetryStream
from queenright.server.otlp.receiver import OtlpReceiver
from queenright.server.webhooks.hooks import HookReceiver
from tests.databases import Postgres

pytestmark = pytest.mark.asyncio

_COMMIT_KEY = 4242
"""Key of the advisory lock that a commit waits for."""

EVENT = AgentEvent(
    type=EventType.AGENT_HEARTBEAT, time=time.time(), agent_id="clerk", session_id="s-1", data={}
)


class EndOfStreamError(Exception):
    """Raised when the whole stream has been read and stored."""


MESSAGE = StreamMessage(1, "/v1/traces", b"{}", message_id="one", time=time.time(), delivery=1)
HOOK_CALL = replace(MESSAGE, path="/hooks/claude-code")


class Stream:
    """A stream with one message."""

    def __init__(self, message: StreamMessage = MESSAGE) -> None:
        self._message = message

    async def state(self) -> StreamState:
        return StreamState(identity="stream", messages=1, bytes=2, last_seq=1)

    async def read(self, after: int, identity: str) -> AsyncIterator[list[StreamMessage]]:
        yield [self._message]
        raise EndOfStreamError


class Receiver:
    """Reads one event from the message."""

    async def store_pieces(
        self, path: str, pieces: Sequence[bytes], ingest: Callable[[Sequence[AgentEvent]], Awaitable[None]]
    ) -> None:
        await ingest([EVENT])


class NewIdReceiver(Receiver):
    """Gives the event a new id each time the message is read."""

    async def store_pieces(
        self, path: str, pieces: Sequence[bytes], ingest: Callable[[Sequence[AgentEvent]], Awaitable[None]]
    ) -> None:
        await ingest([replace(EVENT, id=new_id())])


class Pipeline:
    """
    Stores events. The response to the first commit is lost, and then the database is unavailable for a while.

    Args:
        store: The store.
        commits: Whether the first commit takes effect.
    """

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, *, commits: bool) -> None:
        self.store = store
        self.monitored_events: list[AgentEvent] = []
        """The events that the monitor received."""
        self._commits = commits
        self._lost_reads: int | None = None
        self._transact = store.transact
        monkeypatch.setattr(store, "transact", self._transact_when_back)

    async def ingest(self, events: Sequence[AgentEvent], *, also: Callable[[Connection], None]) -> None:
        if self._lost_reads is None:
            self._lost_reads = 3
            if self._commits:
                await self.store.append(events, also=also)
            raise StoreError("the connection is lost")
        await self.store.append(events, also=also)
        self.monitored_events += events

    async def _transact_when_back(self, fn: Callable[[Connection], object]) -> object:
        if self._lost_reads:
            self._lost_reads -= 1
            raise StoreError("the database is unavailable")
        return await self._transact(fn)


@pytest_asyncio.fixture
async def store(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setattr(consuming, "_RETRY_SECONDS", 0.01)
    url = postgres.migrated()
    opened_store = Store.open(url)
    yield opened_store
    await opened_store.close()
    postgres.drop(url)


async def consume(
    store: Store,
    ingest: IngestWith,
    receiver: object,
    *,
    message: StreamMessage = MESSAGE,
    hooks: object = None,
) -> None:
    consumer = StreamConsumer(
        cast(TelemetryStream, Stream(message)),
        store=store,
        receiver=cast(OtlpReceiver, receiver),
        hooks=cast(HookReceiver, hooks),
        ingest=ingest,
        on_drop=Mock(),
        clock=time.time,
    )
    async with asyncio.timeout(60):
        await consumer.run()


async def test_unacknowledged_commit_is_detected_when_the_database_is_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Otherwise the monitor would never get the events: they count as stored when the message is read again.
    """
    pipeline = Pipeline(store, monkeypatch, commits=True)

    with pytest.raises(UnknownCommitError):
        await consume(store, pipeline.ingest, Receiver())

    assert [event.id for event in await store.history()] == [EVENT.id]
    assert pipeline.monitored_events == []


async def test_events_that_were_not_committed_are_stored_when_the_database_is_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(store, monkeypatch, commits=False)

    with pytest.raises(EndOfStreamError):
        await consume(store, pipeline.ingest, Receiver())

    assert [event.id for event in await store.history()] == [EVENT.id]
    assert pipeline.monitored_events == [EVENT]


async def make_commits_wait(postgres: Postgres, store: Store, table: str) -> str:
    """
    Make commits that insert into a table wait for a lock, as for a slow standby. Return the database's name.
    """
    [(name,)] = await store.read(lambda conn: conn.exec_driver_sql("SELECT current_database()").all())
    postgres.execute(
        f"""
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock_shared({_COMMIT_KEY}); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON {table}
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait();
        """,
        database=name,
    )
    return str(name)


async def wait_for_sessions(postgres: Postgres, name: str, number: int) -> None:
    """Wait until ``number`` sessions wait for an advisory lock."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND wait_event = 'advisory'"
    async with asyncio.timeout(60):
        while True:
            [(count,)] = await asyncio.to_thread(postgres.execute, query)
            if count >= number:
                return
            await asyncio.sleep(0.02)


def break_connection(store: Store) -> None:
    driver_connection = store._database.writer.connection.driver_connection
    assert driver_connection is not None
    with socket.socket(fileno=os.dup(driver_connection.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


async def test_reader_waits_for_a_commit_that_outlives_its_connection(
    postgres: Postgres, store: Store
) -> None:
    """Otherwise the message would be stored a second time while the first commit still waits."""
    name = await make_commits_wait(postgres, store, "stream_position")
    monitored_events: list[AgentEvent] = []

    async def ingest(events: Sequence[AgentEvent], *, also: Callable[[Connection], None]) -> None:
        await store.append(events, also=also)
        monitored_events.extend(events)

    with psycopg.connect(postgres.url(name), autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({_COMMIT_KEY})")
        consuming_task = asyncio.create_task(consume(store, ingest, NewIdReceiver()))
        await wait_for_sessions(postgres, name, 1)
        break_connection(store)
        await wait_for_sessions(
            postgres, name, 2
        )  # the session of the broken connection, and the next writer
    with pytest.raises(UnknownCommitError):
        await consuming_task

    assert len(await store.history()) == 1
    assert monitored_events == []


class Hooks:
    """Gives the event a new id each time the call is read. Storing it directly has failed."""

    async def end_call(self, call_id: str) -> bool:
        return True

    async def store_call(
        self,
        path: str,
        query: bytes,
        body: bytes,
        received_at: float,
        ingest: Callable[[Sequence[AgentEvent]], Awaitable[None]],
    ) -> None:
        await ingest([replace(EVENT, id=new_id())])


async def test_reader_waits_for_a_hook_commit_that_outlives_its_connection(
    postgres: Postgres, store: Store
) -> None:
    """
    The call was published to the stream when its connection broke, and is read while the first commit waits.
    """
    name = await make_commits_wait(postgres, store, "stored_messages")

    async def ingest(events: Sequence[AgentEvent], *, also: Callable[[Connection], None]) -> None:
        await store.append(events, also=also)

    with psycopg.connect(postgres.url(name), autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({_COMMIT_KEY})")
        direct_task = asyncio.create_task(HookCalls(Mock(), ingest, time.time).ingest([EVENT], "one"))
        await wait_for_sessions(postgres, name, 1)
        break_connection(store)
        with pytest.raises(StoreError):
            await direct_task
        consuming_task = asyncio.create_task(
            consume(store, ingest, Receiver(), message=HOOK_CALL, hooks=Hooks())
        )
        await wait_for_sessions(
            postgres, name, 2
        )  # the session of the broken connection, and the next writer
    with pytest.raises(UnknownCommitError):
        await consuming_task

    assert [event.id for event in await store.history()] == [EVENT.id]
