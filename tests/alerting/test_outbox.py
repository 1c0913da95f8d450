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
from tests.alerting.conftest import MakePost, ServedPeer, StartPeer
from tests.alerting.parts import T0, FakePeer, ticket
from tests.waiting import until

RESOLVED = {"status": TicketStatus.RESOLVED}
WEEK = 7 * 86_400
WORKER_ENDED = {"status": TicketStatus.WORKER_GONE}
RISEN = {"severity": Severity.CRITICAL}


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """Yield stores on both engines, because only here is the SQL of the outbox used."""
    opened = Store.open(database_url)
    yield opened
    await opened.close()


def list_firing(alert: dict[str, str], at: float) -> bool:
    return alert["endsAt"] > stamp(at)


def list_changes(alerts: list[dict[str, Any]], at: float) -> list[bool]:
    """Return what a peer got, without repeats: firing and resolved alerts are repeated for a while."""
    return [fires for fires, _ in itertools.groupby(list_firing(alert, at) for alert in alerts)]


def stamp(at: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    return f"{whole}.{round(at % 1 * 1000):03d}Z"


async def test_repeated_condition_is_one_delivery(make_post: MakePost, peer: ServedPeer) -> None:
    """B37: thirty changes of one ticket are one notification under one identity."""
    post = make_post(peer.url)
    for occurrences in range(1, 31):
        await post.say(ticket(occurrences=occurrences))
        await post.deliver(after=1)

    assert len({json.dumps(a["labels"], sort_keys=True) for a in peer.peer.alerts}) == 1
    assert len({a["startsAt"] for a in peer.peer.alerts}) == 1
    assert [e.type for e in post.events] == [EventType.NOTIFICATION_DELIVERED]
    assert post.metric("queenright_notifications_total", outcome="delivered") == 1


async def test_active_alert_is_repeated_before_it_expires(make_post: MakePost, peer: ServedPeer) -> None:
    post = make_post(peer.url)
    await post.say(ticket())

    assert await post.deliver() == T0 + 60
    await post.deliver(after=59)
    assert len(peer.peer.posts) == 1
    await post.deliver(after=1)

    first, second = peer.peer.alerts
    assert first["startsAt"] == second["startsAt"] == stamp(T0)
    assert [first["endsAt"], second["endsAt"]] == [stamp(T0 + WEEK), stamp(T0 + WEEK + 60)]
    assert len(post.events) == 1


async def test_resolved_ticket_ends_its_alert_once(make_post: MakePost, peer: ServedPeer) -> None:
    """B39: recovered for the hold time: the operator is notified."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    post.now += 30
    await post.say(ticket(**RESOLVED))
    await post.deliver()
    await post.deliver(after=300)

    assert list_changes(peer.peer.alerts, T0 + 30) == [True, False]
    assert [e.data["status"] for e in post.events] == ["firing", "resolved"]
    assert post.outbox.status().active == post.outbox.status().pending == 0


async def test_old_notification_is_not_deleted_by_the_outbox(
    make_post: MakePost, peer: ServedPeer, store: Store
) -> None:
    """`retention.days` may be more than the default."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**RESOLVED))
    await post.deliver(after=1)
    await post.deliver(after=3600)
    post.now += 40 * 86_400
    await post.say(ticket(ticket_id="t2", agent_id="writer"))
    await post.deliver()

    assert await store.read(
        lambda conn: list(conn.execute(select(OUTBOX.c.id).order_by(OUTBOX.c.id)).scalars())
    ) == [1, 2]


@pytest.mark.parametrize("names", [("1", "2"), ("2", "1")])
async def test_last_peer_of_a_cluster_gets_an_end_first(
    make_post: MakePost, start_peer: StartPeer, names: tuple[str, str]
) -> None:
    """B118: otherwise it may send the firing message again after the first has sent the end."""
    peers = [await start_peer(), await start_peer()]
    post = make_post(*(peer.url for peer in peers))
    for peer_, name in zip(peers, names, strict=True):
        peer_.peer.started = stamp(T0)
        peer_.peer.cluster = {"name": name, "peers": [{"name": "2"}, {"name": "1"}]}
    [first], [last] = ([peers[names.index(name)].peer] for name in "12")
    await post.say(ticket())
    await post.deliver()
    assert len(first.alerts) == len(last.alerts) == 1

    post.now += 30
    await post.say(ticket(**RESOLVED))
    await post.deliver()
    await post.deliver(after=14)
    assert (list_changes(first.alerts, post.now), list_changes(last.alerts, post.now)) == (
        [True],
        [True, False],
    )
    await post.deliver(after=1)
    assert list_changes(first.alerts, post.now) == [True, False]


async def test_three_peers_get_an_end_one_after_the_other(make_post: MakePost, start_peer: StartPeer) -> None:
    """B118: the first waits until the one before the last has had the end for long enough."""
    peers = [await start_peer() for _ in range(3)]
    post = make_post(*(peer.url for peer in peers))
    for each, name in zip(peers, "123", strict=True):
        each.peer.started = stamp(T0)
        each.peer.cluster = {"name": name, "peers": [{"name": "1"}, {"name": "2"}, {"name": "3"}]}
    await post.say(ticket())
    await post.deliver()

    post.now += 30
    await post.say(ticket(**RESOLVED))
    ended = []
    for after in (0, 14, 1, 14, 1):
        await post.deliver(after=after)
        ended.append([len(list_changes(each.peer.alerts, post.now)) == 2 for each in peers])

    assert ended == [[False, False, True]] * 2 + [[False, True, True]] * 2 + [[True] * 3]


async def test_unresponsive_peer_does_not_delay_an_end(make_post: MakePost, start_peer: StartPeer) -> None:
    peers = [await start_peer(), await start_peer()]
    post = make_post(*(peer.url for peer in peers))
    for each, name in zip(peers, "12", strict=True):
        each.peer.started = stamp(T0)
        each.peer.cluster = {"name": name, "peers": [{"name": "1"}, {"name": "2"}]}
    await post.say(ticket())
    await post.deliver()
    peers[1].peer.status = 503
    post.now += 30
    await post.say(ticket(**RESOLVED))
    await post.deliver()
    await post.deliver(after=1)

    assert list_changes(peers[0].peer.alerts, post.now) == [True, False]


async def test_peers_that_start_later_get_an_end_one_after_the_other(make_post: MakePost) -> None:
    """B118: their places are known even if they refused the first connection."""
    peers = [FakePeer(), FakePeer()]
    async with contextlib.AsyncExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in peers]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        post = make_post(*(make_socket_url(sock) for sock in sockets))
        await post.deliver()
        for peer, sock, name in zip(peers, sockets, "12", strict=True):
            peer.started, peer.cluster = stamp(T0), {"name": name, "peers": [{"name": "1"}, {"name": "2"}]}
            await stack.enter_async_context(serve_app(peer, sock))
        await post.say(ticket())
        await post.deliver(after=1)
        post.now += 30
        await post.say(ticket(**RESOLVED))
        await post.deliver()

    assert [list_changes(peer.alerts, post.now) for peer in peers] == [[True], [True, False]]


@pytest.mark.parametrize(
    "cluster", [None, "none", {"peers": "none"}, {"peers": [1, {}]}, {"name": "1", "peers": [{"name": "1"}]}]
)
async def test_peers_without_a_cluster_get_an_end_at_once(
    make_post: MakePost, start_peer: StartPeer, cluster: object
) -> None:
    peers = [await start_peer(), await start_peer()]
    post = make_post(*(peer.url for peer in peers))
    for each in peers:
        each.peer.started, each.peer.cluster = stamp(T0), cluster
    await post.say(ticket())
    await post.deliver()
    post.now += 30
    await post.say(ticket(**RESOLVED))
    await post.deliver()

    assert [list_changes(each.peer.alerts, post.now) for each in peers] == [[True, False]] * 2


async def test_accepted_resolve_is_repeated_once_after_a_restart(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B124: a restarted Alertmanager knows what it notified, but not the alert itself."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**RESOLVED))
    await post.deliver(after=1)
    peer.peer.posts.clear()
    await post.deliver(after=60)
    assert peer.peer.posts == []
    for downtime in (60, 12 * 3600):
        post.restart()
        peer.peer.posts.clear()
        for _ in range(3):
            await post.deliver(after=downtime)
        assert [list_firing(a, post.now) for a in peer.peer.alerts] == [False]
    post.restart()
    peer.peer.posts.clear()
    await post.deliver(after=60)
    assert peer.peer.posts == []
    assert [e.data["status"] for e in post.events] == ["firing", "resolved"]


async def test_clock_set_back_after_a_rise_keeps_the_alert_ending(
    make_post: MakePost, peer: ServedPeer
) -> None:
    post = make_post(peer.url)
    await post.say(ticket(severity=Severity.MEDIUM))
    await post.deliver()
    post.now += 100
    await post.say(ticket(severity=Severity.CRITICAL))
    await post.deliver()
    post.now -= 5
    await post.say(ticket(severity=Severity.CRITICAL, judge_reasoning="SentAlert anew."))
    await post.say(ticket(**RESOLVED | {"severity": Severity.CRITICAL}))
    await post.deliver()
    await post.deliver(after=60)
    assert post.outbox.status().active == 0


async def test_incident_end_resolves_alerts_of_an_ended_worker(make_post: MakePost, peer: ServedPeer) -> None:
    """B123: the earlier session has recovered, and its alert waits for no further session."""
    post = make_post(peer.url)
    other = ticket(ticket_id="ticket-2", session_id="two")
    ended = other.model_copy(update={"status": TicketStatus.WORKER_GONE})
    await post.say(ticket())
    for options, hold in ((other, 0.0), (ended, 600.0)):
        await post.say(options, earlier_tickets=["ticket-1"], hold_seconds=hold)
        await post.deliver(after=1)

    await post.say(ticket(**RESOLVED))
    await post.deliver(after=1)

    assert not any(first.is_firing(post.now) for first in await post.store.read(read_active))
    assert not list_firing(peer.peer.alerts[-1], post.now)


def test_resolved_alert_does_not_fire_again_when_the_clock_is_set_back() -> None:
    """B122: it was held open for a further session, which did not start."""
    held = notification.Notification(
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
    assert held.is_firing(T0 + 300)

    held.resolved["alertmanager"] = T0 + 601

    assert not held.is_firing(T0 + 300)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("riser", ["ticket-1", "ticket-2"])
async def test_rise_of_one_ticket_of_an_incident_keeps_an_alert_for_the_others(
    make_post: MakePost, peer: ServedPeer, riser: str, restarted: bool
) -> None:
    """B123: the incident rises as a whole; when the ticket that rose ends, the other's page continues."""
    post = make_post(peer.url)
    tickets = {
        "ticket-1": ticket(severity=Severity.MEDIUM),
        "ticket-2": ticket(ticket_id="ticket-2", session_id="two", severity=Severity.MEDIUM),
    }
    [other] = tickets.keys() - {riser}
    await post.say(tickets["ticket-1"])
    second = tickets["ticket-2"]
    await post.store.transact(
        lambda conn: enqueue(conn, second, post.settings, post.now, earlier_tickets=["ticket-1"])
    )
    await post.deliver(after=1)

    await post.say(tickets[riser].model_copy(update=RISEN))
    await post.deliver(after=1)
    if restarted:
        post.restart()
    for _ in range(20):
        await post.deliver(after=60)
    await post.say(tickets[riser].model_copy(update=RISEN | RESOLVED))
    for _ in range(20):
        await post.deliver(after=60)

    holding = [one for one in await post.store.read(read_active) if one.is_firing(post.now)]
    assert [one.ticket_id for one in holding] == [other]
    [*_, last] = peer.peer.alerts
    assert (last["labels"]["severity"], list_firing(last, post.now)) == ("critical", True)


async def test_end_of_a_replaced_alert_is_not_repeated(make_post: MakePost, peer: ServedPeer) -> None:
    """B122: its inhibition ends with the other alert, and users would read that the problem is over."""
    post = make_post(peer.url)
    await post.say(ticket(severity=Severity.MEDIUM))
    await post.deliver()
    await post.say(ticket(severity=Severity.CRITICAL))
    await post.deliver(after=1)
    post.restart()
    peer.peer.posts.clear()
    await post.deliver(after=60)
    assert [alert["labels"]["severity"] for alert in peer.peer.alerts] == ["critical"]


async def test_replaced_alert_held_by_another_ticket_is_not_resolved_again(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B122: regardless of earlier ends."""
    post = make_post(peer.url)
    lesser = {"severity": Severity.MEDIUM}
    other = ticket(ticket_id="t2", session_id="s2", **lesser)
    await post.say(ticket(**lesser))
    await post.store.transact(
        lambda conn: enqueue(conn, other, post.settings, post.now, earlier_tickets=["ticket-1"])
    )
    await post.deliver(after=1)
    await post.say(other.model_copy(update=RESOLVED))
    await post.deliver(after=1)
    await post.say(ticket(**RISEN))
    await post.deliver(after=1)
    peer.peer.posts.clear()
    for _ in range(3):
        post.restart()
        for _ in range(3):
            await post.deliver(after=600)
    assert {alert["labels"]["severity"] for alert in peer.peer.alerts} == {"critical"}
    assert len(await post.store.read(read_active)) == 1


@pytest.mark.parametrize("end", [RESOLVED, WORKER_ENDED, {"status": TicketStatus.DISMISSED}])
async def test_end_is_repeated_once_to_a_restarted_peer(
    make_post: MakePost, start_peer: StartPeer, end: dict[str, TicketStatus]
) -> None:
    """B124: the peer reports its start time; the other peer does not get a repeat."""
    one, other = await start_peer(), await start_peer()
    one.peer.started = other.peer.started = "before"
    post = make_post(one.url, other.url)
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**end))
    await post.deliver(after=1)
    one.peer.posts.clear()
    other.peer.posts.clear()
    one.peer.started = "after"
    for _ in range(30):
        await post.deliver(after=40)
    assert [list_firing(a, post.now) for a in one.peer.alerts] == [False]
    assert other.peer.posts == []
    assert post.outbox.status().active == 0
    assert await post.store.read(read_active) == []


async def test_page_is_not_delayed_by_a_peer_without_start_time(
    make_post: MakePost, peer: ServedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B77: it accepts alerts, but its status page hangs; later pages are posted too."""
    monkeypatch.setattr("queenright.alerting.peer_delivery.PEER_TIMEOUT_SECONDS", 3600)
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**RESOLVED))
    await post.deliver(after=1)
    peer.peer.posts.clear()
    peer.peer.asked_for_status.clear()
    peer.peer.status_allowed.clear()
    post.now += 60
    await post.say(ticket(ticket_id="t2", agent_id="writer"))
    running = asyncio.create_task(post.outbox.run())
    try:
        await until(lambda: len(peer.peer.alerts) == 1, "the page is posted")
        await until(peer.peer.asked_for_status.is_set, "the peer is asked for its start time")
        await post.say(ticket(ticket_id="t3", agent_id="reviewer"))
        post.outbox.wake()
        await until(lambda: len(peer.peer.alerts) == 2, "the later page is posted")
    finally:
        running.cancel()
        await asyncio.wait([running])
        peer.peer.status_allowed.set()
    assert [alert["labels"]["agent"] for alert in peer.peer.alerts] == ["writer", "reviewer"]


async def test_first_delivery_to_several_peers_asks_each_for_its_status_once(
    make_post: MakePost, start_peer: StartPeer
) -> None:
    peers = [await start_peer(), await start_peer()]
    post = make_post(*(peer.url for peer in peers))
    await post.say(ticket())
    await post.deliver()
    await post.deliver(after=59)
    asked = [each.peer.status_requests for each in peers]
    await post.deliver(after=1)

    assert asked == [1, 1]
    assert [each.peer.status_requests for each in peers] == [2, 2]


async def test_stop_does_not_wait_for_the_status_of_peers(
    make_post: MakePost, start_peer: StartPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queenright.alerting.outbox._POSITION_TIMEOUT_SECONDS", 3600)
    monkeypatch.setattr("queenright.alerting.peer_delivery.PEER_TIMEOUT_SECONDS", 3600)
    peers = [await start_peer(), await start_peer()]
    for each in peers:
        each.peer.status_allowed.clear()
    running = asyncio.create_task(make_post(*(peer.url for peer in peers)).outbox.run())
    await until(peers[0].peer.asked_for_status.is_set, "the peer is asked for its status")
    running.cancel()

    ended, _ = await asyncio.wait([running], timeout=3)

    assert ended == {running}
    for each in peers:
        each.peer.status_allowed.set()


async def test_end_is_not_repeated_when_a_load_balancer_switches_peers(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B124: each peer behind it reports a start time; only a new start time is a restart."""
    peer.peer.started = "one"
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**RESOLVED))
    await post.deliver(after=1)
    peer.peer.posts.clear()
    for round_number in range(10):
        peer.peer.started = ("two", "one")[round_number % 2]
        await post.deliver(after=60)
    assert [list_firing(a, post.now) for a in peer.peer.alerts] == [False]


@pytest.mark.parametrize("away", [2, 20, 200])
async def test_end_is_repeated_after_an_outage_of_any_length(
    make_post: MakePost, peer: ServedPeer, away: int
) -> None:
    """B124: the peer may have been restarted, and nothing else was due meanwhile."""
    peer.peer.started = "before"
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**RESOLVED))
    await post.deliver(after=1)
    peer.peer.posts.clear()
    peer.peer.status = 503
    for _ in range(away):
        await post.deliver(after=60)
    peer.peer.status, peer.peer.started = 200, "after"
    for _ in range(30):
        await post.deliver(after=60)
    assert {list_firing(a, post.now) for a in peer.peer.alerts} == {False}
    assert await post.store.read(read_active) == []


@pytest.mark.parametrize("end", [RESOLVED, WORKER_ENDED])
async def test_ticket_that_ended_is_closed_while_an_earlier_one_holds_its_alert(
    make_post: MakePost, peer: ServedPeer, end: dict[str, TicketStatus]
) -> None:
    """B123: a killed session keeps its ticket; later sessions add no work for the outbox."""
    post = make_post(peer.url)
    await post.say(ticket())
    other = ticket(ticket_id="t2", session_id="s2")
    await post.store.transact(
        lambda conn: enqueue(conn, other, post.settings, post.now, earlier_tickets=["ticket-1"])
    )
    await post.deliver()
    await post.say(other.model_copy(update=end))
    for _ in range(20):
        await post.deliver(after=60)
    assert [one.ticket_id for one in await post.store.read(read_active)] == ["ticket-1"]


async def test_clock_set_back_does_not_keep_a_resolved_alert_firing(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B23, B39: the end is before the start, and Alertmanager rejects such an alert."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.deliver(after=-3600)
    post.now += 60
    await post.say(ticket(**RESOLVED))
    await post.deliver()

    end = peer.peer.alerts[-1]
    assert end["startsAt"] == end["endsAt"] == stamp(post.now)
    assert post.outbox.status().active == post.outbox.status().pending == 0


@pytest.mark.parametrize("end", [RESOLVED, WORKER_ENDED])
async def test_clock_set_back_does_not_undo_a_resolve(
    make_post: MakePost, peer: ServedPeer, end: dict[str, TicketStatus]
) -> None:
    """B23: a new ticket is notified, and does not join a closed one."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver(after=100)
    resolved = ticket(**end)
    # Like the alert of an ended worker that is held open for its next session.
    await post.store.transact(lambda conn: enqueue(conn, resolved, post.settings, post.now, hold_seconds=600))
    await post.deliver(after=-3600)
    await post.deliver(after=1)

    assert not list_firing(peer.peer.alerts[-1], post.now)
    second = ticket(ticket_id="t2", session_id="s2")
    joined = await post.store.read(lambda conn: find_joined(conn, second, ["ticket-1"], post.now))
    assert joined is None


async def test_resolve_is_repeated_until_every_peer_accepts_it(
    make_post: MakePost, start_peer: StartPeer
) -> None:
    """B76: an unavailable peer does not affect the other, and gets everything once it is back."""
    up, down = await start_peer(), await start_peer()
    post = make_post(up.url, down.url)
    await post.say(ticket())
    await post.deliver()
    down.peer.status = 503
    post.now += 30
    await post.say(ticket(**RESOLVED))
    for _ in range(10):
        await post.deliver(after=31)

    assert list_changes(up.peer.alerts, T0 + 30) == [True, False]
    assert list_changes(down.peer.alerts, T0 + 30) == [True]
    down.peer.status = 200
    await post.deliver(after=31)
    assert list_changes(down.peer.alerts, T0 + 30) == [True, False]


async def test_hour_without_alertmanager_loses_nothing(make_post: MakePost, peer: ServedPeer) -> None:
    """B76: everything is delivered later, and the outage is one failure event."""
    post = make_post(peer.url)
    peer.peer.status = 503
    for number in range(5):
        await post.say(ticket(ticket_id=f"t{number}", agent_id=f"agent-{number}"))
    for _ in range(40):
        await post.deliver(after=90)

    assert post.metric("queenright_outbox_pending") == 5
    assert post.metric("queenright_outbox_oldest_timestamp_seconds") == T0
    assert [e.type for e in post.events] == [EventType.NOTIFICATION_FAILED]
    assert post.outbox.status().peers[0].error == "503 not now"
    peer.peer.status = 200
    await post.deliver(after=31)
    assert {a["labels"]["agent"] for a in peer.peer.alerts} == {f"agent-{n}" for n in range(5)}
    assert {a["startsAt"] for a in peer.peer.alerts} == {stamp(T0)}
    assert post.metric("queenright_outbox_pending") == 0
    assert post.metric("queenright_outbox_oldest_timestamp_seconds") == 0


async def test_alert_within_an_outage_is_sent_firing_and_resolved(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B77: no notification is lost, even if its condition is over."""
    post = make_post(peer.url)
    peer.peer.status = 503
    await post.say(ticket())
    await post.deliver()
    post.now += 600
    await post.say(ticket(**RESOLVED))
    await post.deliver()
    peer.peer.status = 200
    await post.deliver(after=60)
    notified_at = post.now
    assert [list_firing(a, notified_at) for a in peer.peer.alerts] == [True]
    await post.deliver(after=59)
    assert len(peer.peer.alerts) == 1
    await post.deliver(after=1)

    assert [list_firing(a, notified_at) for a in peer.peer.alerts] == [True, False]
    assert post.outbox.status().pending == 0


async def test_late_alert_lives_until_it_is_notified(make_post: MakePost, peer: ServedPeer) -> None:
    """B77: Alertmanager does not send an alert that ends while it collects the group."""
    post = make_post(peer.url)
    peer.peer.status = 503
    await post.say(ticket())
    await post.deliver()
    peer.peer.status = 200
    await post.deliver(after=600)
    notified_at = post.now
    post.now += 5
    await post.say(ticket(**RESOLVED))

    assert await post.deliver() == notified_at + 60
    assert [list_firing(a, notified_at) for a in peer.peer.alerts] == [True]
    await post.deliver(after=55)
    assert [list_firing(a, post.now) for a in peer.peer.alerts] == [True, False]


async def test_worker_that_ended_during_an_outage_sends_no_alert(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B40: the worker ends with an open ticket; no more alerts follow."""
    post = make_post(peer.url)
    peer.peer.status = 503
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**WORKER_ENDED))
    peer.peer.status = 200
    await post.deliver(after=60)
    await post.deliver(after=60)

    assert list_changes(peer.peer.alerts, post.now) == [False]


async def test_worker_that_ended_ends_its_alert(make_post: MakePost, peer: ServedPeer) -> None:
    """B40: its alert ends with it."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.say(ticket(**WORKER_ENDED))
    for _ in range(5):
        await post.deliver(after=60)

    assert list_changes(peer.peer.alerts, T0 + 1) == [True, False]


async def test_visible_rise_starts_the_new_alert_before_the_old_ends(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B38: medium to critical changes the identity once; agent and cause stay, so the end is inhibited."""
    post = make_post(peer.url)
    await post.say(ticket(severity=Severity.MEDIUM))
    await post.deliver()
    await post.say(ticket(severity=Severity.CRITICAL, kind=FindingKind.STALL))
    await post.deliver(after=10)

    [first], [new, old] = peer.peer.posts
    assert first["labels"] == old["labels"]
    assert old["labels"] | {"severity": "critical", "ticket_severity": "critical"} == new["labels"]
    assert list_firing(new, post.now)
    assert not list_firing(old, post.now)


async def test_storm_label_of_a_sent_alert_is_stable(make_post: MakePost, peer: ServedPeer) -> None:
    """B71, B38: a rise starts another alert in the same storm."""
    post = make_post(peer.url)
    await post.say(ticket(severity=Severity.MEDIUM, storm_id="storm-1"))
    await post.say(ticket(severity=Severity.MEDIUM, storm_id=""))
    await post.deliver()
    await post.say(ticket(severity=Severity.HIGH, storm_id="storm-2"))
    await post.deliver(after=10)

    assert {a["labels"]["storm"] for a in peer.peer.alerts} == {"storm-1"}


async def test_invisible_rise_changes_only_the_text(make_post: MakePost, peer: ServedPeer) -> None:
    """B38: high and critical are both sent as critical; a fall changes nothing."""
    post = make_post(peer.url)
    for severity in (Severity.HIGH, Severity.CRITICAL, Severity.HIGH, Severity.LOW):
        await post.say(ticket(severity=severity))
        await post.deliver(after=1)

    assert {json.dumps(a["labels"], sort_keys=True) for a in peer.peer.alerts} == {
        json.dumps(peer.peer.alerts[0]["labels"], sort_keys=True)
    }
    assert peer.peer.alerts[0]["labels"]["ticket_severity"] == "high"
    assert "(critical)" in peer.peer.alerts[1]["annotations"]["summary"]


async def test_reminder_is_a_new_alert_and_the_previous_one_ends_silently(
    make_post: MakePost, peer: ServedPeer
) -> None:
    """B41, B77: all grouping and routing labels are the same; a second call changes nothing."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    [first] = peer.peer.alerts
    for reminders, turn in enumerate(("1", "2", "3", "1"), start=1):
        peer.peer.posts.clear()
        post.now += 3600
        repeated_call = ticket(reminders=reminders, notified_at=T0, bumped_at=post.now)
        for _ in range(2):
            await post.say(repeated_call)
        await post.deliver()

        # The ends of earlier reminders are repeated.
        started_alerts, resolved, *repeated = peer.peer.alerts
        assert not any(list_firing(alert, post.now) for alert in repeated)
        assert started_alerts["labels"] == first["labels"] | {LABEL_REMINDER: turn}
        assert list_firing(started_alerts, post.now)
        assert not list_firing(resolved, post.now)
        assert resolved["labels"].get(LABEL_REMINDER) == (None if reminders == 1 else str(reminders - 1))
    assert all(part in started_alerts["annotations"]["summary"] for part in ("researcher", "(high)", "4 h"))

    peer.peer.posts.clear()
    post.restart()
    await post.say(repeated_call.model_copy(update={"status": TicketStatus.RESOLVED}))
    await post.deliver()
    assert not any(list_firing(alert, post.now) for alert in peer.peer.alerts)
    [end] = [alert for alert in peer.peer.alerts if alert["labels"] == started_alerts["labels"]]
    assert "reminder" not in end["annotations"]["summary"]


async def test_rise_after_a_reminder_starts_a_new_alert(make_post: MakePost, peer: ServedPeer) -> None:
    """B41, B38: the new alert replaces the reminder."""
    post = make_post(peer.url)
    await post.say(ticket(severity=Severity.MEDIUM, reminders=2, bumped_at=T0, notified_at=T0))
    await post.say(ticket(severity=Severity.MEDIUM, reminders=3, bumped_at=T0, notified_at=T0))
    await post.say(ticket(severity=Severity.HIGH))
    await post.deliver()

    assert [a["labels"].get(LABEL_REMINDER) for a in peer.peer.alerts if list_firing(a, post.now)] == [None]


async def test_acknowledged_ticket_has_no_reminder_text(make_post: MakePost, peer: ServedPeer) -> None:
    """B41: the text of the reminder is gone."""
    post = make_post(peer.url)
    await post.say(ticket(reminders=1, notified_at=T0 - 3600, bumped_at=T0))
    await post.say(ticket(reminders=1, status=TicketStatus.ACKNOWLEDGED))
    await post.deliver()

    [alert] = peer.peer.alerts
    assert "eminder" not in alert["annotations"]["summary"]


async def test_relapse_is_notified_again(make_post: MakePost, peer: ServedPeer) -> None:
    """B39: the ticket reopened after its end."""
    post = make_post(peer.url)
    for list_changes in ({}, RESOLVED, {}):
        await post.say(ticket(**list_changes))
        await post.deliver()
        post.now += 10

    assert [a["endsAt"] > a["startsAt"] for a in peer.peer.alerts] == [True, True, True]
    assert [list_firing(a, post.now) for a in peer.peer.alerts] == [True, False, True]
    assert peer.peer.alerts[2]["startsAt"] > peer.peer.alerts[1]["endsAt"]


async def test_identity_is_stable_across_a_restart(make_post: MakePost, peer: ServedPeer) -> None:
    """
    B77: killed at any moment, nothing is sent under a second identity, and each delivery is recorded once.
    """
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    post.restart()
    await post.say(ticket(severity=Severity.CRITICAL))
    await post.deliver(after=5)

    first, restarted = peer.peer.alerts
    assert (first["labels"], first["startsAt"]) == (restarted["labels"], restarted["startsAt"])
    assert len(post.events) == 1


async def test_refused_alert_is_dropped_and_does_not_block_others(
    make_post: MakePost, peer: ServedPeer
) -> None:
    post = make_post(peer.url)
    peer.peer.refuses = {"bad"}
    await post.say(ticket(ticket_id="t1", agent_id="bad"))
    await post.say(ticket(ticket_id="t2", agent_id="good"))
    for _ in range(5):
        await post.deliver(after=10)

    assert {a["labels"]["agent"] for a in peer.peer.alerts} == {"good"}
    assert post.metric("queenright_notifications_total", outcome="failed") == 1
    assert post.metric("queenright_outbox_pending") == 0
    [refused] = post.outbox.status().refused
    assert (refused.ticket_ids, refused.error) == (["t1"], "400 a label is wrong")
    [failed] = [e for e in post.events if e.type is EventType.NOTIFICATION_FAILED]
    assert failed.data["final"] is True
    await post.say(ticket(ticket_id="t1", agent_id="bad", **RESOLVED))
    await post.deliver()
    await post.deliver()
    assert post.outbox.status().active == 1


async def test_rows_of_ended_incarnations_are_closed(make_post: MakePost, peer: ServedPeer) -> None:
    """B123: a crash loop of hours costs the outbox no more than one of minutes."""
    post = make_post(peer.url)

    async def enqueue_session(number: int, **list_changes: Any) -> None:
        one = ticket(ticket_id=f"t{number}", session_id=f"s{number}", **list_changes)
        earlier = [f"t{number - 1}"]
        await post.store.transact(
            lambda conn: enqueue(
                conn, one, post.settings, post.now, earlier_tickets=earlier, hold_seconds=600.0
            )
        )
        await post.deliver(after=5)

    ends = [TicketStatus.RESOLVED, TicketStatus.WORKER_GONE]
    for number in range(20):
        await enqueue_session(number)
        if number:
            await enqueue_session(number - 1, status=ends[number % 2])
    assert len(await post.store.read(read_active)) <= 2
    for number in range(20, 40):
        await enqueue_session(number - 1, status=TicketStatus.WORKER_GONE)
        await enqueue_session(number)
    assert len(await post.store.read(read_active)) == 1
    assert len({frozenset(alert["labels"].items()) for alert in peer.peer.alerts}) == 1
    assert all(list_firing(alert, post.now) for alert in peer.peer.alerts)

    await enqueue_session(39, **RESOLVED)
    assert not list_firing(peer.peer.alerts[-1], post.now)


def remove_ticket_label(conn: Connection) -> None:
    """Write the rows without the label of the ticket's id, as an earlier version did."""
    for row in conn.execute(select(OUTBOX.c.id, OUTBOX.c.labels)).all():
        labels = {name: value for name, value in row.labels.items() if name != ALERT_LABEL_TICKET_ID}
        values = {"labels": labels, "alert_key": alert_key(labels)}
        conn.execute(update(OUTBOX).where(OUTBOX.c.id == row.id).values(**values))


@pytest.mark.parametrize("change", [{"reminders": 1, "notified_at": T0, "bumped_at": T0 + 3600}, RISEN])
async def test_alert_of_an_earlier_version_keeps_its_labels(
    make_post: MakePost, peer: ServedPeer, change: dict[str, object]
) -> None:
    """DESIGN 36: the alert that replaces it inhibits its end, because neither has the label."""
    post = make_post(peer.url)
    await post.say(ticket(severity=Severity.MEDIUM))
    await post.store.transact(remove_ticket_label)
    await post.deliver()
    await post.say(ticket(**{"severity": Severity.MEDIUM} | change))
    await post.deliver(after=1)

    assert len(peer.peer.alerts) == 3
    assert not any(ALERT_LABEL_TICKET_ID in alert["labels"] for alert in peer.peer.alerts)


async def test_two_sessions_of_an_earlier_version_are_one_alert_until_both_have_ended(
    make_post: MakePost, peer: ServedPeer
) -> None:
    post = make_post(peer.url)
    first = {"ticket_id": "t1", "session_id": "s1"}
    second = {"ticket_id": "t2", "session_id": "s2"}
    await post.say(ticket(**first))
    await post.say(ticket(**second))
    await post.store.transact(remove_ticket_label)
    await post.deliver()
    await post.say(ticket(**first, **RESOLVED))
    await post.deliver(after=5)
    assert all(list_firing(a, post.now) for a in peer.peer.alerts)
    await post.say(ticket(**second, **RESOLVED))
    await post.deliver(after=5)

    assert [list_firing(a, post.now) for a in peer.peer.alerts][-1] is False
    assert sum(not list_firing(a, post.now) for a in peer.peer.alerts) == 1
    assert {e.data["ticket_id"] for e in post.events} == {"t1", "t2"}


async def test_backoff_grows_to_half_a_minute_and_ends_with_success(
    make_post: MakePost, peer: ServedPeer
) -> None:
    post = make_post(peer.url)
    peer.peer.status = 503
    await post.say(ticket())
    pauses = []
    for _ in range(7):
        due = await post.deliver()
        pauses.append(due - post.now)
        post.now = due

    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    peer.peer.status = 200
    assert await post.deliver() == post.now + 60
    assert post.outbox.status().peers[0].ok is True


async def test_alert_due_during_backoff_is_pending(make_post: MakePost, peer: ServedPeer) -> None:
    """B77: otherwise the outbox would look empty for half a minute while ends and new pages wait."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    peer.peer.status = 503
    await post.deliver(after=60)
    assert post.outbox.status().pending == 0
    count = len(peer.peer.posts)
    await post.say(ticket(**RESOLVED))
    await post.say(ticket(ticket_id="t2", agent_id="writer"))
    await post.deliver(after=0.5)

    assert len(peer.peer.posts) == count
    assert post.outbox.status().pending == post.outbox.status().peers[0].pending == 2
    assert post.metric("queenright_outbox_pending") == 2
    assert post.metric("queenright_outbox_oldest_timestamp_seconds") == T0 + 60


async def test_refused_connection_is_retried_soon(make_post: MakePost) -> None:
    post = make_post("http://127.0.0.1:1")
    await post.say(ticket())
    pauses = []
    for _ in range(5):
        due = await post.deliver()
        pauses.append(due - post.now)
        post.now = due

    assert pauses == [1, 2, 4, 5, 5]
    assert post.outbox.status().peers[0].error == "cannot be reached"


async def test_clock_set_back_does_not_stop_deliveries(make_post: MakePost, peer: ServedPeer) -> None:
    """B23: deliveries continue."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    await post.deliver(after=-7200)

    assert len(peer.peer.alerts) == 2
    assert peer.peer.alerts[1]["endsAt"] > peer.peer.alerts[1]["startsAt"]


async def test_deliveries_are_in_the_event_log(make_post: MakePost, peer: ServedPeer, store: Store) -> None:
    """B63: the events have the graph of the worker."""
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()

    logged = await store.read(lambda conn: event_log.read_events(conn))
    assert [(e.type, e.agent_id, e.session_id, e.graph_id) for _, e in logged] == [
        (EventType.NOTIFICATION_DELIVERED, "researcher", "session-1", "graph")
    ]
    assert logged[0][1].data == {
        "ticket_id": "ticket-1",
        "peer": peer.url,
        "status": "firing",
        "severity": "critical",
        "ticket_severity": "high",
        "attempts": 1,
    }


async def test_without_peers_firing_waits_and_ended_is_closed(make_post: MakePost) -> None:
    post = make_post()
    await post.say(ticket())
    await post.deliver()
    assert post.outbox.status().pending == 1
    await post.say(ticket(**RESOLVED))
    await post.deliver()
    await post.deliver()

    assert post.outbox.status() == OutboxStatus(active=0, pending=0, oldest=None, peers=[], refused=[])


async def test_untriaged_or_dismissed_ticket_enqueues_nothing(make_post: MakePost, peer: ServedPeer) -> None:
    post = make_post(peer.url)
    for status in (TicketStatus.OPEN, TicketStatus.DISMISSED, TicketStatus.RESOLVED):
        await post.say(ticket(status=status))
        await post.deliver()

    assert peer.peer.alerts == []


async def test_wake_before_the_commit_is_delivered_promptly(
    make_post: MakePost, store: Store, peer: ServedPeer
) -> None:
    """The service wakes the outbox inside the transaction, when the row is not visible yet."""
    post = make_post(peer.url)
    outbox = Outbox(
        store,
        post.settings,
        AlertmanagerClient(),
        clock=time.time,
        publish=post._publish,
        registry=CollectorRegistry(),
    )
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)

    def write(conn: Connection) -> None:
        enqueue(conn, ticket(), post.settings, time.time())
        loop.call_soon_threadsafe(outbox.wake)
        time.sleep(0.05)

    start = time.perf_counter()
    await store.transact(write)
    await asyncio.wait_for(peer.peer.arrived.wait(), 3)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running

    # Far below the interval of the idle check, which would otherwise find it.
    assert time.perf_counter() - start < 2
    assert len(peer.peer.alerts) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_server_error_is_retried(make_post: MakePost, peer: ServedPeer, status: int) -> None:
    post = make_post(peer.url)
    await post.say(ticket())
    peer.peer.status = status
    await post.deliver()
    peer.peer.status = 200
    await post.deliver(after=2)

    assert len(peer.peer.alerts) == 1


async def test_second_round_reads_only_changes(
    make_post: MakePost, peer: ServedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B131: with thousands of alerts, a round does not read the unchanged ones."""
    read: list[int] = []

    def count_reads(*args: Any, **how: Any) -> Any:
        notifications = notification_table.read_changed(*args, **how)
        read.append(len(notifications))
        return notifications

    monkeypatch.setattr("queenright.alerting.outbox.read_changed", count_reads)
    post = make_post(peer.url)
    for number in range(20):
        await post.say(ticket(ticket_id=f"t{number}", agent_id=f"bee-{number}"))
    await post.deliver()
    await post.deliver(after=9)
    read.clear()

    await post.deliver(after=9)
    await post.say(ticket(ticket_id="t20", agent_id="bee-20"))
    await post.say(ticket(ticket_id="t3", agent_id="bee-3", **RESOLVED))
    await post.deliver()

    assert read == [0, 2]
    assert list_firing(peer.peer.alerts[-2], post.now)
    assert not list_firing(peer.peer.alerts[-1], post.now)


async def test_unstored_receipt_is_not_assumed(
    make_post: MakePost, peer: ServedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B131: a round never remembers more than what is stored."""
    post = make_post(peer.url)
    await post.say(ticket())
    with monkeypatch.context() as broken:
        broken.setattr("queenright.alerting.outbox.record_receipts", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await post.deliver()

    await post.deliver(after=1)

    assert [event.data["status"] for event in post.events] == ["firing"]
