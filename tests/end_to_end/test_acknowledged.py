"""
A ticket reaches PagerDuty through the real Alertmanager, and an acknowledgement there stops its reminders.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.alerting.recorder import RecordedMessage
from queenright.health.tickets.ticket import EscalationTicket
from queenright.server.serving import RunningService
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.end_to_end.conftest import serving_with_alertmanager
from tests.server.conftest import looping
from tests.waiting import until

SECRET = "pagerduty-webhook-secret"
REMINDER_SECONDS = 12.0
"""The first agent's reminder would be due before the second agent's, so it would arrive first."""


@pytest.fixture
def settings(tmp_path: Path, port: int) -> Settings:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    reminders = {"re_escalation": {"after_minutes": REMINDER_SECONDS / 60, "max": 1}}
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        http={"port": 0},
        otlp={"port": 0},
        alerting={
            "alertmanager_urls": [f"http://127.0.0.1:{port}"],
            "pagerduty_webhook_secret_files": [str(secret)],
        },
        health_monitoring={"tickets": reminders},
    )


@pytest.fixture
async def running_service(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving_with_alertmanager(settings) as service_run:
        yield service_run


def list_messages(running_service: RunningService, channel: str, agent: str) -> list[RecordedMessage]:
    recorder = running_service.service.recorder
    assert recorder is not None
    return [message for message in recorder.messages if message.channel == channel and agent in message.title]


async def wait_for_page(running_service: RunningService, agent: str) -> tuple[EscalationTicket, str]:
    """Let an agent loop until a page is sent, and return its ticket and PagerDuty's incident key."""
    await running_service.service.ingest(list(looping(running_service.service.clock(), agent=agent)))
    for channel in ("slack", "pagerduty"):
        await until(
            lambda channel=channel: list_messages(running_service, channel, agent),  # type: ignore[misc]  # mypy cannot infer a lambda's default
            f"{agent} in {channel}",
        )
    [ticket] = [
        ticket for ticket in running_service.service.tickets.open_tickets() if ticket.agent_id == agent
    ]
    [page] = list_messages(running_service, "pagerduty", agent)
    return ticket, page.body["dedup_key"]


async def list_receivers(http: httpx.AsyncClient, ticket_id: str) -> list[dict[str, Any]]:
    """Return the notified receivers of a ticket, once Alertmanager has reported them."""
    rows: list[dict[str, Any]] = []
    for _ in range(600):
        ticket_rows = (await http.get("/api/notifications")).json()["notifications"]
        rows = [
            row
            for ticket_row in ticket_rows
            if ticket_row["ticket_id"] == ticket_id
            for row in ticket_row["notified"]
        ]
        if rows:
            break
        await asyncio.sleep(0.1)
    return rows


async def acknowledge_in_pagerduty(
    http: httpx.AsyncClient, running_service: RunningService, key: str
) -> httpx.Response:
    """Post a signed PagerDuty event about an acknowledged incident."""
    pagerduty_event = {
        "id": "01EVENT",
        "event_type": "incident.acknowledged",
        "resource_type": "incident",
        "occurred_at": datetime.fromtimestamp(running_service.service.clock(), UTC).isoformat(),
        "agent": {"id": "PLH1HKV", "summary": "Ada Lovelace", "type": "user_reference"},
        "data": {"id": "PGR0VU2", "type": "incident", "incident_key": key},
    }
    body = json.dumps({"event": pagerduty_event}).encode()
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-PagerDuty-Signature": f"v1={digest}"}
    return await http.post("/api/pagerduty/webhook", content=body, headers=headers)


async def test_pagerduty_acknowledgement_stops_reminders_of_all_its_tickets(
    running_service: RunningService,
) -> None:
    """
    B41: the key from the real Alertmanager identifies the incident. Another ticket's reminder still arrives.
    """
    async with httpx.AsyncClient(base_url=running_service.url, trust_env=False) as http:
        acknowledged_ticket, key = await wait_for_page(running_service, "looper")
        receiver_rows = await list_receivers(http, acknowledged_ticket.ticket_id)
        response = await acknowledge_in_pagerduty(http, running_service, key)
        other_ticket, other_key = await wait_for_page(running_service, "straggler")
        await until(
            lambda: len(list_messages(running_service, "pagerduty", "straggler")) == 2,
            "the other ticket's reminder",
        )
        await until(
            lambda: len(list_messages(running_service, "slack", "straggler")) == 2,
            "the other ticket's reminder",
        )
        body = (await http.get(f"/api/tickets/{acknowledged_ticket.ticket_id}")).json()

    assert {(row["receiver"], row["status"]) for row in receiver_rows} <= {
        ("slack", "firing"),
        ("pagerduty", "firing"),
    }
    assert response.status_code == 202, response.text
    assert (body["status"], body["acknowledged_by"]) == ("acknowledged", "Ada Lovelace")
    assert (body["acknowledged_via"], body["reminders"]) == ("pagerduty", 0)
    for channel in ("slack", "pagerduty"):
        assert len(list_messages(running_service, channel, "looper")) == 1
        first, second = list_messages(running_service, channel, "straggler")
        assert "reminder" not in first.title
        assert "First reminder" in second.title
    reminder = list_messages(running_service, "pagerduty", "straggler")[1]
    assert reminder.body["dedup_key"] == other_key != key
    assert other_ticket.ticket_id != acknowledged_ticket.ticket_id
    assert running_service.service.recorder is not None
    assert not running_service.service.recorder.rejections
