"""Hook calls that a process of a cluster forwards to another."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from queenright.health.cluster.cluster_lease import Member
from queenright.server.access.access import Access
from queenright.server.cluster.front import ClusterFront, sign_call_id
from queenright.server.cluster.partition import OwnerApps
from queenright.server.cluster.proxy import FORWARDED_HEADER, PARTITION_HEADER, Proxy
from queenright.server.ops.sockets import listen, serve_app
from queenright.server.settings import Settings
from queenright.server.webhooks.hooks import CALL_ID_HEADER
from tests.waiting import until

pytestmark = pytest.mark.asyncio

HOOK = "/hooks/claude-code"


class Stream:
    """
    The stream as one process sees it.

    Args:
        is_slow: Whether NATS is slow to accept this process's messages.
    """

    def __init__(self, *, is_slow: bool = False) -> None:
        self.call_ids: list[str] = []
        self.may_answer = asyncio.Event()
        if not is_slow:
            self.may_answer.set()

    async def publish(self, path: str, body: bytes, *, message_id: str) -> None:
        await self.may_answer.wait()
        self.call_ids.append(message_id)


def make_apps(stream: Stream, *, proxy: Proxy | None = None, **partition: object) -> ClusterFront:
    """Return the apps of a process with one partition. All processes have the same key."""
    access = Access(Settings())
    access.sessions.key = b"k" * 32
    state = {"apps": None, "owner": None, "owner_changed": asyncio.Event(), "stream": stream, **partition}
    return ClusterFront(
        [Mock(number=0, **state)],
        proxy=proxy or Mock(),
        local=Mock(),
        access=access,
        is_exposed=False,
        guard=Mock(),
    )


def make_client(app: ClusterFront) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app.hooks), base_url="http://q")


async def test_hook_call_that_two_processes_publish_has_one_id() -> None:
    """The process that gets the forwarded call is no longer the owner, and publishes it too, but too late."""
    this_process, other_process = Stream(), Stream(is_slow=True)
    sock = listen("127.0.0.1", 0, what="hooks", option="")
    former_owner = Member(
        member_id="former",
        host="127.0.0.1",
        api_port=1,
        otlp_port=sock.getsockname()[1],
        version="1",
        partitions=1,
    )
    proxy = Proxy()
    async with (
        serve_app(make_apps(other_process).hooks, sock),
        make_client(make_apps(this_process, proxy=proxy, owner=former_owner)) as http,
    ):
        response = await http.post(HOOK, json={"session_id": "s-1"})
        other_process.may_answer.set()
        await until(lambda: bool(other_process.call_ids), "the other process has published it")
    await proxy.aclose()

    assert (response.status_code, response.json()) == (200, {})
    assert this_process.call_ids == other_process.call_ids


@pytest.mark.parametrize(
    "chosen_id",
    ["0" * 32, "one.0", sign_call_id("one", b"x" * 32), "\xe9"],
    ids=["id", "forged", "of another cluster", "not ASCII"],
)
async def test_client_cannot_choose_the_id_of_its_call(chosen_id: str) -> None:
    """The id could be that of another message, and the call would then count as already stored."""
    stream = Stream()
    owner_headers: list[list[bytes]] = []

    async def hooks(scope: Scope, receive: Receive, send: Send) -> None:
        owner_headers.append([value for name, value in scope["headers"] if name == CALL_ID_HEADER])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    headers = [(CALL_ID_HEADER, chosen_id.encode("latin-1")), (FORWARDED_HEADER, b"1")]
    for app in (make_apps(stream), make_apps(stream, apps=OwnerApps(api=Mock(), hooks=hooks))):
        async with make_client(app) as http:
            assert (await http.post(HOOK, json={"session_id": "s-1"}, headers=headers)).status_code == 200

    [call_id] = stream.call_ids
    [[owner_call_id]] = owner_headers
    assert chosen_id not in {call_id, owner_call_id.decode("latin-1")}
    assert call_id != owner_call_id.decode()


@pytest.mark.parametrize("number", ["2", "-1", "one", "9" * 5000], ids=["2", "-1", "one", "long"])
async def test_partition_that_does_not_exist_is_not_looked_up(number: str) -> None:
    """The gateway finds the right partition and answers."""
    app = ClusterFront(
        [Mock(), Mock()],
        proxy=Mock(),
        local=Mock(),
        access=Mock(),
        is_exposed=False,
        guard=lambda gateway: Response("gateway"),
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app.api), base_url="http://q") as http:
        response = await http.get("/api/tickets", headers={PARTITION_HEADER.decode(): number})
    assert response.text == "gateway"
