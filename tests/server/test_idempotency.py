"""Actions with an ``Idempotency-Key`` are executed once, even if a response is lost."""

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
    """An app that records its actions, and can wait or fail."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.may_continue = asyncio.Event()
        self.may_continue.set()
        self.has_begun = asyncio.Event()
        self.status = 201

    def app(self) -> FastAPI:
        app = FastAPI()
        add_exception_handlers(app, render_error)

        @app.post("/api/things/{name}", status_code=201)
        async def create_thing(name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            self.has_begun.set()
            await self.may_continue.wait()
            self.executed.append(name)
            if self.status == 500:
                raise RuntimeError("an internal error")
            if self.status != 201:
                raise HTTPException(self.status, "no")
            return {"name": name, "number": len(self.executed), "said": body}

        @app.delete("/api/things/{name}", status_code=204)
        async def delete_thing(name: str) -> None:
            self.executed.append(name)

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
    async with open_store(tmp_path) as opened_store:
        yield opened_store


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Service:
    """The counting app behind the middleware, with an identified caller."""

    def __init__(self, store: Store) -> None:
        self.counter, self.clock = CountingApp(), Clock()
        self.restart(store)
        self.caller = Caller(Role.ADMIN, "127.0.0.1", name="ada", token_id="t1")

    def restart(self, store: Store) -> None:
        middleware = Idempotency(self.counter.app(), store=store, clock=self.clock)

        async def identify_caller(scope: Any, receive: Any, send: Any) -> None:
            await middleware({**scope, SCOPE_KEY: self.caller}, receive, send)

        transport = httpx.ASGITransport(identify_caller, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://queenright")

    async def post(self, name: str = "bee", key: str = "k1", **options: Any) -> httpx.Response:
        return await self.http.post(f"/api/things/{name}", headers={"Idempotency-Key": key}, **options)


@pytest.fixture
def service(store: Store) -> Service:
    return Service(store)


async def test_repeated_request_is_executed_once_with_the_same_response(service: Service) -> None:
    first_response = await service.post(json={"a": 1})
    repeated_response = await service.post(json={"a": 1})

    assert service.counter.executed == ["bee"]
    assert (
        (repeated_response.status_code, repeated_response.content)
        == (first_response.status_code, first_response.content)
        == (201, first_response.content)
    )
    assert repeated_response.headers["content-type"] == first_response.headers["content-type"]
    assert repeated_response.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first_response.headers


async def test_requests_without_a_key_are_executed_separately(service: Service) -> None:
    await service.http.post("/api/things/bee")
    await service.http.post("/api/things/bee")

    assert service.counter.executed == ["bee", "bee"]


async def test_response_without_a_body_is_replayed_unchanged(service: Service) -> None:
    headers = {"Idempotency-Key": "gone"}
    first_response = await service.http.delete("/api/things/bee", headers=headers)
    repeated_response = await service.http.delete("/api/things/bee", headers=headers)

    assert (first_response.status_code, repeated_response.status_code, repeated_response.content) == (
        204,
        204,
        b"",
    )
    assert service.counter.executed == ["bee"]


@pytest.mark.parametrize(
    "other_request", [{"name": "wasp"}, {"json": {"a": 2}}, {"params": {"x": "1"}}, {"content": b"{}"}]
)
async def test_key_that_was_used_for_another_request_is_rejected(
    service: Service, other_request: dict[str, Any]
) -> None:
    await service.post(json={"a": 1})
    response = await service.post(**other_request)

    assert response.status_code == 422
    assert "new key" in response.json()["title"]
    assert service.counter.executed == ["bee"]


async def test_each_caller_has_separate_keys(service: Service) -> None:
    await service.post()
    service.caller = Caller(Role.ADMIN, "127.0.0.1", name="bob", token_id="t2")
    response = await service.post()

    assert response.json()["number"] == 2
    assert "idempotent-replayed" not in response.headers


async def test_concurrent_request_with_the_same_key_is_told_to_wait(service: Service) -> None:
    service.counter.may_continue.clear()
    first_task = asyncio.create_task(service.post())
    await service.counter.has_begun.wait()
    second_response = await service.post()
    service.counter.may_continue.set()
    third_response = (await first_task, await service.post())[1]

    assert (second_response.status_code, second_response.headers["retry-after"]) == (409, "1")
    assert "still running" in second_response.json()["title"]
    assert third_response.headers["idempotent-replayed"] == "true"
    assert service.counter.executed == ["bee"]


async def test_twenty_concurrent_requests_are_executed_once(service: Service) -> None:
    answers = await asyncio.gather(*(service.post() for _ in range(20)))

    assert service.counter.executed == ["bee"]
    assert {answer.status_code for answer in answers} <= {201, 409}


async def test_refused_request_has_the_same_response_again(service: Service) -> None:
    service.counter.status = 409
    await service.post()
    service.counter.status = 201
    repeated_response = await service.post()

    assert (repeated_response.status_code, repeated_response.headers["idempotent-replayed"]) == (409, "true")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_server_error_may_be_retried(service: Service, status: int) -> None:
    service.counter.status = status
    failed_response = await service.post()
    service.counter.status = 201
    retried_response = await service.post()

    assert (failed_response.status_code, retried_response.status_code) == (status, 201)
    assert "idempotent-replayed" not in retried_response.headers


async def test_responses_survive_a_restart(tmp_path: Path, service: Service, store: Store) -> None:
    await service.post()
    await store.close()
    async with open_store(tmp_path) as new_store:
        service.restart(new_store)
        repeated_response = await service.post()

    assert repeated_response.headers["idempotent-replayed"] == "true"
    assert service.counter.executed == ["bee"]


async def test_interrupted_request_is_reported_as_having_an_unknown_result(
    tmp_path: Path, service: Service, store: Store
) -> None:
    """The first request was recorded, and the process died before the response."""
    service.counter.may_continue.clear()
    interrupted_task = asyncio.create_task(service.post())
    await service.counter.has_begun.wait()
    interrupted_task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await interrupted_task
    service.counter.may_continue.set()
    await store.close()
    async with open_store(tmp_path) as new_store:
        service.restart(new_store)
        repeated_response = await service.post()
        other_response = await service.post(key="k2")

    assert repeated_response.status_code == 409
    assert "a new key" in repeated_response.json()["title"]
    assert other_response.status_code == 201


async def test_key_can_be_used_again_after_a_day(service: Service) -> None:
    await service.post()
    service.clock.now += KEPT_SECONDS + 1
    repeated_response = await service.post()

    assert repeated_response.json()["number"] == 2


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "tab\there"])
async def test_invalid_key_is_rejected(service: Service, key: str) -> None:
    response = await service.post(key=key)

    assert response.status_code == 400
    assert service.counter.executed == []


async def test_request_with_two_keys_is_rejected(service: Service) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    response = await service.http.post("/api/things/bee", headers=headers)

    assert response.status_code == 400


async def test_nothing_is_executed_while_the_store_cannot_write(service: Service, store: Store) -> None:
    await store.close()
    response = await service.post()

    assert (response.status_code, service.counter.executed) == (503, [])
    assert "nothing was done" in response.json()["title"]


async def test_aborted_upload_is_not_executed(service: Service, store: Store) -> None:
    middleware = Idempotency(service.counter.app(), store=store, clock=service.clock)
    messages: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    headers = [(b"idempotency-key", b"k1")]
    scope = {"type": "http", "method": "POST", "path": "/api/things/bee", "headers": headers}
    await middleware({**scope, "query_string": b""}, receive, send)

    assert (messages, service.counter.executed) == ([], [])
    assert await store.transact(lambda conn: claim(conn, "address ", "k1", "", 0.0)) is None


async def test_event_stream_is_passed_through(store: Store) -> None:
    messages: list[Message] = []

    async def stream_events(scope: Any, receive: Any, send: Any) -> None:
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        assert messages, "held back"
        await send({"type": "http.response.body", "body": b"data: 1\n\n"})

    middleware = Idempotency(stream_events, store=store, clock=Clock())

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        messages.append(message)

    headers = [(b"idempotency-key", b"k1")]
    scope = {"type": "http", "method": "POST", "path": "/api/chat", "headers": headers, "query_string": b""}
    await middleware(scope, receive, send)

    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]


async def test_gateway_looks_up_a_key_until_it_expires(service: Service) -> None:
    """After that, the request is a new one, which may be about another worker."""

    async def look_up(**headers: str) -> int:
        response = await service.http.get("/api/things/bee", headers={GATEWAY_HEADER: FIND_KEY, **headers})
        return response.status_code

    key = {"Idempotency-Key": "k1"}
    unknown_response = await look_up(**key)
    await service.post()
    known_response, without_key = await look_up(**key), await look_up()
    service.clock.now += KEPT_SECONDS + 1
    expired_response = await look_up(**key)

    assert (unknown_response, known_response, without_key, expired_response) == (404, 204, 404, 404)
    assert service.counter.executed == ["bee"]
