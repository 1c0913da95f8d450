from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queenright.alerting.notification_records import NotificationRecord, PeerDeliveryState, list_notifications
from queenright.health.findings import Severity
from queenright.health.store.store import Store
from queenright.health.tickets.ticket import TicketStatus
from tests.alerting.conftest import MakeOutbox, ServedPeer, StartPeer
from tests.alerting.parts import T0, make_ticket


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """Yield stores on both engines, because only here is the SQL of the outbox used."""
    new_store = Store.open(database_url)
    yield new_store
    await new_store.close()


async def read_notifications(store: Store, limit: int = 50) -> list[NotificationRecord]:
    return await store.read(lambda conn: list_notifications(conn, limit, now=T0 + 3600))


async def test_empty_outbox_is_an_empty_list(store: Store) -> None:
    assert await read_notifications(store) == []


async def test_notification_is_listed_with_its_deliveries(
    make_outbox: MakeOutbox, start_peer: StartPeer, store: Store
) -> None:
    notification, other = await start_peer(), await start_peer()
    outbox = make_outbox(notification.url, other.url)
    await outbox.write_change(make_ticket())
    other.peer.status = 503

    await outbox.deliver(after=2)

    [record] = await read_notifications(store)
    assert (record.ticket_id, record.agent, record.cause) == ("ticket-1", "researcher", "doom_loop")
    assert (record.severity, record.ticket_severity) == ("critical", "high")
    assert "researcher" in record.title
    assert "(high)" in record.title
    assert (record.status, record.written_at, record.ended_at, record.active) == ("firing", T0, None, True)
    assert record.peers == (
        PeerDeliveryState(
            peer=notification.url, status="firing", delivered_at=T0 + 2, attempts=1, last_error=None
        ),
    )


async def test_end_has_its_own_entry(make_outbox: MakeOutbox, peer: ServedPeer, store: Store) -> None:
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()
    outbox.now += 30
    await outbox.write_change(make_ticket(status=TicketStatus.RESOLVED))
    await outbox.deliver(after=1)

    [record] = await read_notifications(store)

    assert (record.status, record.ended_at, record.active) == ("resolved", T0 + 30, False)
    assert [(peer_delivery.status, peer_delivery.delivered_at) for peer_delivery in record.peers] == [
        ("firing", T0),
        ("resolved", T0 + 31),
    ]


async def test_refusal_has_a_reason(make_outbox: MakeOutbox, peer: ServedPeer, store: Store) -> None:
    peer.peer.refused_agents.add("researcher")
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket())
    await outbox.deliver()

    [answer] = (await read_notifications(store))[0].peers

    assert answer.delivered_at is None
    assert answer.attempts == 1
    assert answer.last_error == "400 a label is wrong"


async def test_credentials_of_a_peer_are_not_listed(
    make_outbox: MakeOutbox, peer: ServedPeer, store: Store
) -> None:
    """The credentials are neither in the peer's name nor in its responses."""
    peer.peer.refused_agents.add("researcher")
    outbox = make_outbox(peer.url.replace("http://", "http://operator:hunter2secret@"))
    await outbox.write_change(make_ticket())
    await outbox.deliver()

    records = await read_notifications(store)

    assert records[0].peers[0].peer == peer.url
    assert "hunter2secret" not in repr(records)


async def test_rise_is_two_entries_newest_first(
    make_outbox: MakeOutbox, peer: ServedPeer, store: Store
) -> None:
    outbox = make_outbox(peer.url)
    await outbox.write_change(make_ticket(severity=Severity.MEDIUM))
    await outbox.deliver()
    await outbox.write_change(make_ticket(severity=Severity.CRITICAL))
    await outbox.deliver(after=1)

    records = await read_notifications(store)

    assert [(record.severity, record.status) for record in records] == [
        ("critical", "firing"),
        ("warning", "resolved"),
    ]
    # The row that records "no firing message needed" is not a delivery.
    assert {peer_delivery.peer for record in records for peer_delivery in record.peers} == {peer.url}


@pytest.mark.parametrize("limit", [1, 3])
async def test_limit_is_the_number_of_newest_rows(make_outbox: MakeOutbox, store: Store, limit: int) -> None:
    outbox = make_outbox()
    for number in range(5):
        await outbox.write_change(make_ticket(ticket_id=f"t{number}", agent_id=f"agent-{number}"))

    records = await read_notifications(store, limit)

    assert [n.ticket_id for n in records] == ["t4", "t3", "t2"][:limit]
    assert records[0].peers == ()
