"""The cluster lease, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from queenright.health.cluster import cluster_lease
from queenright.health.cluster.cluster_lease import (
    LEASE_SECONDS,
    ClusterLease,
    LeaseLostError,
    Member,
    MemberState,
    Ownership,
    View,
)
from queenright.health.cluster.shared_secrets import LOGIN_KEY, get_secret
from queenright.health.store.engines import parse_address
from queenright.health.store.postgres import DATABASE_TIME
from queenright.health.store.store import RefusedEventsError, Store
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import Postgres, change, connected, downgrade


async def test_database_without_tables_is_vacant(postgres: Postgres) -> None:
    """The first owner creates the tables; an owner of a newer version creates new tables."""
    url = postgres.empty()
    lease = make_lease(url, "one", 1)

    view = await lease.read_cluster()

    assert (view.partitions, view.members) == ((Ownership(is_vacant=True),), ())
    await lease.close()
    postgres.drop(url)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.migrated()


@pytest_asyncio.fixture
async def lease(url: str, postgres: Postgres) -> AsyncIterator[ClusterLease]:
    lease = make_lease(url, "two", 1)
    yield lease
    await lease.close()
    postgres.drop(url)


def make_lease(url: str, member_id: str, partitions: int, host: str = "") -> ClusterLease:
    member = Member(
        member_id=member_id,
        host=host or member_id,
        api_port=1,
        otlp_port=2,
        version="1",
        partitions=partitions,
    )
    return ClusterLease(parse_address(url), member)


def make_heartbeat(agent: str) -> AgentEvent:
    return AgentEvent(
        type=EventType.AGENT_HEARTBEAT, time=time.time(), agent_id=agent, session_id="s", data={}
    )


async def test_session_that_is_taking_over_is_not_terminated(url: str, lease: ClusterLease) -> None:
    """The session has the lock, but the lease names the former owner until the schema is updated."""
    store = Store.open(url, member_id="one")
    change(url, "UPDATE store_writer SET renewed_at = renewed_at - 60")

    [ownership] = (await lease.read_cluster()).partitions
    assert (ownership.has_expired, ownership.is_vacant) == (True, False)
    assert not await lease.evict_expired_owner(0)

    await store.append([make_heartbeat("clerk")])
    await store.close()
    async with asyncio.timeout(30):
        # The server takes some time to notice that the session has ended.
        while not (await lease.read_cluster()).partitions[0].is_vacant:
            pass


async def test_owner_that_reconnects_renews_its_lease(
    url: str, lease: ClusterLease, postgres: Postgres
) -> None:
    """
    Otherwise its new session would look like one that is taking over, and such sessions are not terminated.
    """
    store = Store.open(url, member_id="one")
    change(url, "UPDATE store_writer SET renewed_at = renewed_at - 60")
    pid = await store.transact(lambda conn: conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
    postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")

    await store.append([make_heartbeat("clerk")])

    [ownership] = (await lease.read_cluster()).partitions
    assert (ownership.owner_id, ownership.is_vacant, ownership.has_expired) == ("one", False, False)
    await store.close()


async def test_renewal_after_a_takeover_is_refused(url: str, lease: ClusterLease) -> None:
    """B116: the former owner learns about the takeover at its next renewal, when its lease has expired."""
    former_store = Store.open(url, member_id="one")
    token = former_store.writer_token
    await former_store.close()
    new_store = Store.open(url, member_id="two")

    with pytest.raises(LeaseLostError):
        await lease.renew(0, token)
    assert not lease.is_valid(0)
    await lease.renew(0, new_store.writer_token)
    assert lease.is_valid(0)
    await new_store.close()


async def test_refused_events_are_distinguished_from_an_unreachable_database(
    url: str, lease: ClusterLease
) -> None:
    """A refused event is refused every time, so the reader of the stream skips it."""
    store = Store.open(url, member_id="one")
    change(url, "ALTER TABLE events ADD CONSTRAINT no_clerk CHECK (agent_id <> 'clerk')")

    with pytest.raises(RefusedEventsError):
        await store.append([make_heartbeat("clerk")])
    await store.append([make_heartbeat("waiter")])
    assert store.is_writable
    await store.close()


async def test_process_knows_when_the_next_lease_expires(url: str) -> None:
    """B117: the process checks again at that time, not up to a second later."""
    stores = [Store.open(url, member_id="one", partition=number) for number in (0, 1, 2)]
    watcher, owner = make_lease(url, "two", 3), make_lease(url, "three", 3)
    renewal_sql = f"store_writer SET renewed_at = {DATABASE_TIME}"
    change(url, f"UPDATE queenright_1.{renewal_sql} - 60")
    change(url, f"UPDATE queenright_2.{renewal_sql} + 60")
    change(url, f"UPDATE {renewal_sql} - 2")
    assert 0 <= (await watcher.read_cluster()).expires_in <= LEASE_SECONDS - 2

    change(url, f"UPDATE {renewal_sql} + 60")
    await owner.read_cluster()
    change(url, f"UPDATE members SET seen_at = {DATABASE_TIME} - 3 WHERE member_id = 'three'")
    assert 0 <= (await watcher.read_cluster()).expires_in <= LEASE_SECONDS - 3
    for store in stores:
        await store.close()
    await watcher.close()
    await owner.close()


async def refresh_until_vacant(lease: ClusterLease, number: int) -> View:
    """Wait until PostgreSQL has released the lock of a closed connection, and return the view."""
    async with asyncio.timeout(60):
        while not (view := await lease.read_cluster()).partitions[number].is_vacant:  # noqa: ASYNC110  # each iteration queries the database
            await asyncio.sleep(0.05)
    return view


async def test_ownership_of_each_partition_is_visible(url: str, postgres: Postgres) -> None:
    """Every member sees whether a partition was never opened, or is owned, expired or released."""
    lease = make_lease(url, "one", 4)
    stores = [Store.open(url, member_id="one", partition=number) for number in (0, 1, 2)]
    change(url, "UPDATE queenright_1.store_writer SET renewed_at = renewed_at - 60")
    await lease.read_cluster()
    await stores[2].close()
    await lease.release(2, stores[2].writer_token)

    view = await refresh_until_vacant(lease, 2)

    assert view.partitions == (
        Ownership(owner_id="one", is_vacant=False),
        Ownership(owner_id="one", is_vacant=False, has_expired=True),
        Ownership(owner_id=None, is_vacant=True),
        Ownership(owner_id=None, is_vacant=True),
    )
    assert [view.find_owner(number) for number in range(4)] == [lease.member, lease.member, None, None]
    assert view.stored_partitions == 3
    smaller_view = make_lease(url, "fewer", 1)
    assert (await smaller_view.read_cluster()).stored_partitions == 3
    await smaller_view.close()
    await lease.renew(1, stores[1].writer_token)
    assert [lease.is_valid(number) for number in range(4)] == [False, True, False, False]
    for store in stores[:2]:
        await store.close()
    view = await refresh_until_vacant(lease, 0)
    assert view.partitions[0] == Ownership(owner_id="one", is_vacant=True)
    assert view.find_owner(0) is None
    await lease.close()
    postgres.drop(url)


async def test_member_that_ended_is_noticed_immediately(url: str, postgres: Postgres) -> None:
    """
    Its connection ends with the member. A member that only lost its connection is back at the next refresh.
    """
    ending_lease, observing_lease = make_lease(url, "one", 1), make_lease(url, "two", 1)
    await ending_lease.read_cluster()
    members_by_id = {
        seen_member.member.member_id: seen_member
        for seen_member in (await observing_lease.read_cluster()).members
    }
    assert all(member.is_alive for member in members_by_id.values())
    await ending_lease.close()

    async with asyncio.timeout(30):
        while members_by_id["one"].is_connected:
            members_by_id = {
                seen_member.member.member_id: seen_member
                for seen_member in (await observing_lease.read_cluster()).members
            }

    assert (members_by_id["one"].is_alive, members_by_id["two"].is_alive) == (False, True)
    await ending_lease.read_cluster()
    assert all(seen_member.is_alive for seen_member in (await observing_lease.read_cluster()).members)
    await ending_lease.close()
    await observing_lease.close()
    postgres.drop(url)


async def test_restarted_member_is_listed_once(url: str, postgres: Postgres) -> None:
    """A restarted member has a new id at the same address. A member at another address is a different one."""
    ended_lease, restarted_lease, other_lease = (
        make_lease(url, "1", 1, "a"),
        make_lease(url, "2", 1, "a"),
        make_lease(url, "3", 1, "b"),
    )
    await ended_lease.read_cluster()
    await ended_lease.close()

    async with asyncio.timeout(30):
        ids = ["1"]
        while "1" in ids:
            await other_lease.read_cluster()
            ids = [
                seen_member.member.member_id for seen_member in (await restarted_lease.read_cluster()).members
            ]

    assert sorted(ids) == ["2", "3"]
    await restarted_lease.close()
    await other_lease.close()
    postgres.drop(url)


async def test_state_of_a_member_is_visible_to_the_others(url: str, lease: ClusterLease) -> None:
    """
    The state may have fields of a newer version, and may lack fields that an older version does not have.
    """
    state = MemberState(can_publish=False, is_stopping=True, serving=frozenset({0, 3}), settings={"a": "1"})
    other_lease = make_lease(url, "other", 4)
    await other_lease.read_cluster(state)

    assert [seen_member.state for seen_member in (await lease.read_cluster()).members] == [
        state,
        MemberState(),
    ]
    change(
        url,
        "UPDATE members SET state = (state::jsonb - 'is_counted' || '{\"mood\": 1}')::text"
        " WHERE member_id = 'other'",
    )
    assert [seen_member.state for seen_member in (await lease.read_cluster()).members] == [
        state,
        MemberState(),
    ]
    await other_lease.close()


async def test_member_whose_first_connection_was_cancelled_is_alive(url: str, lease: ClusterLease) -> None:
    key = cluster_lease._presence_key(lease.member.member_id)
    with connected(url) as conn:
        conn.exec_driver_sql(f"SELECT pg_advisory_lock({cluster_lease._PRESENCE_CLASS}, {key})")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lease.read_cluster(), 0.5)

    assert [seen_member.is_alive for seen_member in (await lease.read_cluster()).members] == [True]


async def test_clock_is_compared_with_that_of_the_database(
    lease: ClusterLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lease.read_cluster()
    assert abs(lease.clock_offset) < 1
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 60)

    await lease.read_cluster()

    assert 59 < lease.clock_offset < 61


async def test_members_share_a_key(url: str, lease: ClusterLease) -> None:
    other_lease = make_lease(url, "three", 1)
    key = await lease.read_secret(LOGIN_KEY)
    store = Store.open(url, member_id="two")
    stored_key = await store.transact(lambda conn: get_secret(conn, LOGIN_KEY))
    await store.close()

    assert key is not None
    assert (len(key), await other_lease.read_secret(LOGIN_KEY), stored_key) == (32, key, key)
    await other_lease.close()


async def test_member_of_a_new_version_waits_for_the_migration(url: str, lease: ClusterLease) -> None:
    """The process becomes a member once the owner has stopped, and then takes over."""
    downgrade(url)

    assert (await lease.read_cluster()).members == ()
    assert await lease.read_secret(LOGIN_KEY) is None
    Store.open(url, member_id="two").close_now()
    assert [seen_member.member.partitions for seen_member in (await lease.read_cluster()).members] == [1]
