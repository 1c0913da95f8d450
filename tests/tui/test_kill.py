"""The terminal interface of a killed service: its feed includes the events of the downtime."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx

from queenright.client import AsyncQueenright
from queenright.tui.app import QueenrightApp
from queenright.tui.gateway import ServiceGateway
from tests.server.test_event_stream_kill import start_service
from tests.tui.pictures import screen_text, throttle
from tests.waiting import until


async def cause_events(url: str, numbers: range) -> list[str]:
    """Cause events that the feed shows, and return the text of each."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        for number in numbers:
            body = {"on": number % 2 == 0, "by": "ada", "reason": f"number {number}."}
            response = await http.put("/api/emergency-stop", json=body)
            assert response.is_success, response.text
    return [f"number {number}." for number in numbers]


def feed_lines(app: QueenrightApp) -> list[str]:
    return [
        f"number{line.text.rpartition('number')[2]}"
        for line in app.app_state.fleet.feed
        if "number" in line.text
    ]


async def test_feed_across_a_kill_misses_nothing(tmp_path: Path, port: int) -> None:
    """B64: neither events just before the kill nor events before the reconnection are missing."""
    storage = tmp_path / "storage"
    url = f"http://127.0.0.1:{port}"
    process = await start_service(storage, port)
    try:
        texts = await cause_events(url, range(4))
        app = QueenrightApp(ServiceGateway(AsyncQueenright(url), by="ada"))
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("5")
            await until(lambda: feed_lines(app) == texts, "the events before the kill")
            texts += await cause_events(url, range(4, 20))
            process.send_signal(signal.SIGKILL)
            process.wait()
            await until(throttle(lambda: "does not respond" in screen_text(app)), "the outage is shown")

            process = await start_service(storage, port)
            texts += await cause_events(url, range(20, 30))
            await until(lambda: len(feed_lines(app)) >= len(texts), "the events after the kill")
            await until(throttle(lambda: "number 29." in screen_text(app)), "it is on the screen")
            assert feed_lines(app) == texts
            assert "does not respond" not in screen_text(app)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
