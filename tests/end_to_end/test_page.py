"""The main job: a stuck agent becomes one page, sent by the real Alertmanager, and one all-clear."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from queenright.alerting.recorder import Message, Recorder
from queenright.server.up import Running
from tests.end_to_end.conftest import AgentProcess, until

StartAgent = Callable[[str, str], AgentProcess]


def received(running: Running) -> Counter[tuple[str, str]]:
    recorder = running.service.recorder
    assert recorder is not None
    return Counter((message.channel, message.status) for message in recorder.received)


def message(recorder: Recorder | None, channel: str, status: str) -> Message:
    assert recorder is not None
    [found] = [m for m in recorder.received if (m.channel, m.status) == (channel, status)]
    return found


ONE_EACH = {("slack", "firing"): 1, ("pagerduty", "firing"): 1}
AND_RESOLVED = ONE_EACH | {("slack", "resolved"): 1, ("pagerduty", "resolved"): 1}


@pytest.mark.parametrize(
    ("script", "agent"),
    [("looping_worker.py", "looping_agent"), ("looping_pydantic_ai.py", "pydantic_researcher")],
)
async def test_a_looping_agent_is_one_page_and_one_all_clear(
    running: Running, start_agent: StartAgent, script: str, agent: str
) -> None:
    """B37, B39: from a process that really loops to Slack and PagerDuty, once; resolved when it recovers."""
    process = start_agent(script, running.otlp_url)
    await until(
        lambda: received(running).keys() >= ONE_EACH.keys(), seconds=40, what="a page on both channels"
    )
    [ticket] = running.service.tickets.open_tickets()
    process.recover()
    await until(
        lambda: received(running).keys() >= AND_RESOLVED.keys(), seconds=40, what="the all-clear on both"
    )
    stderr = await asyncio.to_thread(process.stop)

    assert received(running) == AND_RESOLVED
    assert ticket.worker_agent_id == agent
    assert ticket.kind.value == "doom_loop"
    assert stderr == ""
    slack = message(running.service.recorder, "slack", "firing")
    assert ticket.analysis is not None
    assert ticket.analysis in slack.text
    assert f"{running.url}/tickets/{ticket.ticket_id}" in str(slack.body)
    pagerduty = message(running.service.recorder, "pagerduty", "firing")
    assert pagerduty.body["payload"]["severity"] == "critical"
    assert agent in pagerduty.body["payload"]["summary"]
    resolved = message(running.service.recorder, "pagerduty", "resolved")
    assert resolved.body["dedup_key"] == pagerduty.body["dedup_key"]


async def test_prometheus_sees_the_fleet_and_its_rules(running: Running, start_agent: StartAgent) -> None:
    process = start_agent("looping_worker.py", running.otlp_url)
    await until(
        lambda: running.service.monitor.get("looping_agent") is not None, seconds=20, what="the agent"
    )
    async with httpx.AsyncClient(base_url=str(running.prometheus_url), trust_env=False) as prometheus:

        async def seen() -> bool:
            answer = await prometheus.get(
                "/api/v1/query", params={"query": 'queenright_agent_state{state="stuck"} == 1'}
            )
            return bool(answer.json()["data"]["result"])

        for _ in range(200):
            if await seen():
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("within 20 s: the agent's state in Prometheus")
        rules = (await prometheus.get("/api/v1/rules")).json()["data"]["groups"]
        alertmanagers = (await prometheus.get("/api/v1/alertmanagers")).json()["data"]["activeAlertmanagers"]
    await asyncio.to_thread(process.stop)

    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(alertmanagers) == 1
