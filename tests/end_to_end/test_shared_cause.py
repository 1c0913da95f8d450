"""Forty workers that fail for one reason: from their telemetry to the page and its end."""

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
ONE_EACH = {("slack", "firing"): 1, ("pagerduty", "firing"): 1}
AND_RESOLVED = ONE_EACH | {("slack", "resolved"): 1, ("pagerduty", "resolved"): 1}

MODEL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "anthropic",
    "gen_ai.request.model": "claude-sonnet-4-5",
}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "mcp__github__get_issue"}


@pytest.fixture
def settings(tmp_path: Path, port: int) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        http={"port": 0},
        otlp={"port": 0},
        alerting={"alertmanager_urls": [f"http://127.0.0.1:{port}"]},
    )


@pytest.fixture
async def running(settings: Settings) -> AsyncIterator[RunningService]:
    async with serving_with_alertmanager(settings, hold_outbox=True) as found:
        yield found


def call_spans(agent: str, kind: dict[str, str], *, times: int, failed: str = "") -> list[dict[str, Any]]:
    """Return the spans of an agent's last calls, one second apart; the last ends now."""
    now = time.time()
    spans = []
    for n in range(times):
        end = now - (times - 1 - n)
        one = f"{agent} {end}".encode()
        attributes = {
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": f"{agent}-1",
            # Each call has other arguments, so it is not a loop.
            "gen_ai.tool.call.arguments": f'{{"issue": {end}}}',
            **kind,
            **({"error.type": failed} if failed else {"gen_ai.usage.output_tokens": "8"}),
        }
        spans.append(
            {
                "traceId": hashlib.sha256(agent.encode()).hexdigest()[:32],
                "spanId": hashlib.sha256(one).hexdigest()[:16],
                "name": f"{kind['gen_ai.operation.name']} x",
                "startTimeUnixNano": str(int((end - 0.5) * 1e9)),
                "endTimeUnixNano": str(int(end * 1e9)),
                "status": {"code": 2, "message": failed} if failed else {},
                "attributes": [{"key": key, "value": {"stringValue": of}} for key, of in attributes.items()],
            }
        )
    return spans


async def send_calls(running: RunningService, kind: dict[str, str], **options: Any) -> None:
    """Send the spans of all workers in one request, as from a collector."""
    spans = [span for agent in WORKERS for span in call_spans(agent, kind, **options)]
    body = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "x"}, "spans": spans}]}]}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.post(f"{running.otlp_url}/v1/traces", json=body)
    assert answer.json() == {}


def select_messages(running: RunningService, *, about: str = "") -> list[RecordedMessage]:
    """Return the messages about all workers, or those with one agent in their title."""
    assert running.service.recorder is not None
    shared = " is failing: "
    return [one for one in running.service.recorder.messages if (about or shared) in one.title]


def count_messages(running: RunningService) -> Counter[tuple[str, str]]:
    return Counter((one.channel, one.status) for one in select_messages(running))


def decided_tickets(running: RunningService) -> int:
    return sum(ticket.notified_at is not None for ticket in running.service.tickets.open_tickets())


@pytest.mark.parametrize(
    ("kind", "failed", "cause"),
    [(MODEL, "overloaded_error", "provider:anthropic"), (TOOL, "ConnectionError", "mcp:github")],
    ids=["provider", "tool"],
)
async def test_forty_workers_of_one_cause_are_one_page_that_resolves_when_calls_succeed(
    running: RunningService, kind: dict[str, str], failed: str, cause: str
) -> None:
    """B104: a ticket for each, one page for all; a worker with its own condition is paged separately."""
    service = running.service
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:

        async def listed(what: str) -> list[dict[str, Any]]:
            return list((await http.get(f"/api/{what}?limit=200")).json()[what])

        await send_calls(running, kind, times=20, failed=failed)
        await until(lambda: decided_tickets(running) == len(WORKERS), "each has a ticket to notify")
        # Alertmanager collects a storm for 45 s; here it is sent at once.
        service.outbox.release()
        await until(lambda: count_messages(running).keys() >= ONE_EACH.keys(), "a page on both channels")
        tickets, providers, [incident] = [
            await listed(what) for what in ("tickets", "providers", "incidents")
        ]

        await service.ingest(list(looping(service.clock(), agent="looper")))
        await until(
            lambda: len(select_messages(running, about="looper")) == 2, "a page about the looping worker"
        )

        await send_calls(running, kind, times=1)
        await until(lambda: decided_tickets(running) == 1, "the tickets close")
        await until(
            lambda: count_messages(running).keys() >= AND_RESOLVED.keys(), "the all-clear on both channels"
        )
        recovered, [resolved] = await listed("providers"), (await listed("incidents"))
        [left] = service.tickets.open_tickets()

    # Alertmanager updates a page of which some alerts have resolved: one more message, but no other page.
    pages = [one for one in select_messages(running) if one.channel == "pagerduty"]
    assert "40 agents" in pages[0].title
    assert len({page.body["dedup_key"] for page in pages}) == 1
    for channel in ("slack", "pagerduty"):
        statuses = [one.status for one in select_messages(running) if one.channel == channel]
        assert statuses[-1] == "resolved", statuses
        assert statuses.count("resolved") == 1, statuses
    assert left.agent_id == "looper"
    assert left.storm_id != cause
    assert {one.status for one in select_messages(running, about="looper")} == {"firing"}

    assert (incident["cause"], incident["workers"], incident["open_tickets"]) == (cause, 40, 40)
    assert set(incident["ticket_ids"]) == {ticket["ticket_id"] for ticket in tickets}
    assert {ticket["agent_id"] for ticket in tickets} == set(WORKERS)
    assert (incident["closed_at"], resolved["incident_id"]) == (None, incident["incident_id"])
    assert resolved["closed_at"] is not None
    if kind is MODEL:
        [provider] = providers
        assert (provider["status"], provider["agents_failing"]) == ("failing", 40)
        assert (provider["calls"], provider["failed"]) == (800, 800)
        [recovered_calls] = recovered
        assert (
            recovered_calls["agents_failing"],
            recovered_calls["last_success"] > provider["last_failure"],
        ) == (0, True)
