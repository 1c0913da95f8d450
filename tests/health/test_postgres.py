"""The store on PostgreSQL: refusals, broken connections, and a server crash."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any
from weakref import WeakSet

import psycopg
import pytest
from sqlalchemy import Connection, insert, text

from queenright.health.store.event_chain import verify
from queenright.health.store.event_log import append_events, read_events
from queenright.health.store.postgres import disconnect_databases
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import TICKETS
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import GUARDED, Postgres, change, connected, verify_log

HAN = [chr(code) for code in range(0x4E00, 0x9FFF)]
PASSWORD = "hush@/?#:%hush"
ENCODED_PASSWORD = "hush%40%2F%3F%23%3A%25hush"


def make_step(number: int = 0, agent_id: str = "bee") -> AgentEvent:
    return AgentEvent(type=EventType.STEP_COMPLETED, time=1000.0 + number, agent_id=agent_id)


def make_alert() -> AgentEvent:
    return AgentEvent(type=EventType.WORKER_ESCALATION_TICKET, time=1000.0, agent_id="bee")


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    url = postgres.migrated()
    yield url
    postgres.drop(url)


@pytest.fixture
def empty_url(postgres: Postgres) -> Iterator[str]:
    url = postgres.empty()
    yield url
    postgres.drop(url)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = Store.open(url, busy_timeout=0.05)
    yield store
    await store.close()


async def list_numbers(store: Store) -> list[float]:
    return [event.time - 1000 for _, event in await store.read(read_events)]


async def get_backend_pid(store: Store) -> int:
    return await store.transact(lambda conn: int(conn.execute(text("SELECT pg_backend_pid()")).scalar_one()))


# -- opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_database_url_has_several_spellings(url: str, scheme: str) -> None:
    Store.open(url.replace("postgresql", scheme)).close_now()

    assert verify_log(url).ok


def test_postgresql_socket_opens_the_store(postgres: Postgres, url: str) -> None:
    name = url.rpartition("/")[2]
    store = Store.open(f"postgresql://postgres@/{name}?host={postgres.folder}&port={postgres.port}")

    assert f"{postgres.folder}:{postgres.port}/{name}" in repr(store)
    store.close_now()


@pytest.fixture
def password_url(postgres: Postgres, empty_url: str) -> Iterator[str]:
    """Return the URL, without a password, of a database whose owner needs one."""
    name = empty_url.rpartition("/")[2]
    postgres.execute(f"CREATE ROLE {GUARDED}")
    postgres.execute(f"CREATE ROLE keeper LOGIN PASSWORD '{PASSWORD}' IN ROLE {GUARDED}")
    postgres.execute(f"ALTER DATABASE {name} OWNER TO keeper")
    yield postgres.url(name, "keeper")
    postgres.execute(f"ALTER DATABASE {name} OWNER TO postgres")
    postgres.execute("DROP OWNED BY keeper CASCADE", database=name)
    postgres.execute("DROP ROLE keeper")
    postgres.execute(f"DROP ROLE {GUARDED}")


def test_password_opens_the_database_and_is_not_shown(password_url: str) -> None:
    store = Store.open(password_url.replace("keeper", f"keeper:{ENCODED_PASSWORD}"))

    with pytest.raises(StoreError, match="another queenright") as error_info:
        Store.open(password_url.replace("keeper", f"keeper:{ENCODED_PASSWORD}"), busy_timeout=0.05)

    assert "hush" not in repr(store) + str(error_info.value)
    store.close_now()


def test_wrong_password_is_reported_without_the_password(password_url: str) -> None:
    with pytest.raises(
        StoreError, match=r"authentication failed .*; check the user and the password"
    ) as error_info:
        Store.open(password_url.replace("keeper", "keeper:hushhush"))

    fault: BaseException | None = error_info.value
    while fault is not None:
        assert "hush" not in str(fault) + repr(fault)
        fault = fault.__cause__


@pytest.mark.parametrize("read_only", [False, True])
def test_missing_database_error_says_what_to_do(postgres: Postgres, *, read_only: bool) -> None:
    for address, expected_error in [
        (postgres.url("nothing"), 'database "nothing" does not exist; create it: createdb'),
        (postgres.url("postgres", "nobody_at_all"), "check the user and the password"),
        ("postgresql://127.0.0.1:1/x", "Connection refused; start the server, or check host and port"),
        ("postgresql://127.0.0.1:1/x?nonsense=hush", "look into the server's log"),
    ]:
        with pytest.raises(StoreError) as error_info:
            Store.open(address, read_only=read_only)
        assert expected_error in str(error_info.value)
        assert "hush" not in str(error_info.value)


def test_empty_database_cannot_be_opened_read_only(empty_url: str) -> None:
    with pytest.raises(StoreError, match="is empty; start the service first"):
        Store.open(empty_url, read_only=True)


def test_database_of_another_program_is_refused_unchanged(empty_url: str) -> None:
    change(empty_url, "CREATE TABLE honey (jar integer)")

    with pytest.raises(StoreError, match="another program's database; give another database"):
        Store.open(empty_url)


def test_missing_privilege_error_says_what_to_grant(postgres: Postgres, empty_url: str) -> None:
    postgres.execute("CREATE ROLE guest LOGIN")

    with pytest.raises(
        StoreError, match="permission denied for schema public; make its user the database's owner"
    ):
        Store.open(postgres.url(empty_url.rpartition("/")[2], "guest"))

    postgres.execute("DROP ROLE guest")


def test_database_with_a_limited_encoding_is_refused(postgres: Postgres) -> None:
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")

    with pytest.raises(StoreError, match="encoded in LATIN1; create it with ENCODING 'UTF8'"):
        Store.open(postgres.url("latin"))

    postgres.drop(postgres.url("latin"))


def test_new_service_waits_for_a_killed_one(url: str) -> None:
    """The server may not have noticed yet that the killed client has gone."""
    first = Store.open(url)
    asyncio.run(close_while_another_opens(first, url))


async def close_while_another_opens(first: Store, url: str) -> None:
    second = asyncio.create_task(asyncio.to_thread(Store.open, url))
    await first.close()

    await (await second).close()


# -- refusals -------------------------------------------------------------------------------------


async def test_refused_row_is_not_quoted(store: Store) -> None:
    def insert_twice(conn: Connection) -> None:
        row = dict.fromkeys((column.name for column in TICKETS.columns), "hush") | dict.fromkeys(
            ("first_seen", "updated_at", "closed_at"), 1.0
        )
        conn.execute(insert(TICKETS), [row])
        conn.execute(insert(TICKETS), [row])

    with pytest.raises(StoreError, match="duplicate key value violates unique constraint") as error_info:
        await store.transact(insert_twice)

    assert "hush" not in f"{error_info.value}{error_info.value.__cause__}{error_info.value.__cause__!r}"


@pytest.mark.parametrize(
    ("name", "expected"), [("b\0e", "NUL"), ("".join(random.Random(4).choices(HAN, k=4000)), "index row")]
)
async def test_name_that_postgresql_cannot_store_fails_only_its_caller(
    store: Store, name: str, expected: str
) -> None:
    calls = [store.append([make_step(1)]), store.append([make_step(2, name)]), store.append([make_step(3)])]

    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert expected in str(outcomes[1])
    assert await list_numbers(store) == [1, 3]


async def test_write_waits_for_a_lock_of_another_program_and_reports_it(store: Store, url: str) -> None:
    with connected(url) as other, other.execution_options(isolation_level="READ COMMITTED").begin():
        other.execute(text("LOCK TABLE events IN EXCLUSIVE MODE"))
        with pytest.raises(StoreError, match=r"cannot write to .*: canceling statement due to lock timeout"):
            await store.append([make_step(1)])
    await store.append([make_step(2)])

    assert await list_numbers(store) == [2]


# -- connections that break -----------------------------------------------------------------------


async def test_broken_connection_is_reopened_before_the_next_write(
    postgres: Postgres, store: Store, url: str
) -> None:
    await store.append([make_step(1)])
    for number in (2, 3):
        postgres.execute(f"SELECT pg_terminate_backend({await get_backend_pid(store)}, 5000)")
        await store.append([make_step(number)])
        postgres.execute(f"SELECT pg_terminate_backend({await get_backend_pid(store)}, 5000)")
        await store.transact(lambda conn: conn.execute(text("SELECT 1")).all())

    assert await list_numbers(store) == [1, 2, 3]
    with pytest.raises(StoreError, match="another queenright"):
        Store.open(url, busy_timeout=0.05)


def interrupt(store: Store) -> None:
    """Leave the writer in the state of a thread whose connection broke while it waited for the server."""
    raw = store._database.writer.connection.driver_connection
    assert raw is not None
    raw.pgconn.enter_pipeline_mode()
    raw.pgconn.send_query_params(b"SELECT 1", [])


async def test_interrupted_connection_is_replaced_before_the_next_write(store: Store) -> None:
    await store.append([make_step(1)])
    interrupt(store)
    await store.append([make_step(2)])

    assert await list_numbers(store) == [1, 2]


async def test_interrupted_connection_is_closed_silently(url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(url)
    interrupt(store)
    await store.close()

    assert caplog.text == ""


def test_connection_opened_during_close_is_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, connections = psycopg.connect, []

    def connect_after_close(*arguments: Any, **options: Any) -> psycopg.Connection[Any]:
        connections.append(connect(*arguments, **options))
        disconnect_databases()
        return connections[-1]

    # Not the databases of other fixtures.
    monkeypatch.setattr("queenright.health.store.postgres._open_databases", WeakSet())
    monkeypatch.setattr(psycopg, "connect", connect_after_close)
    with pytest.raises(StoreError, match="the connection is closed"):
        Store.open(url)

    assert [raw.closed for raw in connections] == [True]


async def test_connection_loss_rolls_back_and_the_next_write_succeeds(
    postgres: Postgres, store: Store
) -> None:
    def break_connection(conn: Connection) -> None:
        append_events(conn, [make_step(0)])
        pid = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
        postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
        conn.execute(text("SELECT 1"))

    with pytest.raises(StoreError, match=r"cannot write to .*terminating connection"):
        await store.transact(break_connection)
    await store.append([make_step(1)])

    assert await list_numbers(store) == [1]


async def test_reads_succeed_after_all_connections_broke(postgres: Postgres, store: Store, url: str) -> None:
    await asyncio.gather(*(list_numbers(store) for _ in range(8)))
    name = url.rpartition("/")[2]
    postgres.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")

    assert await asyncio.gather(*(list_numbers(store) for _ in range(8))) == [[]] * 8


async def test_database_that_a_cluster_uses_is_refused_with_the_way_to_join(url: str) -> None:
    store = Store.open(url, busy_timeout=0.05, member_id="one")

    with pytest.raises(StoreError, match=r"\) is using .* in a cluster; .*`queenright serve --cluster NATS`"):
        Store.open(url, busy_timeout=0.05)
    await store.close()


async def test_replaced_writer_cannot_write_again(postgres: Postgres, url: str) -> None:
    first = Store.open(url, busy_timeout=0.05)
    postgres.execute(f"SELECT pg_terminate_backend({await get_backend_pid(first)}, 5000)")
    second = Store.open(url, busy_timeout=0.05)

    with pytest.raises(StoreError, match=r"another queenright .* is using"):
        await first.append([make_step(1)])
    await second.append([make_step(2)])
    await second.close()
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"another queenright .* while the connection was broken; restart"
        ):
            await first.append([make_step(3)])

    assert await list_numbers(first) == [2]
    await first.close()
    Store.open(url, busy_timeout=0.05).close_now()


# -- a server that dies ---------------------------------------------------------------------------


async def test_decisions_survive_a_server_crash() -> None:
    server = Postgres(fsync="on")
    try:
        store = Store.open(server.migrated())
        await store.append([make_step(1)])
        await store.append([make_alert()])
        await store.append([make_step(2)])
        server.crash()
        outcomes = [await get_failure(store.append([make_step(3)])), await get_failure(store.read(verify))]
        unwritable = str(store.failure)
        server.start()
        await store.append([make_step(4)])

        assert "start the server, or check host and port" in unwritable
        assert store.is_writable

        stored_numbers = await list_numbers(store)
        assert all("start the server, or check host and port" in outcome for outcome in outcomes[:1])
        assert all("Connection refused" in outcome for outcome in outcomes)
        # The second step may not have reached the disk; steps have no stronger guarantee.
        assert stored_numbers in ([1, 0, 4], [1, 0, 2, 4])
        assert (await store.read(verify)).ok
        await store.close()
    finally:
        server.remove()


async def get_failure(call: object) -> str:
    with pytest.raises(StoreError) as error_info:
        await call  # type: ignore[misc]  # any awaitable
    return str(error_info.value)
