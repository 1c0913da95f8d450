"""Callbacks from Slack, PagerDuty and Alertmanager: acknowledgements, and records of sent notifications."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from queenright.alerting.callbacks.alertmanager import InvalidWebhookError, dedup_key, parse_notification
from queenright.alerting.callbacks.pagerduty import InvalidEventError, read_event
from queenright.alerting.callbacks.signatures import InvalidSignatureError, check_pagerduty, check_slack
from queenright.alerting.callbacks.slack_buttons import (
    InvalidInteractionError,
    build_reply,
    post_reply,
    read_click,
)
from queenright.health.tickets.ticket import EscalationTicket
from queenright.runtime.events import EventType
from queenright.server.ops.settings_files import check_files
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings
from queenright.server.webhooks.callbacks import Callbacks
from tests.alerting.real import run_receivers
from tests.server.conftest import demo_settings, looping
from tests.server.test_app import wait_for_lost_ticket, wait_for_ticket
from tests.waiting import until

SLACK, OLD, NEW = "slack-signing-secret", "pagerduty-old-secret", "pagerduty-new-secret"
GROUP = '{}/{source="queen"}/{severity="critical"}:{agent="looper", alertname="QueenrightIntervention"}'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    files = {}
    for name, secret in (("slack", SLACK), ("old", OLD), ("new", NEW)):
        files[name] = tmp_path / name
        files[name].write_text(f"{secret}\n")
        files[name].chmod(0o600)
    alerting = demo_settings(tmp_path / "storage")
    secret_files = {
        "slack_signing_secret_file": files["slack"],
        "pagerduty_webhook_secret_files": (files["old"], files["new"]),
    }
    return alerting.model_copy(update={"alerting": alerting.alerting.model_copy(update=secret_files)})


def slack_headers(body: bytes, at: float, secret: str = SLACK) -> dict[str, str]:
    """Return Slack's headers for a body."""
    timestamp = str(int(at))
    digest = hmac.new(secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": f"v0={digest}",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def click_body(*tickets: str, by: str = "ada", **more: Any) -> bytes:
    """Return the body that Slack posts when a button of Alertmanager's message is clicked."""
    action = {"name": "acknowledge", "type": "button", "value": ",".join(tickets)}
    payload = {
        "type": "interactive_message",
        "callback_id": "queenright",
        "actions": [action],
        "user": {"id": "U1", "name": by},
        "channel": {"id": "C1", "name": "alerts"},
        "action_ts": "1",
        "original_message": {"attachments": [{"text": "long"}]},
        "response_url": "https://hooks.slack.com/actions/1",
    }
    return urlencode({"payload": json.dumps(payload | more)}).encode()


async def post_click(http: httpx.AsyncClient, running: RunningService, body: bytes) -> httpx.Response:
    headers = slack_headers(body, running.service.clock())
    return await http.post("/api/slack/actions", content=body, headers=headers)


def pagerduty_event(
    kind: str, running: RunningService, *, key: str = GROUP, number: int = 1, **more: Any
) -> bytes:
    """Return the body that PagerDuty posts."""
    fields = {
        "id": f"01EVENT{number:03}",
        "event_type": f"incident.{kind}",
        "resource_type": "incident",
        "occurred_at": datetime.fromtimestamp(running.service.clock(), UTC).isoformat(),
        "agent": {"id": "PLH1HKV", "summary": "Ada Lovelace", "type": "user_reference"},
        "client": None,
        "data": {"id": "PGR0VU2", "type": "incident", "incident_key": dedup_key(key)},
    }
    return json.dumps({"event": fields | more}).encode()


def pagerduty_signature(body: bytes, *secrets: str) -> dict[str, str]:
    """Return PagerDuty's signature header."""
    digests = (hmac.new(secret.encode(), body, hashlib.sha256).hexdigest() for secret in secrets)
    return {"X-PagerDuty-Signature": ",".join(f"v1={digest}" for digest in digests)}


async def post_pagerduty(http: httpx.AsyncClient, body: bytes, *secrets: str) -> httpx.Response:
    headers = pagerduty_signature(body, *(secrets or (NEW,)))
    return await http.post("/api/pagerduty/webhook", content=body, headers=headers)


async def post_notification_webhook(
    http: httpx.AsyncClient, *tickets: str, status: str = "firing", **more: Any
) -> httpx.Response:
    """Post Alertmanager's webhook about a sent notification."""
    alerts = [
        {
            "status": status,
            "labels": {"agent": "looper"},
            "annotations": {"ticket_id": ticket},
            "startsAt": "x",
        }
        for ticket in tickets
    ]
    body = {"version": "4", "groupKey": GROUP, "receiver": "slack-and-pagerduty", "status": status}
    return await http.post("/api/alertmanager/notifications", json=body | {"alerts": alerts} | more)


async def reload_ticket(running: RunningService, ticket_id: str) -> EscalationTicket:
    ticket = await running.service.tickets.find(ticket_id)
    assert ticket is not None
    return ticket


# -- Slack ------------------------------------------------------------------------------------------


async def test_slack_click_acknowledges_and_names_the_person(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B41: the ticket has no further reminders."""
    ticket_id = await wait_for_ticket(running)

    answer = await post_click(http, running, click_body(ticket_id))

    result = {"response_type": "in_channel", "replace_original": False, "text": "Acknowledged by ada."}
    assert (answer.status_code, answer.json()) == (200, result)
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.acknowledged_by, ticket.acknowledged_via) == (
        "acknowledged",
        "ada",
        "slack",
    )
    assert running.service.tickets.next_deadline() is None


async def test_button_in_slack_blocks_acknowledges(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)
    user = {"id": "U1", "username": "ada", "name": "other", "team_id": "T1"}
    action = {"action_id": "acknowledge", "block_id": "b", "type": "button", "value": ticket_id}

    channel = {"response_url": "http://127.0.0.1:1/x"}
    answer = await post_click(
        http, running, click_body(type="block_actions", user=user, actions=[action], **channel)
    )

    assert answer.json()["text"] == "Acknowledged by ada."
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == "ada"


async def test_answer_to_a_block_is_posted_only_to_slack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = "https://hooks.slack.com/actions/1"
    assert read_click(click_body("t")).reply_url == ""
    assert read_click(click_body("t", type="block_actions")).reply_url == response
    for other in ("http://127.0.0.1/", "https://hooks.slack.com.evil.example/", "http://hooks.slack.com/"):
        assert read_click(click_body("t", type="block_actions", response_url=other)).reply_url == ""

    async with run_receivers() as slack:
        await post_reply(f"{slack.url}/slack/response", build_reply("a <b> & c", to_all=True))
        await post_reply(f"{slack.url}/nowhere/sk-secret", build_reply("x", to_all=True))
    [(_, body), _] = slack.posted
    assert json.loads(body)["text"] == "a &lt;b&gt; &amp; c"
    assert "Slack" in caplog.text
    assert "sk-secret" not in "".join(
        record.getMessage() for record in caplog.records if "slack" in record.name
    )


async def test_failed_click_is_explained_to_the_person(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    async def read_answer(body: bytes) -> str:
        answer = await post_click(http, running, body)
        assert (answer.status_code, answer.json()["response_type"]) == (200, "ephemeral")
        return str(answer.json()["text"])

    assert await read_answer(click_body("nobody")) == "This ticket does not exist."
    assert "no ticket to acknowledge" in await read_answer(click_body())
    assert "no ticket to acknowledge" in await read_answer(click_body("\0"))
    assert "Unknown action 'delete'" in await read_answer(
        click_body(actions=[{"name": "delete", "value": ticket_id}])
    )
    await running.service.tickets.acknowledge(ticket_id, by="bob")
    assert "bob" in await read_answer(click_body(ticket_id))
    await running.service.ingest(list(looping(running.service.clock(), times=0, ended=True)))
    await until(lambda: not running.service.tickets.open_tickets(), "the ticket of an ended run closes")
    assert "worker gone" in await read_answer(click_body(ticket_id, by="eve"))


async def test_one_button_acknowledges_several_tickets(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    answer = await post_click(http, running, click_body(ticket_id, "nobody", ticket_id))

    lines = answer.json()["text"].splitlines()
    assert [line.partition(":")[0] for line in lines] == ["1 of 2 tickets acknowledged by ada.", "nobody"]


async def test_replayed_click_has_the_same_answer_and_no_effect(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    body = click_body(ticket_id)
    headers = slack_headers(body, running.service.clock())
    first = await http.post("/api/slack/actions", content=body, headers=headers)
    await running.service.tickets.unacknowledge(ticket_id, by="bob")

    replayed = await http.post("/api/slack/actions", content=body, headers=headers)

    assert replayed.json() == first.json()
    assert (await reload_ticket(running, ticket_id)).status == "intervening"


HOSTILE = ("<!channel>", "a\x1b[2Jb", "x" * 5000, "\u202ead\u0430", "<https://evil.example|ada>", " \n ")


async def test_slack_name_is_escaped(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)
    for name in HOSTILE:
        text = (await post_click(http, running, click_body(ticket_id, by=name))).json()["text"]

        by = (await reload_ticket(running, ticket_id)).acknowledged_by
        assert by.isprintable()
        assert 0 < len(by) <= 110
        assert not set(text) & {"<", ">", "\x1b", "\u202e"}
        await running.service.tickets.unacknowledge(ticket_id, by="bob")


async def test_click_without_a_valid_signature_is_refused(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id, now = await wait_for_ticket(running), running.service.clock()
    body = click_body(ticket_id)
    right = slack_headers(body, now)

    async def assert_refused(headers: Mapping[str, str | bytes], content: bytes = body) -> str:
        answer = await http.post("/api/slack/actions", content=content, headers=dict(headers))  # type: ignore[arg-type]
        assert (answer.status_code, SLACK in answer.text) == (403, False)
        return str(answer.json()["title"])

    assert "is missing" in await assert_refused({})
    assert "is missing" in await assert_refused({k: v for k, v in right.items() if k != "X-Slack-Signature"})
    assert "is wrong" in await assert_refused(slack_headers(body, now, "another-secret"))
    assert "is wrong" in await assert_refused(right, body + b"&x=1")
    assert "is wrong" in await assert_refused(right | {"X-Slack-Signature": b"v0=\xff"})
    assert "is wrong" in await assert_refused(right | {"X-Slack-Request-Timestamp": str(int(now) + 1)})
    assert "behind" in await assert_refused(slack_headers(body, now - 302))
    assert "ahead of" in await assert_refused(slack_headers(body, now + 303))
    assert "1970" in await assert_refused(right | {"X-Slack-Request-Timestamp": "-1"})
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == ""


async def test_signed_body_that_is_not_a_click_is_an_error(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    bodies = {
        b"": "one field `payload`",
        b"payload=1&payload=2": "one field `payload`",
        b"payload={": "payload: ",
        b"payload=[]": "payload: ",
        b"payload=%ff": "payload: ",
        b"\xff": "not a form in UTF-8",
        click_body(type="view_submission"): "payload.type: ",
        click_body(actions=[]): "payload.actions: ",
        click_body(user=None): "payload.user: ",
    }
    for body, reason in bodies.items():
        answer = await post_click(http, running, body)
        assert (answer.status_code, reason in answer.json()["title"]) == (400, True), body
    assert (await post_click(http, running, b"payload=" + b"x" * (1 << 20))).status_code == 413


async def test_two_signatures_are_one_too_many(running: RunningService, http: httpx.AsyncClient) -> None:
    body = click_body("t")
    headers = [*slack_headers(body, running.service.clock()).items(), ("X-Slack-Signature", "v0=0")]

    assert (await http.post("/api/slack/actions", content=body, headers=headers)).status_code == 400


async def test_slow_store_is_reported_within_slacks_three_seconds(running: RunningService) -> None:
    service = running.service
    impatient = Callbacks(
        service.store,
        service.tickets,
        slack=SecretStr(SLACK),
        pagerduty=(),
        clock=service.clock,
        publish=service.bus.publish,
        patience=0.0,
    )
    body = click_body("t")
    headers = slack_headers(body, service.clock())

    result, _ = await impatient.slack(
        body,
        timestamp=headers["X-Slack-Request-Timestamp"],
        signature=headers["X-Slack-Signature"],
    )

    assert "could not be recorded" in result["text"]


# -- PagerDuty --------------------------------------------------------------------------------------


async def test_pagerduty_acknowledgement_acknowledges_the_ticket(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B41: an acknowledged ticket has no reminders; if it is unacknowledged, reminders restart."""
    ticket_id = await wait_for_ticket(running)
    assert (await post_notification_webhook(http, ticket_id)).json() == {"noted": 1}

    answer = await post_pagerduty(http, pagerduty_event("acknowledged", running))

    assert answer.status_code == 202
    assert answer.json() == {"did": "see tickets", "tickets": {ticket_id: "Acknowledged by Ada Lovelace."}}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.acknowledged_by, ticket.acknowledged_via) == ("Ada Lovelace", "pagerduty")
    assert running.service.tickets.next_deadline() is None

    undone = await post_pagerduty(http, pagerduty_event("unacknowledged", running, number=2, agent=None))

    assert undone.json()["tickets"] == {ticket_id: "No longer acknowledged."}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.reminders, ticket.acknowledged_by) == ("intervening", 0, "")
    assert running.service.tickets.next_deadline() == (ticket.bumped_at or 0) + 3600


async def test_duplicate_event_is_processed_once(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    body = pagerduty_event("acknowledged", running)
    first = await post_pagerduty(http, body)
    await running.service.tickets.unacknowledge(ticket_id, by="bob")

    duplicate = await post_pagerduty(http, body)

    assert duplicate.json() == first.json()
    assert (await reload_ticket(running, ticket_id)).status == "intervening"


async def test_pagerduty_timeout_does_not_undo_other_acknowledgements(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    await running.service.tickets.acknowledge(ticket_id, by="bob")

    answer = await post_pagerduty(http, pagerduty_event("unacknowledged", running))

    assert "bob acknowledged it" in answer.json()["tickets"][ticket_id]
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == "bob"


async def test_resolve_by_a_person_acknowledges_and_the_condition_ends_the_ticket(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)

    by_alertmanager = await post_pagerduty(
        http,
        pagerduty_event("resolved", running, agent={"id": "P1", "type": "inbound_integration_reference"}),
    )
    by_ada = await post_pagerduty(http, pagerduty_event("resolved", running, number=2))

    assert by_alertmanager.json()["did"].startswith("nothing")
    assert by_ada.json()["tickets"] == {ticket_id: "Acknowledged by Ada Lovelace."}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.closed_at) == ("acknowledged", None)
    assert ticket.acknowledged_note.startswith("resolved in PagerDuty")


async def test_resolve_by_a_person_closes_tickets_that_cannot_close_themselves(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_lost_ticket(running)
    await post_notification_webhook(http, ticket_id)

    answer = await post_pagerduty(http, pagerduty_event("resolved", running))

    assert answer.json()["tickets"] == {ticket_id: "Resolved by Ada Lovelace."}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.closed_reason) == ("resolved", "Ada Lovelace: resolved in PagerDuty")
    late = await post_pagerduty(http, pagerduty_event("reopened", running, number=2))
    assert (late.json()["did"].partition(":")[0], late.json()["tickets"]) == ("nothing", {})


async def test_unknown_incident_has_no_effect_and_is_explained(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    old = datetime.fromtimestamp(running.service.clock() - 90_000, UTC).isoformat()
    future = datetime.fromtimestamp(running.service.clock() + 600, UTC).isoformat()
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("acknowledged", "no ticket is known for this incident", {"key": "another"}),
        ("acknowledged", "no ticket is known for this incident", {"data": {"incident_key": "\0"}}),
        ("acknowledged", "no ticket is known for this incident", {"data": {"incident_key": None}}),
        ("acknowledged", "no ticket is known for this incident", {"data": None}),
        ("acknowledged", "more than a day old", {"occurred_at": old}),
        ("acknowledged", "s ahead of this machine's clock; 300 are allowed", {"occurred_at": future}),
        ("acknowledged", "ahead of this machine's clock", {"occurred_at": "2099-01-01T00:00:00Z"}),
        ("acknowledged", "ahead of this machine's clock", {"occurred_at": "9999-12-31T23:59:59Z"}),
        ("escalated", "incident.escalated changes no ticket", {}),
        ("x", "pagey.ping changes no ticket", {"event_type": "pagey.ping"}),
    ]
    for number, (kind, reason, fields) in enumerate(cases):
        answer = await post_pagerduty(http, pagerduty_event(kind, running, number=number, **fields))
        assert (answer.status_code, reason in answer.json()["did"]) == (202, True), (kind, fields)
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == ""


async def test_either_signature_is_accepted_during_a_change_of_secrets(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    for number, secrets in enumerate([(OLD,), (NEW,), ("foreign", OLD), (NEW, "foreign")]):
        answer = await post_pagerduty(http, pagerduty_event("triggered", running, number=number), *secrets)
        assert answer.status_code == 202


async def test_webhook_without_a_valid_signature_is_refused(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    body = pagerduty_event("acknowledged", running)
    digest = pagerduty_signature(body, NEW)["X-PagerDuty-Signature"].removeprefix("v1=")
    for signatures in ("", "v1=", digest, f"v2={digest}", f"v1={digest[:-1]}", "v1=\xff", "," * 1000):
        headers = {b"X-PagerDuty-Signature": signatures.encode("latin-1")}
        answer = await http.post("/api/pagerduty/webhook", content=body, headers=headers)
        assert (answer.status_code, NEW in answer.text) == (403, False), signatures
    other = await http.post(
        "/api/pagerduty/webhook", content=body + b" ", headers=pagerduty_signature(body, NEW)
    )
    assert other.status_code == 403
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == ""


async def test_signed_body_that_is_not_an_event_names_the_field(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    for body, field_path in (
        (b"", "the body: "),
        (b"{}", "event: "),
        (b'{"event": 1}', "event: "),
        (pagerduty_event("acknowledged", running, id="a b"), "event.id: "),
        (pagerduty_event("acknowledged", running, occurred_at="2026-01-01T00:00:00"), "event.occurred_at: "),
        (pagerduty_event("acknowledged", running, agent="ada"), "event.agent: "),
    ):
        answer = await post_pagerduty(http, body)
        assert (answer.status_code, answer.json()["title"].startswith(field_path)) == (400, True), body
    oversized = await post_pagerduty(http, pagerduty_event("acknowledged", running, client="x" * (1 << 20)))
    assert oversized.status_code == 413


async def test_incident_finds_its_ticket_after_a_restart(settings: Settings) -> None:
    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        ticket_id = await wait_for_ticket(running)
        await post_notification_webhook(http, ticket_id)

    async with (
        serving(settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        answer = await post_pagerduty(http, pagerduty_event("acknowledged", running))
        [row] = (await http.get("/api/tickets")).json()["tickets"]

    assert answer.json()["tickets"] == {ticket_id: "Acknowledged by Ada Lovelace."}
    assert [entry["receiver"] for entry in row["notified"]] == ["slack-and-pagerduty"]


# -- API and command line -------------------------------------------------------------------------


async def test_ticket_is_acknowledged_and_unacknowledged_by_api_and_command_line(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B41: an acknowledged ticket has no reminders; if it is unacknowledged, reminders restart."""
    ticket_id = await wait_for_ticket(running)
    path = f"/api/tickets/{ticket_id}"

    for channel in ("api", "cli"):
        response = await http.post(f"{path}/acknowledge", json={"by": "ada", "via": channel, "note": "on it"})
        assert (response.json()["acknowledged_via"], response.json()["acknowledged_note"]) == (
            channel,
            "on it",
        )
        assert running.service.tickets.next_deadline() is None
        undone = await http.post(f"{path}/unacknowledge", json={"by": "ada", "via": channel})
        assert (undone.json()["status"], undone.json()["acknowledged_via"]) == ("intervening", None)
        assert running.service.tickets.next_deadline() is not None
    repeated = await http.post(f"{path}/unacknowledge")
    forged = await http.post(f"{path}/acknowledge", json={"via": "slack"})

    assert (repeated.status_code, forged.status_code) == (409, 422)
    events = [e for e in running.service.recent if e.type is EventType.TICKET_UNACKNOWLEDGED]
    assert [(e.data["by"], e.data["was"]) for e in events] == [("ada", "ada"), ("ada", "ada")]


# -- notified receivers ---------------------------------------------------------------------------


async def test_ticket_lists_its_notifications(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)

    await post_notification_webhook(http, ticket_id)
    await post_notification_webhook(http, ticket_id, "unknown", "\0", receiver="slack")
    await post_notification_webhook(http, ticket_id, status="resolved")

    body = (await http.get(f"/api/tickets/{ticket_id}")).json()["notified"]
    assert {(receiver["receiver"], receiver["status"]) for receiver in body} == {
        ("slack-and-pagerduty", "firing"),
        ("slack", "firing"),
        ("slack-and-pagerduty", "resolved"),
    }
    assert all(receiver["first_at"] <= receiver["at"] <= running.service.clock() for receiver in body)
    [listed] = (await http.get("/api/tickets")).json()["tickets"]
    assert listed["notified"] == body


async def test_timeline_distinguishes_firing_from_resolved_notifications(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    await post_notification_webhook(http, ticket_id, status="resolved")

    entries = (await http.get(f"/api/tickets/{ticket_id}/timeline")).json()["timeline"]

    notified = [entry["status"] for entry in entries if entry["what"] == "receiver_notified"]
    assert notified == ["firing", "resolved"]
    assert {entry["status"] for entry in entries if entry["what"] != "receiver_notified"} == {""}


async def test_repeated_notifications_keep_first_and_last_time(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    await post_notification_webhook(http, ticket_id)

    [body] = (await http.get(f"/api/tickets/{ticket_id}")).json()["notified"]

    assert body["first_at"] < body["at"]


async def test_notifications_without_a_ticket_are_ignored_and_other_bodies_refused(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    assert (await post_notification_webhook(http)).json() == {"noted": 0}
    assert (await post_notification_webhook(http, "unknown")).json() == {"noted": 0}
    for more in ({"version": "5"}, {"groupKey": 1}, {"receiver": ""}, {"alerts": [{"status": "x"}]}):
        assert (await post_notification_webhook(http, "t", **more)).status_code == 400
    origin = {"Origin": "https://evil.example"}
    assert (await http.post("/api/alertmanager/notifications", json={}, headers=origin)).status_code == 403


# -- settings ---------------------------------------------------------------------------------------


async def test_unconfigured_callback_names_the_setting(tmp_path: Path) -> None:
    unconfigured = demo_settings(tmp_path / "bare")
    async with (
        serving(unconfigured) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        slack = await http.post("/api/slack/actions")
        incident = await http.post("/api/pagerduty/webhook")

    assert (slack.status_code, incident.status_code) == (404, 404)
    assert "alerting.slack_signing_secret_file" in slack.json()["title"]
    assert "alerting.pagerduty_webhook_secret_files" in incident.json()["title"]


def test_secret_readable_by_others_is_refused_at_start(settings: Settings) -> None:
    for file in (
        settings.alerting.slack_signing_secret_file,
        settings.alerting.pagerduty_webhook_secret_files[1],
    ):
        assert file is not None
        file.chmod(0o604)
        with pytest.raises(Exception, match=r"alerting\.\w+: the secret file .* run chmod 600"):
            check_files(settings)
        file.chmod(0o600)
    check_files(settings)


@given(st.binary(max_size=300), st.text(max_size=80), st.text(max_size=80))
def test_any_bytes_raise_only_the_documented_error(body: bytes, timestamp: str, signature: str) -> None:
    for read, refusal in (
        (read_click, InvalidInteractionError),
        (read_event, InvalidEventError),
        (parse_notification, InvalidWebhookError),
    ):
        with pytest.raises(refusal):
            read(body)
    secret = SecretStr(SLACK)
    with pytest.raises(InvalidSignatureError):
        check_slack(body, timestamp=timestamp, signature=signature, secret=secret, now=0.0)
    with pytest.raises(InvalidSignatureError):
        check_pagerduty(body, signatures=timestamp, secrets=(secret,))


@given(st.binary(max_size=300), st.integers(0, 10**9), st.floats(-301, 301))
def test_freshly_signed_callback_is_accepted(body: bytes, at: int, away: float) -> None:
    headers = slack_headers(body, at)

    def verify() -> None:
        check_slack(
            body,
            timestamp=headers["X-Slack-Request-Timestamp"],
            signature=headers["X-Slack-Signature"],
            secret=SecretStr(SLACK),
            now=at + away,
        )

    if abs(away) <= 300:
        verify()
    else:
        with pytest.raises(InvalidSignatureError, match="clock"):
            verify()
