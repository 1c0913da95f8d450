"""Many agents that loop simultaneously, with the real service and the real Alertmanager."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx

from queenright.server.settings import load_settings
from queenright.server.up import up
from queenright.server.up_options import UpOptions
from tests.end_to_end.crowd import build_crowd_request
from tests.waiting import until

AGENT_COUNT = 120
MAX_MESSAGES = 6


async def test_crowd_has_a_ticket_per_agent_and_few_messages(tmp_path: Path) -> None:
    """B131: each agent has its ticket, and the messages are about the storm."""
    settings = load_settings(
        storage=tmp_path,
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"judge": {"start_grace_seconds": 0}},
    )
    options = UpOptions(demo=False, fast=True, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    async with (
        up(settings, options, say=lambda line: None) as running_service,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        service = running_service.service
        recorder = service.recorder
        assert recorder is not None
        for first in range(0, AGENT_COUNT, 40):
            response = await http.post(
                f"{running_service.otlp_url}/v1/traces",
                content=build_crowd_request(range(first, first + 40)),
                headers={"content-type": "application/x-protobuf"},
            )
            assert response.status_code == 200

        await until(
            lambda: (
                Counter(ticket.status.value for ticket in service.tickets.open_tickets())["intervening"]
                == AGENT_COUNT
            ),
            "each agent has a notified ticket",
            seconds=180,
        )
        await until(lambda: service.outbox.status().pending == 0, "all alerts are sent", seconds=120)
        await until(
            lambda: {message.channel for message in recorder.messages} == {"slack", "pagerduty"},
            "messages have arrived",
            seconds=180,
        )
        tickets = (await http.get(f"{running_service.url}/api/tickets?limit=100")).json()["tickets"]
        agents = {ticket.agent_id for ticket in service.tickets.open_tickets()}
        channels = Counter(message.channel for message in recorder.messages if message.status == "firing")

    assert len(agents) == AGENT_COUNT
    assert set(channels) == {"slack", "pagerduty"}
    assert max(channels.values()) <= MAX_MESSAGES, channels
    severities = {ticket["severity"] for ticket in tickets}
    assert severities <= {"high", "critical"}
