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
from tests.alerting.parts import ticket
from tests.alerting.real import RealAlertmanager, minimal_alert, queen_alert

SILENCED = (
    '{alertname="QueenrightIntervention",agent="researcher",cause="doom_loop",cluster="default",'
    'source="queen"}'
)


def fleet_alerts(**labels: str) -> list[PostedAlert]:
    """Return thirty agents with the same problem, every third less urgent."""
    return [
        queen_alert("warning" if n % 3 == 2 else "critical", agent=f"agent-{n:02}", **labels)
        for n in range(30)
    ]


async def send_with_marker(
    alertmanager: RealAlertmanager, alerts: list[PostedAlert], marker: str, *, least: int = 1
) -> list[RecordedMessage]:
    """
    Send alerts, then a ``marker`` alert; return the messages about the former once the marker has arrived.

    Wait for ``least`` messages: on a busy machine, one of several may take longer.
    """
    client, received = AlertmanagerClient(), alertmanager.recorder.messages
    await client.post_alerts(alertmanager.address, alerts)
    await alertmanager.until(lambda: bool(received), "the first message")
    # The marker waits for its own group, so all other messages have arrived by then.
    await client.post_alerts(alertmanager.address, [queen_alert("warning", agent=marker)])
    await alertmanager.until(lambda: any(marker in m.title for m in received), marker)
    await client.aclose()

    def other_messages() -> list[RecordedMessage]:
        return [m for m in received if marker not in m.title]

    await alertmanager.until(lambda: len(other_messages()) >= least, f"{least} messages")
    return other_messages()


def select_messages(messages: object, channel: str, status: str) -> list[RecordedMessage]:
    return [m for m in messages if (m.channel, m.status) == (channel, status)]  # type: ignore[attr-defined]  # a deque


async def test_ticket_is_one_page_and_one_resolve_on_each_channel(
    alertmanager: RealAlertmanager, store: Store
) -> None:
    """B37, B39: through the outbox and the real Alertmanager, in Slack's and PagerDuty's own formats."""
    settings = AlertingSettings(
        alertmanager_urls=(alertmanager.url,),
        dashboard_url="http://127.0.0.1:3000/d/queenright-agent?var-agent={agent}",
        trace_url="http://127.0.0.1:3200/trace/{trace_id}",
    )

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())
    result = ticket(
        trace_id="abc123", queen_model="some/model", evidence_snippet="no results <for> 'hive' & \"bees\""
    )
    await store.transact(lambda conn: enqueue(conn, result, settings, time.time()))
    await outbox.deliver_due(time.time())
    received = alertmanager.recorder.messages
    await alertmanager.until(lambda: len(received) >= 2, "a page on both channels")
    # Repeats and other changes of the ticket send no message.
    for occurrences in range(2, 6):
        repeated = result.model_copy(update={"occurrences": occurrences})
        await store.transact(lambda conn, repeated=repeated: enqueue(conn, repeated, settings, time.time()))  # type: ignore[misc]  # mypy cannot infer a lambda's default
        await outbox.deliver_due(time.time() + 60 * occurrences)
    assert len(received) == 2
    resolved = result.model_copy(update={"status": TicketStatus.RESOLVED})
    await store.transact(lambda conn: enqueue(conn, resolved, settings, time.time()))
    await outbox.deliver_due(time.time())
    await alertmanager.until(lambda: len(received) >= 4, "the all-clear on both channels")
    await client.aclose()

    assert not alertmanager.recorder.rejections
    [slack], [page] = (
        select_messages(received, "slack", "firing"),
        select_messages(received, "pagerduty", "firing"),
    )
    [attachment] = slack.body["attachments"]
    assert "researcher" in attachment["title"]
    assert "(high)" in attachment["title"]
    assert attachment["color"] == "danger"
    # Findings of the rules and the evidence come first; text of models is marked as such.
    order = (
        "researcher (node search) has been going in circles since 08:00 UTC (20 bad steps since",
        "no results &lt;for&gt; 'hive' &amp; \"bees\"",
        f"The queen (some/model) says: {result.analysis}",
        "*Suggested:* Stop the run or give it another instruction",
        f"The judge suggests: {result.suggested_action}",
    )
    places = [attachment["text"].find(part) for part in order]
    assert places == sorted(places)
    assert places[0] == 0
    assert attachment["text"].endswith("<http://127.0.0.1:8420/runbooks/QueenrightIntervention|Runbook>")
    assert {f["title"]: f["value"] for f in attachment["fields"]} == {
        "Agent": "researcher",
        "Severity": "critical (ticket: high)",
    }
    assert {a["text"]: a["url"] for a in attachment["actions"]} == {
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
    assert details["evidence"] == result.evidence_snippet
    assert (details["ticket"], details["fingerprint"]) == (result.ticket_id, result.fingerprint)
    assert {link["text"] for link in page.body["links"]} == {
        "Ticket",
        "Runbook",
        "Dashboard",
        "Trace",
        "Silence",
    }
    assert page.body["routing_key"] == "k" * 32
    [cleared], [closed] = (
        select_messages(received, "slack", "resolved"),
        select_messages(received, "pagerduty", "resolved"),
    )
    assert cleared.title.startswith("Resolved: researcher ")
    assert closed.body["dedup_key"] == page.body["dedup_key"]


async def test_low_severity_reaches_slack_only_and_a_rise_ends_it_silently(
    alertmanager: RealAlertmanager, store: Store
) -> None:
    """B38: medium goes to Slack; a rise to critical is one page, without a false all-clear."""
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())
    received = alertmanager.recorder.messages
    for severity, count in ((Severity.MEDIUM, 1), (Severity.CRITICAL, 3)):
        risen = ticket(severity=severity)
        await store.transact(lambda conn, risen=risen: enqueue(conn, risen, settings, time.time()))  # type: ignore[misc]  # mypy cannot infer a lambda's default
        await outbox.deliver_due(time.time())
        await alertmanager.until(lambda count=count: len(received) >= count, f"{severity} told")  # type: ignore[misc]
    # Two more flushes of the ended alert's group: the message of another alert shows that they passed.
    await client.post_alerts(alertmanager.address, [queen_alert("warning", agent="other")])
    await alertmanager.until(lambda: len(received) >= 4, "the other agent's alert")
    await client.post_alerts(alertmanager.address, [queen_alert("warning", agent="third")])
    await alertmanager.until(lambda: len(received) >= 5, "the third agent's alert")
    await client.aclose()

    assert [(m.channel, m.status) for m in received if "researcher" in m.title] == [
        ("slack", "firing"),
        *sorted(
            [("slack", "firing"), ("pagerduty", "firing")], key=lambda pair: received[1].channel != pair[0]
        ),
    ]
    assert not select_messages(received, "slack", "resolved")


@pytest.mark.parametrize("storm", ["", "storm-1"])
async def test_reminder_is_sent_on_every_channel_with_the_same_identity(
    alertmanager: RealAlertmanager, store: Store, storm: str
) -> None:
    """B41, B77: each is a message in Slack and one for the same incident; one all-clear at the end."""
    settings = AlertingSettings(alertmanager_urls=(alertmanager.url,))

    async def publish(*events: AgentEvent) -> None: ...

    client = AlertmanagerClient()
    outbox = Outbox(store, settings, client, clock=time.time, publish=publish, registry=CollectorRegistry())
    received = alertmanager.recorder.messages

    async def write_change(**changes: object) -> None:
        changed = ticket(storm_id=storm, **changes)
        await store.transact(lambda conn: enqueue(conn, changed, settings, time.time()))
        await outbox.deliver_due(time.time())

    start = time.time() - 4 * 3600
    await write_change()
    await alertmanager.until(lambda: len(received) == 2, "a page on both channels")
    for reminders in (1, 2, 3, 4):
        await write_change(reminders=reminders, notified_at=start, bumped_at=start + reminders * 3600)
        await alertmanager.until(
            lambda reminders=reminders: len(received) == 2 + 2 * reminders,  # type: ignore[misc]  # mypy cannot infer a lambda's default
            f"reminder {reminders} on both channels",
        )
    # Two more flushes: another alert's messages show that they passed, and nothing else was sent.
    for marker in ("other", "third"):
        await client.post_alerts(alertmanager.address, [queen_alert("warning", agent=marker)])
        await alertmanager.until(lambda marker=marker: any(marker in m.title for m in received), marker)  # type: ignore[misc]
    assert not select_messages(received, "slack", "resolved")
    assert not select_messages(received, "pagerduty", "resolved")
    await write_change(reminders=4, status=TicketStatus.RESOLVED)
    await alertmanager.until(
        lambda: bool(select_messages(received, "slack", "resolved")), "the all-clear in Slack"
    )
    await alertmanager.until(
        lambda: bool(select_messages(received, "pagerduty", "resolved")), "and of the incident"
    )
    await client.aclose()

    own_pages = [m for m in received if "researcher" in m.title]
    slack, pages = (
        select_messages(own_pages, "slack", "firing"),
        select_messages(own_pages, "pagerduty", "firing"),
    )
    assert (len(slack), len(pages)) == (5, 5)
    assert "researcher" in slack[0].title
    assert slack[3].title.endswith("(high). Third reminder, unacknowledged for 3 h.")
    assert not slack[3].title.startswith("2 ")
    assert "(resolved)" not in slack[3].text
    keys = {m.body["dedup_key"] for m in [*pages, *select_messages(own_pages, "pagerduty", "resolved")]}
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
        replace(one, annotations={**one.annotations, **text, "ticket_id": one.labels["ticket_id"]})
        for one in (queen_alert("critical", agent=f"agent-{n:03}", storm="storm-1") for n in range(600))
    ]
    await send_with_marker(alertmanager, crowd, "marker")

    posted_bodies = [
        body for path, body in alertmanager.people.posted if path == DELIVERED_PATH and b"agent-" in body
    ]
    await alertmanager.until(lambda: bool(posted_bodies), "the report of the notified receivers")
    for body in posted_bodies:
        assert len(body) <= MAX_BODY
        check_json_size(body, MAX_VALUES)
        read = parse_notification(body)
        assert len(read.alerts) == 100
        assert read.truncated == 500


async def test_thirty_alerts_of_one_storm_are_one_message_and_one_incident(
    alertmanager: RealAlertmanager,
) -> None:
    """B71: the first ten agents are named, with the number of others; so is the end."""
    storm = fleet_alerts(storm="storm-1")
    received = await send_with_marker(alertmanager, storm, "marker", least=2)

    [slack], [page] = (
        select_messages(received, "slack", "firing"),
        select_messages(received, "pagerduty", "firing"),
    )
    assert len(received) == 2
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

    ended = [replace(a, ends_at=time.time()) for a in storm]
    client = AlertmanagerClient()
    await client.post_alerts(alertmanager.address, ended)
    await client.aclose()
    now = alertmanager.recorder.messages
    await alertmanager.until(
        lambda: bool(
            select_messages(now, "slack", "resolved") and select_messages(now, "pagerduty", "resolved")
        ),
        "the end",
    )
    [resolved], [closed] = (
        select_messages(now, "slack", "resolved"),
        select_messages(now, "pagerduty", "resolved"),
    )
    assert closed.body["dedup_key"] == page.body["dedup_key"]
    assert resolved.title.startswith(
        "Resolved: 30 agents with alerts got worse at once (a storm). One of them: "
    )
    assert not alertmanager.recorder.rejections


async def test_message_about_one_agent_in_a_storm_names_the_agent(alertmanager: RealAlertmanager) -> None:
    alerts = [
        queen_alert("critical", agent="courier", cause=cause, storm="storm-1")
        for cause in ("provider_failure", "runs_failed")
    ]
    received = await send_with_marker(alertmanager, alerts, "marker", least=2)

    assert all(one.title.startswith("2 ") for one in received), received
    [slack] = select_messages(received, "slack", "firing")
    [attachment] = slack.body["attachments"]
    assert {field["title"]: field["value"] for field in attachment["fields"]}["Agent"] == "courier"


async def test_cause_of_an_incident_mentions_no_one(alertmanager: RealAlertmanager) -> None:
    """B41: an agent chooses the name of the tool."""
    alerts = [queen_alert("critical", agent=f"bee-{n}", storm="mcp:<!channel>") for n in range(3)]
    received = await send_with_marker(alertmanager, alerts, "marker", least=2)

    assert {one.title for one in received} == {"MCP server [!channel> is failing: 3 agents"}


async def test_two_storms_are_two_messages(alertmanager: RealAlertmanager) -> None:
    """B71: each storm has its own group."""
    received = await send_with_marker(
        alertmanager, [*fleet_alerts(storm="storm-1"), *fleet_alerts(storm="storm-2")], "marker", least=4
    )

    assert [m.channel for m in received].count("slack") == 2
    assert [m.channel for m in received].count("pagerduty") == 2


async def test_thirty_alerts_without_a_storm_are_a_message_each(alertmanager: RealAlertmanager) -> None:
    """B71: and an incident for each critical one."""
    received = await send_with_marker(alertmanager, fleet_alerts(), "marker", least=50)

    assert [m.channel for m in received].count("slack") == 30
    assert [m.channel for m in received].count("pagerduty") == 20


async def test_open_breakers_and_recoveries_are_one_message_per_kind_and_no_page(
    alertmanager: RealAlertmanager,
) -> None:
    """B74: a person is notified of restarted work. 002 §11: alerts fire as configured."""
    kinds = ("QueenrightCircuitBreakerOpen", "QueenrightRecoveryFailed", "QueenrightTaskRestartedFromStart")
    own_messages = [minimal_alert(alertname=kind, severity="warning", source="monitor") for kind in kinds[1:]]
    own_messages += [
        minimal_alert(
            alertname=kinds[0], severity="warning", source="monitor", breaker=f"tool_execution:bee:{tool}"
        )
        for tool in ("search", "fetch")
    ]
    received = await send_with_marker(alertmanager, own_messages, "marker")

    assert {m.channel for m in received} == {"slack"}
    assert len(received) == len(kinds)
    assert {kind for kind in kinds for m in received if kind in m.title} == set(kinds)


async def test_symptom_triggers_only_the_judge(alertmanager: RealAlertmanager) -> None:
    client = AlertmanagerClient()
    symptom = minimal_alert(
        alertname="QueenrightLoop", agent="researcher", severity="critical", source="rules"
    )
    await client.post_alerts(alertmanager.address, [symptom])
    await alertmanager.until(lambda: bool(alertmanager.judge_posts), "the judge is woken")
    await client.post_alerts(alertmanager.address, [queen_alert("warning", agent="other")])
    await alertmanager.until(lambda: bool(alertmanager.recorder.messages), "the other agent's alert")
    await client.aclose()

    [judge_wakeups] = parse_symptoms(alertmanager.judge_posts[0])
    assert (judge_wakeups.alertname, judge_wakeups.agent, judge_wakeups.status) == (
        "QueenrightLoop",
        "researcher",
        "firing",
    )
    assert not any("Loop" in m.title for m in alertmanager.recorder.messages)


async def test_client_distinguishes_refused_from_accepted_alerts(
    alertmanager: RealAlertmanager,
) -> None:
    client = AlertmanagerClient()
    bad = PostedAlert(labels={}, annotations={}, starts_at=time.time(), ends_at=time.time() + 60)
    with pytest.raises(AlertsRejectedError, match="at least one label pair required"):
        await client.post_alerts(alertmanager.address, [queen_alert("warning"), bad])

    assert len(await client.alerts(alertmanager.address, agent="researcher")) == 1
    assert (await client.status(alertmanager.address))["versionInfo"]["version"]
    await client.aclose()


async def test_forty_workers_of_one_provider_are_one_page_and_unrelated_trouble_is_another(
    alertmanager: RealAlertmanager,
) -> None:
    """B104: when their calls succeed again, that page resolves while the other continues."""
    down = [
        queen_alert("critical", agent=f"agent-{n:02}", cause="provider_failure", storm="provider:anthropic")
        for n in range(40)
    ]
    received = await send_with_marker(
        alertmanager, [*down, queen_alert("critical", agent="looping")], "marker", least=4
    )

    pages = select_messages(received, "pagerduty", "firing")
    assert len(pages) == 2
    assert len(select_messages(received, "slack", "firing")) == 2
    [crowd] = [page for page in pages if "looping" not in page.title]
    assert crowd.title == "anthropic is failing: 40 agents"
    details = crowd.body["payload"]["custom_details"]
    names = ", ".join(f"agent-{n:02}" for n in range(10)) + " … and 30 more"
    assert details["firing"].strip() == names
    assert details["analysis"].strip().startswith("anthropic is failing. For example:")
    assert details["analysis"].count("agent-") <= 1
    [message] = [one for one in select_messages(received, "slack", "firing") if "looping" not in one.title]
    assert message.title == crowd.title
    assert message.text.startswith("anthropic is failing. For example:")

    client = AlertmanagerClient()
    await client.post_alerts(alertmanager.address, [replace(one, ends_at=time.time()) for one in down])
    await client.aclose()
    now = alertmanager.recorder.messages
    await alertmanager.until(lambda: bool(select_messages(now, "pagerduty", "resolved")), "the end")
    [ended] = select_messages(now, "pagerduty", "resolved")
    assert ended.body["dedup_key"] == crowd.body["dedup_key"]
