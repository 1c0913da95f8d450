"""A process of a cluster is killed, paused or cut off: another one takes over, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from tests.cluster.conftest import Cluster, Process
from tests.databases import connected

pytestmark = pytest.mark.asyncio


def tool_spans(agent: str, session: str, count: int) -> dict[str, Any]:
    """Return an OTLP request with the spans of tool calls of one session."""
    now = time.time_ns()
    attributes = {"gen_ai.agent.name": agent, "gen_ai.conversation.id": session}
    spans = [
        {
            "traceId": secrets.token_hex(16),
            "spanId": secrets.token_hex(8),
            "name": "execute_tool search",
            "startTimeUnixNano": str(now + 1000 * i),
            "endTimeUnixNano": str(now + 1000 * i + 500),
            "attributes": [
                {"key": key, "value": {"stringValue": value}}
                for key, value in {
                    **attributes,
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": "search",
                    "gen_ai.tool.call.id": secrets.token_hex(8),
                }.items()
            ],
        }
        for i in range(count)
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}


class Sender:
    """An agent's exporter: sends a request until it is acknowledged, to any process that answers."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self.processes = processes
        self.acknowledged = 0
        self._client = httpx.AsyncClient(trust_env=False, timeout=5)
        self._turn = 0

    async def send(self, body: dict[str, Any]) -> None:
        count = len(body["resourceSpans"][0]["scopeSpans"][0]["spans"])
        async with asyncio.timeout(90):
            while True:
                self._turn += 1
                process = self.processes[self._turn % len(self.processes)]
                try:
                    answer = await self._client.post(f"{process.otlp_url}/v1/traces", json=body)
                    if answer.status_code == 200:
                        self.acknowledged += count
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.05)


def stored_calls(cluster: Cluster) -> list[str]:
    """Return the ids of the tool calls whose end is in the event log."""
    with connected(cluster.database) as conn:
        rows = conn.exec_driver_sql(
            "SELECT (data::json)->>'call_id' FROM events WHERE type = 'tool_call_completed'"
        )
        return [row[0] for row in rows]


async def wait_for_calls(cluster: Cluster, count: int) -> list[str]:
    async with asyncio.timeout(60):
        while True:
            found = stored_calls(cluster)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.1)


async def test_killed_owner_is_replaced_and_nothing_is_lost_or_doubled(cluster: Cluster) -> None:
    """B117: what was acknowledged is watched again within 10 s after the owner is killed."""
    first, second = cluster.add(), cluster.add()
    owner = await cluster.owner()
    sender = Sender([first, second])
    for _ in range(10):
        await sender.send(tool_spans("clerk", "order-7", 5))
    began = time.monotonic()
    owner.kill()
    for _ in range(10):
        await sender.send(tool_spans("clerk", "order-7", 5))
    heir = await cluster.owner(other_than=owner)
    taken_over = time.monotonic() - began
    found = await wait_for_calls(cluster, sender.acknowledged)
    assert len(found) == len(set(found)) == sender.acknowledged == 100
    async with httpx.AsyncClient(trust_env=False) as client:
        steps = (await client.get(f"{heir.url}/api/agents/clerk/steps", params={"session_id": "order-7"})).json()
    assert steps
    print("taken over in", taken_over)
