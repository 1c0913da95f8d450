"""
The telemetry streams of a cluster: one JetStream stream for each partition.

Every member writes to all of them. The owner of a partition reads its stream.

A message is a piece of a request, with the request's path as a header. It stays in the stream until the owner
has stored its events. The owner writes its position in the transaction that stores the events, so that a new
owner continues at the next message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from queenright.instrumentation.errors import QueenrightError

_PATH_HEADER: Final = "Queenright-Path"
_MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"

_ACK_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 2
_RETRY_SECONDS: Final = 1.0
_REFUSED_SECONDS: Final = 10.0
"""Seconds that a refusal counts as current. Senders may switch processes, so no later message may arrive."""
_DUPLICATE_WINDOW_SECONDS: Final = 120.0
_MIN_BYTES: Final = 1 << 20
"""Minimum size limit of a stream."""
_BATCH_SIZE: Final = 64
"""Maximum number of messages per read."""
_READ_SECONDS: Final = 1.0
_CHECK_AFTER_READS: Final = 5
"""Number of consecutive empty reads after which the reader checks that its consumer still exists."""
_UNUSED_CONSUMER_SECONDS: Final = 30.0

_log = logging.getLogger(__name__)


class StreamUnavailableError(QueenrightError):
    """Raised when a message was not acknowledged. The sender must retry it."""


class MessageTooLargeError(QueenrightError):
    """Raised when a message is longer than the NATS server allows."""


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A message of the stream."""

    seq: int
    path: str
    """The path of the request, with its query."""
    body: bytes
    message_id: str
    """Equal for retries of a message; empty for a message that is always new."""
    time: float
    """When the stream stored it, in seconds since the epoch."""
    delivery: int
    """Its number among the messages delivered to this reader, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """The state of a stream."""

    identity: str
    """Changes when the stream is deleted and recreated, which restarts its sequence numbers."""
    messages: int
    bytes: int
    last_seq: int


class NatsConnection:
    """
    The connection of a process to NATS, and its streams. An instance belongs to one event loop.

    Args:
        url: Comma-separated addresses of NATS servers. They may have credentials, and are never logged.
        partitions: The number of partitions, each with a stream.
        replicas: Copies of each stream among the servers of a NATS cluster.
        max_bytes: Maximum size of all streams together. Above this, messages are refused.
    """

    def __init__(self, url: str, *, partitions: int = 1, replicas: int, max_bytes: int) -> None:
        self._url = url
        self._client = Client()
        self.jetstream: JetStreamContext = self._client.jetstream(timeout=_ACK_SECONDS)
        """The JetStream client. It is replaced when its connection closes."""
        self._logged_fault: str | None = None
        self.streams = [
            TelemetryStream(
                self, number, replicas=replicas, max_bytes=max(max_bytes // partitions, _MIN_BYTES)
            )
            for number in range(partitions)
        ]

    @property
    def is_connected(self) -> bool:
        """Whether a server is connected."""
        return self._client.is_connected

    @property
    def is_available(self) -> bool:
        """Whether messages can be published, according to the last known state."""
        return all(stream.is_available for stream in self.streams)

    @property
    def max_payload(self) -> int:
        """Maximum length of a message, in bytes."""
        return self._client.max_payload

    async def run(self) -> None:
        """Connect, create the streams, and stay connected until cancelled."""
        try:
            await self._connect()
            while True:
                if self._client.is_closed:
                    self._client = Client()
                    self.jetstream = self._client.jetstream(timeout=_ACK_SECONDS)
                    await self._connect()
                for stream in self.streams:
                    if not stream.is_created and self.is_connected:
                        await stream.create()
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                await self._client.close()

    async def _connect(self) -> None:
        await self._client.connect(
            [server.strip() for server in self._url.split(",")],
            name="queenright",
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            connect_timeout=_CONNECT_SECONDS,
            reconnect_time_wait=1,
            max_reconnect_attempts=-1,
            # An unreachable server is detected after three or four seconds.
            ping_interval=1,
            max_outstanding_pings=2,
            # Buffer nothing, because the sender retries messages that are not acknowledged.
            pending_size=0,
        )

    async def _on_disconnect(self) -> None:
        # The servers may restart without their data.
        for stream in self.streams:
            stream.is_created = False

    async def _on_error(self, error: Exception) -> None:
        text = f"NATS: {_describe(error)}"
        if text != self._logged_fault:
            self._logged_fault = text
            _log.warning("%s", text)


class TelemetryStream:
    """
    The telemetry stream of a partition. `NatsConnection` creates it.

    Args:
        connection: The connection.
        partition: The partition; also an attribute.
        replicas: Copies of the stream among the servers of a NATS cluster.
        max_bytes: Maximum size of the stream. Above this, messages are refused.
    """

    def __init__(self, connection: NatsConnection, partition: int, *, replicas: int, max_bytes: int) -> None:
        self.partition = partition
        self._connection = connection
        self._name = f"QUEENRIGHT_{partition}" if partition else "QUEENRIGHT"
        self._subject = f"queenright.telemetry.{partition}" if partition else "queenright.telemetry"
        self._replicas = replicas
        self._max_bytes = max_bytes
        self.is_created = False
        self._refused_at = -_REFUSED_SECONDS
        self._created_at = 0.0
        self._logged_fault: str | None = None

    @property
    def is_accepting(self) -> bool:
        """Whether it is available and has not recently refused messages, as a full stream does."""
        return self.is_available and time.monotonic() - self._refused_at > _REFUSED_SECONDS

    @property
    def is_available(self) -> bool:
        """Whether messages can be published, according to the last known state."""
        return self.is_created and self._connection.is_connected

    @property
    def _jetstream(self) -> JetStreamContext:
        return self._connection.jetstream

    async def publish(self, path: str, body: bytes, *, message_id: str | None = None) -> None:
        """
        Publish a message, and return once the servers have stored it.

        Args:
            path: The path of the request, with its query.
            body: The message.
            message_id: The id of a message that may be retried; it is stored once. By default, equal bytes
                are the same message.

        Raises:
            StreamUnavailableError: The message may not be stored.
            MessageTooLargeError: The servers do not accept messages of this length.
        """
        if not self.is_available:
            raise StreamUnavailableError("NATS is not connected")
        if len(body) + 1024 > self._connection.max_payload:
            raise MessageTooLargeError(
                f"a message of {len(body)} bytes is longer than max_payload of the nats-server, "
                f"{self._connection.max_payload} bytes; raise max_payload"
            )
        if message_id is None:
            message_id = blake2b(body, digest_size=16, key=path.encode()[:64]).hexdigest()
        headers = {_PATH_HEADER: path, _MESSAGE_ID_HEADER: message_id}
        started_at = time.monotonic()
        try:
            await self._jetstream.publish(
                self._subject, body, timeout=_ACK_SECONDS, stream=self._name, headers=headers
            )
        except NoStreamResponseError:
            self.is_created = False
            raise StreamUnavailableError("the stream was deleted; it is being created again") from None
        except (NatsError, OSError, TimeoutError) as error:
            # A message that was in flight when the connection broke says nothing about the new connection.
            if started_at > self._created_at:
                self._refused_at = time.monotonic()
            raise StreamUnavailableError(f"NATS did not acknowledge a message: {_describe(error)}") from error

    async def state(self) -> StreamState:
        """
        Return the state of the stream.

        Raises:
            StreamUnavailableError: NATS does not answer.
        """
        if not self._connection.is_connected:
            # Before the first connection, the client would raise other errors and not recover.
            raise StreamUnavailableError("NATS is not connected")
        try:
            info = await self._jetstream.stream_info(self._name)
        except (NatsError, OSError, TimeoutError) as error:
            raise StreamUnavailableError(f"NATS does not answer: {_describe(error)}") from error
        state = info.state
        return StreamState(
            identity=f"{self._name} {info.created}",
            messages=state.messages,
            bytes=state.bytes,
            last_seq=state.last_seq,
        )

    async def read(self, after: int, identity: str) -> AsyncIterator[list[StreamMessage]]:
        """
        Yield the messages after a sequence number, in order, in batches.

        Survives restarts of NATS. Yields an empty list about once a second while no messages arrive. Ends if
        the stream is recreated.
        """
        while True:
            try:
                state = await self.state()
                if state.identity != identity:
                    return
                if after > state.last_seq:
                    # The stream lost its last messages, and reuses their numbers.
                    after = 0
                async for messages in self._read(after):
                    if messages:
                        after = messages[-1].seq
                    yield messages
            except StreamUnavailableError as error:
                self._log_once(str(error))
            except (NatsError, OSError, TimeoutError) as error:
                self._log_once(f"cannot read the telemetry stream, retrying: {_describe(error)}")
            yield []
            await asyncio.sleep(_RETRY_SECONDS)

    async def remove_stored(self, last_seq: int) -> None:
        """Remove messages up to a sequence number, because their events are stored."""
        with contextlib.suppress(NatsError, OSError, TimeoutError):
            await self._jetstream.purge_stream(self._name, seq=last_seq + 1)

    async def _read(self, after: int) -> AsyncIterator[list[StreamMessage]]:
        consumer = await self._jetstream.pull_subscribe(
            self._subject,
            stream=self._name,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=after + 1,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=_UNUSED_CONSUMER_SECONDS,
            ),
        )
        empty_reads = delivered_count = 0
        try:
            while True:
                try:
                    messages = await consumer.fetch(_BATCH_SIZE, timeout=_READ_SECONDS)
                except (NatsTimeoutError, TimeoutError):
                    messages = []
                    empty_reads += 1
                    if empty_reads % _CHECK_AFTER_READS == 0:
                        await consumer.consumer_info()
                else:
                    empty_reads = 0
                    self._logged_fault = None
                batch = [_parse_message(message) for message in messages]
                if batch and batch[-1].delivery != delivered_count + len(batch):
                    # The connection broke while messages were in flight. They are not redelivered.
                    raise NatsError("messages were lost in transit; reading them again")
                delivered_count += len(batch)
                yield batch
        finally:
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                await consumer.unsubscribe()

    async def create(self) -> None:
        """Create the stream, or update its settings. If this fails, the stream stays unavailable."""
        config = StreamConfig(
            name=self._name,
            subjects=[self._subject],
            storage=StorageType.FILE,
            num_replicas=self._replicas,
            max_bytes=self._max_bytes,
            discard=DiscardPolicy.NEW,
            duplicate_window=_DUPLICATE_WINDOW_SECONDS,
        )
        try:
            try:
                await self._jetstream.stream_info(self._name)
                await self._jetstream.update_stream(config)
            except NotFoundError:
                await self._jetstream.add_stream(config)
            self.is_created = True
            self._created_at = time.monotonic()
            self._refused_at = -_REFUSED_SECONDS
            self._logged_fault = None
        except (NatsError, OSError, TimeoutError) as error:
            self._log_once(f"cannot create the telemetry stream, retrying: {_describe(error)}")

    def _log_once(self, text: str) -> None:
        if text != self._logged_fault:
            self._logged_fault = text
            _log.warning("%s", text)


def _parse_message(message: Msg) -> StreamMessage:
    headers = message.headers or {}
    return StreamMessage(
        seq=message.metadata.sequence.stream,
        path=headers.get(_PATH_HEADER, ""),
        body=message.data,
        message_id=headers.get(_MESSAGE_ID_HEADER, ""),
        time=message.metadata.timestamp.timestamp(),
        delivery=message.metadata.sequence.consumer,
    )


def _describe(error: BaseException) -> str:
    """Format an error without addresses, which may contain credentials."""
    if isinstance(error, APIError) and error.description:
        return error.description
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error)
    return type(error).__name__ if not text or "://" in text else text
