"""The events of the story, and the queries that show that all of them happened."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Any, Final

import httpx

from queenright.runtime.events import AgentEvent
from queenright.server.ops.child_processes import Child
from tests.clients.fixtures import FOLDER, load_fixture
from tools.story.breakers import open_and_close_breakers
from tools.story.graphs import start_graphs
from tools.story.stage import Stage
from tools.story.workers import TROUBLED_WORKERS, Fleet, clerk, librarian

EVENTS: Final = (
    'max_over_time(queenright_agent_state{state="stuck"}[5m]) == 1',
    'queenright_tickets_total{cause="doom_loop"} > 0',
    'queenright_tickets_total{cause="provider_failure"} > 0',
    'queenright_tickets_total{cause="checkpoint_stale"} > 0',
    'queenright_tickets_total{cause="retry_storm"} > 0',
    'queenright_findings_total{kind="heartbeat_missing"} > 0',
    'queenright_triage_total{decision="intervene"} > 3',
    'queenright_interventions_total{kind="nudge",outcome="done"} > 0',
    'queenright_interventions_total{kind="nudge",outcome="unreachable"} > 0',
    'queenright_interventions_total{kind="escalate",outcome="done"} > 0',
    'queenright_interventions_total{kind="terminate",outcome="done"} > 0',
    'queenright_interventions_total{kind="recover",outcome="done"} > 0',
    'queenright_recoveries_total{outcome="completed"} > 0',
    'queenright_recoveries_total{outcome="exhausted"} > 0',
    'queenright_circuit_breaker_transitions_total{to="half_open"} > 0',
    'queenright_circuit_breaker_transitions_total{breaker=~"external.*",to="closed"} > 0',
    'queenright_llm_fallbacks_total{reason="error"} > 0',
    'queenright_llm_fallbacks_total{reason="timeout"} > 0',
    'queenright_llm_fallbacks_total{reason="invalid"} > 0',
    'queenright_llm_fallbacks_total{reason="budget"} > 0',
    'queenright_notifications_total{outcome="retried"} > 0',
    'queenright_notifications_total{outcome="delivered"} > 0',
    'queenright_event_bus_dropped_total{subscriber="archive"} > 0',
    'increase(queenright_telemetry_dropped_total{signal="step_log"}[5m]) > 0',
    'increase(queenright_series_limited_total{metric="queenright_worker_errors_total"}[5m]) > 0',
    'queenright_worker_stalls_total{phase="tool"} > 0',
    'queenright_worker_errors_total{error_type="other"} > 0',
    'queenright_ingest_spans_total{outcome="rejected"} > 0',
    'queenright_tickets_open{status="acknowledged"} > 0',
    "sum(queenright_tickets_open) < sum(queenright_tickets_total)",
    "min_over_time(queenright_outbox_pending[5s]) == 0",
    'ALERTS{alertstate="firing"}',
    "count_over_time(up[5m]) >= 30",
)
"""Queries that return a result once everything has happened."""

_START: Final = time.monotonic()


async def play(stage: Stage) -> None:
    """Let everything happen once; return when Prometheus has scraped it."""
    service, url = stage.running.service, stage.running.url
    fleet = Fleet(endpoint=stage.running.otlp_url, control=url, registry=stage.registry)
    stage.stack.push_async_callback(asyncio.to_thread, fleet.end)
    service.bus.subscribe(_handle_slowly, name="archive", capacity=10)
    mayfly = await Child.start(
        "mayfly",
        [sys.executable, "-m", "tools.story.mayfly", stage.running.otlp_url, str(stage.mayfly_port)],
        stage.folder / "mayfly.log",
    )
    stage.stack.push_async_callback(mayfly.stop)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        await _wait_for_query(http, stage, "min(count_over_time(up[1m])) >= 2", "everything is scraped twice")
        fleet.begin(librarian, clerk)
        breaker_task = asyncio.create_task(open_and_close_breakers(service))
        # This comes first, while the budget allows a model: the rules would not dismiss the ticket.
        await _wait_for_query(
            http, stage, 'queenright_triage_total{decision="dismiss"} > 0', "the ticket is dismissed"
        )
        # Queries look back five minutes, and a busy machine takes that long to get here.
        stage.step_log.write_text("this is no step\n" * 3)
        fleet.begin(*TROUBLED_WORKERS)
        await start_graphs(service)
        await _send_foreign_telemetry(http, stage.running.otlp_url)
        await _send_coding_agent_session(http, stage.running.otlp_url)
        await asyncio.sleep(6)
        mayfly.process.kill()
        await _wait_for_query(http, stage, "queenright_outbox_pending > 0", "a notification is pending")
        await stage.start_alertmanager()
        await breaker_task
        await _acknowledge(http, url, "researcher")
        await http.post(f"{url}/api/agents/librarian/nudge", json={"by": "ada", "message": "How is it?"})
        await http.post(f"{url}/api/agents/archivist/nudge", json={"by": "ada", "message": "Do save."})
        await _wait_for_query(
            http, stage, 'queenright_tickets_total{cause="retry_storm"} > 0', "the notification is delivered"
        )
        fleet.can_improve.set()
        for query in EVENTS:
            await _wait_for_query(http, stage, query, query)
        await asyncio.sleep(2)


async def _handle_slowly(event: AgentEvent) -> None:
    """Handle an event too slowly to keep up."""
    await asyncio.sleep(0.5)


async def _send_foreign_telemetry(http: httpx.AsyncClient, otlp_url: str) -> None:
    """Send a span that is not agent work, and an invalid one."""
    spans: list[dict[str, Any]] = [
        {
            "traceId": "5b8efff798038103d269b633813fc60c",
            "spanId": "eee19b7ec3c1b174",
            "name": "GET /",
            "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
        },
        {"traceId": "00", "spanId": "00", "name": "broken"},
    ]
    body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    answer = await http.post(f"{otlp_url}/v1/traces", json=body)
    answer.raise_for_status()


async def _send_coding_agent_session(http: httpx.AsyncClient, otlp_url: str) -> None:
    """Send the records of a session of Claude Code, which include its cost."""
    fixture = load_fixture(FOLDER / "claude-code" / "healthy.json")
    for record in fixture.moved(time.time() - fixture.ended_at):
        answer = await http.post(f"{otlp_url}{record.path}", json=record.body)
        answer.raise_for_status()


async def _acknowledge(http: httpx.AsyncClient, url: str, agent: str) -> None:
    """Acknowledge the ticket of an agent."""
    for _ in range(600):
        tickets = (await http.get(f"{url}/api/tickets")).json()["tickets"]
        agent_tickets = [
            ticket for ticket in tickets if ticket["agent_id"] == agent and ticket["status"] == "intervening"
        ]
        if agent_tickets:
            answer = await http.post(
                f"{url}/api/tickets/{agent_tickets[0]['ticket_id']}/acknowledge", json={"by": "ada"}
            )
            answer.raise_for_status()
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{agent} has no ticket that anyone was notified about: {tickets}")


async def _wait_for_query(http: httpx.AsyncClient, stage: Stage, query: str, description: str) -> None:
    for _ in range(6000):
        with contextlib.suppress(httpx.TransportError):
            answer = await http.get(f"{stage.prometheus_url}/api/v1/query", params={"query": query})
            if answer.json()["data"]["result"]:
                sys.stderr.write(f"{time.monotonic() - _START:6.1f} s  {description}\n")
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"did not happen within ten minutes: {description} ({query})")
