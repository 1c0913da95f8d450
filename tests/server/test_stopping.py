"""Requests that are interrupted when the service stops."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from queenright.server.middleware.shutdown import ShutdownMiddleware


async def never_respond(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def interrupt_request(*, is_stopping: bool) -> httpx.Response:
    transport = httpx.ASGITransport(ShutdownMiddleware(never_respond, is_stopping=lambda: is_stopping))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        task = asyncio.create_task(http.get("/"))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0, task.cancel)
        return await task


async def test_request_that_the_stop_interrupts_gets_503() -> None:
    response = await interrupt_request(is_stopping=True)

    assert (response.status_code, response.headers["content-type"]) == (503, "application/problem+json")
    assert "the service is stopping" in response.json()["title"]
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_other_cancellations_propagate() -> None:
    with pytest.raises(asyncio.CancelledError):
        await interrupt_request(is_stopping=False)
