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
from tests.end_to_end.test_page import AND_RESOLVED, ONE_EACH, count_messages
from tests.waiting import until

DOWNTIME_SECONDS = 20


async def test_alertmanager_down_for_the_first_20_seconds_loses_nothing(
    settings: Settings, start_agent: Callable[[str, str], AgentProcess], port: int
) -> None:
    """B76: the outbox keeps the page until Alertmanager is up; one page, one all-clear."""
    program = find_program("alertmanager")
    assert program, "this test needs the alertmanager program: `make test` fetches it"
    downtime = settings.model_copy(
        update={
            "alerting": settings.alerting.model_copy(
                update={"alertmanager_urls": (f"http://127.0.0.1:{port}",)}
            )
        }
    )
    recorder = Recorder()
    receiver = listen("127.0.0.1", 0, what="the recorder", option="")
    async with serve_app(recorder, receiver), serving(downtime) as running:
        running.service.recorder = recorder
        start = time.monotonic()
        process = start_agent("looping_worker.py", running.otlp_url)
        await until(lambda: running.service.outbox.status().pending == 1, "a pending page")
        await until(lambda: time.monotonic() - start > DOWNTIME_SECONDS, "20 s")
        assert count_messages(running) == {}
        assert running.service.outbox.status().peers[0].failing_since is not None

        child = await start_alertmanager(
            program, downtime, UpOptions(), f"http://127.0.0.1:{port}", running.url, make_socket_url(receiver)
        )
        try:
            await until(lambda: count_messages(running).keys() >= ONE_EACH.keys(), "the page")
            process.recover()
            await until(
                lambda: count_messages(running).keys() >= AND_RESOLVED.keys(), "the all-clear", seconds=180
            )
            await asyncio.to_thread(process.stop)
        finally:
            await child.stop()

        assert count_messages(running) == AND_RESOLVED
        assert running.service.outbox.status().pending == 0
