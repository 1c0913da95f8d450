"""Forwarding of telemetry: requests are unchanged, bounded and retried, and the agent is not delayed."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from queenright.instrumentation.names import TELEMETRY_DROPPED
from queenright.server.otlp import Forwarder, OtlpReceiver
from tests.waiting import until

if TYPE_CHECKING:
    from tests.server.otlp.conftest import RunningReceiver


@dataclass
class Collector:
    """
    Another OTLP endpoint. It stores accepted requests, and responds with the given statuses, then with 200.
    """

    statuses: list[int] = field(default_factory=list)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    attempts: int = 0
    may_respond: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    is_endless: bool = False
    """Whether the response body only ends when the client disconnects."""

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await self.may_respond.wait()
        self.attempts += 1
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            headers = {k.decode(): v.decode() for k, v in scope["headers"]}
            path = scope["path"] + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
            self.requests.append((path, headers, body))
        await send({"type": "http.response.start", "status": status, "headers": self.headers})
        if self.is_endless:
            disconnect = asyncio.ensure_future(receive())
            while not disconnect.done():
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
                await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serve_app(app: Any) -> AsyncIterator[str]:
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", ws="none"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


def read_counters(registry: CollectorRegistry | None = None) -> Counter:
    metric = TELEMETRY_DROPPED
    return Counter(metric.name, metric.help, metric.labels, registry=registry or CollectorRegistry())


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    collector.may_respond.set()
    async with serve_app(collector) as collector.url:
        yield collector


@asynccontextmanager
async def run_forwarder(url: str, **options: Any) -> AsyncIterator[Forwarder]:
    forwarder = Forwarder(url, dropped_counter=read_counters(), first_delay=0.01, max_delay=0.02, **options)
    await forwarder.start()
    try:
        yield forwarder
    finally:
        await forwarder.stop(flush_seconds=0)


def lower_names(headers: Iterable[str]) -> set[str]:
    return {name.lower() for name in headers}


async def test_request_is_forwarded_unchanged(otlp: RunningReceiver, collector: Collector) -> None:
    body = gzip.compress(b'{"resourceSpans": []}')
    sent_headers = {
        "content-type": "application/json; charset=utf-8",
        "content-encoding": "gzip",
        "authorization": "Bearer agent",
        "x-tenant": "bees",
        "connection": "keep-alive, x-hop",
        "x-hop": "1",
    }
    async with run_forwarder(f"{collector.url}/otlp?team=a") as forwarder, httpx.AsyncClient() as client:
        otlp.app._forwarder = forwarder

        response = await client.post(f"{otlp.url}/v1/traces", content=body, headers=sent_headers)
        await until(lambda: forwarder.sent_requests == 1, "the request is forwarded")

    [(path, headers, forwarded_body)] = collector.requests
    assert response.status_code == 200
    assert (path, forwarded_body) == ("/otlp/v1/traces?team=a", body)
    assert {k: headers[k] for k in list(sent_headers)[:4]} == {
        k: sent_headers[k] for k in list(sent_headers)[:4]
    }
    assert "x-hop" not in headers
    assert headers["host"] == collector.url.removeprefix("http://")


async def test_malformed_request_is_forwarded_too(otlp: RunningReceiver, collector: Collector) -> None:
    async with run_forwarder(collector.url) as forwarder, httpx.AsyncClient() as client:
        otlp.app._forwarder = forwarder

        await client.post(f"{otlp.url}/v1/traces", content=b"{", headers={"content-type": "application/json"})

        await until(lambda: forwarder.sent_requests == 1, "the request is forwarded")
        assert collector.requests[0][2] == b"{"


async def test_endless_response_is_read_only_up_to_a_limit(
    otlp: RunningReceiver, collector: Collector
) -> None:
    collector.is_endless = True
    async with run_forwarder(collector.url) as forwarder, httpx.AsyncClient() as client:
        otlp.app._forwarder = forwarder

        for body in (b"{", b"{ "):
            headers = {"content-type": "application/json"}
            await client.post(f"{otlp.url}/v1/traces", content=body, headers=headers)
        await until(lambda: forwarder.sent_requests == 2, "both requests are forwarded")


async def test_agent_gets_its_response_while_the_endpoint_hangs(
    otlp: RunningReceiver, collector: Collector
) -> None:
    """B76: while the collector hangs, agents get their responses, and the requests are delivered later."""
    collector.may_respond.clear()
    headers = {"content-type": "application/json"}
    async with run_forwarder(collector.url) as forwarder, httpx.AsyncClient() as client:
        otlp.app._forwarder = forwarder

        statuses = [
            (await client.post(f"{otlp.url}/v1/logs", content=b"{}", headers=headers)).status_code
            for _ in range(10)
        ]
        assert (statuses, collector.requests) == ([200] * 10, [])
        collector.may_respond.set()
        await until(lambda: forwarder.sent_requests == 10, "the request is forwarded")

    assert len(collector.requests) == 10


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_transient_failures_are_retried(collector: Collector, status: int) -> None:
    collector.statuses = [status, status]
    async with run_forwarder(collector.url) as forwarder:
        forwarder.offer("/v1/traces", [], b"x")
        await until(lambda: forwarder.sent_requests == 1, "the request is forwarded")

    assert collector.attempts == 3


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 500])
async def test_permanent_errors_drop_the_request_and_are_counted(collector: Collector, status: int) -> None:
    collector.statuses = [status]
    async with run_forwarder(collector.url) as forwarder:
        forwarder.offer("/v1/traces", [], b"x")
        await until(lambda: forwarder.dropped_requests == 1, "the request is dropped")

    assert (collector.attempts, forwarder.pending) == (1, 0)


async def test_unreachable_endpoint_is_retried_until_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with run_forwarder(url, give_up_after=0.1) as forwarder:
        start_time = time.monotonic()
        forwarder.offer("/v1/traces", [], b"x")
        await until(lambda: forwarder.dropped_requests == 1, "the request is dropped")

    assert time.monotonic() - start_time < 2


async def test_retry_after_beyond_the_time_limit_drops_the_request(collector: Collector) -> None:
    collector.statuses, collector.headers = [503], [(b"retry-after", b"100")]
    async with run_forwarder(collector.url, give_up_after=50) as forwarder:
        forwarder.offer("/v1/traces", [], b"x")
        await until(lambda: forwarder.dropped_requests == 1, "the request is dropped")

    assert collector.attempts == 1


async def test_full_queue_drops_oldest_requests_and_counts_them_by_signal() -> None:
    registry = CollectorRegistry()
    forwarder = Forwarder("http://127.0.0.1:1", dropped_counter=read_counters(registry), max_bytes=5_000)

    for index in range(5):
        forwarder.offer("/v1/traces" if index % 2 else "/v1/logs", [], bytes([index]) * 500)
    forwarder.offer("/v1/metrics", [], b"x" * 6_000)

    dropped_counts = {
        signal: registry.get_sample_value("queenright_telemetry_dropped_total", {"signal": signal})
        for signal in ("traces", "logs", "metrics")
    }
    assert dropped_counts == {"logs": 1, "traces": 1, "metrics": 1}
    assert [request.body[0] for request in forwarder._queue] == [2, 3, 4]
    await forwarder.stop()
    assert (forwarder.dropped_requests, forwarder.pending, forwarder._bytes) == (6, 0, 0)


async def test_stop_sends_queued_requests(collector: Collector) -> None:
    forwarder = Forwarder(collector.url, dropped_counter=read_counters())
    await forwarder.start()
    for _ in range(20):
        forwarder.offer("/v1/traces", [], b"x")

    await forwarder.stop()

    assert (len(collector.requests), forwarder.dropped_requests) == (20, 0)


async def test_forwarding_to_own_receiver_does_not_loop() -> None:
    registry = CollectorRegistry()

    async def ingest_nothing(_: list[Any]) -> None:
        return None

    app = OtlpReceiver(ingest_nothing, registry=registry)
    async with serve_app(app) as url, run_forwarder(url) as forwarder, httpx.AsyncClient() as client:
        app._forwarder = forwarder
        await client.post(f"{url}/v1/traces", headers={"content-type": "application/json"})
        await until(lambda: forwarder.sent_requests == 1, "the request is forwarded")

        assert (app.counts.requests, forwarder.pending) == (2, 0)


async def test_credentials_in_the_url_are_used_and_never_shown(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="queenright")
    url = collector.url.replace("http://", "http://bee:hunter2@")
    collector.statuses = [401]
    async with run_forwarder(url) as forwarder:
        forwarder.offer("/v1/traces", [], b"x")
        await until(lambda: forwarder.dropped_requests == 1, "the request is dropped")
        forwarder.offer("/v1/traces", [], b"x")
        forwarder.offer("/v1/traces", [(b"Authorization", b"Bearer agent")], b"y")
        await until(lambda: forwarder.sent_requests == 2, "the request is forwarded")

    by_body = {body: headers["authorization"] for _, headers, body in collector.requests}
    assert by_body == {b"x": "Basic YmVlOmh1bnRlcjI=", b"y": "Bearer agent"}
    assert "hunter2" not in repr(forwarder) + forwarder.endpoint + caplog.text


@pytest.mark.parametrize(
    "url", ["collector:4318", "ftp://bee:hunter2@x", "http://", "", "http://bee:hunter2"]
)
def test_invalid_url_is_rejected_without_showing_its_secret(url: str) -> None:
    with pytest.raises(ValueError, match="forwarding URL") as error:
        Forwarder(url, dropped_counter=read_counters())

    assert "hunter2" not in str(error.value)
