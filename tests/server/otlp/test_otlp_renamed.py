"""A run whose name arrives late. Tickets, API and metrics of a real service use the new name."""

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
from tests.frameworks.matrix import matrix_settings
from tests.server.otlp.framework_spans import NOW, TRACE, agent_span, chat_span, make_request, tool_span
from tests.waiting import until

REPEATED_ATTRIBUTES = {"gen_ai.tool.call.arguments": "[1]", "gen_ai.tool.call.result": "nothing"}


def serialize_shifted(message: ExportTraceServiceRequest) -> bytes:
    """Serialize a request, with its spans moved to the current time."""
    offset = int((time.time() - NOW + 60) * 1e9)
    for span in message.resource_spans[0].scope_spans[0].spans:
        span.start_time_unix_nano += offset
        span.end_time_unix_nano += offset
    return message.SerializeToString()


async def send_spans(running: RunningService, *spans: dict[str, Any]) -> None:
    async with httpx.AsyncClient(base_url=running.otlp_url, trust_env=False) as http:
        headers = {"content-type": "application/x-protobuf"}
        response = await http.post(
            "/v1/traces", content=serialize_shifted(make_request(*spans)), headers=headers
        )
        assert response.status_code == 200, response.text
    await running.service.bus.drain()


def make_looping_spans(first_id: int, start_time: float, **fields: Any) -> list[dict[str, Any]]:
    """Return the spans of eight equal tool calls, each of which follows a model call."""
    spans = []
    for index in range(8):
        call_time = start_time + 2 * index
        spans.append(chat_span(first_id + 2 * index, 1, start=call_time, end=call_time + 1, **fields))
        attributes = REPEATED_ATTRIBUTES | fields.get("attributes", {})
        spans.append(
            tool_span(
                first_id + 2 * index + 1, 1, start=call_time + 1, end=call_time + 2, attributes=attributes
            )
        )
    return spans


def list_open_tickets(running: RunningService) -> set[tuple[str, str]]:
    return {(ticket.agent_id, ticket.session_id) for ticket in running.service.tickets.open_tickets()}


def make_settings(folder: Path) -> Settings:
    return matrix_settings(folder)


async def list_agents(running: RunningService) -> list[tuple[str, str, int]]:
    async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
        rows = (await http.get("/api/agents")).json()["agents"]
        return [(row["agent_id"], row["session_id"], row["tool_calls"]) for row in rows]


async def read_outbox(running: RunningService) -> list[Row[Any]]:
    return list(await running.service.store.read(lambda conn: conn.execute(select(OUTBOX)).all()))


async def test_late_name_applies_to_ticket_agent_and_metrics(tmp_path: Path) -> None:
    """B86: the old name disappears, and is not back after a restart."""
    old_name, new_name = ("svc", TRACE.hex()), ("scout", "c-1")
    named_attributes = {"gen_ai.agent.name": "scout", "gen_ai.conversation.id": "c-1"}
    async with serving(make_settings(tmp_path)) as running:
        await send_spans(running, *make_looping_spans(10, 0))
        await until(lambda: list_open_tickets(running) == {old_name}, "a ticket is open under the old name")
        await until(lambda: running.service.tickets.open_tickets()[0].notified_at, "the ticket is notified")
        [first_notification] = await read_outbox(running)

        await send_spans(running, *make_looping_spans(40, 20, attributes=named_attributes))
        await until(
            lambda: list_open_tickets(running) == {new_name}, "the ticket is open only under the new name"
        )

        [renamed_notification] = await read_outbox(running)
        assert (renamed_notification.id, renamed_notification.labels, renamed_notification.ends_at) == (
            first_notification.id,
            first_notification.labels,
            None,
        )
        assert "scout" in renamed_notification.annotations["summary"]

        assert await list_agents(running) == [(*new_name, 16)]
        async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
            series = [
                line
                for line in (await http.get("/metrics")).text.splitlines()
                if line.startswith("queenright_worker_last_activity_timestamp_seconds{")
            ]
        assert [line for line in series if 'agent="svc"' in line] == []
        assert len([line for line in series if 'agent="scout"' in line]) == 1

    async with serving(make_settings(tmp_path)) as running:
        assert await list_agents(running) == [(*new_name, 16)]
        assert list_open_tickets(running) == {new_name}

        await send_spans(running, *make_looping_spans(80, 40))  # The series without a name.
        assert await list_agents(running) == [(*new_name, 24)]


async def get_path(running: RunningService, path: str, **params: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.url, trust_env=False, follow_redirects=True) as http:
        return await http.get(path, params=params)


async def test_history_and_old_addresses_follow_a_late_name(tmp_path: Path) -> None:
    """The root span, which names the agent and the conversation, arrives last."""
    conversation_attributes = {"gen_ai.conversation.id": "c-1"}
    root = agent_span(1, "scout", start=-1, end=40, attributes=conversation_attributes)
    async with serving(make_settings(tmp_path)) as running:
        await send_spans(running, *make_looping_spans(10, 0))
        await until(lambda: list_open_tickets(running) == {("svc", TRACE.hex())}, "a ticket is open")
        [ticket] = running.service.tickets.open_tickets()

        await send_spans(running, *make_looping_spans(40, 20), root)
        await until(lambda: list_open_tickets(running) == set(), "the ticket has ended with its worker")

    for _ in ("live", "the state after a restart"):
        async with serving(make_settings(tmp_path)) as running:
            steps = (await get_path(running, "/api/agents/scout/steps", session_id="c-1")).json()
            assert len([item for item in steps["items"] if item["kind"] == "tool"]) == 16
            assert not steps["more"]

            [row] = (await get_path(running, "/api/tickets", agent_id="scout")).json()["tickets"]
            assert row["ticket_id"] == ticket.ticket_id
            history = (await get_path(running, "/api/agents/scout/history")).json()["history"]
            assert "health_state_changed" in [event["type"] for event in history]

            for path in ("/api/agents/svc/steps", "/api/agents/svc/health"):
                old_page = await get_path(running, path, session_id=TRACE.hex())
                assert (old_page.status_code, "scout" in old_page.text) == (200, True), path
                assert (await get_path(running, path)).status_code == 200, path

            [row] = (await get_path(running, "/api/tickets", agent_id="svc")).json()["tickets"]
            assert row["ticket_id"] == ticket.ticket_id
            async with httpx.AsyncClient(base_url=running.url, trust_env=False) as http:
                nudge_response = await http.post("/api/agents/svc/nudge", json={"session_id": TRACE.hex()})
            assert (nudge_response.status_code, "scout" in nudge_response.text) == (409, True)
