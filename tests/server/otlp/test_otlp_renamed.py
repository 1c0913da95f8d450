"""A run of which the name comes late, in a real service: tickets, API and metrics know it by one name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from sqlalchemy import Row, select

from queenright.health.store.tables import OUTBOX
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from tests.frameworks.matrix import settings_for
from tests.server.otlp.framework_spans import NOW, TRACE, chat, invoke, request, tool
from tests.waiting import until

SAME = {"gen_ai.tool.call.arguments": "[1]", "gen_ai.tool.call.result": "nothing"}


def shifted(made: ExportTraceServiceRequest) -> bytes:
    """Return a request whose spans were made just now."""
    by = int((time.time() - NOW + 60) * 1e9)
    for span in made.resource_spans[0].scope_spans[0].spans:
        span.start_time_unix_nano += by
        span.end_time_unix_nano += by
    return made.SerializeToString()


async def send(running: RunningService, *spans: dict[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=running.otlp_url, trust_env=False) as http:
        headers = {"content-type": "application/x-protobuf"}
        answer = await http.post("/v1/traces", content=shifted(request(*spans)), headers=headers)
        assert answer.status_code == 200, answer.text
    await running.service.bus.drain()


def looping(first: int, start: float, **fields: Any) -> list[dict[str, Any]]:
    """Return eight equal tool calls, each after an answer of the model."""
    spans = []
    for n in range(8):
        at = start + 2 * n
        spans.append(chat(first + 2 * n, 1, start=at, end=at + 1, **fields))
        attributes = SAME | fields.get("attributes", {})
        spans.append(tool(first + 2 * n + 1, 1, start=at + 1, end=at + 2, attributes=attributes))
    return spans


def open_tickets(running: RunningService) -> set[tuple[str, str]]:
    return {(ticket.agent_id, ticket.session_id) for ticket in running.service.tickets.open_tickets()}


def settings(folder: Path) -> Settings:
    return settings_for(folder)


async def agents(running: RunningService) -> list[tuple[str, str, int]]:
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        rows = (await http.get("/api/agents")).json()["agents"]
        return [(row["agent_id"], row["session_id"], row["tool_calls"]) for row in rows]


async def alerts(running: RunningService) -> list[Row[Any]]:
    return list(await running.service.store.read(lambda conn: conn.execute(select(OUTBOX)).all()))


async def test_late_name_applies_to_ticket_agent_and_metrics(tmp_path: Path) -> None:
    """B86: nothing is left under the old name, and a restart changes nothing of that."""
    old, new = ("svc", TRACE.hex()), ("scout", "c-1")
    named = {"gen_ai.agent.name": "scout", "gen_ai.conversation.id": "c-1"}
    async with serving(settings(tmp_path)) as running:
        await send(running, *looping(10, 0))
        await until(lambda: open_tickets(running) == {old}, "a ticket is open under the old name")
        await until(lambda: running.service.tickets.open_tickets()[0].notified_at, "it is notified")
        [sent] = await alerts(running)

        await send(running, *looping(40, 20, attributes=named))
        await until(lambda: open_tickets(running) == {new}, "it is open under the new name only")

        [renamed] = await alerts(running)
        assert (renamed.id, renamed.labels, renamed.ends_at) == (sent.id, sent.labels, None)
        assert "scout" in renamed.annotations["summary"]

        assert await agents(running) == [(*new, 16)]
        async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
            series = [
                line
                for line in (await http.get("/metrics")).text.splitlines()
                if line.startswith("queenright_worker_last_activity_timestamp_seconds{")
            ]
        assert [line for line in series if 'agent="svc"' in line] == []
        assert len([line for line in series if 'agent="scout"' in line]) == 1

    async with serving(settings(tmp_path)) as running:
        assert await agents(running) == [(*new, 16)]
        assert open_tickets(running) == {new}

        await send(running, *looping(80, 40))  # without a name
        assert await agents(running) == [(*new, 24)]


async def get(running: RunningService, path: str, **params: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.url, trust_env=False, follow_redirects=True) as http:
        return await http.get(path, params=params)


async def test_history_and_old_addresses_follow_a_late_name(tmp_path: Path) -> None:
    """The root span, which names agent and conversation, arrives last."""
    named = {"gen_ai.conversation.id": "c-1"}
    root = invoke(1, "scout", start=-1, end=40, attributes=named)
    async with serving(settings(tmp_path)) as running:
        await send(running, *looping(10, 0))
        await until(lambda: open_tickets(running) == {("svc", TRACE.hex())}, "a ticket is open")
        [ticket] = running.service.tickets.open_tickets()

        await send(running, *looping(40, 20), root)
        await until(lambda: open_tickets(running) == set(), "the ticket has ended with its worker")

    for _ in ("live", "after a restart"):
        async with serving(settings(tmp_path)) as running:
            steps = (await get(running, "/api/agents/scout/steps", session_id="c-1")).json()
            assert len([item for item in steps["items"] if item["kind"] == "tool"]) == 16
            assert not steps["more"]

            [row] = (await get(running, "/api/tickets", agent_id="scout")).json()["tickets"]
            assert row["ticket_id"] == ticket.ticket_id
            history = (await get(running, "/api/agents/scout/history")).json()["history"]
            assert "health_state_changed" in [one["type"] for one in history]

            for path in ("/api/agents/svc/steps", "/api/agents/svc/health"):
                old = await get(running, path, session_id=TRACE.hex())
                assert (old.status_code, "scout" in old.text) == (200, True), path
                assert (await get(running, path)).status_code == 200, path

            [row] = (await get(running, "/api/tickets", agent_id="svc")).json()["tickets"]
            assert row["ticket_id"] == ticket.ticket_id
            async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
                nudged = await http.post("/api/agents/svc/nudge", json={"session_id": TRACE.hex()})
            assert (nudged.status_code, "scout" in nudged.text) == (409, True)
