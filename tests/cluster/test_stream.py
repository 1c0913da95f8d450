"""The telemetry streams, on a real nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from queenright.server.cluster.stream import NatsConnection, StreamUnavailableError
from tests.cluster.conftest import Cluster, Nats
from tests.databases import Postgres
from tests.ports import reserve_port
from tests.waiting import until


async def test_message_interrupted_by_a_restart_is_not_a_rejection(nats: Nats) -> None:
    """Otherwise the process would report for ten seconds that NATS rejects messages."""
    connection = NatsConnection(nats.url, replicas=1, max_bytes=1 << 30)
    running = asyncio.create_task(connection.run())
    try:
        await until(lambda: connection.is_available, "the stream exists")
        [stream] = connection.streams
        assert nats.pid is not None
        os.kill(nats.pid, signal.SIGSTOP)
        publishing_task = asyncio.create_task(stream.publish("/v1/traces", b"{}"))
        await asyncio.sleep(0)
        nats.kill()
        await asyncio.to_thread(nats.start)
        with pytest.raises(StreamUnavailableError):
            await publishing_task
        await until(lambda: connection.is_available, "the client is connected again")

        assert stream.is_accepting
        await stream.publish("/v1/traces", b"{}")
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize("is_created_first", [True, False])
async def test_interrupted_message_is_not_a_rejection_whenever_it_fails(
    monkeypatch: pytest.MonkeyPatch, is_created_first: bool
) -> None:
    """The stream may exist again before or after the message fails."""
    has_failed = asyncio.Event()

    async def fail(*arguments: object, **options: object) -> None:
        await has_failed.wait()
        raise TimeoutError

    connection = NatsConnection("nats://127.0.0.1:1", replicas=1, max_bytes=1 << 30)
    jetstream = Mock(publish=fail, stream_info=AsyncMock(), update_stream=AsyncMock())
    monkeypatch.setattr(connection, "jetstream", jetstream)
    monkeypatch.setattr(NatsConnection, "is_connected", True)
    [stream] = connection.streams
    await stream.create()
    publishing_task = asyncio.create_task(stream.publish("/v1/traces", b"{}"))
    await asyncio.sleep(0)
    if is_created_first:
        await stream.create()
    has_failed.set()
    with pytest.raises(StreamUnavailableError):
        await publishing_task
    assert stream.is_accepting is is_created_first
    await stream.create()

    assert stream.is_accepting


@pytest.fixture
def nats_cluster(tmp_path: Path) -> Iterator[list[Nats]]:
    """Run three nats-servers that form a NATS cluster, and yield them."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserve_port("nats-server")) for _ in range(6)]
        urls = [f"nats://127.0.0.1:{port}" for port in ports[3:]]
        servers = []
        for number in range(3):
            folder = tmp_path / f"nats-{number}"
            folder.mkdir()
            options = ("-n", str(number), "-cluster_name", "test", "-cluster", urls[number])
            servers.append(Nats(folder, ports[number], options=(*options, "-routes", ",".join(urls))))
            servers[-1].start()
            stack.callback(servers[-1].kill)
        yield servers


async def test_process_whose_stream_has_no_majority_does_not_listen(
    tmp_path: Path, postgres: Postgres, nats_cluster: list[Nats], client: httpx.AsyncClient
) -> None:
    """B119: the remaining server keeps its connections, but accepts no telemetry."""
    database = postgres.migrated()
    cluster = Cluster(tmp_path, postgres, database, nats_cluster[0], {"cluster": {"replicas": 3}})
    process = cluster.add()

    async def wait_until_it_accepts(accepts: bool) -> None:
        """Wait until telemetry is accepted (or refused), and the metrics show it."""
        expected_outcome = (200, True) if accepts else (503, False)
        outcome = None
        while outcome != expected_outcome:
            await asyncio.sleep(0.2)
            response = await client.post(f"{process.otlp_url}/v1/traces", json={"resourceSpans": []})
            metrics = await client.get(f"{process.url}/metrics")
            outcome = response.status_code, "\nqueenright_listening 1.0" in metrics.text

    try:
        async with asyncio.timeout(120):
            await cluster.owner()
            await wait_until_it_accepts(True)
            for server in nats_cluster[1:]:
                server.kill()
            await wait_until_it_accepts(False)
            await asyncio.to_thread(nats_cluster[1].start)
            await wait_until_it_accepts(True)
    finally:
        process.kill()
        postgres.drop(database)
