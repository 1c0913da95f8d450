"""Actions with an ``Idempotency-Key`` are executed once, even if the response is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from starlette.types import Message

from queenright.health.store.keyed_requests import KEPT_SECONDS, claim
from queenright.health.store.store import Store
from queenright.server.access.caller import SCOPE_KEY, Caller
from queenright.server.access.roles import Role
from queenright.server.console.templates import render_error
from queenright.server.http.gateway_header import FIND_KEY, GATEWAY_HEADER
from queenright.server.middleware.idempotency import Idempotency
from queenright.server.routes.errors import add_exception_handlers


class CountingApp:
    """An app that counts its actions, and can wait, fail or break off."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.begun = asyncio.Event()
        self.status = 201

    def app(self) -> FastAPI:
        app = FastAPI()
        add_exception_handlers(app, render_error)

        @app.post("/api/things/{name}", status_code=201)
        async def act(name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            self.begun.set()
            await self.go_on.wait()
            self.done.append(name)
            if self.status == 500:
                raise RuntimeError("an internal error")
            if self.status != 201:
                raise HTTPException(self.status, "no")
            return {"name": name, "number": len(self.done), "said": body}

        @app.delete("/api/things/{name}", status_code=204)
        async def drop(name: str) -> None:
            self.done.append(name)

        return app


@contextlib.asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[Store]:
    store = await asyncio.to_thread(Store.open, f"sqlite:///{folder / 'queenright.db'}")
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path) as found:
        yield found


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Service:
    """The counting app behind the middleware, and the caller's identity."""

    def __init__(self, store: Store) -> None:
        self.counter, self.clock = CountingApp(), Clock()
        self.restart(store)
        self.caller = Caller(Role.ADMIN, "127.0.0.1", name="ada", token_id="t1")

    def restart(self, store: Store) -> None:
        keyed = Idempotency(self.counter.app(), store=store, clock=self.clock)

        async def known(scope: Any, receive: Any, send: Any) -> None:
            await keyed({**scope, SCOPE_KEY: self.caller}, receive, send)

        transport = httpx.ASGITransport(known, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://queenright")

    async def post(self, name: str = "bee", key: str = "k1", **more: Any) -> httpx.Response:
        return await self.http.post(f"/api/things/{name}", headers={"Idempotency-Key": key}, **more)


@pytest.fixture
def service(store: Store) -> Service:
    return Service(store)


async def test_repeated_request_is_executed_once_with_the_same_response(service: Service) -> None:
    first = await service.post(json={"a": 1})
    repeated = await service.post(json={"a": 1})

    assert service.counter.done == ["bee"]
    assert (
        (repeated.status_code, repeated.content) == (first.status_code, first.content) == (201, first.content)
    )
    assert repeated.headers["content-type"] == first.headers["content-type"]
    assert repeated.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers


async def test_requests_without_a_key_are_separate(service: Service) -> None:
    await service.http.post("/api/things/bee")
    await service.http.post("/api/things/bee")

    assert service.counter.done == ["bee", "bee"]


async def test_response_without_a_body_is_replayed_unchanged(service: Service) -> None:
    headers = {"Idempotency-Key": "gone"}
    first = await service.http.delete("/api/things/bee", headers=headers)
    repeated = await service.http.delete("/api/things/bee", headers=headers)

    assert (first.status_code, repeated.status_code, repeated.content) == (204, 204, b"")
    assert service.counter.done == ["bee"]


@pytest.mark.parametrize(
    "other", [{"name": "wasp"}, {"json": {"a": 2}}, {"params": {"x": "1"}}, {"content": b"{}"}]
)
async def test_key_reused_for_another_request_is_refused(service: Service, other: dict[str, Any]) -> None:
    await service.post(json={"a": 1})
    refused = await service.post(**other)

    assert refused.status_code == 422
    assert "new key" in refused.json()["title"]
    assert service.counter.done == ["bee"]


async def test_each_caller_has_its_own_keys(service: Service) -> None:
    await service.post()
    service.caller = Caller(Role.ADMIN, "127.0.0.1", name="bob", token_id="t2")
    answer = await service.post()

    assert answer.json()["number"] == 2
    assert "idempotent-replayed" not in answer.headers


async def test_concurrent_repeat_must_wait(service: Service) -> None:
    service.counter.go_on.clear()
    first = asyncio.create_task(service.post())
    await service.counter.begun.wait()
    second = await service.post()
    service.counter.go_on.set()
    third = (await first, await service.post())[1]

    assert (second.status_code, second.headers["retry-after"]) == (409, "1")
    assert "still running" in second.json()["title"]
    assert third.headers["idempotent-replayed"] == "true"
    assert service.counter.done == ["bee"]


async def test_twenty_concurrent_requests_execute_once(service: Service) -> None:
    answers = await asyncio.gather(*(service.post() for _ in range(20)))

    assert service.counter.done == ["bee"]
    assert {answer.status_code for answer in answers} <= {201, 409}


async def test_refusal_is_replayed(service: Service) -> None:
    service.counter.status = 409
    await service.post()
    service.counter.status = 201
    repeated = await service.post()

    assert (repeated.status_code, repeated.headers["idempotent-replayed"]) == (409, "true")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_server_error_may_be_retried(service: Service, status: int) -> None:
    service.counter.status = status
    failed = await service.post()
    service.counter.status = 201
    retried = await service.post()

    assert (failed.status_code, retried.status_code) == (status, 201)
    assert "idempotent-replayed" not in retried.headers


async def test_responses_survive_a_restart(tmp_path: Path, service: Service, store: Store) -> None:
    await service.post()
    await store.close()
    async with open_store(tmp_path) as restarted:
        service.restart(restarted)
        repeated = await service.post()

    assert repeated.headers["idempotent-replayed"] == "true"
    assert service.counter.done == ["bee"]


async def test_interrupted_request_is_reported_as_unknown(
    tmp_path: Path, service: Service, store: Store
) -> None:
    """The first request was claimed, and the process died before the response."""
    service.counter.go_on.clear()
    interrupted = asyncio.create_task(service.post())
    await service.counter.begun.wait()
    interrupted.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await interrupted
    service.counter.go_on.set()
    await store.close()
    async with open_store(tmp_path) as restarted:
        service.restart(restarted)
        repeated = await service.post()
        other = await service.post(key="k2")

    assert repeated.status_code == 409
    assert "another key" in repeated.json()["title"]
    assert other.status_code == 201


async def test_key_is_free_again_after_a_day(service: Service) -> None:
    await service.post()
    service.clock.now += KEPT_SECONDS + 1
    repeated = await service.post()

    assert repeated.json()["number"] == 2


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "tab\there"])
async def test_invalid_key_is_refused(service: Service, key: str) -> None:
    refused = await service.post(key=key)

    assert refused.status_code == 400
    assert service.counter.done == []


async def test_two_keys_are_refused(service: Service) -> None:
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    refused = await service.http.post("/api/things/bee", headers=twice)

    assert refused.status_code == 400


async def test_nothing_is_executed_while_the_store_is_unwritable(service: Service, store: Store) -> None:
    await store.close()
    refused = await service.post()

    assert (refused.status_code, service.counter.done) == (503, [])
    assert "nothing was done" in refused.json()["title"]


async def test_aborted_upload_is_not_executed(service: Service, store: Store) -> None:
    keyed = Idempotency(service.counter.app(), store=store, clock=service.clock)
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", b"k1")]
    scope = {"type": "http", "method": "POST", "path": "/api/things/bee", "headers": headers}
    await keyed({**scope, "query_string": b""}, receive, send)

    assert (sent, service.counter.done) == ([], [])
    assert await store.transact(lambda conn: claim(conn, "address ", "k1", "", 0.0)) is None


async def test_event_stream_is_passed_through(store: Store) -> None:
    sent: list[Message] = []

    async def stream_events(scope: Any, receive: Any, send: Any) -> None:
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        assert sent, "held back"
        await send({"type": "http.response.body", "body": b"data: 1\n\n"})

    keyed = Idempotency(stream_events, store=store, clock=Clock())

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", b"k1")]
    scope = {"type": "http", "method": "POST", "path": "/api/chat", "headers": headers, "query_string": b""}
    await keyed(scope, receive, send)

    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]


async def test_gateway_finds_a_key_until_it_expires(service: Service) -> None:
    """Then the request is a new one, which may be about another worker."""

    async def find(**headers: str) -> int:
        response = await service.http.get("/api/things/bee", headers={GATEWAY_HEADER: FIND_KEY, **headers})
        return response.status_code

    key = {"Idempotency-Key": "k1"}
    unknown = await find(**key)
    await service.post()
    known, without_key = await find(**key), await find()
    service.clock.now += KEPT_SECONDS + 1
    expired = await find(**key)

    assert (unknown, known, without_key, expired) == (404, 204, 404, 404)
    assert service.counter.done == ["bee"]
