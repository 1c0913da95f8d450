"""A process of a cluster is killed, paused or stopped, and another takes over without loss or duplicates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx
import pytest

from queenright.health.cluster.shared_secrets import LOGIN_KEY, get_secret
from queenright.server.cluster.front import sign_call_id
from queenright.server.cluster.stream import NatsConnection, TelemetryStream
from tests.cluster.conftest import Cluster, Nats, Process
from tests.databases import connected
from tests.waiting import until

pytestmark = pytest.mark.asyncio


def make_tool_spans(agent: str, session: str, count: int, *, arguments: str = "{}") -> dict[str, Any]:
    """Return an OTLP request with ``count`` spans of tool calls of one session."""
    now_ns = time.time_ns()
    attributes = {"gen_ai.agent.name": agent, "gen_ai.conversation.id": session}
    spans = [
        {
            "traceId": secrets.token_hex(16),
            "spanId": secrets.token_hex(8),
            "name": "execute_tool search",
            "startTimeUnixNano": str(now_ns + 1000 * number),
            "endTimeUnixNano": str(now_ns + 1000 * number + 500),
            "attributes": [
                {"key": key, "value": {"stringValue": value}}
                for key, value in {
                    **attributes,
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "search",
                    "gen_ai.tool.call.arguments": arguments,
                    "gen_ai.tool.call.id": secrets.token_hex(8),
                }.items()
            ],
        }
        for number in range(count)
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}


class Sender:
    """An agent's exporter. It sends a request until a process acknowledges it."""

    def __init__(self, client: httpx.AsyncClient, processes: Sequence[Process]) -> None:
        self.processes = processes
        self.acknowledged = 0
        self.refused = 0
        self._client = client
        self._turn = 0

    async def send(self, body: dict[str, Any]) -> None:
        count = len(body["resourceSpans"][0]["scopeSpans"][0]["spans"])
        async with asyncio.timeout(90):
            while True:
                self._turn += 1
                process = self.processes[self._turn % len(self.processes)]
                try:
                    response = await self._client.post(f"{process.otlp_url}/v1/traces", json=body)
                    if response.status_code == 200:
                        self.acknowledged += count
                        return
                    assert response.status_code == 503, response.text
                    assert "retry-after" in response.headers
                except httpx.HTTPError:
                    pass
                self.refused += 1
                await asyncio.sleep(0.05)


def list_stored_calls(cluster: Cluster) -> list[str]:
    """Return the ids of the tool calls whose completion is in the event log."""
    with connected(cluster.database) as conn:
        rows = conn.exec_driver_sql(
            "SELECT (data::json)->>'call_id' FROM events"
            " WHERE type = 'tool_call_completed' AND agent_id LIKE 'clerk%%'"
        )
        return [row[0] for row in rows]


async def wait_for_calls(cluster: Cluster, count: int) -> list[str]:
    await until(lambda: len(list_stored_calls(cluster)) >= count, f"{count} calls are stored")
    return list_stored_calls(cluster)


async def test_killed_owner_is_replaced_without_loss_or_duplicates(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """B117: acknowledged work is monitored again after the owner is killed, and each event is stored once."""
    processes = [cluster.add(), cluster.add()]
    owner = await cluster.owner()
    sender = Sender(client, processes)
    for _ in range(10):
        await sender.send(make_tool_spans("clerk", "order-7", 5))
    owner.kill()
    for _ in range(10):
        await sender.send(make_tool_spans("clerk", "order-7", 5))
    successor = await cluster.owner()
    stored_ids = await wait_for_calls(cluster, sender.acknowledged)
    assert len(stored_ids) == len(set(stored_ids)) == sender.acknowledged == 100
    steps = await client.get(
        f"{successor.url}/api/agents/clerk/steps",
        params={"session_id": "order-7", "limit": 200},
        timeout=60,  # on a busy machine, the successor may have only just taken over
    )
    assert [step["kind"] for step in steps.json()["items"]].count("tool") == 100


async def test_paused_owner_writes_nothing_after_its_lease_is_taken(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """
    B116: one process monitors at a time. A paused owner finds that it lost its lease, and forwards requests.
    """
    processes = [cluster.add(), cluster.add()]
    paused_owner = await cluster.owner()
    [other_process] = [process for process in processes if process is not paused_owner]
    sender = Sender(client, [other_process])
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    await wait_for_calls(cluster, 5)

    paused_owner.signal(signal.SIGSTOP)
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    assert await cluster.owner(other_than=paused_owner) is other_process
    await wait_for_calls(cluster, 10)
    faults = (await client.get(f"{other_process.url}/api/cluster")).json()["faults"]
    assert [fault.rpartition(": ")[2] for fault in faults if fault.startswith(paused_owner.url)] == [
        "it hangs"
    ]
    paused_owner.signal(signal.SIGCONT)

    await sender.send(make_tool_spans("clerk", "order-7", 5))
    stored_ids = await wait_for_calls(cluster, 15)
    assert len(stored_ids) == len(set(stored_ids)) == 15
    status = await wait_for_status(client, paused_owner, owner=other_process)
    assert [member["is_owner"] for member in status["members"]].count(True) == 1
    # The other process answers the requests of the paused one from now on.
    agents = (await client.get(f"{paused_owner.url}/api/agents")).json()["agents"]
    assert [agent["agent_id"] for agent in agents] == ["clerk"]
    assert "has taken over" in paused_owner.log()
    assert "Traceback" not in paused_owner.log() + other_process.log()


async def test_stopped_owner_hands_over(cluster: Cluster, client: httpx.AsyncClient) -> None:
    """
    B120: an owner that is stopped stores what it has read, and its successor reads the remaining messages.
    """
    owner = cluster.add()
    await cluster.owner()
    successor = cluster.add()
    sender = Sender(client, [owner, successor])
    for _ in range(6):
        await sender.send(make_tool_spans("clerk", "order-7", 5))
    assert owner.stop() == 0
    assert "Traceback" not in owner.log()
    assert await cluster.owner() is successor
    sender.processes = [successor]
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    stored_ids = await wait_for_calls(cluster, sender.acknowledged)
    assert len(stored_ids) == len(set(stored_ids)) == 35
    status = (await client.get(f"{successor.url}/api/cluster")).json()
    assert [member["is_owner"] for member in status["members"]] == [True]
    assert status["faults"] == []


async def test_telemetry_without_nats_is_refused_without_loss(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """B119: without NATS, nothing is acknowledged. What was acknowledged before is stored."""
    process = cluster.add()
    await cluster.owner()
    sender = Sender(client, [process])
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    cluster.nats.kill()
    sending_task = asyncio.create_task(sender.send(make_tool_spans("clerk", "order-7", 5)))
    await until(lambda: sender.refused, "a request is refused")
    ready = (await client.get(f"{process.url}/readyz")).json()
    assert ready == {"ready": False, "missing": ["NATS cannot take telemetry"]}
    cluster.nats.start()
    await sending_task
    stored_ids = await wait_for_calls(cluster, sender.acknowledged)
    assert len(stored_ids) == len(set(stored_ids)) == 10


@contextlib.asynccontextmanager
async def run_proxy(nats: Nats) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Yield another address of NATS, and a function that blocks this address."""
    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nats_streams = await asyncio.open_connection("127.0.0.1", int(nats.url.rpartition(":")[2]))
        writers.extend((writer, nats_streams[1]))
        tasks.extend(
            asyncio.create_task(copy(*streams))
            for streams in ((reader, nats_streams[1]), (nats_streams[0], writer))
        )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)

    def cut() -> None:
        server.close()
        for writer in writers:
            writer.close()

    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}", cut
    cut()
    await asyncio.gather(*tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True)
    await server.wait_closed()


async def test_owner_that_alone_cannot_reach_nats_hands_over(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """B116, B119: the other process monitors the workers, and the former owner does not take them back."""
    async with run_proxy(cluster.nats) as (url, cut_nats):
        cut_process = cluster.add(nats_url=url)
        await cluster.owner()
        other_process = cluster.add()
        sender = Sender(client, [other_process])
        await sender.send(make_tool_spans("clerk-1", "s-1", 5))
        await wait_for_calls(cluster, 5)
        cut_nats()
        assert await cluster.owner(other_than=cut_process) is other_process
        await sender.send(make_tool_spans("clerk-1", "s-1", 5))
        assert len(await wait_for_calls(cluster, 10)) == 10
        await asyncio.to_thread(other_process.stop)
        # It is the only remaining process, so it takes over and waits for NATS.
        assert await cluster.owner(other_than=other_process) is cut_process


async def test_recreated_stream_is_read_from_its_start(cluster: Cluster, client: httpx.AsyncClient) -> None:
    """A stream with the same name but lower numbers is a new stream, so its messages are stored."""
    process = cluster.add()
    await cluster.owner()
    sender = Sender(client, [process])
    for _ in range(5):
        await sender.send(make_tool_spans("clerk", "order-7", 5))
    await wait_for_calls(cluster, 25)
    cluster.nats.kill()
    cluster.nats.wipe()
    cluster.nats.start()
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    stored_ids = await wait_for_calls(cluster, sender.acknowledged)
    assert len(stored_ids) == len(set(stored_ids)) == 30


async def test_hook_call_without_an_owner_is_stored_later_and_its_agent_continues(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """
    While no process is the owner, a hook call gets a response within a second, and its event is stored later.
    """
    processes = [cluster.add(), cluster.add()]
    owner = await cluster.owner()
    [other_process] = [process for process in processes if process is not owner]
    owner.signal(signal.SIGSTOP)
    call = {"hook_event_name": "UserPromptSubmit", "session_id": "s-1", "cwd": "/work", "prompt": "go"}
    response = await client.post(f"{other_process.otlp_url}/hooks/claude-code", json=call)
    assert (response.status_code, response.json()) == (200, {})
    assert await cluster.owner(other_than=owner) is other_process
    sessions: list[str] = []
    async with asyncio.timeout(60):
        while not sessions:
            agents = (await client.get(f"{other_process.url}/api/agents")).json()["agents"]
            sessions = [agent["session_id"] for agent in agents]
            await asyncio.sleep(0.1)
    assert sessions == ["s-1"]


def list_stored_prompts(cluster: Cluster) -> list[str]:
    """Return the session id of each stored prompt, oldest first."""
    with connected(cluster.database) as conn:
        query = "SELECT session_id FROM events WHERE type = 'client_input_received' ORDER BY seq"
        return [row[0] for row in conn.exec_driver_sql(query)]


@contextlib.asynccontextmanager
async def open_telemetry_stream(cluster: Cluster) -> AsyncIterator[TelemetryStream]:
    """Connect to the telemetry stream of a cluster with one partition."""
    nats = NatsConnection(cluster.nats.url, replicas=1, max_bytes=1 << 30)
    running = asyncio.create_task(nats.run())
    try:
        await until(lambda: nats.is_available, "the stream exists")
        [stream] = nats.streams
        yield stream
    finally:
        running.cancel()


async def test_hook_call_that_was_forwarded_and_published_is_stored_once(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """B118: its owner responded too late, but stored it. The owner may read either copy first."""
    process = cluster.add()
    await cluster.owner()
    with connected(cluster.database) as conn:
        key = get_secret(conn, LOGIN_KEY)
    async with open_telemetry_stream(cluster) as stream:
        path = "/hooks/claude-code"

        async def forward_call(session: str, call_id: str) -> None:
            headers = {"x-queenright-call": sign_call_id(call_id, key)}
            response = await client.post(
                f"{process.otlp_url}{path}", json=make_prompt(session), headers=headers
            )
            assert response.status_code == 200

        async def publish_call(session: str, call_id: str) -> None:
            body = json.dumps(make_prompt(session)).encode()
            await stream.publish(f"{path}?", body, message_id=sign_call_id(call_id, key))

        await forward_call("s-1", "one")
        await until(lambda: list_stored_prompts(cluster) == ["s-1"], "the first prompt is stored")
        await publish_call("s-1", "one")
        await publish_call("s-2", "two")
        await until(lambda: "s-2" in list_stored_prompts(cluster), "the second prompt is stored")
        await forward_call("s-2", "two")
        await publish_call("s-3", "three")
        await until(lambda: "s-3" in list_stored_prompts(cluster), "the third prompt is stored")

    assert list_stored_prompts(cluster) == ["s-1", "s-2", "s-3"]
    assert "Traceback" not in process.log()


def make_prompt(session: str) -> dict[str, str]:
    return {"hook_event_name": "UserPromptSubmit", "session_id": session, "cwd": "/work", "prompt": "go"}


async def wait_for_status(client: httpx.AsyncClient, process: Process, *, owner: Process) -> dict[str, Any]:
    """Return the cluster status as a process sees it, once it sees ``owner`` as the owner."""
    async with asyncio.timeout(60):
        while True:
            try:
                status: dict[str, Any] = (await client.get(f"{process.url}/api/cluster")).json()
                if any(member["is_owner"] and member["url"] == owner.url for member in status["members"]):
                    return status
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.1)


async def test_event_stream_resumes_at_another_process(cluster: Cluster, client: httpx.AsyncClient) -> None:
    """A stream that a standby forwards ends when the owner ends, and can be resumed at any process."""
    processes = [cluster.add(), cluster.add()]
    owner = await cluster.owner()
    [other_process] = [process for process in processes if process is not owner]
    sender = Sender(client, [other_process])
    seen_ids: list[str] = []

    async def follow(count: int) -> None:
        """Read ``count`` events of the stream through the standby."""
        headers = {"last-event-id": seen_ids[-1]} if seen_ids else {}
        params = {"types": "tool_call_completed"}
        async with client.stream(
            "GET", f"{other_process.url}/api/events", params=params, headers=headers
        ) as answer:
            cursor = ""
            async for line in answer.aiter_lines():
                if line.startswith("id:"):
                    cursor = line.removeprefix("id:").strip()
                elif line.startswith("data:") and "tool_call_completed" in line:
                    seen_ids.append(cursor)
                if len(seen_ids) >= count:
                    return

    following_task = asyncio.create_task(follow(5))
    async with asyncio.timeout(60):
        while not following_task.done():
            await sender.send(make_tool_spans("clerk", "order-7", 5))
            await asyncio.wait([following_task], timeout=0.2)
    owner.kill()
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    assert await cluster.owner() is other_process
    await wait_for_calls(cluster, sender.acknowledged)
    with connected(cluster.database) as conn:
        rows = conn.exec_driver_sql("SELECT id FROM events WHERE type = 'tool_call_completed' ORDER BY seq")
        log = [row[0] for row in rows]
    expected_ids = log[log.index(seen_ids[0]) :]
    await follow(len(expected_ids))
    assert seen_ids == expected_ids


async def test_every_process_gives_the_same_responses(cluster: Cluster, client: httpx.AsyncClient) -> None:
    """Reads, changes, errors and pages are the same at a standby, but it has its own probes and metrics."""
    processes = [cluster.add(), cluster.add()]
    owner = await cluster.owner()
    [other_process] = [process for process in processes if process is not owner]
    heartbeat = {
        "agent_id": "clerk",
        "session_id": "order-7",
        "incarnation_id": "i-1",
        "timestamp": time.time(),
    }
    response = await client.post(f"{other_process.url}/api/heartbeats", json=heartbeat)
    assert response.status_code < 300, response.text
    for path in ("/api/agents", "/api/agents/nobody", "/api/nothing", "/console", "/api/openapi.json"):
        at_standby, at_owner = [
            await client.get(f"{process.url}{path}") for process in (owner, other_process)
        ]
        assert (at_owner.status_code, at_owner.content) == (at_standby.status_code, at_standby.content), path
        assert set(at_owner.headers) == set(at_standby.headers), path
    head = await client.head(f"{other_process.url}/api/agents")
    assert (head.status_code, head.content) == (200, b"")
    for process in processes:
        assert (await client.get(f"{process.url}/readyz")).json() == {"ready": True, "missing": []}
    assert "queenright_workers" not in (await client.get(f"{other_process.url}/metrics")).text


async def test_unreadable_message_is_dropped_and_later_messages_are_stored(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    process = cluster.add()
    await cluster.owner()
    async with open_telemetry_stream(cluster) as stream:
        for path in ("/v1/traces", "/v1/nothing", "/hooks/nobody", "/hooks/codex?user=ada"):
            await stream.publish(path, b"\xff\xff\xff")
    sender = Sender(client, [process])
    await sender.send(make_tool_spans("clerk", "order-7", 5))
    assert len(await wait_for_calls(cluster, 5)) == 5
    assert process.log().count("cannot be stored and is dropped") == 3


async def test_refused_telemetry_is_counted_by_the_process_that_refuses_it(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """The owner's service counts in other series, which end when the process is no longer the owner."""
    processes = [cluster.add(), cluster.add()]
    await cluster.owner()
    foreign = {"origin": "https://example.com"}
    # The other format may have been requested in the last second, and would then be up to a second old.
    accept = {"accept": "application/openmetrics-text"}

    for process in processes:
        unknown = await client.post(f"{process.otlp_url}/v1/nothing")
        denied_responses = [
            await client.post(f"{process.otlp_url}{path}", json={}, headers=foreign)
            for path in ("/v1/traces", "/hooks/codex", "/hooks/nobody")
        ]

        assert [answer.status_code for answer in (unknown, *denied_responses)] == [404, 403, 403, 403]
        lines = (await client.get(f"{process.url}/metrics", headers=accept)).text.splitlines()
        rejected_metric = "queenright_telemetry_rejected_total"
        assert lines.count(f'{rejected_metric}{{dialect="other",reason="unsupported"}} 1.0') == 1
        assert lines.count(f'{rejected_metric}{{dialect="other",reason="unauthorized"}} 2.0') == 1
        assert lines.count(f'{rejected_metric}{{dialect="codex",reason="unauthorized"}} 1.0') == 1
        hook_calls = "queenright_hook_calls_total"
        assert lines.count(f'{hook_calls}{{client="codex",outcome="refused"}} 1.0') == 1
        assert lines.count(f'{hook_calls}{{client="other",outcome="refused"}} 1.0') == 1
