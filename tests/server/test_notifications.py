"""Notifications that are sent to Alertmanager, in the API, the console and the event feed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.alerting.notification_records import list_notifications
from queenright.api import Outbox
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.sockets import listen, make_socket_url, serve_app
from queenright.server.serving import RunningService, serving
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from queenright.server.views.api_models import build_status, make_feed_line, make_notification_row
from tests.alerting.parts import FakePeer
from tests.server.conftest import looping
from tests.waiting import until


class Peer(FakePeer):
    """An Alertmanager peer and its address."""

    url = ""


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer_server = Peer()
    with listen("127.0.0.1", 0, what="a peer", option="") as sock:
        async with serve_app(peer_server, sock):
            peer_server.url = make_socket_url(sock)
            yield peer_server


@pytest.fixture
def settings(tmp_path: Path, peer: Peer) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "storage"},
        alerting={"alertmanager_urls": [peer.url.replace("//", "//operator:hunter2secret@")]},
        http={"port": 0},
        otlp={"port": 0},
    )


def list_notification_rows(running: RunningService) -> list[dict[str, Any]]:
    service = running.service
    outbox = Outbox.of(service.outbox.status())
    records = service.store.read_now(lambda conn: list_notifications(conn, 50, now=service.clock()))
    return [make_notification_row(notification, outbox).model_dump(mode="json") for notification in records]


async def start_loop(running: RunningService, **looper: Any) -> None:
    await running.service.ingest(list(looping(running.service.clock(), **looper)))


def is_delivered(running: RunningService) -> bool:
    return any(
        delivery["delivered_at"]
        for notification in list_notification_rows(running)
        for delivery in notification["peers"]
    )


async def test_api_lists_each_notification_with_its_deliveries(
    running: RunningService, http: httpx.AsyncClient, peer: Peer
) -> None:
    await start_loop(running)
    await until(lambda: is_delivered(running), "the peer has the alert")

    answer = (await http.get("/api/notifications")).json()

    assert answer["outbox"]["active"] == 1
    assert answer["next"] is None
    [notification] = answer["notifications"]
    [ticket] = running.service.tickets.open_tickets()
    assert (notification["ticket_id"], notification["agent_id"], notification["cause"]) == (
        ticket.ticket_id,
        "looper",
        "doom_loop",
    )
    assert notification["status"] == "firing"
    [peer_delivery] = notification["peers"]
    assert (peer_delivery["peer"], peer_delivery["attempts"], peer_delivery["last_error"]) == (
        peer.url,
        1,
        None,
    )
    assert peer_delivery["outcome"] == "accepted"


async def test_unavailable_peer_is_named_with_the_reason(
    running: RunningService, http: httpx.AsyncClient, peer: Peer
) -> None:
    peer.status = 503
    await start_loop(running)
    await until(
        lambda: (
            list_notification_rows(running) and list_notification_rows(running)[0]["peers"][0]["last_error"]
        ),
        "an attempt has failed",
    )

    [notification] = (await http.get("/api/notifications")).json()["notifications"]

    [peer_delivery] = notification["peers"]
    assert (peer_delivery["peer"], peer_delivery["outcome"]) == (peer.url, "pending: 503 not now")
    assert peer_delivery["delivered_at"] is None
    assert "hunter2secret" not in json.dumps(notification)


async def test_rejection_by_a_peer_is_shown_with_its_reason(running: RunningService, peer: Peer) -> None:
    peer.refused_agents.add("looper")
    await start_loop(running)
    await until(
        lambda: (
            list_notification_rows(running)
            and list_notification_rows(running)[0]["peers"][0]["outcome"].startswith("refused")
        ),
        "the peer has refused the alert",
    )

    assert list_notification_rows(running)[0]["peers"][0]["outcome"] == "refused: 400 a label is wrong"


async def test_notification_of_an_ended_run_is_shown_as_resolved(running: RunningService, peer: Peer) -> None:
    await start_loop(running)
    await until(lambda: is_delivered(running), "the peer has the alert")

    await start_loop(running, times=0, ended=True)
    await until(
        lambda: "end accepted" in json.dumps(list_notification_rows(running)),
        "the peer has the end of the alert",
    )

    assert list_notification_rows(running)[0]["status"] == "resolved"


async def test_notifications_survive_a_restart(settings: Settings, peer: Peer) -> None:
    async with serving(settings) as running:
        await start_loop(running)
        await until(lambda: is_delivered(running), "the peer has the alert")
    peer.status = 503

    async with serving(settings) as new_service:
        [row] = list_notification_rows(new_service)

    assert row["agent_id"] == "looper"
    assert row["peers"][0]["outcome"] == "accepted"
    assert row["title"].startswith("looper is in a loop")


async def test_notification_without_a_peer_waits(tmp_path: Path) -> None:
    settings = load_settings(
        defaults=DEMO_DEFAULTS | {"storage": tmp_path / "alone"}, http={"port": 0}, otlp={"port": 0}
    )
    async with serving(settings) as running:
        await start_loop(running)
        await until(lambda: list_notification_rows(running), "a notification is stored")
        [row] = list_notification_rows(running)

    assert row["peers"] == []


async def test_rendering_does_not_query_the_store(
    running: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_loop(running)
    await until(lambda: is_delivered(running), "the peer has the alert")
    queries: list[object] = []
    monkeypatch.setattr(running.service.store, "read_now", queries.append)

    for _ in range(10):
        build_status(running.service)

    assert queries == []


@pytest.mark.parametrize(
    ("kind", "expected_text"),
    [
        (
            EventType.NOTIFICATION_DELIVERED,
            "Alertmanager accepted the alert on researcher (medium)",
        ),
        (
            EventType.NOTIFICATION_FAILED,
            "Alertmanager did not accept the alert on researcher (medium): 503",
        ),
    ],
)
def test_event_feed_names_the_alert(kind: EventType, expected_text: str) -> None:
    data = {"status": "firing", "ticket_severity": "medium", "error": "503"}
    event = AgentEvent(type=kind, time=1.0, agent_id="researcher", data=data)

    assert make_feed_line(event).text == expected_text


def test_event_feed_names_the_receiver_that_alertmanager_notified() -> None:
    event = AgentEvent(type=EventType.RECEIVER_NOTIFIED, time=1.0, data={"receiver": "slack", "alerts": 2})

    assert make_feed_line(event).text == "Alertmanager notified slack of 2 alerts"


@pytest.mark.parametrize(("severity", "label"), [("medium", " (medium)"), (None, "")])
def test_accepted_end_of_an_alert_shows_the_severity_of_its_ticket(severity: str | None, label: str) -> None:
    data = {"status": "resolved"} | ({"ticket_severity": severity} if severity else {})
    event = AgentEvent(type=EventType.NOTIFICATION_DELIVERED, time=1.0, agent_id="bee", data=data)

    assert make_feed_line(event).text == f"Alertmanager accepted the end of the alert on bee{label}"
