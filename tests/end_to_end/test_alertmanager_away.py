"""Alertmanager is down when a page is due: the page arrives later, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from queenright.alerting.recorder import Recorder
from queenright.server.ops.programs import find_program
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from queenright.server.serving import serving
from queenright.server.settings import Settings
from queenright.server.up_options import UpOptions
from queenright.server.up_programs import start_alertmanager
from tests.end_to_end.conftest import AgentProcess
from tests.end_to_end.test_page import PAGES, PAGES_AND_ALL_CLEARS, count_messages
from tests.waiting import until

DOWNTIME_SECONDS = 20


async def test_alertmanager_down_for_the_first_20_seconds_loses_nothing(
    settings: Settings, start_agent: Callable[[str, str], AgentProcess], port: int
) -> None:
    """B76: the outbox keeps the page until Alertmanager is up. One page and one all-clear are sent."""
    program = find_program("alertmanager")
    assert program, "this test needs the alertmanager program: `make test` fetches it"
    settings_with_port = settings.model_copy(
        update={
            "alerting": settings.alerting.model_copy(
                update={"alertmanager_urls": (f"http://127.0.0.1:{port}",)}
            )
        }
    )
    recorder = Recorder()
    receiver = listen("127.0.0.1", 0, what="the recorder", option="")
    async with serve_app(recorder, receiver), serving(settings_with_port) as running_service:
        running_service.service.recorder = recorder
        start = time.monotonic()
        process = start_agent("looping_worker.py", running_service.otlp_url)
        await until(lambda: running_service.service.outbox.status().pending == 1, "a pending page")
        await until(lambda: time.monotonic() - start > DOWNTIME_SECONDS, "20 s")
        assert count_messages(running_service) == {}
        assert running_service.service.outbox.status().peers[0].failing_since is not None

        alertmanager = await start_alertmanager(
            program,
            settings_with_port,
            UpOptions(),
            f"http://127.0.0.1:{port}",
            running_service.url,
            make_socket_url(receiver),
        )
        try:
            await until(lambda: count_messages(running_service).keys() >= PAGES.keys(), "the page")
            process.recover()
            await until(
                lambda: count_messages(running_service).keys() >= PAGES_AND_ALL_CLEARS.keys(),
                "the all-clear",
                seconds=180,
            )
            await asyncio.to_thread(process.stop)
        finally:
            await alertmanager.stop()

        assert count_messages(running_service) == PAGES_AND_ALL_CLEARS
        assert running_service.service.outbox.status().pending == 0
