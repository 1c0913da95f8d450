"""Forty workers fail for one reason, and are one page that resolves with them."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.alerting.recorder import RecordedMessage
from queenright.server.serving import RunningService
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.end_to_end.conftest import serving_with_alertmanager
from tests.server.conftest import looping
from tests.waiting import until

WORKERS = [f"bee-{n:02}" for n in range(40)]
PAGES = {("slack", "firing"): 1, ("pagerduty", "firing"): 1}
PAGES_AND_ALL_CLEARS = PAGES | {("slack", "resolved"): 1, ("pagerduty", "resolved"): 1}

MODEL_CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "anthropic",
    "gen_ai.request.model": "claude-sonnet-4-5",
}
TOOL_CALL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "mcp__github__get_issue"}


@pytest.fixture
def settings(tmp_path: Path, port: int) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        http={"port": 0},
        otlp={"port": 0},
        alerting={"alertmanager_urls": [f"http://127.0.0.1:{port}"]},
    )


@pytest.fixture
async def running_service(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving_with_alertmanager(settings, hold_outbox=True) as service_run:
        yield service_run


def call_spans(agent: str, kind: dict[str, str], *, times: int, error_type: str = "") -> list[dict[str, Any]]:
    """Return the spans of an agent's last calls, one second apart; the last ends now."""
    now = time.time()
    spans = []
    for n in range(times):
        end = now - (times - 1 - n)
        span_name = f"{agent} {end}".encode()
        attributes = {
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": f"{agent}-1",
            # Each call has different arguments, so that the calls are not a loop.
            "gen_ai.tool.call.arguments": f'{{"issue": {end}}}',
            **kind,
            **({"error.type": error_type} if error_type else {"gen_ai.usage.output_tokens": "8"}),
        }
        spans.append(
            {
                "traceId": hashlib.sha256(agent.encode()).hexdigest()[:32],
                "spanId": hashlib.sha256(span_name).hexdigest()[:16],
                "name": f"{kind['gen_ai.operation.name']} x",
                "startTimeUnixNano": str(int((end - 0.5) * 1e9)),
                "endTimeUnixNano": str(int(end * 1e9)),
                "status": {"code": 2, "message": error_type} if error_type else {},
                "attributes": [
                    {"key": key, "value": {"stringValue": text}} for key, text in attributes.items()
                ],
            }
        )
    return spans


async def send_calls(running_service: RunningService, kind: dict[str, str], **options: Any) -> None:
    """Send the spans of all workers in one request, as a collector does."""
    spans = [span for agent in WORKERS for span in call_spans(agent, kind, **options)]
    body = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "x"}, "spans": spans}]}]}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        response = await http.post(f"{running_service.otlp_url}/v1/traces", json=body)
    assert response.json() == {}


def select_messages(running_service: RunningService, *, agent: str = "") -> list[RecordedMessage]:
    """Return the messages about the shared cause, or those with ``agent`` in their title."""
    assert running_service.service.recorder is not None
    shared_title = " is failing: "
    return [
        message
        for message in running_service.service.recorder.messages
        if (agent or shared_title) in message.title
    ]


def count_messages(running_service: RunningService) -> Counter[tuple[str, str]]:
    return Counter((message.channel, message.status) for message in select_messages(running_service))


def count_notified_tickets(running_service: RunningService) -> int:
    return sum(ticket.notified_at is not None for ticket in running_service.service.tickets.open_tickets())


@pytest.mark.parametrize(
    ("kind", "failed", "cause"),
    [(MODEL_CALL, "overloaded_error", "provider:anthropic"), (TOOL_CALL, "ConnectionError", "mcp:github")],
    ids=["provider", "tool"],
)
async def test_forty_workers_with_one_cause_are_one_page_that_resolves(
    running_service: RunningService, kind: dict[str, str], failed: str, cause: str
) -> None:
    """B104: each worker has a ticket, and all share a page. A worker with another cause has its own page."""
    service = running_service.service
    async with httpx.AsyncClient(base_url=running_service.url, trust_env=False) as http:

        async def list_rows(resource: str) -> list[dict[str, Any]]:
            return list((await http.get(f"/api/{resource}?limit=200")).json()[resource])

        await send_calls(running_service, kind, times=20, failed=failed)
        await until(
            lambda: count_notified_tickets(running_service) == len(WORKERS), "each has a ticket to notify"
        )
        # The outbox holds alerts while a storm may grow; release them now.
        service.outbox.release()
        await until(lambda: count_messages(running_service).keys() >= PAGES.keys(), "a page on both channels")
        tickets, providers, [incident] = [
            await list_rows(resource) for resource in ("tickets", "providers", "incidents")
        ]

        await service.ingest(list(looping(service.clock(), agent="looper")))
        await until(
            lambda: len(select_messages(running_service, agent="looper")) == 2,
            "a page about the looping worker",
        )

        await send_calls(running_service, kind, times=1)
        await until(lambda: count_notified_tickets(running_service) == 1, "the tickets close")
        await until(
            lambda: count_messages(running_service).keys() >= PAGES_AND_ALL_CLEARS.keys(),
            "the all-clear on both channels",
        )
        recovered_providers, [resolved_incident] = (
            await list_rows("providers"),
            (await list_rows("incidents")),
        )
        [looper_ticket] = service.tickets.open_tickets()

    # When some alerts of a page have resolved, Alertmanager sends an update of the same page.
    pages = [message for message in select_messages(running_service) if message.channel == "pagerduty"]
    assert "40 agents" in pages[0].title
    assert len({page.body["dedup_key"] for page in pages}) == 1
    for channel in ("slack", "pagerduty"):
        statuses = [
            message.status for message in select_messages(running_service) if message.channel == channel
        ]
        assert statuses[-1] == "resolved", statuses
        assert statuses.count("resolved") == 1, statuses
    assert looper_ticket.agent_id == "looper"
    assert looper_ticket.storm_id != cause
    assert {message.status for message in select_messages(running_service, agent="looper")} == {"firing"}

    assert (incident["cause"], incident["workers"], incident["open_tickets"]) == (cause, 40, 40)
    assert set(incident["ticket_ids"]) == {ticket["ticket_id"] for ticket in tickets}
    assert {ticket["agent_id"] for ticket in tickets} == set(WORKERS)
    assert (incident["closed_at"], resolved_incident["incident_id"]) == (None, incident["incident_id"])
    assert resolved_incident["closed_at"] is not None
    if kind is MODEL_CALL:
        [provider] = providers
        assert (provider["status"], provider["agents_failing"]) == ("failing", 40)
        assert (provider["calls"], provider["failed"]) == (800, 800)
        [recovered_provider] = recovered_providers
        assert (
            recovered_provider["agents_failing"],
            recovered_provider["last_success"] > provider["last_failure"],
        ) == (0, True)
