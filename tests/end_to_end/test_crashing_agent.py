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
async def running_service(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving_with_alertmanager(settings) as service_run:
        yield service_run


def list_tickets(running_service: RunningService) -> dict[str, EscalationTicket]:
    return {ticket.session_id: ticket for ticket in running_service.service.tickets.open_tickets()}


def list_pages(running_service: RunningService) -> list[RecordedMessage]:
    assert running_service.service.recorder is not None
    return [
        message for message in running_service.service.recorder.messages if message.channel == "pagerduty"
    ]


async def run_until_paged(running_service: RunningService, session: str) -> None:
    """Run the agent until a page about it is sent, then kill it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), running_service.otlp_url, session, env=environment()
    )
    try:
        await until(
            lambda: (
                session in list_tickets(running_service)
                and list_tickets(running_service)[session].notified_at
            ),
            session,
            seconds=90,
        )
    finally:
        process.kill()
        await process.wait()


async def test_agent_killed_and_restarted_pages_twice(
    running_service: RunningService,
) -> None:
    """B122: the second session pages like the first. B123: this is so even without heartbeats."""
    service = running_service.service
    for session in ("life-1", "life-2"):
        await run_until_paged(running_service, session)
        await until(lambda s=session: len(list_pages(running_service)) == int(s[-1]), f"a page for {session}")  # type: ignore[misc]  # mypy cannot infer a lambda's default
    ticket = list_tickets(running_service)["life-2"]
    await service.tickets.acknowledge(ticket.ticket_id, by="ada")
    for session in ("life-3", "life-4"):
        await run_until_paged(running_service, session)
        # An acknowledgement of the incident covers tickets that join it.
        await until(
            lambda s=session: list_tickets(running_service)[s].acknowledged_by == "ada",  # type: ignore[misc]  # mypy cannot infer a lambda's default
            f"{session} joins",
        )

    def list_firing_titles() -> list[str]:
        records = service.store.read_now(lambda conn: list_notifications(conn, 50, now=service.clock()))
        return [record.title for record in records if record.status == "firing"]

    count_text = "3 sessions, one after the other."
    await until(
        lambda: any(count_text in title for title in list_firing_titles()),
        f"{count_text} in {list_firing_titles()}",
    )
    assert [page.status for page in list_pages(running_service)] == ["firing", "firing"]
