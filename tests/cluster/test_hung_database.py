"""A process of a cluster whose database does not respond but keeps its connections open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest
from sqlalchemy import make_url

from tests.cluster.conftest import Cluster
from tests.cluster.test_partitions import wait_for_shares
from tests.waiting import until

pytestmark = pytest.mark.asyncio


@dataclass
class Relay:
    """A proxy for a server. While ``flow`` is not set, connections stay open and silent."""

    host: str
    port: int
    flow: asyncio.Event = field(default_factory=asyncio.Event)
    should_hold_queries: bool = False
    """Whether queries on new connections get no response."""
    held_queries: int = 0
    """Number of queries that were not forwarded."""

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[int]:
        """Relay connections, and yield the port."""
        self.flow.set()
        tasks: set[asyncio.Task[None]] = set()
        writers: list[asyncio.StreamWriter] = []

        async def copy(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_silent: bool = False
        ) -> None:
            with contextlib.suppress(OSError):
                while chunk := await reader.read(65536):
                    await self.flow.wait()
                    if is_silent and chunk[:1] in (b"Q", b"P"):
                        self.held_queries += 1
                        continue
                    writer.write(chunk)
                    await writer.drain()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            server_reader, server_writer = await asyncio.open_connection(self.host, self.port)
            writers.extend((writer, server_writer))
            tasks.add(asyncio.create_task(copy(reader, server_writer, self.should_hold_queries)))
            tasks.add(asyncio.create_task(copy(server_reader, writer)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1]
        server.close()
        self.flow.set()
        for writer in writers:
            writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_process_stops_while_its_database_does_not_respond(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    cluster.settings["cluster"] = {"partitions": 2}
    address = make_url(cluster.database)
    relay = Relay(address.host or "", address.port or 5432)
    async with relay.run() as port:
        url = address.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        process = cluster.add(database=url)
        await wait_for_shares(client, process, lambda shares: shares == {process.url: 2})
        relay.flow.clear()

        async with asyncio.timeout(90):
            code = await asyncio.to_thread(process.stop)

    assert code == 0
    assert "Traceback" not in process.log(), process.log()


async def test_process_stops_while_it_waits_for_a_new_connection(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """
    The server accepts the connection but does not respond, while the connection of the lease still works.
    """
    owner = cluster.add()
    await wait_for_shares(client, owner, lambda shares: shares == {owner.url: 1})
    address = make_url(cluster.database)
    relay = Relay(address.host or "", address.port or 5432)
    async with relay.run() as port:
        url = address.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        process = cluster.add(database=url)
        relay.should_hold_queries = True
        owner.kill()
        await until(lambda: relay.held_queries, "a query of the process gets no response")

        async with asyncio.timeout(60):
            code = await asyncio.to_thread(process.stop)

    assert code == 0
    assert "Traceback" not in process.log(), process.log()
