from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from queenright.alerting.recorder import RecordedMessage, Recorder

SLACK = {"attachments": [{"title": "a is in a loop.", "text": "why", "color": "danger"}]}
PAGE = {
    "routing_key": "k" * 32,
    "event_action": "trigger",
    "dedup_key": "d",
    "payload": {"summary": "s", "source": "q", "severity": "critical"},
}
LINK = {"type": "button", "text": "Ticket", "url": "http://q/tickets/1"}
BUTTON = {"type": "button", "text": "Acknowledge", "name": "acknowledge", "value": "ticket-1"}
ENQUEUE = "/pagerduty/v2/enqueue"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder(clock=lambda: 7.0)


@pytest.fixture
async def http(recorder: Recorder) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(recorder), base_url="http://r") as client:
        yield client


async def test_slack_request_gets_slacks_response(http: httpx.AsyncClient, recorder: Recorder) -> None:
    answer = await http.post("/slack/services/T/B/X", json=SLACK)
    assert (answer.status_code, answer.text) == (200, "ok")
    [message] = recorder.messages
    assert (message.time, message.channel, message.status) == (7.0, "slack", "firing")
    assert (message.title, message.text) == ("a is in a loop.", "why")


async def test_pagerduty_request_gets_pagerdutys_response(
    http: httpx.AsyncClient, recorder: Recorder
) -> None:
    answer = await http.post(ENQUEUE, json=PAGE)
    assert answer.status_code == 202
    assert answer.json() == {"status": "success", "message": "Event processed", "dedup_key": "d"}
    await http.post(ENQUEUE, json={"routing_key": "k" * 32, "event_action": "resolve", "dedup_key": "d"})
    assert [message.status for message in recorder.messages] == ["firing", "resolved"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/slack/x", {}),
        ("/slack/x", {"attachments": ["text"]}),
        ("/slack/x", []),
        ("/slack/x", {"attachments": [{"title": "a", "actions": [LINK] * 6}]}),
        ("/slack/x", {"attachments": [{"title": "a", "actions": [LINK | {"url": ""}]}]}),
        ("/slack/x", {"attachments": [{"title": "a", "actions": [BUTTON]}]}),
        ("/slack/x", {"attachments": [{"callback_id": "q", "actions": [BUTTON | {"value": "x" * 2001}]}]}),
        ("/slack/x", {"attachments": [{"title": "a", "footer": "x" * 301}]}),
        (ENQUEUE, PAGE | {"dedup_key": "x" * 256}),
        (ENQUEUE, PAGE | {"links": [{"href": "", "text": "Ticket"}]}),
        (ENQUEUE, PAGE | {"client": "x" * 512_001}),
        (ENQUEUE, {}),
        (ENQUEUE, PAGE | {"routing_key": "short"}),
        (ENQUEUE, PAGE | {"event_action": "shout"}),
        (ENQUEUE, PAGE | {"payload": {"summary": "s", "source": "q", "severity": "bad"}}),
        (ENQUEUE, PAGE | {"payload": {"summary": "", "source": "q", "severity": "info"}}),
        (ENQUEUE, PAGE | {"payload": {"summary": "s" * 1025, "source": "q", "severity": "info"}}),
        (ENQUEUE, {"routing_key": "k" * 32, "event_action": "resolve"}),
    ],
)
async def test_recorder_rejects_invalid_messages(
    http: httpx.AsyncClient, recorder: Recorder, path: str, body: Any
) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == 400
    assert not recorder.messages
    assert len(recorder.rejections) == 1


async def test_other_requests_are_not_messages(http: httpx.AsyncClient, recorder: Recorder) -> None:
    assert (await http.post("/slack/x", content=b"{")).status_code == 400
    assert (await http.get("/slack/x")).status_code == 405
    assert (await http.post("/else", json={})).status_code == 404
    assert (await http.post("/slack/x", content=b"x" * (2 << 20))).status_code == 413
    assert (await http.post("/deadman", json={})).status_code == 200
    assert not recorder.messages


async def test_latest_messages_are_kept_and_reported() -> None:
    lines: list[RecordedMessage] = []
    recorder = Recorder(lines.append)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(recorder), base_url="http://r") as http:
        for number in range(205):
            await http.post("/slack/x", json={"text": str(number)})
    assert len(lines) == 205
    assert [message.title for message in recorder.messages] == [str(n) for n in range(5, 205)]


async def test_recorder_returns_every_message_after_a_given_count(
    http: httpx.AsyncClient, recorder: Recorder
) -> None:
    """`queenright up` with its output in a file prints every page, not only the first 200."""
    printed_titles: list[str] = []
    for number in range(450):
        await http.post("/slack/services/T/B/X", json={"text": f"page {number}"})
        if number % 7 == 0:
            printed_titles += [message.title for message in recorder.after(len(printed_titles))]
    printed_titles += [message.title for message in recorder.after(len(printed_titles))]

    assert printed_titles == [f"page {number}" for number in range(450)]
    assert recorder.after(recorder.count) == []
