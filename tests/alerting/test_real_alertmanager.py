"""The rendered configuration in the real Alertmanager: the messages it sends, and those it does not send."""

from __future__ import annotations

import time
from dataclasses import replace
from urllib.parse import quote

import pytest
from prometheus_client import CollectorRegistry

from queenright.alerting.alertmanager import AlertmanagerClient, AlertsRejectedError, PostedAlert
from queenright.alerting.callbacks.alertmanager import parse_notification, parse_symptoms
from queenright.alerting.config import DELIVERED_PATH
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.recorder import RecordedMessage
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import Severity
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import TicketStatus
from queenright.runtime.events import AgentEvent
from queenright.server.http.json_limits import check_json_size
from queenright.server.middleware.gate import MAX_BODY, MAX_VALUES
from tests.alerting.parts import make_ticket
from tests.alerting.real import RealAlertmanager, make_minimal_alert, make_queen_alert

SILENCED = (
    '{alertname="QueenrightIntervention",agent="researcher",cause="doom_loop",cluster="default",'
    'source="queen"}'
)


def make_fleet_alerts(**labels: str) -> list[PostedAlert]:
    """Return thirty agents with the same problem, every third less urgent."""
    return [
        make_queen_alert("warning" if n % 3 == 2 else "critical", agent=f"agent-{n:02}", **labels)
        for n in range(30)
    ]


async def send_with_marker(
    alertmanager: RealAlertmanager, alerts: list[PostedAlert], marker: str, *, min_count: int = 1
) -> list[RecordedMessage]:
    """
    Send alerts, then a ``marker`` alert. Return the messages about the alerts once the marker has arrived.

    Wait for ``min_count`` messages: on a busy machine, one of several may take longer.
    """
    client, messages = AlertmanagerClient(), alertmanager.recorder.messages
    await client.post_alerts(alertmanager.address, alerts)
    await alertmanager.wait_until(lambda: bool(messages), "the first message")
    # The marker waits for its own group, so all other messages have arrived by then.
    await client.post_alerts(alertmanager.address, [make_queen_alert("warning", agent=marker)])
    await alertmanager.wait_until(lambda: any(marker in message.title for message in messages), marker)
    await client.aclose()

    def list_other_messages() -> list[RecordedMessage]:
        return [message for message in messages if marker not in message.title]

    await alertmanager.wait_until(lambda: len(list_other_messages()) >= min_count, f"{min_count} messages")
    return list_other_messages()


def select_messages(messages: object, channel: str, status: str) -> list[RecordedMessage]:
    return [message for message in messages if (message.channel, message.status) == (channel, status)]  # type: ignore[attr-defined]  # a deque


async def test_ticket_is_one_page_and_one_resolve_on_each_channel(
    alertmanager: RealAlertmanager, store: Store
) -> None:
    """
    B37, B39: the ticket goes through the outbox and the real Alertmanager, in Slack's and PagerDuty's
    formats.
    """
    settings = AlertingSettings(
        alertmanager_urls=(alertmanager.url,),
        dashboard_url="http://127.0.0.1:3000/d/queenright-agent?var-agent={agent}",
        trace_url="http://127.0.0.1:3200/trace/{trace_id}",
    )

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())
    original_ticket = make_ticket(
        trace_id="abc123", queen_model="some/model", evidence_snippet="no results <for> 'hive' & \"bees\""
    )
    await store.transact(lambda conn: enqueue(conn, original_ticket, settings, time.time()))
    await outbox.deliver_due(time.time())
    messages = alertmanager.recorder.messages
    await alertmanager.wait_until(lambda: len(messages) >= 2, "a page on both channels")
    # Repeats and other changes of the ticket send no message.
    for occurrences in range(2, 6):
        repeated_ticket = original_ticket.model_copy(update={"occurrences": occurrences})
        await store.transact(
            lambda conn, ticket=repeated_ticket: enqueue(conn, ticket, settings, time.time())  # type: ignore[misc]  # mypy cannot infer a lambda's default
        )
        await outbox.deliver_due(time.time() + 60 * occurrences)
    assert len(messages) == 2
    resolved_ticket = original_ticket.model_copy(update={"status": TicketStatus.RESOLVED})
    await store.transact(lambda conn: enqueue(conn, resolved_ticket, settings, time.time()))
    await outbox.deliver_due(time.time())
    await alertmanager.wait_until(lambda: len(messages) >= 4, "the all-clear on both channels")
    await client.aclose()

    assert not alertmanager.recorder.rejections
    [slack], [page] = (
        select_messages(messages, "slack", "firing"),
        select_messages(messages, "pagerduty", "firing"),
    )
    [attachment] = slack.body["attachments"]
    assert "researcher" in attachment["title"]
    assert "(high)" in attachment["title"]
    assert attachment["color"] == "danger"
    # Findings of the rules and the evidence come first; text of models is marked as such.
    order = (
        "researcher (node search) has been going in circles since 08:00 UTC (20 bad steps since",
        "no results &lt;for&gt; 'hive' &amp; \"bees\"",
        f"The queen (some/model) says: {original_ticket.analysis}",
        "*Suggested:* Stop the run or give it another instruction",
        f"The judge suggests: {original_ticket.suggested_action}",
    )
    positions = [attachment["text"].find(part) for part in order]
    assert positions == sorted(positions)
    assert positions[0] == 0
    assert attachment["text"].endswith("<http://127.0.0.1:8420/runbooks/QueenrightIntervention|Runbook>")
    assert {f["title"]: f["value"] for f in attachment["fields"]} == {
        "Agent": "researcher",
        "Severity": "critical (ticket: high)",
    }
    assert {action["text"]: action["url"] for action in attachment["actions"]} == {
        "Ticket": "http://127.0.0.1:8420/tickets/ticket-1",
        "Acknowledge": "http://127.0.0.1:8420/tickets/ticket-1/acknowledge",
        "Dashboard": "http://127.0.0.1:3000/d/queenright-agent?var-agent=researcher",
        "Trace": "http://127.0.0.1:3200/trace/abc123",
        "Silence": f"{alertmanager.url}/#/silences/new?filter={quote(SILENCED, safe='')}",
    }
    payload = page.body["payload"]
    assert ("researcher" in payload["summary"], payload["severity"]) == (True, "critical")
    assert (payload["component"], payload["class"]) == ("researcher", "doom_loop")
    details = {name: str(text).strip() for name, text in payload["custom_details"].items()}
    assert details["analysis"].startswith(order[0])
    assert details["analysis"].endswith(f"\n{order[2]}")
    assert details["evidence"] == original_ticket.evidence_snippet
    assert (details["ticket"], details["fingerprint"]) == (
        original_ticket.ticket_id,
        original_ticket.fingerprint,
    )
    assert {link["text"] for link in page.body["links"]} == {
        "Ticket",
        "Runbook",
        "Dashboard",
        "Trace",
        "Silence",
    }
    assert page.body["routing_key"] == "k" * 32
    [slack_message], [pagerduty_message] = (
        select_messages(messages, "slack", "resolved"),
        select_messages(messages, "pagerduty", "resolved"),
    )
    assert slack_message.title.startswith("Resolved: researcher ")
    assert pagerduty_message.body["dedup_key"] == page.body["dedup_key"]


async def test_low_severity_reaches_slack_only_and_a_rise_ends_it_silently(
    alertmanager: RealAlertmanager, store: Store
) -> None:
    """B38: medium goes to Slack; a rise to critical is one page, without a false all-clear."""
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())
    messages = alertmanager.recorder.messages
    for severity, count in ((Severity.MEDIUM, 1), (Severity.CRITICAL, 3)):
        risen_ticket = make_ticket(severity=severity)
        await store.transact(
            lambda conn, ticket=risen_ticket: enqueue(conn, ticket, settings, time.time())  # type: ignore[misc]  # mypy cannot infer a lambda's default
        )
        await outbox.deliver_due(time.time())
        await alertmanager.wait_until(lambda count=count: len(messages) >= count, f"{severity} is notified")  # type: ignore[misc]  # mypy cannot infer a lambda's default
    # Two more flushes of the ended alert's group: the message of another alert shows that they passed.
    await client.post_alerts(alertmanager.address, [make_queen_alert("warning", agent="other")])
    await alertmanager.wait_until(lambda: len(messages) >= 4, "the other agent's alert")
    await client.post_alerts(alertmanager.address, [make_queen_alert("warning", agent="third")])
    await alertmanager.wait_until(lambda: len(messages) >= 5, "the third agent's alert")
    await client.aclose()

    assert [(message.channel, message.status) for message in messages if "researcher" in message.title] == [
        ("slack", "firing"),
        *sorted(
            [("slack", "firing"), ("pagerduty", "firing")], key=lambda pair: messages[1].channel != pair[0]
        ),
    ]
    assert not select_messages(messages, "slack", "resolved")


@pytest.mark.parametrize("storm", ["", "storm-1"])
async def test_reminder_is_sent_on_every_channel_with_the_same_identity(
    alertmanager: RealAlertmanager, store: Store, storm: str
) -> None:
    """
    B41, B77: each reminder is a message in Slack and one for the same incident; the end is one all-clear.
    """
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())
    messages = alertmanager.recorder.messages

    async def write_change(**changes: object) -> None:
        changed_ticket = make_ticket(storm_id=storm, **changes)
        await store.transact(lambda conn: enqueue(conn, changed_ticket, settings, time.time()))
        await outbox.deliver_due(time.time())

    start = time.time() - 4 * 3600
    await write_change()
    await alertmanager.wait_until(lambda: len(messages) == 2, "a page on both channels")
    for reminders in (1, 2, 3, 4):
        await write_change(reminders=reminders, notified_at=start, bumped_at=start + reminders * 3600)
        await alertmanager.wait_until(
            lambda reminders=reminders: len(messages) == 2 + 2 * reminders,  # type: ignore[misc]  # mypy cannot infer a lambda's default
            f"reminder {reminders} on both channels",
        )
    # Two more flushes: another alert's messages show that they passed, and nothing else was sent.
    for marker in ("other", "third"):
        await client.post_alerts(alertmanager.address, [make_queen_alert("warning", agent=marker)])
        await alertmanager.wait_until(
            lambda marker=marker: any(marker in message.title for message in messages),  # type: ignore[misc]  # mypy cannot infer a lambda's default
            marker,
        )
    assert not select_messages(messages, "slack", "resolved")
    assert not select_messages(messages, "pagerduty", "resolved")
    await write_change(reminders=4, status=TicketStatus.RESOLVED)
    await alertmanager.wait_until(
        lambda: bool(select_messages(messages, "slack", "resolved")), "the all-clear in Slack"
    )
    await alertmanager.wait_until(
        lambda: bool(select_messages(messages, "pagerduty", "resolved")), "and of the incident"
    )
    await client.aclose()

    own_pages = [message for message in messages if "researcher" in message.title]
    slack, pages = (
        select_messages(own_pages, "slack", "firing"),
        select_messages(own_pages, "pagerduty", "firing"),
    )
    assert (len(slack), len(pages)) == (5, 5)
    assert "researcher" in slack[0].title
    assert slack[3].title.endswith("(high). Third reminder, unacknowledged for 3 h.")
    assert not slack[3].title.startswith("2 ")
    assert "(resolved)" not in slack[3].text
    keys = {
        message.body["dedup_key"]
        for message in [*pages, *select_messages(own_pages, "pagerduty", "resolved")]
    }
    assert len(keys) == 1
    assert [len(select_messages(own_pages, channel, "resolved")) for channel in ("slack", "pagerduty")] == [
        1,
        1,
    ]
    assert not alertmanager.recorder.rejections


async def test_webhook_about_a_crowd_is_within_the_limits_of_the_service(
    alertmanager: RealAlertmanager,
) -> None:
    """B131: Alertmanager does not repeat what is refused with 413, and receivers would be missing."""
    text = {"description": "d" * 900, "analysis": "a" * 1200, "suggested_action": "s" * 2000}
    crowd = [
        replace(alert, annotations={**alert.annotations, **text, "ticket_id": alert.labels["ticket_id"]})
        for alert in (
            make_queen_alert("critical", agent=f"agent-{n:03}", storm="storm-1") for n in range(600)
        )
    ]
    await send_with_marker(alertmanager, crowd, "marker")

    posted_bodies = [
        body for path, body in alertmanager.receivers.requests if path == DELIVERED_PATH and b"agent-" in body
    ]
    await alertmanager.wait_until(lambda: bool(posted_bodies), "the report of the notified receivers")
    for body in posted_bodies:
        assert len(body) <= MAX_BODY
        check_json_size(body, MAX_VALUES)
        parsed_notification = parse_notification(body)
        assert len(parsed_notification.alerts) == 100
        assert parsed_notification.truncated == 500


async def test_thirty_alerts_of_one_storm_are_one_message_and_one_incident(
    alertmanager: RealAlertmanager,
) -> None:
    """B71: the first ten agents are named, with the number of others; so is the end."""
    storm_alerts = make_fleet_alerts(storm="storm-1")
    messages = await send_with_marker(alertmanager, storm_alerts, "marker", min_count=2)

    [slack], [page] = (
        select_messages(messages, "slack", "firing"),
        select_messages(messages, "pagerduty", "firing"),
    )
    assert len(messages) == 2
    assert slack.title.startswith("30 agents with alerts got worse at once (a storm). One of them: agent-")
    assert "agent-00" in slack.title
    [attachment] = slack.body["attachments"]
    assert attachment["color"] == "danger"
    assert attachment["text"].count("•") == 10
    assert attachment["text"].endswith("… and 20 more")
    assert attachment["footer"].endswith("storm storm-1")
    fields = {f["title"]: f["value"] for f in attachment["fields"]}
    first_ten = ", ".join(f"agent-{n:02}" for n in range(10))
    assert fields == {"Agent": f"{first_ten} … and 20 more", "Severity": "mixed"}
    payload = page.body["payload"]
    assert "20 agents" in payload["summary"]
    assert payload["component"].endswith("agent-13 … and 10 more")
    assert payload["severity"] == "critical"
    assert payload["custom_details"]["firing"].endswith("… and 10 more")

    ended_alerts = [replace(alert, ends_at=time.time()) for alert in storm_alerts]
    client = AlertmanagerClient()
    await client.post_alerts(alertmanager.address, ended_alerts)
    await client.aclose()
    now = alertmanager.recorder.messages
    await alertmanager.wait_until(
        lambda: bool(
            select_messages(now, "slack", "resolved") and select_messages(now, "pagerduty", "resolved")
        ),
        "the end",
    )
    [slack_message], [pagerduty_message] = (
        select_messages(now, "slack", "resolved"),
        select_messages(now, "pagerduty", "resolved"),
    )
    assert pagerduty_message.body["dedup_key"] == page.body["dedup_key"]
    assert slack_message.title.startswith(
        "Resolved: 30 agents with alerts got worse at once (a storm). One of them: "
    )
    assert not alertmanager.recorder.rejections


async def test_message_about_one_agent_in_a_storm_names_the_agent(alertmanager: RealAlertmanager) -> None:
    alerts = [
        make_queen_alert("critical", agent="courier", cause=cause, storm="storm-1")
        for cause in ("provider_failure", "runs_failed")
    ]
    messages = await send_with_marker(alertmanager, alerts, "marker", min_count=2)

    assert all(message.title.startswith("2 ") for message in messages), messages
    [slack] = select_messages(messages, "slack", "firing")
    [attachment] = slack.body["attachments"]
    assert {field["title"]: field["value"] for field in attachment["fields"]}["Agent"] == "courier"


async def test_cause_of_an_incident_mentions_no_one(alertmanager: RealAlertmanager) -> None:
    """B41: an agent chooses the name of the tool."""
    alerts = [make_queen_alert("critical", agent=f"bee-{n}", storm="mcp:<!channel>") for n in range(3)]
    messages = await send_with_marker(alertmanager, alerts, "marker", min_count=2)

    assert {message.title for message in messages} == {"MCP server [!channel> is failing: 3 agents"}


async def test_two_storms_are_two_messages(alertmanager: RealAlertmanager) -> None:
    """B71: each storm has its own group."""
    messages = await send_with_marker(
        alertmanager,
        [*make_fleet_alerts(storm="storm-1"), *make_fleet_alerts(storm="storm-2")],
        "marker",
        min_count=4,
    )

    assert [message.channel for message in messages].count("slack") == 2
    assert [message.channel for message in messages].count("pagerduty") == 2


async def test_thirty_alerts_without_a_storm_are_a_message_each(alertmanager: RealAlertmanager) -> None:
    """B71: each critical alert is also an incident."""
    messages = await send_with_marker(alertmanager, make_fleet_alerts(), "marker", min_count=50)

    assert [message.channel for message in messages].count("slack") == 30
    assert [message.channel for message in messages].count("pagerduty") == 20


async def test_open_breakers_and_recoveries_are_one_message_per_kind_and_no_page(
    alertmanager: RealAlertmanager,
) -> None:
    """B74: a person is notified of restarted work. 002 §11: alerts fire as configured."""
    kinds = ("QueenrightCircuitBreakerOpen", "QueenrightRecoveryFailed", "QueenrightTaskRestartedFromStart")
    own_messages = [
        make_minimal_alert(alertname=kind, severity="warning", source="monitor") for kind in kinds[1:]
    ]
    own_messages += [
        make_minimal_alert(
            alertname=kinds[0], severity="warning", source="monitor", breaker=f"tool_execution:bee:{tool}"
        )
        for tool in ("search", "fetch")
    ]
    messages = await send_with_marker(alertmanager, own_messages, "marker")

    assert {message.channel for message in messages} == {"slack"}
    assert len(messages) == len(kinds)
    assert {kind for kind in kinds for message in messages if kind in message.title} == set(kinds)


async def test_symptom_triggers_only_the_judge(alertmanager: RealAlertmanager) -> None:
    client = AlertmanagerClient()
    symptom_alert = make_minimal_alert(
        alertname="QueenrightLoop", agent="researcher", severity="critical", source="rules"
    )
    await client.post_alerts(alertmanager.address, [symptom_alert])
    await alertmanager.wait_until(lambda: bool(alertmanager.judge_posts), "the judge is woken")
    await client.post_alerts(alertmanager.address, [make_queen_alert("warning", agent="other")])
    await alertmanager.wait_until(lambda: bool(alertmanager.recorder.messages), "the other agent's alert")
    await client.aclose()

    [symptom] = parse_symptoms(alertmanager.judge_posts[0])
    assert (symptom.alertname, symptom.agent, symptom.status) == (
        "QueenrightLoop",
        "researcher",
        "firing",
    )
    assert not any("Loop" in message.title for message in alertmanager.recorder.messages)


async def test_client_distinguishes_refused_from_accepted_alerts(
    alertmanager: RealAlertmanager,
) -> None:
    client = AlertmanagerClient()
    invalid_alert = PostedAlert(labels={}, annotations={}, starts_at=time.time(), ends_at=time.time() + 60)
    with pytest.raises(AlertsRejectedError, match="at least one label pair required"):
        await client.post_alerts(alertmanager.address, [make_queen_alert("warning"), invalid_alert])

    assert len(await client.alerts(alertmanager.address, agent="researcher")) == 1
    assert (await client.status(alertmanager.address))["versionInfo"]["version"]
    await client.aclose()


async def test_forty_workers_of_one_provider_are_one_page_and_unrelated_trouble_is_another(
    alertmanager: RealAlertmanager,
) -> None:
    """B104: when their calls succeed again, that page resolves while the other continues."""
    failing_alerts = [
        make_queen_alert(
            "critical", agent=f"agent-{n:02}", cause="provider_failure", storm="provider:anthropic"
        )
        for n in range(40)
    ]
    messages = await send_with_marker(
        alertmanager, [*failing_alerts, make_queen_alert("critical", agent="looping")], "marker", min_count=4
    )

    pages = select_messages(messages, "pagerduty", "firing")
    assert len(pages) == 2
    assert len(select_messages(messages, "slack", "firing")) == 2
    [crowd] = [page for page in pages if "looping" not in page.title]
    assert crowd.title == "anthropic is failing: 40 agents"
    details = crowd.body["payload"]["custom_details"]
    names = ", ".join(f"agent-{n:02}" for n in range(10)) + " … and 30 more"
    assert details["firing"].strip() == names
    assert details["analysis"].strip().startswith("anthropic is failing. For example:")
    assert details["analysis"].count("agent-") <= 1
    [message] = [
        candidate
        for candidate in select_messages(messages, "slack", "firing")
        if "looping" not in candidate.title
    ]
    assert message.title == crowd.title
    assert message.text.startswith("anthropic is failing. For example:")

    client = AlertmanagerClient()
    await client.post_alerts(
        alertmanager.address, [replace(alert, ends_at=time.time()) for alert in failing_alerts]
    )
    await client.aclose()
    messages_now = alertmanager.recorder.messages
    await alertmanager.wait_until(
        lambda: bool(select_messages(messages_now, "pagerduty", "resolved")), "the end"
    )
    [resolved_message] = select_messages(messages_now, "pagerduty", "resolved")
    assert resolved_message.body["dedup_key"] == crowd.body["dedup_key"]
