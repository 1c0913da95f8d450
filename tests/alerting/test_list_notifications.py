from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queenright.alerting.notification_records import NotificationRecord, PeerDeliveryState, list_notifications
from queenright.health.findings import Severity
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import TicketStatus
from tests.alerting.conftest import MakePost, ServedPeer, StartPeer
from tests.alerting.parts import T0, ticket


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """Yield stores on both engines, because only here is the SQL of the outbox used."""
    opened = Store.open(database_url)
    yield opened
    await opened.close()


async def read(store: Store, limit: int = 50) -> list[NotificationRecord]:
    return await store.read(lambda conn: list_notifications(conn, limit, now=T0 + 3600))


async def test_empty_outbox_is_an_empty_list(store: Store) -> None:
    assert await read(store) == []


async def test_notification_is_listed_with_its_deliveries(
    make_post: MakePost, start_peer: StartPeer, store: Store
) -> None:
    notification, other = await start_peer(), await start_peer()
    post = make_post(notification.url, other.url)
    await post.say(ticket())
    other.peer.status = 503

    await post.deliver(after=2)

    [found] = await read(store)
    assert (found.ticket_id, found.agent, found.cause) == ("ticket-1", "researcher", "doom_loop")
    assert (found.severity, found.ticket_severity) == ("critical", "high")
    assert "researcher" in found.title
    assert "(high)" in found.title
    assert (found.status, found.written_at, found.ended_at, found.active) == ("firing", T0, None, True)
    assert found.peers == (
        PeerDeliveryState(
            peer=notification.url, status="firing", delivered_at=T0 + 2, attempts=1, last_error=None
        ),
    )


async def test_end_has_its_own_entry(make_post: MakePost, peer: ServedPeer, store: Store) -> None:
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()
    post.now += 30
    await post.say(ticket(status=TicketStatus.RESOLVED))
    await post.deliver(after=1)

    [found] = await read(store)

    assert (found.status, found.ended_at, found.active) == ("resolved", T0 + 30, False)
    assert [(p.status, p.delivered_at) for p in found.peers] == [("firing", T0), ("resolved", T0 + 31)]


async def test_refusal_has_a_reason(make_post: MakePost, peer: ServedPeer, store: Store) -> None:
    peer.peer.refuses.add("researcher")
    post = make_post(peer.url)
    await post.say(ticket())
    await post.deliver()

    [answer] = (await read(store))[0].peers

    assert answer.delivered_at is None
    assert answer.attempts == 1
    assert answer.last_error == "400 a label is wrong"


async def test_login_of_a_peer_is_not_listed(make_post: MakePost, peer: ServedPeer, store: Store) -> None:
    """Neither in its name nor in its responses."""
    peer.peer.refuses.add("researcher")
    post = make_post(peer.url.replace("http://", "http://operator:hunter2secret@"))
    await post.say(ticket())
    await post.deliver()

    records = await read(store)

    assert records[0].peers[0].peer == peer.url
    assert "hunter2secret" not in repr(records)


async def test_rise_is_two_entries_newest_first(make_post: MakePost, peer: ServedPeer, store: Store) -> None:
    post = make_post(peer.url)
    await post.say(ticket(severity=Severity.MEDIUM))
    await post.deliver()
    await post.say(ticket(severity=Severity.CRITICAL))
    await post.deliver(after=1)

    records = await read(store)

    assert [(n.severity, n.status) for n in records] == [("critical", "firing"), ("warning", "resolved")]
    # The row that records "no firing message needed" is not a delivery.
    assert {p.peer for n in records for p in n.peers} == {peer.url}


@pytest.mark.parametrize("limit", [1, 3])
async def test_limit_is_the_number_of_newest_rows(make_post: MakePost, store: Store, limit: int) -> None:
    post = make_post()
    for number in range(5):
        await post.say(ticket(ticket_id=f"t{number}", agent_id=f"agent-{number}"))

    records = await read(store, limit)

    assert [n.ticket_id for n in records] == ["t4", "t3", "t2"][:limit]
    assert records[0].peers == ()
