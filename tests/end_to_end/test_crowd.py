"""Many looping agents at once, with the real service and the real Alertmanager."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx

from queenright.server.settings import load_settings
from queenright.server.up import up
from queenright.server.up_options import UpOptions
from tests.end_to_end.crowd import crowd_request
from tests.waiting import until

CROWD = 120
HANDFUL = 6


async def test_crowd_has_tickets_and_few_messages(tmp_path: Path) -> None:
    """B131: each agent has its ticket; messages are about the storm, not about each agent."""
    settings = load_settings(
        storage=tmp_path,
        http={"port": 0},
        otlp={"port": 0},
        health_monitoring={"judge": {"start_grace_seconds": 0}},
    )
    options = UpOptions(demo=False, fast=True, prometheus_port=0, alertmanager_port=0, receiver_port=0)
    async with (
        up(settings, options, say=lambda line: None) as running,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        service = running.service
        recorder = service.recorder
        assert recorder is not None
        for first in range(0, CROWD, 40):
            answer = await http.post(
                f"{running.otlp_url}/v1/traces",
                content=crowd_request(range(first, first + 40)),
                headers={"content-type": "application/x-protobuf"},
            )
            assert answer.status_code == 200

        await until(
            lambda: (
                Counter(ticket.status.value for ticket in service.tickets.open_tickets())["intervening"]
                == CROWD
            ),
            "all have a notified ticket",
            seconds=180,
        )
        await until(lambda: service.outbox.status().pending == 0, "all alerts are sent", seconds=120)
        await until(
            lambda: {one.channel for one in recorder.messages} == {"slack", "pagerduty"},
            "messages have arrived",
            seconds=180,
        )
        tickets = (await http.get(f"{running.url}/api/tickets?limit=100")).json()["tickets"]
        agents = {ticket.agent_id for ticket in service.tickets.open_tickets()}
        channels = Counter(one.channel for one in recorder.messages if one.status == "firing")

    assert len(agents) == CROWD
    assert set(channels) == {"slack", "pagerduty"}
    assert max(channels.values()) <= HANDFUL, channels
    severities = {ticket["severity"] for ticket in tickets}
    assert severities <= {"high", "critical"}
