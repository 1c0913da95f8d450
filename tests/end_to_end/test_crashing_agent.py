"""A process that is killed and restarted repeatedly, with the real service and Alertmanager."""

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


def list_tickets(running: RunningService) -> dict[str, EscalationTicket]:
    return {ticket.session_id: ticket for ticket in running.service.tickets.open_tickets()}


def list_pages(running: RunningService) -> list[RecordedMessage]:
    assert running.service.recorder is not None
    return [one for one in running.service.recorder.messages if one.channel == "pagerduty"]


async def run_until_paged(running: RunningService, session: str) -> None:
    """Run the agent until a page about it is sent, then kill it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), running.otlp_url, session, env=environment()
    )
    try:
        await until(
            lambda: session in list_tickets(running) and list_tickets(running)[session].notified_at,
            session,
            seconds=90,
        )
    finally:
        process.kill()
        await process.wait()


async def test_agent_killed_and_restarted_pages_twice(
    running: RunningService,
) -> None:
    """B123, for an agent without heartbeats; B122: the second session pages like the first."""
    service = running.service
    for session in ("life-1", "life-2"):
        await run_until_paged(running, session)
        await until(lambda s=session: len(list_pages(running)) == int(s[-1]), f"a page for {session}")  # type: ignore[misc]  # mypy cannot infer a lambda's default
    ticket = list_tickets(running)["life-2"]
    await service.tickets.acknowledge(ticket.ticket_id, by="ada")
    for session in ("life-3", "life-4"):
        await run_until_paged(running, session)
        # An acknowledgement of the incident covers tickets that join it.
        await until(lambda s=session: list_tickets(running)[s].acknowledged_by == "ada", f"{session} joins")  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def list_shown() -> list[str]:
        records = service.store.read_now(lambda conn: list_notifications(conn, 50, now=service.clock()))
        return [one.title for one in records if one.status == "firing"]

    counted = "3 sessions, one after the other."
    await until(lambda: any(counted in title for title in list_shown()), f"{counted} in {list_shown()}")
    assert [page.status for page in list_pages(running)] == ["firing", "firing"]
