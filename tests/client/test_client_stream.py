"""Event streams across breaks of the connection and restarts of the service."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import httpx
import pytest

from queenright.client import (
    AsyncQueenright,
    InvalidAddressError,
    Notice,
    Queenright,
    RequestRejectedError,
    UnreachableError,
)
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.sockets import find_free_port
from queenright.server.serving import RunningService, serving
from tests.client.conftest import make_settings
from tests.waiting import until


def make_events(first: int, last: int, agent: str = "bee") -> list[AgentEvent]:
    return [
        AgentEvent(type=EventType.NUDGE_SENT, time=time.time(), agent_id=agent, data={"number": number})
        for number in range(first, last)
    ]


async def test_stream_resumes_after_a_restart_without_loss_or_repeats(tmp_path: Path) -> None:
    """Both clients receive the events before, during and after the break, in the order of the log."""
    port = find_free_port("127.0.0.1", 0, what="the service", option="port")
    settings = make_settings(tmp_path / "storage", port=port)
    is_up, is_down = asyncio.Event(), asyncio.Event()
    notices: list[Notice] = []
    sync_notices: list[Notice] = []
    async_events: list[int] = []
    sync_events: list[int] = []

    async def wait(seconds: float) -> None:
        """Wait until the service is back."""
        is_down.set()
        await is_up.wait()

    async def follow(url: str) -> None:
        async with AsyncQueenright(url, sleep=wait) as qr:
            async for event in qr.events.stream(types="nudge_sent", on_notice=notices.append):
                async_events.append(event.data["number"])
                if len(async_events) == 60:
                    return

    def follow_in_a_thread(url: str) -> None:
        with (
            Queenright(url, sleep=lambda _: time.sleep(0.05)) as qr,
            qr.events.stream(types=["nudge_sent"], agent_id="bee", on_notice=sync_notices.append) as stream,
        ):
            for event in stream:
                sync_events.append(event.data["number"])
                if len(sync_events) == 60:
                    return

    async with serving(settings) as first:
        thread = threading.Thread(target=follow_in_a_thread, args=(first.url,), daemon=True)
        thread.start()
        task = asyncio.create_task(follow(first.url))
        await until(lambda: notices and sync_notices, "both streams are connected")
        await first.service.store.append(make_events(0, 20))
        await until(lambda: len(async_events) == len(sync_events) == 20, "the events before the break")
    await is_down.wait()
    async with serving(settings) as second:
        await second.service.store.append(make_events(20, 40))
        is_up.set()
        await until(lambda: len(async_events) == len(sync_events) == 40, "the events during the break")
        await second.service.store.append(make_events(40, 60))
        await asyncio.wait_for(task, 60)
        await asyncio.to_thread(thread.join, 60)

    assert async_events == sync_events == list(range(60))
    assert (
        [notice.kind for notice in notices][:1] == ["connected"] == [notice.kind for notice in notices][-1:]
    )
    assert {sync_notice.kind for sync_notice in sync_notices} == {"connected", "lost"}
    assert all(isinstance(notice.error, UnreachableError) for notice in notices if notice.kind == "lost")


async def test_stream_resumes_after_the_named_event(tmp_path: Path) -> None:
    async with (
        serving(make_settings(tmp_path / "storage")) as running_service,
        AsyncQueenright(running_service.url) as qr,
    ):
        events = make_events(0, 5)
        await running_service.service.store.append(events)
        stream = qr.events.stream(types=["nudge_sent"], last_event_id=events[1].id)
        assert [(await anext(stream)).id for _ in range(2)] == [event.id for event in events[2:4]]
        assert stream.last_event_id == events[3].id
        await stream.aclose()
        assert [event async for event in stream] == []

        other_stream = qr.events.stream(types=["nudge_sent"], last_event_id=stream.last_event_id)
        assert (await anext(other_stream)).id == events[4].id
        await other_stream.aclose()

        notices: list[Notice] = []
        reset_stream = qr.events.stream(
            types="all", last_event_id="of-another-service", on_notice=notices.append
        )
        task = asyncio.create_task(anext(reset_stream))
        await until(lambda: len(notices) == 2, "the notice that the event is unknown")
        await running_service.service.store.append(make_events(5, 6))
        await asyncio.wait_for(task, 60)
        await reset_stream.aclose()
        assert [notice.kind for notice in notices] == ["connected", "reset"]
        assert "of-another-service" in notices[1].data["reason"]

        await check_refusals(qr, running_service)


async def check_refusals(qr: AsyncQueenright, running_service: RunningService) -> None:
    """Invalid requests are refused immediately, even if the stream waits for the service."""
    with pytest.raises(RequestRejectedError, match="not an event type") as error:
        await anext(qr.events.stream(types=["nudge_snt"], wait=True))
    assert error.value.status == 400
    with pytest.raises(InvalidAddressError):
        qr.events.stream(agent_id="")


async def test_unavailable_service_raises_unless_the_stream_waits() -> None:
    waits: list[float] = []

    class EnoughWaitsError(Exception):
        pass

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 7:
            raise EnoughWaitsError

    async with AsyncQueenright("http://127.0.0.1:9", sleep=wait) as qr:
        with pytest.raises(UnreachableError):
            await anext(qr.events.stream())
        assert not waits
        with pytest.raises(EnoughWaitsError):
            await anext(qr.events.stream(wait=True))

    max_waits = [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert all(maximum / 2 <= wait <= maximum for maximum, wait in zip(max_waits, waits, strict=True))


async def test_invalid_event_ends_the_stream_with_an_error() -> None:
    def send_invalid_event(request: httpx.Request) -> httpx.Response:
        return httpx.Response(
            200, headers={"Content-Type": "text/event-stream"}, content=b"data: no JSON\n\n"
        )

    async with AsyncQueenright("http://there:1", transport=httpx.MockTransport(send_invalid_event)) as qr:
        stream = qr.events.stream()
        with pytest.raises(UnreachableError, match="does not send a Queenright event stream"):
            await anext(stream)
        assert [event async for event in stream] == []
