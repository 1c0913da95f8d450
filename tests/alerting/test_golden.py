"""The messages that users receive, word for word, from the real Alertmanager in both versions."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from queenright.alerting.rules import Alert, rule_groups
from queenright.health.settings import HealthSettings
from tests.alerting import golden
from tests.alerting.parts import make_ticket
from tests.alerting.real import make_queen_alert, real_alertmanager, run_receivers, write_config
from tests.programs import VERSIONS

RULES = [rule for group in rule_groups(HealthSettings()) for rule in group.rules if isinstance(rule, Alert)]
NAMES = [case.name for case in golden.list_cases()]


@pytest.mark.parametrize("version", VERSIONS)
async def test_real_alertmanager_sends_the_golden_messages(tmp_path: Path, version: str) -> None:
    """Differences are shown; `python -m tests.alerting.golden --write` stores the new messages for review."""
    async with (
        run_receivers() as recorder,
        real_alertmanager(
            tmp_path, recorder, version, config=golden.write_patient_config(tmp_path, recorder)
        ) as alertmanager,
    ):
        messages_by_case = await golden.record(alertmanager)

        assert sorted(messages_by_case) == sorted(NAMES)
        assert not list(recorder.recorder.rejections)
    differences = [
        text for name in NAMES if (text := golden.find_difference(name, version, messages_by_case[name]))
    ]
    assert not differences, "\n\n".join([*differences, "renew: python -m tests.alerting.golden --write"])


def list_message_bodies(name: str, version: str, path: str) -> list[dict[str, Any]]:
    messages = json.loads(golden.read(name, version))
    return [message["body"] for message in messages if message["path"].startswith(path)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_slack_message_has_five_distinct_working_buttons(name: str, version: str) -> None:
    for body in list_message_bodies(name, version, "/slack/"):
        [attachment] = body["attachments"]
        actions = attachment["actions"]
        assert len({action["text"] for action in actions}) == len(actions) == 5
        assert all(action["url"].startswith("http://") for action in actions)
        assert len({action["url"] for action in actions}) == 5
        assert {"Runbook", "Alerts"} & {button["text"] for button in actions} or "|Runbook>" in attachment[
            "text"
        ]
        assert len(attachment["title"]) <= 1024
        assert len(attachment["text"]) <= 8000
        assert attachment["fallback"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_incident_key_is_the_group_and_details_are_strings(name: str, version: str) -> None:
    """
    This holds for any text of a worker or a model: newer Alertmanagers parse details as YAML, and send the
    parsed values.
    """
    keys = {
        hashlib.sha256(posted_body["groupKey"].encode()).hexdigest()
        for posted_body in list_message_bodies(name, version, "/api/alertmanager/notifications")
    }
    for body in list_message_bodies(name, version, "/pagerduty/"):
        assert body["dedup_key"] in keys
        details = body["payload"]["custom_details"]
        numbers = {details.pop("num_firing"), details.pop("num_resolved")}
        assert all(str(number).isdigit() for number in numbers)
        assert all(text is None or isinstance(text, str) for text in details.values())
        assert details["analysis"].strip()
        assert details["runbook"].startswith("http://")
        assert details["fingerprint"].strip()


@pytest.mark.parametrize("version", VERSIONS)
def test_text_of_models_and_workers_is_not_markup_in_slack(version: str) -> None:
    for name in ("hostile-model", "monitor-warning"):
        for body in list_message_bodies(name, version, "/slack/"):
            attachments_text = json.dumps(body["attachments"])
            assert "<!" not in attachments_text
            assert "<@" not in attachments_text
            assert "<https://evil" not in attachments_text


@pytest.mark.parametrize("version", VERSIONS)
def test_resolved_message_has_duration_and_who_ended_it(version: str) -> None:
    ticket_over = list_message_bodies("resolved", version, "/slack/")[-1]["attachments"][0]
    monitor_over = list_message_bodies("monitor-critical", version, "/slack/")[-1]["attachments"][0]

    assert all(part in ticket_over["text"] for part in ("42 min", "60 s", "ada"))
    assert monitor_over["text"].startswith("It lasted 1h7m.")
    details = list_message_bodies("resolved", version, "/pagerduty/")[-1]["payload"]["custom_details"]
    assert details["ended"].strip().startswith("It lasted 42 min")


@pytest.mark.parametrize("version", VERSIONS)
def test_fleet_trouble_is_one_message_and_one_incident_until_the_last_resolves(
    version: str,
) -> None:
    """Both alerts are in the first message; after the first end, the incident stays open for the other."""
    fleet, burn_rate = (
        next(rule.summary for rule in RULES if rule.name == f"Queenright{name}")
        for name in ("FleetDegraded", "BadStepsBurn")
    )
    slack_bodies = list_message_bodies("fleet", version, "/slack/")
    pages = list_message_bodies("fleet", version, "/pagerduty/")
    titles = [body["attachments"][0]["title"] for body in slack_bodies]

    assert titles == [f"{fleet} {burn_rate}", burn_rate, f"Resolved: {burn_rate}"]
    assert [body["payload"]["summary"] for body in pages[:2]] == titles[:2]
    assert [body["event_action"] for body in pages] == ["trigger", "trigger", "resolve"]
    assert len({body["dedup_key"] for body in pages}) == 1
    assert f"*{fleet}* (resolved)" in slack_bodies[1]["attachments"][0]["text"]
    first = slack_bodies[0]["attachments"][0]
    for name in ("FleetDegraded", "BadStepsBurn"):
        assert f"/runbooks/Queenright{name}|Runbook>" in first["text"]
    silence = unquote({action["text"]: action["url"] for action in first["actions"]}["Silence"])
    # not for every critical alert
    assert 'alertname=~"QueenrightFleetDegraded|QueenrightBadStepsBurn"' in silence


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["storm", "low-group"])
def test_dashboard_link_of_several_agents_is_the_fleet(name: str, version: str) -> None:
    fleet_link = "http://127.0.0.1:3000/d/queenright-fleet"
    for body in list_message_bodies(name, version, "/slack/"):
        [attachment] = body["attachments"]
        actions = {action["text"]: action["url"] for action in attachment["actions"]}
        assert actions["Dashboard"] == fleet_link
    for body in list_message_bodies(name, version, "/pagerduty/"):
        assert {link["text"]: link["href"] for link in body["links"]}["Dashboard"] == fleet_link


@pytest.mark.parametrize("version", VERSIONS)
async def test_acknowledge_button_acts_in_slack_when_configured(tmp_path: Path, version: str) -> None:
    """The button is in messages about tickets, and in no others."""
    ticket = make_ticket()
    async with run_receivers() as receivers:
        config = write_config(tmp_path, receivers, slack_interactive=True)
        async with real_alertmanager(tmp_path, receivers, version, config=config) as alertmanager:
            client = golden.make_client(alertmanager)
            page_alert = golden.make_alert(ticket)
            await client.post("/api/v2/alerts", json=[page_alert.to_dict()])
            await client.post(
                "/api/v2/alerts",
                json=[make_queen_alert("critical", agent="monitor", source="monitor").to_dict()],
            )
            messages = receivers.recorder.messages
            await alertmanager.wait_until(lambda: len(messages) == 4, "two messages and two incidents")
            await client.aclose()
    attachments = {
        message.body["attachments"][0]["title"]: message.body["attachments"][0]
        for message in messages
        if message.channel == "slack"
    }
    ticket_alert = attachments.pop("researcher is in a loop (high).")
    [other] = attachments.values()
    [button] = [action for action in ticket_alert["actions"] if action["text"] == "Acknowledge"]

    assert not list(receivers.recorder.rejections)
    assert button == {
        "type": "button",
        "text": "Acknowledge",
        "name": "acknowledge",
        "value": ticket.ticket_id,
    }
    assert ticket_alert["callback_id"] == "queenright"
    assert not any(action["text"] == "Acknowledge" for action in other["actions"])
    assert all(action["url"] for action in other["actions"])
