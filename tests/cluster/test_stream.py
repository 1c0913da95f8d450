"""The telemetry streams, on a real NATS."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from queenright.server.cluster.stream import NatsConnection, StreamUnavailableError
from tests.cluster.conftest import Nats
from tests.waiting import until


async def test_message_that_was_under_way_at_a_restart_is_no_refusal(nats: Nats) -> None:
    """The process would report for ten seconds that NATS takes nothing."""
    connection = NatsConnection(nats.url, replicas=1, max_bytes=1 << 30)
    running = asyncio.create_task(connection.run())
    try:
        await until(lambda: connection.is_available, "the stream is there")
        [stream] = connection.streams
        assert nats.pid is not None
        os.kill(nats.pid, signal.SIGSTOP)
        publishing = asyncio.create_task(stream.publish("/v1/traces", b"{}"))
        await asyncio.sleep(0)
        nats.kill()
        await asyncio.to_thread(nats.start)
        with pytest.raises(StreamUnavailableError):
            await publishing
        await until(lambda: connection.is_available, "it is connected again")

        assert stream.is_accepting
        await stream.publish("/v1/traces", b"{}")
    finally:
        running.cancel()
        await asyncio.wait([running])
