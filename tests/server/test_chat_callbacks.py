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

SLACK_SECRET, OLD_PAGERDUTY_SECRET, NEW_PAGERDUTY_SECRET = (
    "slack-signing-secret",
    "pagerduty-old-secret",
    "pagerduty-new-secret",
)
GROUP_KEY = '{}/{source="queen"}/{severity="critical"}:{agent="looper", alertname="QueenrightIntervention"}'


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    files = {}
    for name, secret in (
        ("slack", SLACK_SECRET),
        ("old", OLD_PAGERDUTY_SECRET),
        ("new", NEW_PAGERDUTY_SECRET),
    ):
        files[name] = tmp_path / name
        files[name].write_text(f"{secret}\n")
        files[name].chmod(0o600)
    alerting_settings = demo_settings(tmp_path / "storage")
    secret_files = {
        "slack_signing_secret_file": files["slack"],
        "pagerduty_webhook_secret_files": (files["old"], files["new"]),
    }
    return alerting_settings.model_copy(
        update={"alerting": alerting_settings.alerting.model_copy(update=secret_files)}
    )


def make_slack_headers(body: bytes, time: float, secret: str = SLACK_SECRET) -> dict[str, str]:
    """Return the headers that Slack sends with a body."""
    timestamp = str(int(time))
    digest = hmac.new(secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()
    return {
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": f"v0={digest}",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def make_click_body(*tickets: str, by: str = "ada", **fields: Any) -> bytes:
    """Return the body that Slack posts after a click on a button in Alertmanager's message."""
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
    return urlencode({"payload": json.dumps(payload | fields)}).encode()


async def post_click(http: httpx.AsyncClient, running: RunningService, body: bytes) -> httpx.Response:
    headers = make_slack_headers(body, running.service.clock())
    return await http.post("/api/slack/actions", content=body, headers=headers)


def make_pagerduty_event(
    kind: str, running: RunningService, *, key: str = GROUP_KEY, number: int = 1, **extra_fields: Any
) -> bytes:
    """Return the body of an event that PagerDuty posts."""
    fields = {
        "id": f"01EVENT{number:03}",
        "event_type": f"incident.{kind}",
        "resource_type": "incident",
        "occurred_at": datetime.fromtimestamp(running.service.clock(), UTC).isoformat(),
        "agent": {"id": "PLH1HKV", "summary": "Ada Lovelace", "type": "user_reference"},
        "client": None,
        "data": {"id": "PGR0VU2", "type": "incident", "incident_key": dedup_key(key)},
    }
    return json.dumps({"event": fields | extra_fields}).encode()


def sign_for_pagerduty(body: bytes, *secrets: str) -> dict[str, str]:
    """Return PagerDuty's signature header for a body."""
    digests = (hmac.new(secret.encode(), body, hashlib.sha256).hexdigest() for secret in secrets)
    return {"X-PagerDuty-Signature": ",".join(f"v1={digest}" for digest in digests)}


async def post_pagerduty(http: httpx.AsyncClient, body: bytes, *secrets: str) -> httpx.Response:
    headers = sign_for_pagerduty(body, *(secrets or (NEW_PAGERDUTY_SECRET,)))
    return await http.post("/api/pagerduty/webhook", content=body, headers=headers)


async def post_notification_webhook(
    http: httpx.AsyncClient, *tickets: str, status: str = "firing", **fields: Any
) -> httpx.Response:
    """Post Alertmanager's webhook about a notification that it sent."""
    alerts = [
        {
            "status": status,
            "labels": {"agent": "looper"},
            "annotations": {"ticket_id": ticket},
            "startsAt": "x",
        }
        for ticket in tickets
    ]
    body = {"version": "4", "groupKey": GROUP_KEY, "receiver": "slack-and-pagerduty", "status": status}
    return await http.post("/api/alertmanager/notifications", json=body | {"alerts": alerts} | fields)


async def reload_ticket(running: RunningService, ticket_id: str) -> EscalationTicket:
    ticket = await running.service.tickets.find(ticket_id)
    assert ticket is not None
    return ticket


# -- Slack ------------------------------------------------------------------------------------------


async def test_slack_click_acknowledges_the_ticket_and_names_the_person(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """B41: an acknowledged ticket has no further reminders."""
    ticket_id = await wait_for_ticket(running)

    answer = await post_click(http, running, make_click_body(ticket_id))

    result = {"response_type": "in_channel", "replace_original": False, "text": "Acknowledged by ada."}
    assert (answer.status_code, answer.json()) == (200, result)
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.acknowledged_by, ticket.acknowledged_via) == (
        "acknowledged",
        "ada",
        "slack",
    )
    assert running.service.tickets.next_deadline() is None


async def test_button_in_slack_blocks_acknowledges_the_ticket(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    user = {"id": "U1", "username": "ada", "name": "other", "team_id": "T1"}
    action = {"action_id": "acknowledge", "block_id": "b", "type": "button", "value": ticket_id}

    channel = {"response_url": "http://127.0.0.1:1/x"}
    answer = await post_click(
        http, running, make_click_body(type="block_actions", user=user, actions=[action], **channel)
    )

    assert answer.json()["text"] == "Acknowledged by ada."
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == "ada"


async def test_response_to_a_block_is_posted_only_to_slack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = "https://hooks.slack.com/actions/1"
    assert read_click(make_click_body("t")).reply_url == ""
    assert read_click(make_click_body("t", type="block_actions")).reply_url == response
    for other_url in (
        "http://127.0.0.1/",
        "https://hooks.slack.com.evil.example/",
        "http://hooks.slack.com/",
    ):
        assert read_click(make_click_body("t", type="block_actions", response_url=other_url)).reply_url == ""

    async with run_receivers() as slack_url:
        await post_reply(f"{slack_url.url}/slack/response", build_reply("a <b> & c", to_all=True))
        await post_reply(f"{slack_url.url}/nowhere/sk-secret", build_reply("x", to_all=True))
    [(_, body), _] = slack_url.requests
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

    assert await read_answer(make_click_body("nobody")) == "This ticket does not exist."
    assert "no ticket to acknowledge" in await read_answer(make_click_body())
    assert "no ticket to acknowledge" in await read_answer(make_click_body("\0"))
    assert "Unknown action 'delete'" in await read_answer(
        make_click_body(actions=[{"name": "delete", "value": ticket_id}])
    )
    await running.service.tickets.acknowledge(ticket_id, by="bob")
    assert "bob" in await read_answer(make_click_body(ticket_id))
    await running.service.ingest(list(looping(running.service.clock(), times=0, ended=True)))
    await until(lambda: not running.service.tickets.open_tickets(), "the ticket of an ended run closes")
    assert "worker gone" in await read_answer(make_click_body(ticket_id, by="eve"))


async def test_one_button_can_acknowledge_several_tickets(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)

    answer = await post_click(http, running, make_click_body(ticket_id, "nobody", ticket_id))

    lines = answer.json()["text"].splitlines()
    assert [line.partition(":")[0] for line in lines] == ["1 of 2 tickets acknowledged by ada.", "nobody"]


async def test_replayed_click_gets_the_same_response_and_has_no_effect(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    body = make_click_body(ticket_id)
    headers = make_slack_headers(body, running.service.clock())
    first_response = await http.post("/api/slack/actions", content=body, headers=headers)
    await running.service.tickets.unacknowledge(ticket_id, by="bob")

    replayed_response = await http.post("/api/slack/actions", content=body, headers=headers)

    assert replayed_response.json() == first_response.json()
    assert (await reload_ticket(running, ticket_id)).status == "intervening"


HOSTILE_NAMES = (
    "<!channel>",
    "a\x1b[2Jb",
    "x" * 5000,
    "\u202ead\u0430",
    "<https://evil.example|ada>",
    " \n ",
)


async def test_slack_user_name_is_escaped(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)
    for name in HOSTILE_NAMES:
        answer = (await post_click(http, running, make_click_body(ticket_id, by=name))).json()["text"]

        acknowledged_by = (await reload_ticket(running, ticket_id)).acknowledged_by
        assert acknowledged_by.isprintable()
        assert 0 < len(acknowledged_by) <= 110
        assert not set(answer) & {"<", ">", "\x1b", "\u202e"}
        await running.service.tickets.unacknowledge(ticket_id, by="bob")


async def test_click_without_a_valid_signature_is_rejected(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id, clock_time = await wait_for_ticket(running), running.service.clock()
    body = make_click_body(ticket_id)
    valid_headers = make_slack_headers(body, clock_time)

    async def check_refused(headers: Mapping[str, str | bytes], content: bytes = body) -> str:
        response = await http.post("/api/slack/actions", content=content, headers=dict(headers))  # type: ignore[arg-type]
        assert (response.status_code, SLACK_SECRET in response.text) == (403, False)
        return str(response.json()["title"])

    assert "is missing" in await check_refused({})
    assert "is missing" in await check_refused(
        {key: value for key, value in valid_headers.items() if key != "X-Slack-Signature"}
    )
    assert "is wrong" in await check_refused(make_slack_headers(body, clock_time, "another-secret"))
    assert "is wrong" in await check_refused(valid_headers, body + b"&x=1")
    assert "is wrong" in await check_refused(valid_headers | {"X-Slack-Signature": b"v0=\xff"})
    assert "is wrong" in await check_refused(
        valid_headers | {"X-Slack-Request-Timestamp": str(int(clock_time) + 1)}
    )
    assert "behind" in await check_refused(make_slack_headers(body, clock_time - 302))
    assert "ahead of" in await check_refused(make_slack_headers(body, clock_time + 303))
    assert "1970" in await check_refused(valid_headers | {"X-Slack-Request-Timestamp": "-1"})
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == ""


async def test_signed_body_that_is_not_a_click_is_rejected(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    bodies = {
        b"": "one field `payload`",
        b"payload=1&payload=2": "one field `payload`",
        b"payload={": "payload: ",
        b"payload=[]": "payload: ",
        b"payload=%ff": "payload: ",
        b"\xff": "not a form in UTF-8",
        make_click_body(type="view_submission"): "payload.type: ",
        make_click_body(actions=[]): "payload.actions: ",
        make_click_body(user=None): "payload.user: ",
    }
    for body, reason in bodies.items():
        answer = await post_click(http, running, body)
        assert (answer.status_code, reason in answer.json()["title"]) == (400, True), body
    assert (await post_click(http, running, b"payload=" + b"x" * (1 << 20))).status_code == 413


async def test_request_with_two_signatures_is_rejected(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    body = make_click_body("t")
    headers = [*make_slack_headers(body, running.service.clock()).items(), ("X-Slack-Signature", "v0=0")]

    assert (await http.post("/api/slack/actions", content=body, headers=headers)).status_code == 400


async def test_slow_store_is_reported_within_three_seconds(running: RunningService) -> None:
    service = running.service
    impatient_callbacks = Callbacks(
        service.store,
        service.tickets,
        slack=SecretStr(SLACK_SECRET),
        pagerduty=(),
        clock=service.clock,
        publish=service.bus.publish,
        patience=0.0,
    )
    body = make_click_body("t")
    headers = make_slack_headers(body, service.clock())

    result, _ = await impatient_callbacks.handle_slack_click(
        body,
        timestamp=headers["X-Slack-Request-Timestamp"],
        signature=headers["X-Slack-Signature"],
    )

    assert "could not be recorded" in result["text"]


# -- PagerDuty --------------------------------------------------------------------------------------


async def test_pagerduty_acknowledgement_acknowledges_the_ticket(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """
    B41: an acknowledged ticket has no reminders. If the acknowledgement is withdrawn, reminders restart.
    """
    ticket_id = await wait_for_ticket(running)
    assert (await post_notification_webhook(http, ticket_id)).json() == {"noted": 1}

    answer = await post_pagerduty(http, make_pagerduty_event("acknowledged", running))

    assert answer.status_code == 202
    assert answer.json() == {"did": "see tickets", "tickets": {ticket_id: "Acknowledged by Ada Lovelace."}}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.acknowledged_by, ticket.acknowledged_via) == ("Ada Lovelace", "pagerduty")
    assert running.service.tickets.next_deadline() is None

    undo_response = await post_pagerduty(
        http, make_pagerduty_event("unacknowledged", running, number=2, agent=None)
    )

    assert undo_response.json()["tickets"] == {ticket_id: "No longer acknowledged."}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.reminders, ticket.acknowledged_by) == ("intervening", 0, "")
    assert running.service.tickets.next_deadline() == (ticket.bumped_at or 0) + 3600


async def test_duplicate_event_is_processed_once(running: RunningService, http: httpx.AsyncClient) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    body = make_pagerduty_event("acknowledged", running)
    first_response = await post_pagerduty(http, body)
    await running.service.tickets.unacknowledge(ticket_id, by="bob")

    duplicate_response = await post_pagerduty(http, body)

    assert duplicate_response.json() == first_response.json()
    assert (await reload_ticket(running, ticket_id)).status == "intervening"


async def test_pagerduty_timeout_does_not_withdraw_other_acknowledgements(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    await running.service.tickets.acknowledge(ticket_id, by="bob")

    answer = await post_pagerduty(http, make_pagerduty_event("unacknowledged", running))

    assert "bob acknowledged it" in answer.json()["tickets"][ticket_id]
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == "bob"


async def test_resolve_by_a_person_acknowledges_a_ticket_that_closes_by_itself(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)

    by_alertmanager = await post_pagerduty(
        http,
        make_pagerduty_event(
            "resolved", running, agent={"id": "P1", "type": "inbound_integration_reference"}
        ),
    )
    by_ada = await post_pagerduty(http, make_pagerduty_event("resolved", running, number=2))

    assert by_alertmanager.json()["did"].startswith("nothing")
    assert by_ada.json()["tickets"] == {ticket_id: "Acknowledged by Ada Lovelace."}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.closed_at) == ("acknowledged", None)
    assert ticket.acknowledged_note.startswith("resolved in PagerDuty")


async def test_resolve_by_a_person_closes_a_ticket_that_cannot_close_by_itself(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_lost_ticket(running)
    await post_notification_webhook(http, ticket_id)

    answer = await post_pagerduty(http, make_pagerduty_event("resolved", running))

    assert answer.json()["tickets"] == {ticket_id: "Resolved by Ada Lovelace."}
    ticket = await reload_ticket(running, ticket_id)
    assert (ticket.status, ticket.closed_reason) == ("resolved", "Ada Lovelace: resolved in PagerDuty")
    late_response = await post_pagerduty(http, make_pagerduty_event("reopened", running, number=2))
    assert (late_response.json()["did"].partition(":")[0], late_response.json()["tickets"]) == ("nothing", {})


async def test_event_of_an_unknown_incident_has_no_effect_and_is_explained(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    old_time = datetime.fromtimestamp(running.service.clock() - 90_000, UTC).isoformat()
    future_time = datetime.fromtimestamp(running.service.clock() + 600, UTC).isoformat()
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("acknowledged", "no ticket is known for this incident", {"key": "another"}),
        ("acknowledged", "no ticket is known for this incident", {"data": {"incident_key": "\0"}}),
        ("acknowledged", "no ticket is known for this incident", {"data": {"incident_key": None}}),
        ("acknowledged", "no ticket is known for this incident", {"data": None}),
        ("acknowledged", "more than a day old", {"occurred_at": old_time}),
        (
            "acknowledged",
            "s ahead of this machine's clock; at most 300 s are allowed",
            {"occurred_at": future_time},
        ),
        ("acknowledged", "ahead of this machine's clock", {"occurred_at": "2099-01-01T00:00:00Z"}),
        ("acknowledged", "ahead of this machine's clock", {"occurred_at": "9999-12-31T23:59:59Z"}),
        ("escalated", "incident.escalated changes no ticket", {}),
        ("x", "pagey.ping changes no ticket", {"event_type": "pagey.ping"}),
    ]
    for number, (kind, reason, fields) in enumerate(cases):
        answer = await post_pagerduty(http, make_pagerduty_event(kind, running, number=number, **fields))
        assert (answer.status_code, reason in answer.json()["did"]) == (202, True), (kind, fields)
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == ""


async def test_either_secret_is_accepted_during_a_rotation(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    for number, secrets in enumerate(
        [
            (OLD_PAGERDUTY_SECRET,),
            (NEW_PAGERDUTY_SECRET,),
            ("foreign", OLD_PAGERDUTY_SECRET),
            (NEW_PAGERDUTY_SECRET, "foreign"),
        ]
    ):
        answer = await post_pagerduty(
            http, make_pagerduty_event("triggered", running, number=number), *secrets
        )
        assert answer.status_code == 202


async def test_webhook_without_a_valid_signature_is_rejected(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    body = make_pagerduty_event("acknowledged", running)
    digest = sign_for_pagerduty(body, NEW_PAGERDUTY_SECRET)["X-PagerDuty-Signature"].removeprefix("v1=")
    for signatures in ("", "v1=", digest, f"v2={digest}", f"v1={digest[:-1]}", "v1=\xff", "," * 1000):
        headers = {b"X-PagerDuty-Signature": signatures.encode("latin-1")}
        response = await http.post("/api/pagerduty/webhook", content=body, headers=headers)
        assert (response.status_code, NEW_PAGERDUTY_SECRET in response.text) == (403, False), signatures
    other_response = await http.post(
        "/api/pagerduty/webhook", content=body + b" ", headers=sign_for_pagerduty(body, NEW_PAGERDUTY_SECRET)
    )
    assert other_response.status_code == 403
    assert (await reload_ticket(running, ticket_id)).acknowledged_by == ""


async def test_signed_body_that_is_not_an_event_is_rejected_with_the_field(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    for body, field_path in (
        (b"", "the body: "),
        (b"{}", "event: "),
        (b'{"event": 1}', "event: "),
        (make_pagerduty_event("acknowledged", running, id="a b"), "event.id: "),
        (
            make_pagerduty_event("acknowledged", running, occurred_at="2026-01-01T00:00:00"),
            "event.occurred_at: ",
        ),
        (make_pagerduty_event("acknowledged", running, agent="ada"), "event.agent: "),
    ):
        answer = await post_pagerduty(http, body)
        assert (answer.status_code, answer.json()["title"].startswith(field_path)) == (400, True), body
    oversized_response = await post_pagerduty(
        http, make_pagerduty_event("acknowledged", running, client="x" * (1 << 20))
    )
    assert oversized_response.status_code == 413


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
        answer = await post_pagerduty(http, make_pagerduty_event("acknowledged", running))
        [row] = (await http.get("/api/tickets")).json()["tickets"]

    assert answer.json()["tickets"] == {ticket_id: "Acknowledged by Ada Lovelace."}
    assert [entry["receiver"] for entry in row["notified"]] == ["slack-and-pagerduty"]


# -- API and command line -------------------------------------------------------------------------


async def test_ticket_is_acknowledged_and_unacknowledged_over_http_and_on_the_command_line(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """
    B41: an acknowledged ticket has no reminders. If the acknowledgement is withdrawn, reminders restart.
    """
    ticket_id = await wait_for_ticket(running)
    path = f"/api/tickets/{ticket_id}"

    for channel in ("api", "cli"):
        response = await http.post(f"{path}/acknowledge", json={"by": "ada", "via": channel, "note": "on it"})
        assert (response.json()["acknowledged_via"], response.json()["acknowledged_note"]) == (
            channel,
            "on it",
        )
        assert running.service.tickets.next_deadline() is None
        undo_response = await http.post(f"{path}/unacknowledge", json={"by": "ada", "via": channel})
        assert (undo_response.json()["status"], undo_response.json()["acknowledged_via"]) == (
            "intervening",
            None,
        )
        assert running.service.tickets.next_deadline() is not None
    repeated_response = await http.post(f"{path}/unacknowledge")
    forged_response = await http.post(f"{path}/acknowledge", json={"via": "slack"})

    assert (repeated_response.status_code, forged_response.status_code) == (409, 422)
    events = [event for event in running.service.recent if event.type is EventType.TICKET_UNACKNOWLEDGED]
    assert [(event.data["by"], event.data["was"]) for event in events] == [("ada", "ada"), ("ada", "ada")]


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
    [listed_ticket] = (await http.get("/api/tickets")).json()["tickets"]
    assert listed_ticket["notified"] == body


async def test_timeline_distinguishes_firing_and_resolved_notifications(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    await post_notification_webhook(http, ticket_id, status="resolved")

    entries = (await http.get(f"/api/tickets/{ticket_id}/timeline")).json()["timeline"]

    statuses = [entry["status"] for entry in entries if entry["what"] == "receiver_notified"]
    assert statuses == ["firing", "resolved"]
    assert {entry["status"] for entry in entries if entry["what"] != "receiver_notified"} == {""}


async def test_repeated_notifications_keep_the_first_and_last_time(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    ticket_id = await wait_for_ticket(running)
    await post_notification_webhook(http, ticket_id)
    await post_notification_webhook(http, ticket_id)

    [body] = (await http.get(f"/api/tickets/{ticket_id}")).json()["notified"]

    assert body["first_at"] < body["at"]


async def test_notifications_without_a_ticket_are_ignored_and_invalid_bodies_rejected(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    assert (await post_notification_webhook(http)).json() == {"noted": 0}
    assert (await post_notification_webhook(http, "unknown")).json() == {"noted": 0}
    for invalid_fields in (
        {"version": "5"},
        {"groupKey": 1},
        {"receiver": ""},
        {"alerts": [{"status": "x"}]},
    ):
        assert (await post_notification_webhook(http, "t", **invalid_fields)).status_code == 400
    origin = {"Origin": "https://evil.example"}
    assert (await http.post("/api/alertmanager/notifications", json={}, headers=origin)).status_code == 403


# -- settings ---------------------------------------------------------------------------------------


async def test_unconfigured_callback_names_the_setting(tmp_path: Path) -> None:
    bare_settings = demo_settings(tmp_path / "bare")
    async with (
        serving(bare_settings) as running,
        httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http,
    ):
        slack_response = await http.post("/api/slack/actions")
        pagerduty_response = await http.post("/api/pagerduty/webhook")

    assert (slack_response.status_code, pagerduty_response.status_code) == (404, 404)
    assert "alerting.slack_signing_secret_file" in slack_response.json()["title"]
    assert "alerting.pagerduty_webhook_secret_files" in pagerduty_response.json()["title"]


def test_secret_readable_by_others_is_rejected_at_the_start(settings: Settings) -> None:
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
def test_any_bytes_raise_only_the_documented_errors(body: bytes, timestamp: str, signature: str) -> None:
    for parse, refusal in (
        (read_click, InvalidInteractionError),
        (read_event, InvalidEventError),
        (parse_notification, InvalidWebhookError),
    ):
        with pytest.raises(refusal):
            parse(body)
    secret = SecretStr(SLACK_SECRET)
    with pytest.raises(InvalidSignatureError):
        check_slack(body, timestamp=timestamp, signature=signature, secret=secret, now=0.0)
    with pytest.raises(InvalidSignatureError):
        check_pagerduty(body, signatures=timestamp, secrets=(secret,))


@given(st.binary(max_size=300), st.integers(0, 10**9), st.floats(-301, 301))
def test_freshly_signed_callback_is_accepted(body: bytes, time: int, clock_offset: float) -> None:
    headers = make_slack_headers(body, time)

    def verify() -> None:
        check_slack(
            body,
            timestamp=headers["X-Slack-Request-Timestamp"],
            signature=headers["X-Slack-Signature"],
            secret=SecretStr(SLACK_SECRET),
            now=time + clock_offset,
        )

    if abs(clock_offset) <= 300:
        verify()
    else:
        with pytest.raises(InvalidSignatureError, match="clock"):
            verify()
