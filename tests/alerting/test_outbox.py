from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection, select, update

from queenright.alerting import notification, notification_table
from queenright.alerting.alert import LABEL_REMINDER
from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.notification import alert_key
from queenright.alerting.notification_rules import find_joined
from queenright.alerting.notification_table import read_active
from queenright.alerting.outbox import Outbox, OutboxStatus, enqueue
from queenright.health.findings import FindingKind, Severity
from queenright.health.store import event_log
from queenright.health.store.store import Store
from queenright.health.store.tables import OUTBOX
from queenright.health.tickets.ticket import TicketStatus
from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID
from queenright.runtime.events import EventType
from queenright.server.ops.sockets import make_socket_url, serve_app
from tests.alerting.conftest import MakeOutbox, ServedPeer, StartPeer
from tests.alerting.parts import T0, FakePeer, make_ticket
from tests.waiting import until

RESOLVED = {"status": TicketStatus.RESOLVED}
WEEK = 7 * 86_400
WORKER_ENDED = {"status": TicketStatus.WORKER_GONE}
RAISED_SEVERITY = {"severity": Severity.CRITICAL}


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """Yield stores on both engines, because only here is the SQL of the outbox used."""
    new_store = Store.open(database_url)
    yield new_store
    await new_store.close()


def list_firing(alert: dict[str, str], at: float) -> bool:
    return alert["endsAt"] > format_time(at)


def list_changes(alerts: list[dict[str, Any]], at: float) -> list[bool]:
    """Return what a peer got, without repeats: firing and resolved alerts are repeated for a while."""
    return [fires for fires, _ in itertools.groupby(list_firing(alert, at) for alert in alerts)]


def format_time(at: float) -> str:
    whole_seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    return f"{whole_seconds}.{round(at % 1 * 1000):03d}Z"


async def test_repeated_condition_is_one_delivery(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B37: thirty changes of one ticket are one notification under one identity."""
    outbox = make_outbox(peer.url)
    for occurrences in range(1, 31):
        await outbox.write_change(make_ticket(occurrences=occurrences))
        await outbox.deliver(after=1)

    assert len({json.dumps(alert["labels"], sort_keys=True) for alert in peer.peer.alerts}) == 1
    assert len({alert["startsAt"] for alert in peer.peer.alerts}) == 1
    assert [event.type for event in outbox.events] == [EventType.NOTIFICATION_DELIVERED]
    assert outbox.read_metric("queenright_notifications_total", outcome="delivered") == 1


async def test_active_alert_is_repeated_before_it_expires(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())

    assert await outbox.deliver() == T0 + 60
    await outbox.deliver(after=59)
    assert len(peer.peer.posts) == 1
    await outbox.deliver(after=1)

    first, second = peer.peer.alerts
    assert first["startsAt"] == second["startsAt"] == format_time(T0)
    assert [first["endsAt"], second["endsAt"]] == [format_time(T0 + WEEK), format_time(T0 + WEEK + 60)]
    assert len(outbox.events) == 1


async def test_resolved_ticket_ends_its_alert_once(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B39: the condition stayed clear for the hold, so the operator is notified."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    outbox.now += 30
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver()
    await outbox.deliver(after=300)

    assert list_changes(peer.peer.alerts, T0 + 30) == [True, False]
    assert [event.data["status"] for event in outbox.events] == ["firing", "resolved"]
    assert outbox.instance.status().active == outbox.instance.status().pending == 0


async def test_old_notification_is_not_deleted_by_the_outbox(
    make_outbox: MakeOutbox, peer: ServedPeer, store: Store
) -> None:
    """`retention.days` may be more than the default."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver(after=1)
    await outbox.deliver(after=3600)
    outbox.now += 40 * 86_400
    await outbox.write_change(make_ticket(ticket_id="t2", agent_id="writer"))
    await outbox.deliver()

    assert await store.read(
        lambda conn: list(conn.execute(select(OUTBOX.c.id).order_by(OUTBOX.c.id)).scalars())
    ) == [1, 2]


@pytest.mark.parametrize("names", [("1", "2"), ("2", "1")])
async def test_last_peer_of_a_cluster_gets_an_end_first(
    make_outbox: MakeOutbox, start_peer: StartPeer, names: tuple[str, str]
) -> None:
    """B118: otherwise the last peer may send the firing message again after the first has sent the end."""
    peers = [await start_peer(), await start_peer()]
    outbox = make_outbox(*(peer.url for peer in peers))
    for served_peer, name in zip(peers, names, strict=True):
        served_peer.peer.reported_start = format_time(T0)
        served_peer.peer.cluster = {"name": name, "peers": [{"name": "2"}, {"name": "1"}]}
    [first], [last] = ([peers[names.index(name)].peer] for name in "12")
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    assert len(first.alerts) == len(last.alerts) == 1

    outbox.now += 30
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver()
    await outbox.deliver(after=14)
    assert (list_changes(first.alerts, outbox.now), list_changes(last.alerts, outbox.now)) == (
        [True],
        [True, False],
    )
    await outbox.deliver(after=1)
    assert list_changes(first.alerts, outbox.now) == [True, False]


async def test_three_peers_get_an_end_one_after_the_other(
    make_outbox: MakeOutbox, start_peer: StartPeer
) -> None:
    """B118: the first peer waits until the second has had the end for long enough."""
    peers = [await start_peer() for _ in range(3)]
    outbox = make_outbox(*(peer.url for peer in peers))
    for served_peer, name in zip(peers, "123", strict=True):
        served_peer.peer.reported_start = format_time(T0)
        served_peer.peer.cluster = {"name": name, "peers": [{"name": "1"}, {"name": "2"}, {"name": "3"}]}
    await outbox.write_change(make_ticket())
    await outbox.deliver()

    outbox.now += 30
    await outbox.write_change(make_ticket(**RESOLVED))
    end_counts = []
    for after in (0, 14, 1, 14, 1):
        await outbox.deliver(after=after)
        end_counts.append(
            [len(list_changes(served_peer.peer.alerts, outbox.now)) == 2 for served_peer in peers]
        )

    assert end_counts == [[False, False, True]] * 2 + [[False, True, True]] * 2 + [[True] * 3]


async def test_unresponsive_peer_does_not_delay_an_end(
    make_outbox: MakeOutbox, start_peer: StartPeer
) -> None:
    peers = [await start_peer(), await start_peer()]
    outbox = make_outbox(*(peer.url for peer in peers))
    for served_peer, name in zip(peers, "12", strict=True):
        served_peer.peer.reported_start = format_time(T0)
        served_peer.peer.cluster = {"name": name, "peers": [{"name": "1"}, {"name": "2"}]}
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    peers[1].peer.status = 503
    outbox.now += 30
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver()
    await outbox.deliver(after=1)

    assert list_changes(peers[0].peer.alerts, outbox.now) == [True, False]


async def test_peers_that_start_later_get_an_end_one_after_the_other(make_outbox: MakeOutbox) -> None:
    """B118: the positions of the peers are known even if they refused the first connection."""
    peers = [FakePeer(), FakePeer()]
    async with contextlib.AsyncExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in peers]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        outbox = make_outbox(*(make_socket_url(sock) for sock in sockets))
        await outbox.deliver()
        for peer, sock, name in zip(peers, sockets, "12", strict=True):
            peer.reported_start, peer.cluster = (
                format_time(T0),
                {"name": name, "peers": [{"name": "1"}, {"name": "2"}]},
            )
            await stack.enter_async_context(serve_app(peer, sock))
        await outbox.write_change(make_ticket())
        await outbox.deliver(after=1)
        outbox.now += 30
        await outbox.write_change(make_ticket(**RESOLVED))
        await outbox.deliver()

    assert [list_changes(peer.alerts, outbox.now) for peer in peers] == [[True], [True, False]]


@pytest.mark.parametrize(
    "cluster", [None, "none", {"peers": "none"}, {"peers": [1, {}]}, {"name": "1", "peers": [{"name": "1"}]}]
)
async def test_peers_without_a_cluster_get_an_end_at_once(
    make_outbox: MakeOutbox, start_peer: StartPeer, cluster: object
) -> None:
    peers = [await start_peer(), await start_peer()]
    outbox = make_outbox(*(peer.url for peer in peers))
    for served_peer in peers:
        served_peer.peer.reported_start, served_peer.peer.cluster = format_time(T0), cluster
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    outbox.now += 30
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver()

    assert [list_changes(served_peer.peer.alerts, outbox.now) for served_peer in peers] == [[True, False]] * 2


async def test_accepted_resolve_is_repeated_once_after_a_restart(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B124: a restarted Alertmanager knows what it notified, but not the alert itself."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver(after=1)
    peer.peer.posts.clear()
    await outbox.deliver(after=60)
    assert peer.peer.posts == []
    for downtime in (60, 12 * 3600):
        outbox.restart()
        peer.peer.posts.clear()
        for _ in range(3):
            await outbox.deliver(after=downtime)
        assert [list_firing(alert, outbox.now) for alert in peer.peer.alerts] == [False]
    outbox.restart()
    peer.peer.posts.clear()
    await outbox.deliver(after=60)
    assert peer.peer.posts == []
    assert [event.data["status"] for event in outbox.events] == ["firing", "resolved"]


async def test_clock_set_back_after_a_rise_keeps_the_alert_ending(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket(severity=Severity.MEDIUM))
    await outbox.deliver()
    outbox.now += 100
    await outbox.write_change(make_ticket(severity=Severity.CRITICAL))
    await outbox.deliver()
    outbox.now -= 5
    await outbox.write_change(make_ticket(severity=Severity.CRITICAL, judge_reasoning="SentAlert anew."))
    await outbox.write_change(make_ticket(**RESOLVED | {"severity": Severity.CRITICAL}))
    await outbox.deliver()
    await outbox.deliver(after=60)
    assert outbox.instance.status().active == 0


async def test_incident_end_resolves_alerts_of_an_ended_worker(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B123: the earlier session has recovered, and its alert waits for no further session."""
    outbox = make_outbox(peer.url)
    other_ticket = make_ticket(ticket_id="ticket-2", session_id="two")
    ended_ticket = other_ticket.model_copy(update={"status": TicketStatus.WORKER_GONE})
    await outbox.write_change(make_ticket())
    for options, hold in ((other_ticket, 0.0), (ended_ticket, 600.0)):
        await outbox.write_change(options, earlier_tickets=["ticket-1"], hold_seconds=hold)
        await outbox.deliver(after=1)

    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver(after=1)

    assert not any(first.is_firing(outbox.now) for first in await outbox.store.read(read_active))
    assert not list_firing(peer.peer.alerts[-1], outbox.now)


def test_resolved_alert_does_not_fire_again_when_the_clock_is_set_back() -> None:
    """B122: the alert was held open for a further session, which did not start."""
    held_notification = notification.Notification(
        id=1,
        ticket_id="one",
        key="k",
        labels={},
        annotations={},
        starts_at=T0,
        ends_at=T0 + 600,
        created_at=T0,
        updated_at=T0,
    )
    assert held_notification.is_firing(T0 + 300)

    held_notification.resolved["alertmanager"] = T0 + 601

    assert not held_notification.is_firing(T0 + 300)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("rising_ticket", ["ticket-1", "ticket-2"])
async def test_rise_of_one_ticket_of_an_incident_keeps_an_alert_for_the_others(
    make_outbox: MakeOutbox, peer: ServedPeer, rising_ticket: str, is_restarted: bool
) -> None:
    """B123: the incident rises as a whole; when the ticket that rose ends, the other's page continues."""
    outbox = make_outbox(peer.url)
    tickets = {
        "ticket-1": make_ticket(severity=Severity.MEDIUM),
        "ticket-2": make_ticket(ticket_id="ticket-2", session_id="two", severity=Severity.MEDIUM),
    }
    [other] = tickets.keys() - {rising_ticket}
    await outbox.write_change(tickets["ticket-1"])
    second = tickets["ticket-2"]
    await outbox.store.transact(
        lambda conn: enqueue(conn, second, outbox.settings, outbox.now, earlier_tickets=["ticket-1"])
    )
    await outbox.deliver(after=1)

    await outbox.write_change(tickets[rising_ticket].model_copy(update=RAISED_SEVERITY))
    await outbox.deliver(after=1)
    if is_restarted:
        outbox.restart()
    for _ in range(20):
        await outbox.deliver(after=60)
    await outbox.write_change(tickets[rising_ticket].model_copy(update=RAISED_SEVERITY | RESOLVED))
    for _ in range(20):
        await outbox.deliver(after=60)

    firing_notifications = [
        active_notification
        for active_notification in await outbox.store.read(read_active)
        if active_notification.is_firing(outbox.now)
    ]
    assert [active_notification.ticket_id for active_notification in firing_notifications] == [other]
    [*_, last] = peer.peer.alerts
    assert (last["labels"]["severity"], list_firing(last, outbox.now)) == ("critical", True)


async def test_end_of_a_replaced_alert_is_not_repeated(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """
    B122: when the other alert has ended, nothing inhibits a repeat, which would say that the problem is over.
    """
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket(severity=Severity.MEDIUM))
    await outbox.deliver()
    await outbox.write_change(make_ticket(severity=Severity.CRITICAL))
    await outbox.deliver(after=1)
    outbox.restart()
    peer.peer.posts.clear()
    await outbox.deliver(after=60)
    assert [alert["labels"]["severity"] for alert in peer.peer.alerts] == ["critical"]


async def test_replaced_alert_held_by_another_ticket_is_not_resolved_again(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B122: earlier ends do not matter."""
    outbox = make_outbox(peer.url)
    lesser_ticket = {"severity": Severity.MEDIUM}
    other_ticket = make_ticket(ticket_id="t2", session_id="s2", **lesser_ticket)
    await outbox.write_change(make_ticket(**lesser_ticket))
    await outbox.store.transact(
        lambda conn: enqueue(conn, other_ticket, outbox.settings, outbox.now, earlier_tickets=["ticket-1"])
    )
    await outbox.deliver(after=1)
    await outbox.write_change(other_ticket.model_copy(update=RESOLVED))
    await outbox.deliver(after=1)
    await outbox.write_change(make_ticket(**RAISED_SEVERITY))
    await outbox.deliver(after=1)
    peer.peer.posts.clear()
    for _ in range(3):
        outbox.restart()
        for _ in range(3):
            await outbox.deliver(after=600)
    assert {alert["labels"]["severity"] for alert in peer.peer.alerts} == {"critical"}
    assert len(await outbox.store.read(read_active)) == 1


@pytest.mark.parametrize("end", [RESOLVED, WORKER_ENDED, {"status": TicketStatus.DISMISSED}])
async def test_end_is_repeated_once_to_a_restarted_peer(
    make_outbox: MakeOutbox, start_peer: StartPeer, end: dict[str, TicketStatus]
) -> None:
    """B124: the peer reports its start time; the other peer does not get a repeat."""
    first_peer, second_peer = await start_peer(), await start_peer()
    first_peer.peer.reported_start = second_peer.peer.reported_start = "before"
    outbox = make_outbox(first_peer.url, second_peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**end))
    await outbox.deliver(after=1)
    first_peer.peer.posts.clear()
    second_peer.peer.posts.clear()
    first_peer.peer.reported_start = "after"
    for _ in range(30):
        await outbox.deliver(after=40)
    assert [list_firing(alert, outbox.now) for alert in first_peer.peer.alerts] == [False]
    assert second_peer.peer.posts == []
    assert outbox.instance.status().active == 0
    assert await outbox.store.read(read_active) == []


async def test_page_is_not_delayed_by_a_peer_without_start_time(
    make_outbox: MakeOutbox, peer: ServedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B77: the peer accepts alerts, but its status page hangs; later pages are also posted."""
    monkeypatch.setattr("queenright.alerting.peer_delivery.PEER_TIMEOUT_SECONDS", 3600)
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver(after=1)
    peer.peer.posts.clear()
    peer.peer.status_requested.clear()
    peer.peer.status_allowed.clear()
    outbox.now += 60
    await outbox.write_change(make_ticket(ticket_id="t2", agent_id="writer"))
    outbox_task = asyncio.create_task(outbox.instance.run())
    try:
        await until(lambda: len(peer.peer.alerts) == 1, "the page is posted")
        await until(peer.peer.status_requested.is_set, "the peer is asked for its start time")
        await outbox.write_change(make_ticket(ticket_id="t3", agent_id="reviewer"))
        outbox.instance.wake()
        await until(lambda: len(peer.peer.alerts) == 2, "the later page is posted")
    finally:
        outbox_task.cancel()
        await asyncio.wait([outbox_task])
        peer.peer.status_allowed.set()
    assert [alert["labels"]["agent"] for alert in peer.peer.alerts] == ["writer", "reviewer"]


async def test_first_delivery_to_several_peers_asks_each_for_its_status_once(
    make_outbox: MakeOutbox, start_peer: StartPeer
) -> None:
    peers = [await start_peer(), await start_peer()]
    outbox = make_outbox(*(peer.url for peer in peers))
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.deliver(after=59)
    request_counts = [served_peer.peer.status_requests for served_peer in peers]
    await outbox.deliver(after=1)

    assert request_counts == [1, 1]
    assert [served_peer.peer.status_requests for served_peer in peers] == [2, 2]


async def test_stop_does_not_wait_for_the_status_of_peers(
    make_outbox: MakeOutbox, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenright.alerting.outbox._POSITION_TIMEOUT_SECONDS", 3600)
    monkeypatch.setattr("queenright.alerting.peer_delivery.PEER_TIMEOUT_SECONDS", 3600)
    peers = [await start_peer(), await start_peer()]
    for served_peer in peers:
        served_peer.peer.status_allowed.clear()
    outbox_task = asyncio.create_task(make_outbox(*(peer.url for peer in peers)).instance.run())
    await until(peers[0].peer.status_requested.is_set, "the peer is asked for its status")
    outbox_task.cancel()

    finished_tasks, _ = await asyncio.wait([outbox_task], timeout=3)

    assert finished_tasks == {outbox_task}
    for served_peer in peers:
        served_peer.peer.status_allowed.set()


async def test_end_is_not_repeated_when_a_load_balancer_switches_peers(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B124: each peer behind the load balancer reports a start time; only a new start time is a restart."""
    peer.peer.reported_start = "one"
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver(after=1)
    peer.peer.posts.clear()
    for round_number in range(10):
        peer.peer.reported_start = ("two", "one")[round_number % 2]
        await outbox.deliver(after=60)
    assert [list_firing(alert, outbox.now) for alert in peer.peer.alerts] == [False]


@pytest.mark.parametrize("downtime", [2, 20, 200])
async def test_end_is_repeated_after_an_outage_of_any_length(
    make_outbox: MakeOutbox, peer: ServedPeer, downtime: int
) -> None:
    """B124: the peer may have been restarted, and nothing else was due meanwhile."""
    peer.peer.reported_start = "before"
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver(after=1)
    peer.peer.posts.clear()
    peer.peer.status = 503
    for _ in range(downtime):
        await outbox.deliver(after=60)
    peer.peer.status, peer.peer.reported_start = 200, "after"
    for _ in range(30):
        await outbox.deliver(after=60)
    assert {list_firing(alert, outbox.now) for alert in peer.peer.alerts} == {False}
    assert await outbox.store.read(read_active) == []


@pytest.mark.parametrize("end", [RESOLVED, WORKER_ENDED])
async def test_ticket_that_ended_is_closed_while_an_earlier_one_holds_its_alert(
    make_outbox: MakeOutbox, peer: ServedPeer, end: dict[str, TicketStatus]
) -> None:
    """B123: a killed session keeps its ticket; later sessions add no work for the outbox."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    other_ticket = make_ticket(ticket_id="t2", session_id="s2")
    await outbox.store.transact(
        lambda conn: enqueue(conn, other_ticket, outbox.settings, outbox.now, earlier_tickets=["ticket-1"])
    )
    await outbox.deliver()
    await outbox.write_change(other_ticket.model_copy(update=end))
    for _ in range(20):
        await outbox.deliver(after=60)
    assert [
        active_notification.ticket_id for active_notification in await outbox.store.read(read_active)
    ] == ["ticket-1"]


async def test_clock_set_back_does_not_keep_a_resolved_alert_firing(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B23, B39: the end is before the start, and Alertmanager rejects such an alert."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.deliver(after=-3600)
    outbox.now += 60
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver()

    end = peer.peer.alerts[-1]
    assert end["startsAt"] == end["endsAt"] == format_time(outbox.now)
    assert outbox.instance.status().active == outbox.instance.status().pending == 0


@pytest.mark.parametrize("end", [RESOLVED, WORKER_ENDED])
async def test_clock_set_back_does_not_undo_a_resolve(
    make_outbox: MakeOutbox, peer: ServedPeer, end: dict[str, TicketStatus]
) -> None:
    """B23: a new ticket is notified, and does not join a closed one."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver(after=100)
    resolved_ticket = make_ticket(**end)
    # Like the alert of an ended worker that is held open for its next session.
    await outbox.store.transact(
        lambda conn: enqueue(conn, resolved_ticket, outbox.settings, outbox.now, hold_seconds=600)
    )
    await outbox.deliver(after=-3600)
    await outbox.deliver(after=1)

    assert not list_firing(peer.peer.alerts[-1], outbox.now)
    second_ticket = make_ticket(ticket_id="t2", session_id="s2")
    joined_notification = await outbox.store.read(
        lambda conn: find_joined(conn, second_ticket, ["ticket-1"], outbox.now)
    )
    assert joined_notification is None


async def test_resolve_is_repeated_until_every_peer_accepts_it(
    make_outbox: MakeOutbox, start_peer: StartPeer
) -> None:
    """B76: an unavailable peer does not affect the other, and gets everything once it is back."""
    reachable_peer, unreachable_peer = await start_peer(), await start_peer()
    outbox = make_outbox(reachable_peer.url, unreachable_peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    unreachable_peer.peer.status = 503
    outbox.now += 30
    await outbox.write_change(make_ticket(**RESOLVED))
    for _ in range(10):
        await outbox.deliver(after=31)

    assert list_changes(reachable_peer.peer.alerts, T0 + 30) == [True, False]
    assert list_changes(unreachable_peer.peer.alerts, T0 + 30) == [True]
    unreachable_peer.peer.status = 200
    await outbox.deliver(after=31)
    assert list_changes(unreachable_peer.peer.alerts, T0 + 30) == [True, False]


async def test_hour_without_alertmanager_loses_no_notification(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B76: everything is delivered later, and the outage is one failure event."""
    outbox = make_outbox(peer.url)
    peer.peer.status = 503
    for number in range(5):
        await outbox.write_change(make_ticket(ticket_id=f"t{number}", agent_id=f"agent-{number}"))
    for _ in range(40):
        await outbox.deliver(after=90)

    assert outbox.read_metric("queenright_outbox_pending") == 5
    assert outbox.read_metric("queenright_outbox_oldest_timestamp_seconds") == T0
    assert [event.type for event in outbox.events] == [EventType.NOTIFICATION_FAILED]
    assert outbox.instance.status().peers[0].error == "503 not now"
    peer.peer.status = 200
    await outbox.deliver(after=31)
    assert {alert["labels"]["agent"] for alert in peer.peer.alerts} == {f"agent-{n}" for n in range(5)}
    assert {alert["startsAt"] for alert in peer.peer.alerts} == {format_time(T0)}
    assert outbox.read_metric("queenright_outbox_pending") == 0
    assert outbox.read_metric("queenright_outbox_oldest_timestamp_seconds") == 0


async def test_alert_within_an_outage_is_sent_firing_and_resolved(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B77: no notification is lost, even if its condition is over."""
    outbox = make_outbox(peer.url)
    peer.peer.status = 503
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    outbox.now += 600
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver()
    peer.peer.status = 200
    await outbox.deliver(after=60)
    notified_at = outbox.now
    assert [list_firing(alert, notified_at) for alert in peer.peer.alerts] == [True]
    await outbox.deliver(after=59)
    assert len(peer.peer.alerts) == 1
    await outbox.deliver(after=1)

    assert [list_firing(alert, notified_at) for alert in peer.peer.alerts] == [True, False]
    assert outbox.instance.status().pending == 0


async def test_late_alert_lives_until_it_is_notified(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B77: Alertmanager does not send an alert that ends while it collects the group."""
    outbox = make_outbox(peer.url)
    peer.peer.status = 503
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    peer.peer.status = 200
    await outbox.deliver(after=600)
    notified_at = outbox.now
    outbox.now += 5
    await outbox.write_change(make_ticket(**RESOLVED))

    assert await outbox.deliver() == notified_at + 60
    assert [list_firing(alert, notified_at) for alert in peer.peer.alerts] == [True]
    await outbox.deliver(after=55)
    assert [list_firing(alert, outbox.now) for alert in peer.peer.alerts] == [True, False]


async def test_worker_that_ended_during_an_outage_sends_no_alert(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B40: the worker ends with an open ticket; no more alerts follow."""
    outbox = make_outbox(peer.url)
    peer.peer.status = 503
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**WORKER_ENDED))
    peer.peer.status = 200
    await outbox.deliver(after=60)
    await outbox.deliver(after=60)

    assert list_changes(peer.peer.alerts, outbox.now) == [False]


async def test_worker_that_ended_ends_its_alert(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B40: the alert ends with the worker."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.write_change(make_ticket(**WORKER_ENDED))
    for _ in range(5):
        await outbox.deliver(after=60)

    assert list_changes(peer.peer.alerts, T0 + 1) == [True, False]


async def test_visible_rise_starts_the_new_alert_before_the_old_ends(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B38: medium to critical changes the identity once; agent and cause stay, so the end is inhibited."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket(severity=Severity.MEDIUM))
    await outbox.deliver()
    await outbox.write_change(make_ticket(severity=Severity.CRITICAL, kind=FindingKind.STALL))
    await outbox.deliver(after=10)

    [first], [new, old] = peer.peer.posts
    assert first["labels"] == old["labels"]
    assert old["labels"] | {"severity": "critical", "ticket_severity": "critical"} == new["labels"]
    assert list_firing(new, outbox.now)
    assert not list_firing(old, outbox.now)


async def test_storm_label_of_a_sent_alert_is_stable(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B71, B38: a rise starts another alert in the same storm."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket(severity=Severity.MEDIUM, storm_id="storm-1"))
    await outbox.write_change(make_ticket(severity=Severity.MEDIUM, storm_id=""))
    await outbox.deliver()
    await outbox.write_change(make_ticket(severity=Severity.HIGH, storm_id="storm-2"))
    await outbox.deliver(after=10)

    assert {alert["labels"]["storm"] for alert in peer.peer.alerts} == {"storm-1"}


async def test_invisible_rise_changes_only_the_text(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B38: high and critical are both sent as critical; a fall changes nothing."""
    outbox = make_outbox(peer.url)
    for severity in (Severity.HIGH, Severity.CRITICAL, Severity.HIGH, Severity.LOW):
        await outbox.write_change(make_ticket(severity=severity))
        await outbox.deliver(after=1)

    assert {json.dumps(alert["labels"], sort_keys=True) for alert in peer.peer.alerts} == {
        json.dumps(peer.peer.alerts[0]["labels"], sort_keys=True)
    }
    assert peer.peer.alerts[0]["labels"]["ticket_severity"] == "high"
    assert "(critical)" in peer.peer.alerts[1]["annotations"]["summary"]


async def test_reminder_is_a_new_alert_and_the_previous_one_ends_silently(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    """B41, B77: all grouping and routing labels are the same; a second call changes nothing."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    [first] = peer.peer.alerts
    for reminders, turn in enumerate(("1", "2", "3", "1"), start=1):
        peer.peer.posts.clear()
        outbox.now += 3600
        reminder_ticket = make_ticket(reminders=reminders, notified_at=T0, bumped_at=outbox.now)
        for _ in range(2):
            await outbox.write_change(reminder_ticket)
        await outbox.deliver()

        # The ends of earlier reminders are repeated.
        started_alerts, resolved_alerts, *repeated_alerts = peer.peer.alerts
        assert not any(list_firing(alert, outbox.now) for alert in repeated_alerts)
        assert started_alerts["labels"] == first["labels"] | {LABEL_REMINDER: turn}
        assert list_firing(started_alerts, outbox.now)
        assert not list_firing(resolved_alerts, outbox.now)
        assert resolved_alerts["labels"].get(LABEL_REMINDER) == (
            None if reminders == 1 else str(reminders - 1)
        )
    assert all(part in started_alerts["annotations"]["summary"] for part in ("researcher", "(high)", "4 h"))

    peer.peer.posts.clear()
    outbox.restart()
    await outbox.write_change(reminder_ticket.model_copy(update={"status": TicketStatus.RESOLVED}))
    await outbox.deliver()
    assert not any(list_firing(alert, outbox.now) for alert in peer.peer.alerts)
    [end] = [alert for alert in peer.peer.alerts if alert["labels"] == started_alerts["labels"]]
    assert "reminder" not in end["annotations"]["summary"]


async def test_rise_after_a_reminder_starts_a_new_alert(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B41, B38: the new alert replaces the reminder."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(
        make_ticket(severity=Severity.MEDIUM, reminders=2, bumped_at=T0, notified_at=T0)
    )
    await outbox.write_change(
        make_ticket(severity=Severity.MEDIUM, reminders=3, bumped_at=T0, notified_at=T0)
    )
    await outbox.write_change(make_ticket(severity=Severity.HIGH))
    await outbox.deliver()

    assert [
        alert["labels"].get(LABEL_REMINDER) for alert in peer.peer.alerts if list_firing(alert, outbox.now)
    ] == [None]


async def test_acknowledged_ticket_has_no_reminder_text(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B41: the text of the reminder is gone."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket(reminders=1, notified_at=T0 - 3600, bumped_at=T0))
    await outbox.write_change(make_ticket(reminders=1, status=TicketStatus.ACKNOWLEDGED))
    await outbox.deliver()

    [alert] = peer.peer.alerts
    assert "eminder" not in alert["annotations"]["summary"]


async def test_relapse_is_notified_again(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B39: the ticket reopened after its end."""
    outbox = make_outbox(peer.url)
    for changes in ({}, RESOLVED, {}):
        await outbox.write_change(make_ticket(**changes))
        await outbox.deliver()
        outbox.now += 10

    assert [alert["endsAt"] > alert["startsAt"] for alert in peer.peer.alerts] == [True, True, True]
    assert [list_firing(alert, outbox.now) for alert in peer.peer.alerts] == [True, False, True]
    assert peer.peer.alerts[2]["startsAt"] > peer.peer.alerts[1]["endsAt"]


async def test_identity_is_stable_across_a_restart(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """
    B77: killed at any moment, nothing is sent under a second identity, and each delivery is recorded once.
    """
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    outbox.restart()
    await outbox.write_change(make_ticket(severity=Severity.CRITICAL))
    await outbox.deliver(after=5)

    first, alert_after_restart = peer.peer.alerts
    assert (first["labels"], first["startsAt"]) == (
        alert_after_restart["labels"],
        alert_after_restart["startsAt"],
    )
    assert len(outbox.events) == 1


async def test_refused_alert_is_dropped_and_does_not_block_others(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    outbox = make_outbox(peer.url)
    peer.peer.refused_agents = {"bad"}
    await outbox.write_change(make_ticket(ticket_id="t1", agent_id="bad"))
    await outbox.write_change(make_ticket(ticket_id="t2", agent_id="good"))
    for _ in range(5):
        await outbox.deliver(after=10)

    assert {alert["labels"]["agent"] for alert in peer.peer.alerts} == {"good"}
    assert outbox.read_metric("queenright_notifications_total", outcome="failed") == 1
    assert outbox.read_metric("queenright_outbox_pending") == 0
    [refused_alert] = outbox.instance.status().refused
    assert (refused_alert.ticket_ids, refused_alert.error) == (["t1"], "400 a label is wrong")
    [failure_event] = [event for event in outbox.events if event.type is EventType.NOTIFICATION_FAILED]
    assert failure_event.data["final"] is True
    await outbox.write_change(make_ticket(ticket_id="t1", agent_id="bad", **RESOLVED))
    await outbox.deliver()
    await outbox.deliver()
    assert outbox.instance.status().active == 1


async def test_rows_of_ended_incarnations_are_closed(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B123: a crash loop of hours costs the outbox no more than one of minutes."""
    outbox = make_outbox(peer.url)

    async def enqueue_session(number: int, **changes: Any) -> None:
        session_ticket = make_ticket(ticket_id=f"t{number}", session_id=f"s{number}", **changes)
        earlier_tickets = [f"t{number - 1}"]
        await outbox.store.transact(
            lambda conn: enqueue(
                conn,
                session_ticket,
                outbox.settings,
                outbox.now,
                earlier_tickets=earlier_tickets,
                hold_seconds=600.0,
            )
        )
        await outbox.deliver(after=5)

    end_statuses = [TicketStatus.RESOLVED, TicketStatus.WORKER_GONE]
    for number in range(20):
        await enqueue_session(number)
        if number:
            await enqueue_session(number - 1, status=end_statuses[number % 2])
    assert len(await outbox.store.read(read_active)) <= 2
    for number in range(20, 40):
        await enqueue_session(number - 1, status=TicketStatus.WORKER_GONE)
        await enqueue_session(number)
    assert len(await outbox.store.read(read_active)) == 1
    assert len({frozenset(alert["labels"].items()) for alert in peer.peer.alerts}) == 1
    assert all(list_firing(alert, outbox.now) for alert in peer.peer.alerts)

    await enqueue_session(39, **RESOLVED)
    assert not list_firing(peer.peer.alerts[-1], outbox.now)


def remove_ticket_label(conn: Connection) -> None:
    """Write the rows without the label of the ticket's id, as an earlier version did."""
    for row in conn.execute(select(OUTBOX.c.id, OUTBOX.c.labels)).all():
        labels = {name: value for name, value in row.labels.items() if name != ALERT_LABEL_TICKET_ID}
        values = {"labels": labels, "alert_key": alert_key(labels)}
        conn.execute(update(OUTBOX).where(OUTBOX.c.id == row.id).values(**values))


@pytest.mark.parametrize(
    "change", [{"reminders": 1, "notified_at": T0, "bumped_at": T0 + 3600}, RAISED_SEVERITY]
)
async def test_alert_of_an_earlier_version_keeps_its_labels(
    make_outbox: MakeOutbox, peer: ServedPeer, change: dict[str, object]
) -> None:
    """DESIGN 36: the alert that replaces it inhibits its end, because neither has the label."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket(severity=Severity.MEDIUM))
    await outbox.store.transact(remove_ticket_label)
    await outbox.deliver()
    await outbox.write_change(make_ticket(**{"severity": Severity.MEDIUM} | change))
    await outbox.deliver(after=1)

    assert len(peer.peer.alerts) == 3
    assert not any(ALERT_LABEL_TICKET_ID in alert["labels"] for alert in peer.peer.alerts)


async def test_two_sessions_of_an_earlier_version_are_one_alert_until_both_have_ended(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    outbox = make_outbox(peer.url)
    first = {"ticket_id": "t1", "session_id": "s1"}
    second = {"ticket_id": "t2", "session_id": "s2"}
    await outbox.write_change(make_ticket(**first))
    await outbox.write_change(make_ticket(**second))
    await outbox.store.transact(remove_ticket_label)
    await outbox.deliver()
    await outbox.write_change(make_ticket(**first, **RESOLVED))
    await outbox.deliver(after=5)
    assert all(list_firing(alert, outbox.now) for alert in peer.peer.alerts)
    await outbox.write_change(make_ticket(**second, **RESOLVED))
    await outbox.deliver(after=5)

    assert [list_firing(alert, outbox.now) for alert in peer.peer.alerts][-1] is False
    assert sum(not list_firing(alert, outbox.now) for alert in peer.peer.alerts) == 1
    assert {event.data["ticket_id"] for event in outbox.events} == {"t1", "t2"}


async def test_backoff_grows_to_half_a_minute_and_ends_with_success(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    outbox = make_outbox(peer.url)
    peer.peer.status = 503
    await outbox.write_change(make_ticket())
    pauses = []
    for _ in range(7):
        next_due = await outbox.deliver()
        pauses.append(next_due - outbox.now)
        outbox.now = next_due

    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    peer.peer.status = 200
    assert await outbox.deliver() == outbox.now + 60
    assert outbox.instance.status().peers[0].ok is True


async def test_alert_due_during_backoff_is_pending(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B77: otherwise the outbox would look empty for half a minute while ends and new pages wait."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    peer.peer.status = 503
    await outbox.deliver(after=60)
    assert outbox.instance.status().pending == 0
    count = len(peer.peer.posts)
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.write_change(make_ticket(ticket_id="t2", agent_id="writer"))
    await outbox.deliver(after=0.5)

    assert len(peer.peer.posts) == count
    assert outbox.instance.status().pending == outbox.instance.status().peers[0].pending == 2
    assert outbox.read_metric("queenright_outbox_pending") == 2
    assert outbox.read_metric("queenright_outbox_oldest_timestamp_seconds") == T0 + 60


async def test_refused_connection_is_retried_soon(make_outbox: MakeOutbox) -> None:
    outbox = make_outbox("http://127.0.0.1:1")
    await outbox.write_change(make_ticket())
    pauses = []
    for _ in range(5):
        next_due = await outbox.deliver()
        pauses.append(next_due - outbox.now)
        outbox.now = next_due

    assert pauses == [1, 2, 4, 5, 5]
    assert outbox.instance.status().peers[0].error == "cannot be reached"


async def test_clock_set_back_does_not_stop_deliveries(make_outbox: MakeOutbox, peer: ServedPeer) -> None:
    """B23: deliveries continue."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    await outbox.deliver(after=-7200)

    assert len(peer.peer.alerts) == 2
    assert peer.peer.alerts[1]["endsAt"] > peer.peer.alerts[1]["startsAt"]


async def test_deliveries_are_in_the_event_log(
    make_outbox: MakeOutbox, peer: ServedPeer, store: Store
) -> None:
    """B63: the events have the graph of the worker."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()

    logged_events = await store.read(lambda conn: event_log.read_events(conn))
    assert [(event.type, event.agent_id, event.session_id, event.graph_id) for _, event in logged_events] == [
        (EventType.NOTIFICATION_DELIVERED, "researcher", "session-1", "graph")
    ]
    assert logged_events[0][1].data == {
        "ticket_id": "ticket-1",
        "peer": peer.url,
        "status": "firing",
        "severity": "critical",
        "ticket_severity": "high",
        "attempts": 1,
    }


async def test_firing_notifications_wait_and_ended_ones_close_without_peers(make_outbox: MakeOutbox) -> None:
    outbox = make_outbox()
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    assert outbox.instance.status().pending == 1
    await outbox.write_change(make_ticket(**RESOLVED))
    await outbox.deliver()
    await outbox.deliver()

    assert outbox.instance.status() == OutboxStatus(active=0, pending=0, oldest=None, peers=[], refused=[])


async def test_untriaged_or_dismissed_ticket_enqueues_nothing(
    make_outbox: MakeOutbox, peer: ServedPeer
) -> None:
    outbox = make_outbox(peer.url)
    for status in (TicketStatus.OPEN, TicketStatus.DISMISSED, TicketStatus.RESOLVED):
        await outbox.write_change(make_ticket(status=status))
        await outbox.deliver()

    assert peer.peer.alerts == []


async def test_wake_before_the_commit_is_delivered_promptly(
    make_outbox: MakeOutbox, store: Store, peer: ServedPeer
) -> None:
    """The service wakes the outbox inside the transaction, when the row is not visible yet."""
    outbox = make_outbox(peer.url)
    woken_outbox = Outbox(
        store,
        outbox.settings,
        AlertmanagerClient(),
        clock=time.time,
        publish=outbox._publish,
        registry=CollectorRegistry(),
    )
    loop = asyncio.get_running_loop()
    outbox_task = asyncio.create_task(woken_outbox.run())
    await asyncio.sleep(0)

    def write(conn: Connection) -> None:
        enqueue(conn, make_ticket(), outbox.settings, time.time())
        loop.call_soon_threadsafe(woken_outbox.wake)
        time.sleep(0.05)

    start = time.perf_counter()
    await store.transact(write)
    await asyncio.wait_for(peer.peer.alerts_accepted.wait(), 3)
    outbox_task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await outbox_task

    # Far below the interval of the idle check, which would otherwise find it.
    assert time.perf_counter() - start < 2
    assert len(peer.peer.alerts) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_server_error_is_retried(make_outbox: MakeOutbox, peer: ServedPeer, status: int) -> None:
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    peer.peer.status = status
    await outbox.deliver()
    peer.peer.status = 200
    await outbox.deliver(after=2)

    assert len(peer.peer.alerts) == 1


async def test_second_round_reads_only_changes(
    make_outbox: MakeOutbox, peer: ServedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B131: with thousands of alerts, a round does not read the unchanged ones."""
    read_counts: list[int] = []

    def count_reads(*args: Any, **options: Any) -> Any:
        notifications = notification_table.read_changed(*args, **options)
        read_counts.append(len(notifications))
        return notifications

    monkeypatch.setattr("queenright.alerting.outbox.read_changed", count_reads)
    outbox = make_outbox(peer.url)
    for number in range(20):
        await outbox.write_change(make_ticket(ticket_id=f"t{number}", agent_id=f"bee-{number}"))
    await outbox.deliver()
    await outbox.deliver(after=9)
    read_counts.clear()

    await outbox.deliver(after=9)
    await outbox.write_change(make_ticket(ticket_id="t20", agent_id="bee-20"))
    await outbox.write_change(make_ticket(ticket_id="t3", agent_id="bee-3", **RESOLVED))
    await outbox.deliver()

    assert read_counts == [0, 2]
    assert list_firing(peer.peer.alerts[-2], outbox.now)
    assert not list_firing(peer.peer.alerts[-1], outbox.now)


async def test_unstored_receipt_is_not_assumed(
    make_outbox: MakeOutbox, peer: ServedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B131: a round never remembers more than what is stored."""
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    with monkeypatch.context() as patch:
        patch.setattr("queenright.alerting.outbox.record_receipts", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await outbox.deliver()

    await outbox.deliver(after=1)

    assert [event.data["status"] for event in outbox.events] == ["firing"]
