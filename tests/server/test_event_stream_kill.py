"""
The event stream of a service that is killed. What it sent is in the log, and the remaining events follow.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx

from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store
from tests.server.streams import Follower
from tests.waiting import until
from tests.warm import Command


def start_process(storage: Path, port: int) -> Command:
    with Path(os.devnull).open("r+b") as null_file:
        return Command(
            *("serve", f"--storage={storage}", f"--port={port}", "--otlp-port=0"),
            streams=(null_file.fileno(),) * 3,
        )


async def start_service(storage: Path, port: int) -> Command:
    process = start_process(storage, port)
    async with httpx.AsyncClient(trust_env=False) as http:
        for _ in range(600):
            try:
                if (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                    return process
            except httpx.TransportError:
                await asyncio.sleep(0.1)
    raise AssertionError("the service is not ready within a minute")


async def send_heartbeats(url: str, numbers: range) -> None:
    """Send heartbeats, four concurrently, until all are accepted or the service is gone."""
    remaining_numbers = iter(numbers)

    async def send_next(http: httpx.AsyncClient) -> None:
        for number in remaining_numbers:
            await http.post("/api/heartbeats", json={"agent_id": f"bee-{number}", "task_id": "t"})

    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        await asyncio.gather(*(send_next(http) for _ in range(4)), return_exceptions=True)


async def test_stream_across_a_kill_contains_the_log_once_and_in_order(tmp_path: Path, port: int) -> None:
    """B64: this holds even if the service is killed."""
    storage = tmp_path / "storage"
    url = f"http://127.0.0.1:{port}"
    process = await start_service(storage, port)
    follower = Follower(f"{url}/api/events?types=all")
    await follower.__aenter__()
    first_id = follower.last_id
    send_task = asyncio.create_task(send_heartbeats(url, range(2000)))
    await follower.until(lambda: len(follower.ids) > 60, "events arrive")
    process.send_signal(signal.SIGKILL)
    process.wait()
    await send_task
    await until(lambda: follower._task.done(), "the stream breaks off")
    assert isinstance(follower._task.exception(), httpx.TransportError)

    process = await start_service(storage, port)
    try:
        assert follower.last_id is not None
        async with Follower(follower.url, {"Last-Event-ID": follower.last_id}) as resumed_stream:
            await send_heartbeats(url, range(3000, 3020))

            def is_listed() -> bool:
                return any(event.data["agent_id"] == "bee-3019" for event in resumed_stream.events)

            await resumed_stream.until(is_listed, "the events after the restart are streamed")
            received_ids = follower.ids + resumed_stream.ids
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    store = Store.open(f"sqlite:///{storage / 'queenright.db'}", read_only=True)
    try:
        log = [event.id for _, event in store.read_now(lambda conn: read_events(conn, limit=100_000))]
    finally:
        store.close_now()
    start_time = 0 if first_id in (None, "beginning") else log.index(first_id) + 1
    assert received_ids == log[start_time : start_time + len(received_ids)]
    assert len(received_ids) > 80
