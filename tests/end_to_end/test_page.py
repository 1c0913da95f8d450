"""The main task: a stuck agent causes one page through the real Alertmanager, and one all-clear."""

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


def count_messages(running_service: RunningService) -> Counter[tuple[str, str]]:
    recorder = running_service.service.recorder
    assert recorder is not None
    return Counter((message.channel, message.status) for message in recorder.messages)


def get_message(recorder: Recorder | None, channel: str, status: str) -> RecordedMessage:
    assert recorder is not None
    [message] = [
        message for message in recorder.messages if (message.channel, message.status) == (channel, status)
    ]
    return message


PAGES = {("slack", "firing"): 1, ("pagerduty", "firing"): 1}
PAGES_AND_ALL_CLEARS = PAGES | {("slack", "resolved"): 1, ("pagerduty", "resolved"): 1}


LINK_TEMPLATES = {
    "dashboard_url": "https://grafana.example/d/queenright-agent?var-agent={agent}",
    "trace_url": "https://tempo.example/trace/{trace_id}",
}


@pytest.fixture
def link_templates() -> dict[str, str]:
    """Return templates of links to other tools; tests may override them."""
    return {}


@pytest.fixture
def settings(settings: Settings, link_templates: dict[str, str]) -> Settings:
    return settings.model_copy(update={"alerting": settings.alerting.model_copy(update=link_templates)})


def list_slack_links(message: RecordedMessage) -> dict[str, str]:
    [attachment] = message.body["attachments"]
    buttons = {button["text"]: button["url"] for button in attachment["actions"]}
    return buttons | {word: url for url, word in re.findall(r"<([^|<>]+)\|(\w+)>", message.text)}


def list_pagerduty_links(message: RecordedMessage) -> dict[str, str]:
    return {link["text"]: link["href"] for link in message.body["links"]}


@pytest.mark.parametrize(
    ("link_templates", "script", "agent"),
    [
        (LINK_TEMPLATES, "looping_worker.py", "looping_agent"),
        ({}, "looping_pydantic_ai.py", "pydantic_researcher"),
    ],
)
async def test_looping_agent_is_one_page_and_one_resolve(
    running_service: RunningService,
    start_agent: StartAgent,
    link_templates: dict[str, str],
    script: str,
    agent: str,
) -> None:
    """B37, B39: a looping process is one page in Slack and PagerDuty, which is resolved when it recovers."""
    process = start_agent(script, running_service.otlp_url)
    await until(lambda: count_messages(running_service).keys() >= PAGES.keys(), "a page on both channels")
    [ticket] = running_service.service.tickets.open_tickets()
    process.recover()
    await until(
        lambda: count_messages(running_service).keys() >= PAGES_AND_ALL_CLEARS.keys(), "the all-clear on both"
    )
    stderr = await asyncio.to_thread(process.stop)
    expected = {
        "Ticket": f"{running_service.url}/tickets/{ticket.ticket_id}",
        "Runbook": f"{running_service.url}/runbooks/QueenrightIntervention",
    }
    if link_templates:
        expected["Dashboard"] = f"https://grafana.example/d/queenright-agent?var-agent={agent}"
        expected["Trace"] = f"https://tempo.example/trace/{ticket.trace_id}"
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
        ticket_page = await client.get(expected["Ticket"])
        runbook_page = await client.get(expected["Runbook"])

    recorder = running_service.service.recorder
    assert count_messages(running_service) == PAGES_AND_ALL_CLEARS
    assert recorder is not None
    assert list(recorder.rejections) == []
    assert stderr == ""
    assert ticket.agent_id == agent
    assert ticket.kind.value == "doom_loop"
    assert agent in ticket.analysis
    assert re.fullmatch("[0-9a-f]{32}", ticket.trace_id)
    assert (ticket_page.status_code, runbook_page.status_code) == (200, 200)
    # Once the ticket is closed, the message shows what was wrong, but no advice.
    advice = wording.advice(ticket.kind, agent, ticket.session_id)
    assert ticket.analysis.endswith(advice)
    assert "QueenrightIntervention" in runbook_page.text

    for status in ("firing", "resolved"):
        slack = get_message(recorder, "slack", status)
        [attachment] = slack.body["attachments"]
        # The rules decided, so their sentence appears once and no text is marked as a model's.
        analysis_text = slack.text if status == "firing" else slack.text.partition("\n")[2]
        assert analysis_text.startswith(f"{agent} ")
        assert slack.text.count(wording.impact(ticket.kind)) == 1
        assert slack.text.count(advice) == 1
        assert "says:" not in slack.text
        assert attachment["title_link"] == expected["Ticket"]
        # Without templates, the links lead to the console and Alertmanager. A silence can always be
        # created.
        assert expected.items() <= list_slack_links(slack).items()
        assert len(attachment["actions"]) == 5
        pagerduty = get_message(recorder, "pagerduty", status)
        payload = pagerduty.body["payload"]
        assert payload["severity"] == "critical"
        assert agent in payload["summary"]
        details = {name: str(text).strip() for name, text in payload["custom_details"].items()}
        assert details["analysis"] in slack.text
        assert details["suggested_action"] == wording.advice(ticket.kind, agent, ticket.session_id)
        assert details["ticket"] == ticket.ticket_id
        assert pagerduty.body["client_url"] == expected["Ticket"]
        assert list_pagerduty_links(pagerduty).keys() == expected.keys() | {"Silence"}
        assert expected.items() <= list_pagerduty_links(pagerduty).items()

    firing, resolved = (get_message(recorder, "pagerduty", status) for status in ("firing", "resolved"))
    assert (firing.body["event_action"], resolved.body["event_action"]) == ("trigger", "resolve")
    assert firing.body["dedup_key"]
    assert resolved.body["dedup_key"] == firing.body["dedup_key"]
    assert get_message(recorder, "slack", "resolved").title.startswith("Resolved: ")
    assert re.search(r"\d+ (s|min)", get_message(recorder, "slack", "resolved").text)


async def test_prometheus_has_the_fleet_and_its_rules(
    running_service: RunningService, start_agent: StartAgent
) -> None:
    process = start_agent("looping_worker.py", running_service.otlp_url)
    await until(lambda: running_service.service.monitor.get("looping_agent") is not None, "the agent")
    async with httpx.AsyncClient(base_url=str(running_service.prometheus_url), trust_env=False) as prometheus:

        async def query_state() -> bool:
            response = await prometheus.get(
                "/api/v1/query", params={"query": 'queenright_agent_state{state="stuck"} == 1'}
            )
            return bool(response.json()["data"]["result"])

        for _ in range(600):
            if await query_state():
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("Prometheus does not have the agent's state after 60 s")
        rules = (await prometheus.get("/api/v1/rules")).json()["data"]["groups"]
        alertmanagers = (await prometheus.get("/api/v1/alertmanagers")).json()["data"]["activeAlertmanagers"]
    await asyncio.to_thread(process.stop)

    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(alertmanagers) == 1
