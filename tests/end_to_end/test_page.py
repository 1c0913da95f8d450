"""The main job: a stuck agent becomes one page, sent by the real Alertmanager, and one all-clear."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from queenright.alerting.recorder import RecordedMessage, Recorder
from queenright.judge import wording
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.end_to_end.conftest import AgentProcess
from tests.waiting import until

StartAgent = Callable[[str, str], AgentProcess]


def received(running: RunningService) -> Counter[tuple[str, str]]:
    recorder = running.service.recorder
    assert recorder is not None
    return Counter((message.channel, message.status) for message in recorder.messages)


def message(recorder: Recorder | None, channel: str, status: str) -> RecordedMessage:
    assert recorder is not None
    [found] = [m for m in recorder.messages if (m.channel, m.status) == (channel, status)]
    return found


ONE_EACH = {("slack", "firing"): 1, ("pagerduty", "firing"): 1}
AND_RESOLVED = ONE_EACH | {("slack", "resolved"): 1, ("pagerduty", "resolved"): 1}


TEMPLATES = {
    "dashboard_url": "https://grafana.example/d/queenright-agent?var-agent={agent}",
    "trace_url": "https://tempo.example/trace/{trace_id}",
}


@pytest.fixture
def links() -> dict[str, str]:
    """Templates of links to other places; a test may name some."""
    return {}


@pytest.fixture
def settings(settings: Settings, links: dict[str, str]) -> Settings:
    return settings.model_copy(update={"alerting": settings.alerting.model_copy(update=links)})


def links_in_slack(message: RecordedMessage) -> dict[str, str]:
    [attachment] = message.body["attachments"]
    buttons = {button["text"]: button["url"] for button in attachment["actions"]}
    return buttons | {word: url for url, word in re.findall(r"<([^|<>]+)\|(\w+)>", message.text)}


def links_in_pagerduty(message: RecordedMessage) -> dict[str, str]:
    return {link["text"]: link["href"] for link in message.body["links"]}


@pytest.mark.parametrize(
    ("links", "script", "agent"),
    [
        (TEMPLATES, "looping_worker.py", "looping_agent"),
        ({}, "looping_pydantic_ai.py", "pydantic_researcher"),
    ],
)
async def test_looping_agent_is_one_page_and_one_resolve(
    running: RunningService, start_agent: StartAgent, links: dict[str, str], script: str, agent: str
) -> None:
    """B37, B39: from a process that really loops to Slack and PagerDuty, once; resolved when it recovers."""
    process = start_agent(script, running.otlp_url)
    await until(lambda: received(running).keys() >= ONE_EACH.keys(), "a page on both channels")
    [ticket] = running.service.tickets.open_tickets()
    process.recover()
    await until(lambda: received(running).keys() >= AND_RESOLVED.keys(), "the all-clear on both")
    stderr = await asyncio.to_thread(process.stop)
    expected = {
        "Ticket": f"{running.url}/tickets/{ticket.ticket_id}",
        "Runbook": f"{running.url}/runbooks/QueenrightIntervention",
    }
    if links:
        expected["Dashboard"] = f"https://grafana.example/d/queenright-agent?var-agent={agent}"
        expected["Trace"] = f"https://tempo.example/trace/{ticket.trace_id}"
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
        ticket_page = await client.get(expected["Ticket"])
        runbook_page = await client.get(expected["Runbook"])

    recorder = running.service.recorder
    assert received(running) == AND_RESOLVED
    assert recorder is not None
    assert list(recorder.rejections) == []
    assert stderr == ""
    assert ticket.agent_id == agent
    assert ticket.kind.value == "doom_loop"
    assert agent in ticket.analysis
    assert re.fullmatch("[0-9a-f]{32}", ticket.trace_id)
    assert (ticket_page.status_code, runbook_page.status_code) == (200, 200)
    # It is over: the page says what was wrong, and no longer what to do about it.
    advice = wording.advice(ticket.kind, agent, ticket.session_id)
    assert ticket.analysis.endswith(advice)
    assert "QueenrightIntervention" in runbook_page.text

    for status in ("firing", "resolved"):
        slack = message(recorder, "slack", status)
        [attachment] = slack.body["attachments"]
        # The rules judged: their sentence is there once, and nothing is said to be a model's.
        result = slack.text if status == "firing" else slack.text.partition("\n")[2]
        assert result.startswith(f"{agent} ")
        assert slack.text.count(wording.impact(ticket.kind)) == 1
        assert slack.text.count(advice) == 1
        assert "says:" not in slack.text
        assert attachment["title_link"] == expected["Ticket"]
        # What is not known makes room for the console and for Alertmanager; a silence can always be begun.
        assert expected.items() <= links_in_slack(slack).items()
        assert len(attachment["actions"]) == 5
        pagerduty = message(recorder, "pagerduty", status)
        payload = pagerduty.body["payload"]
        assert payload["severity"] == "critical"
        assert agent in payload["summary"]
        details = {name: str(text).strip() for name, text in payload["custom_details"].items()}
        assert details["analysis"] in slack.text
        assert details["suggested_action"] == wording.advice(ticket.kind, agent, ticket.session_id)
        assert details["ticket"] == ticket.ticket_id
        assert pagerduty.body["client_url"] == expected["Ticket"]
        assert links_in_pagerduty(pagerduty).keys() == expected.keys() | {"Silence"}
        assert expected.items() <= links_in_pagerduty(pagerduty).items()

    firing, resolved = (message(recorder, "pagerduty", status) for status in ("firing", "resolved"))
    assert (firing.body["event_action"], resolved.body["event_action"]) == ("trigger", "resolve")
    assert firing.body["dedup_key"]
    assert resolved.body["dedup_key"] == firing.body["dedup_key"]
    assert message(recorder, "slack", "resolved").title.startswith("Resolved: ")
    assert re.search(r"\d+ (s|min)", message(recorder, "slack", "resolved").text)


async def test_prometheus_sees_the_fleet_and_its_rules(
    running: RunningService, start_agent: StartAgent
) -> None:
    process = start_agent("looping_worker.py", running.otlp_url)
    await until(lambda: running.service.monitor.get("looping_agent") is not None, "the agent")
    async with httpx.AsyncClient(base_url=str(running.prometheus_url), trust_env=False) as prometheus:

        async def seen() -> bool:
            answer = await prometheus.get(
                "/api/v1/query", params={"query": 'queenright_agent_state{state="stuck"} == 1'}
            )
            return bool(answer.json()["data"]["result"])

        for _ in range(600):
            if await seen():
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("within 60 s: the agent's state in Prometheus")
        rules = (await prometheus.get("/api/v1/rules")).json()["data"]["groups"]
        alertmanagers = (await prometheus.get("/api/v1/alertmanagers")).json()["data"]["activeAlertmanagers"]
    await asyncio.to_thread(process.stop)

    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(alertmanagers) == 1
