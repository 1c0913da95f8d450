"""A process that is killed and started again and again, through the real service and Alertmanager."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queenright.alerting.notification_records import list_notifications
from queenright.alerting.recorder import RecordedMessage
from queenright.health.tickets.ticket import EscalationTicket
from queenright.server.ops.sockets import find_free_port
from queenright.server.serving import RunningService
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.end_to_end.conftest import serving_with_alertmanager
from tests.isolation import environment
from tests.waiting import until

WORKER = Path(__file__).parent / "agents" / "crashing_worker.py"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    port = find_free_port("127.0.0.1", 0, what="Alertmanager", option="")
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        http={"port": 0},
        otlp={"port": 0},
        alerting={"alertmanager_urls": [f"http://127.0.0.1:{port}"]},
    )


@pytest.fixture
async def running(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving_with_alertmanager(settings) as found:
        yield found


def tickets(running: RunningService) -> dict[str, EscalationTicket]:
    return {ticket.session_id: ticket for ticket in running.service.tickets.open_tickets()}


def pages(running: RunningService) -> list[RecordedMessage]:
    assert running.service.recorder is not None
    return [one for one in running.service.recorder.messages if one.channel == "pagerduty"]


async def live_and_crash(running: RunningService, session: str) -> None:
    """Run the agent until people are notified about it, then kill it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), running.otlp_url, session, env=environment()
    )
    try:
        await until(
            lambda: session in tickets(running) and tickets(running)[session].notified_at, session, seconds=90
        )
    finally:
        process.kill()
        await process.wait()


async def test_agent_killed_and_restarted_pages_twice(
    running: RunningService,
) -> None:
    """B123, of an agent without heartbeats; B122: the second session pages as the first did."""
    service = running.service
    for life in ("life-1", "life-2"):
        await live_and_crash(running, life)
        await until(lambda life=life: len(pages(running)) == int(life[-1]), f"a page for {life}")  # type: ignore[misc]  # mypy cannot infer a lambda's default
    ticket = tickets(running)["life-2"]
    await service.tickets.acknowledge(ticket.ticket_id, by="ada")
    for life in ("life-3", "life-4"):
        await live_and_crash(running, life)
        # Whoever has the incident has the tickets that join it.
        await until(lambda life=life: tickets(running)[life].acknowledged_by == "ada", f"{life} is taken")  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def shown() -> list[str]:
        records = service.store.read_now(lambda conn: list_notifications(conn, 50, now=service.clock()))
        return [one.title for one in records if one.status == "firing"]

    counted = "3 sessions, one after the other."
    await until(lambda: any(counted in title for title in shown()), f"{counted} in {shown()}")
    assert [page.status for page in pages(running)] == ["firing", "firing"]
