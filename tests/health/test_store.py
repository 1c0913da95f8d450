"""The store on both databases: durability, refusals, and the order of waiting callers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, func, inspect, select, text

from queenright.health.store.engines import open_database
from queenright.health.store.event_chain import verify
from queenright.health.store.event_log import append_events, read_events, touch_head
from queenright.health.store.schema import COMPATIBILITY
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import EVENTS, OLDEST_COMPATIBLE, SCHEMA_REVISION
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import change, connected, downgrade, is_postgres, locked, verify_log


def make_step(number: int = 0, **fields: Any) -> AgentEvent:
    return AgentEvent(type=EventType.STEP_COMPLETED, time=1000.0 + number, agent_id="bee", **fields)


def make_url(path: Path) -> str:
    return f"sqlite:///{path}"


def count_events(conn: Connection) -> int:
    return conn.execute(select(func.count()).select_from(EVENTS)).scalar_one()


def get_largest_file(folder: Path) -> int:
    return max(file.stat().st_size for file in folder.iterdir())


def is_waiting_for_disk(conn: Connection) -> bool:
    if conn.dialect.name == "sqlite":
        return {1: False, 2: True}[int(conn.exec_driver_sql("PRAGMA synchronous").scalar_one())]
    return {"off": False, "on": True}[conn.exec_driver_sql("SHOW synchronous_commit").scalar_one()]


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    store = Store.open(database_url)
    yield store
    await store.close()


# -- writing --------------------------------------------------------------------------------------


async def test_appended_events_survive_reopening(database_url: str) -> None:
    first = Store.open(database_url)
    event = make_step(
        data={"verdict": "ACCEPT", "nested": {"a": [1, 2.5, None, "é"]}}, trace_id="t", span_id="s"
    )
    await first.append([event])
    await first.close()

    second = Store.open(database_url)

    assert second.read_now(read_events) == [(1, event)]
    second.close_now()


async def test_concurrent_appends_share_commits_and_keep_their_order(store: Store) -> None:
    events = [make_step(i) for i in range(500)]

    await asyncio.gather(*(store.append([event]) for event in events))

    assert [event.time for _, event in await store.read(read_events)] == [event.time for event in events]
    assert store.depth == 0


async def test_invalid_event_fails_only_its_caller(store: Store) -> None:
    calls: list[Sequence[AgentEvent]] = [
        [make_step(1)],
        [make_step(2), make_step(3, data={"what": object()})],
        [make_step(4)],
        [make_step(5, session_id="\ud800")],
        [make_step(6)],
    ]

    outcomes = await asyncio.gather(*(store.append(events) for events in calls), return_exceptions=True)

    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False, True, False, True, False]
    assert "not JSON serializable: object" in str(outcomes[1])
    assert [event.time for _, event in await store.read(read_events)] == [1001.0, 1004.0, 1006.0]
    assert (await store.read(verify)).ok


async def test_duplicate_event_is_ignored(store: Store) -> None:
    known_event, new_event = make_step(1), make_step(2)
    await store.append([known_event])

    await store.append([known_event, new_event, new_event])
    await asyncio.gather(store.append([known_event]), store.append([new_event]))

    assert [event.id for _, event in await store.read(read_events)] == [known_event.id, new_event.id]
    assert (await store.read(verify)).ok


async def test_append_of_no_events_writes_nothing(store: Store) -> None:
    await store.append([])

    assert await store.read(count_events) == 0


async def test_only_alerts_and_decisions_wait_for_the_disk(database_url: str) -> None:
    database = open_database(database_url, read_only=False, busy_timeout=1)
    disk_waits: list[bool] = []

    class DiskWaitStore(Store):
        def _append(self, group: Any) -> None:
            super()._append(group)
            disk_waits.append(is_waiting_for_disk(self._database.writer))
            self._database.writer.rollback()

    store = DiskWaitStore(database)
    await store.append([make_step()])
    await store.append([make_step(), AgentEvent(type=EventType.WORKER_ESCALATION_TICKET, time=1.0)])
    await store.append([make_step()])
    is_waiting = await store.transact(is_waiting_for_disk)
    await store.close()

    assert disk_waits == [False, True, False]
    assert is_waiting


async def test_transaction_that_raises_is_rolled_back_and_its_error_reaches_the_caller(store: Store) -> None:
    def write_and_fail(conn: Connection) -> None:
        append_events(conn, [make_step()])
        raise ValueError("changed my mind")

    with pytest.raises(ValueError, match="changed my mind"):
        await store.transact(write_and_fail)

    assert await store.read(count_events) == 0
    await store.append([make_step()])
    assert await store.read(count_events) == 1


async def test_transaction_that_the_database_refuses_is_a_store_error_without_values(store: Store) -> None:
    with pytest.raises(
        StoreError, match=r"cannot write to .*hive.*: .*(no such table|does not exist)"
    ) as error_info:
        await store.transact(
            lambda conn: conn.execute(text("INSERT INTO nowhere VALUES (:v)"), {"v": "hush"})
        )

    assert "hush" not in str(error_info.value)
    assert "hush" not in str(error_info.value.__cause__)


async def test_appends_and_transactions_run_in_request_order(store: Store) -> None:
    counts = await asyncio.gather(
        store.append([make_step(1)]),
        store.transact(count_events),
        store.append([make_step(2)]),
        store.transact(count_events),
    )

    assert list(counts) == [None, 1, None, 2]


async def test_cancelled_caller_does_not_affect_others(store: Store) -> None:
    release = threading.Event()
    blocker = asyncio.create_task(store.transact(lambda _: release.wait(10)))
    cancelled_append = asyncio.create_task(store.append([make_step(1)]))
    kept_append = asyncio.create_task(store.append([make_step(2)]))
    await asyncio.sleep(0)
    cancelled_append.cancel()
    release.set()

    await asyncio.gather(blocker, kept_append)

    assert await store.read(count_events) == 2
    assert store.depth == 0


# -- back-pressure --------------------------------------------------------------------------------


async def test_appends_wait_for_room_in_order_and_an_oversized_one_runs_alone(database_url: str) -> None:
    store = Store.open(database_url, capacity=10)
    release = threading.Event()
    blocker = asyncio.create_task(store.transact(lambda _: release.wait(10)))
    appends = [
        asyncio.create_task(store.append([make_step(i * 100 + j) for j in range(size)]))
        for i, size in enumerate([6, 3, 6, 25, 1])
    ]
    for _ in range(3):
        await asyncio.sleep(0)

    queued_depth = store.depth
    release.set()
    await asyncio.gather(blocker, *appends)

    assert queued_depth == 1 + 6 + 3
    times = [event.time for _, event in await store.read(read_events)]
    assert times == sorted(times)
    assert len(times) == 41
    assert store.depth == 0
    await store.close()


async def test_cancelled_append_releases_its_room(database_url: str) -> None:
    store = Store.open(database_url, capacity=4)
    release = threading.Event()
    blocker = asyncio.create_task(store.transact(lambda _: release.wait(10)))
    appends = [asyncio.create_task(store.append([make_step(i), make_step(i)])) for i in range(6)]
    await asyncio.sleep(0)
    appends[2].cancel()
    appends[4].cancel()
    release.set()

    await asyncio.gather(blocker, *appends, return_exceptions=True)

    assert await store.read(count_events) == 8
    assert store.depth == 0
    await store.close()


# -- reading --------------------------------------------------------------------------------------


async def test_reader_sees_a_snapshot(store: Store) -> None:
    await store.append([make_step(1)])
    read_started, release = threading.Event(), threading.Event()

    def count_twice(conn: Connection) -> tuple[int, int]:
        first = count_events(conn)
        read_started.set()
        release.wait(10)
        return first, count_events(conn)

    reading = asyncio.create_task(store.read(count_twice))
    await asyncio.to_thread(read_started.wait, 10)
    await store.append([make_step(2)])
    release.set()

    assert await reading == (1, 1)
    assert await store.read(count_events) == 2


async def test_reader_cannot_write(store: Store) -> None:
    with pytest.raises(StoreError, match=r"write a readonly database|in a read-only transaction"):
        await store.read(lambda conn: append_events(conn, [make_step()]))


async def test_read_error_reaches_the_caller(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        await store.read(lambda _: 1 // 0)


# -- failures -------------------------------------------------------------------------------------


async def test_full_disk_fails_every_append_until_there_is_room(tmp_path: Path) -> None:
    store = Store.open(make_url(tmp_path / "hive.db"))
    pages = await store.transact(lambda conn: int(conn.exec_driver_sql("PRAGMA page_count").scalar_one()))
    await store.transact(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar_one())
    big = [[make_step(i, data={"text": "x" * 20_000})] for i in range(3)]

    outcomes = await asyncio.gather(*map(store.append, big), return_exceptions=True)
    await store.transact(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=1000000").scalar_one())
    await asyncio.gather(*map(store.append, big))

    remedy = "disk is full; free space on its volume; what is stored is kept, and writing resumes by itself"
    assert all(str(outcome).endswith(remedy) and "hive.db" in str(outcome) for outcome in outcomes)
    assert await store.read(count_events) == 3
    assert (await store.read(verify)).ok
    await store.close()


async def test_write_waits_for_a_lock_of_another_program_and_reports_it(tmp_path: Path) -> None:
    store = Store.open(make_url(tmp_path / "hive.db"), busy_timeout=0.05)
    other = sqlite3.connect(tmp_path / "hive.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreError, match=r"cannot write to .*hive\.db: database is locked"):
        await store.append([make_step()])
    other.execute("ROLLBACK")
    other.close()
    await store.append([make_step()])

    assert await store.read(count_events) == 1
    await store.close()


def read_nothing(conn: Connection) -> int:
    return int(conn.execute(text("SELECT 1")).scalar_one())


def refuse(conn: Connection) -> None:
    conn.execute(text("INSERT INTO event_log_head (id, length, hash) VALUES (2, 0, NULL)"))


async def test_write_failure_is_reported_until_a_write_succeeds(database_url: str) -> None:
    store = Store.open(database_url, busy_timeout=0.05)
    assert store.is_writable

    with locked(database_url):
        for write in (store.append([make_step()]), store.transact(touch_head), store.check_writable()):
            with pytest.raises(StoreError, match="lock") as error_info:
                await write
            assert not store.is_writable
            assert store.failure is error_info.value
    for fault_count in (refuse, read_nothing):
        with contextlib.suppress(StoreError):
            await store.transact(fault_count)
        assert not store.is_writable, "nothing has been written yet"
    await store.append([make_step()])

    assert store.is_writable
    assert store.failure is None
    await store.close()


async def test_refused_rows_and_failed_reads_do_not_make_a_store_unwritable(store: Store) -> None:
    with pytest.raises(StoreError):
        await store.transact(refuse)
    with pytest.raises(StoreError):
        await store.read(lambda conn: conn.execute(text("SELECT * FROM nowhere")).all())

    assert store.is_writable


async def test_full_disk_is_probed_without_changes(tmp_path: Path) -> None:
    store = Store.open(make_url(tmp_path / "hive.db"))
    await store.append([make_step()])
    pages = await store.transact(lambda conn: int(conn.exec_driver_sql("PRAGMA page_count").scalar_one()))
    await store.transact(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar_one())
    with pytest.raises(StoreError, match="full"):
        await store.append([make_step(1, data={"text": "x" * 20_000})])
    assert "disk is full" in str(store.failure)

    await store.check_writable()

    assert store.is_writable
    assert await store.read(count_events) == 1
    assert (await store.read(verify)).ok
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of file sizes")
async def test_store_stays_unwritable_while_only_small_writes_fit(tmp_path: Path) -> None:
    import resource

    store = Store.open(make_url(tmp_path / "hive.db"))
    await store.append([make_step()])
    used_bytes = get_largest_file(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (used_bytes + 65_536, hard))
    try:
        with pytest.raises(StoreError):
            await store.append([make_step(1, data={"text": os.urandom(100_000).hex()})])
        await store.check_writable()
        await store.append([make_step(2)])
        while_full = store.is_writable
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.check_writable()

    assert not while_full
    assert store.is_writable
    await store.close()


# -- closing --------------------------------------------------------------------------------------


async def test_close_writes_the_queue_and_refuses_waiting_appends(database_url: str) -> None:
    store = Store.open(database_url, capacity=2)
    appends = [asyncio.create_task(store.append([make_step(i), make_step(i)])) for i in range(3)]
    await asyncio.sleep(0)

    await store.close()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)

    assert outcomes[0] is None
    assert all("is closed" in str(outcome) for outcome in outcomes[1:])
    reopened_store = Store.open(database_url)
    assert reopened_store.read_now(count_events) == 2
    reopened_store.close_now()


async def test_closed_store_refuses_calls_and_can_be_closed_again(database_url: str, tmp_path: Path) -> None:
    store = Store.open(database_url)
    await store.close()
    await store.close()

    with pytest.raises(StoreError, match="is closed"):
        await store.append([make_step()])
    with pytest.raises(StoreError, match="is closed"):
        await store.transact(count_events)
    with pytest.raises(StoreError, match="is closed"):
        await store.read(count_events)
    with pytest.raises(StoreError, match="is closed"):
        store.read_now(count_events)
    files = [] if is_postgres(database_url) else ["hive.db", "hive.db.lock"]
    assert sorted(os.listdir(tmp_path)) == files


async def test_bus_publishes_only_durable_events(store: Store) -> None:
    bus = EventBus(log=store)
    events: list[AgentEvent] = []
    bus.subscribe(events.append, name="test")
    valid_event, invalid_event = make_step(1), make_step(2, data={"what": object()})

    await bus.publish(valid_event)
    with pytest.raises(StoreError):
        await bus.publish(invalid_event)
    await bus.drain()
    await bus.close()

    assert events == [valid_event]


# -- opening --------------------------------------------------------------------------------------


def test_open_creates_folders_and_an_owner_only_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "hive 100%.db"

    Store.open(make_url(path)).close_now()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_new_database_has_the_revision_of_the_newest_migration(database_url: str) -> None:
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    Store.open(database_url).close_now()

    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as conn:
        assert MigrationContext.configure(conn).get_current_revision() == SCHEMA_REVISION
    engine.dispose()
    scripts = ScriptDirectory(
        str(Path(sys.modules[open_database.__module__].__file__ or "").parent / "migrations")
    )
    assert scripts.get_current_head() == SCHEMA_REVISION
    declared_versions = [script.module.oldest_compatible for script in scripts.walk_revisions()]
    assert max(declared_versions) == OLDEST_COMPATIBLE


def test_database_of_the_former_version_is_migrated(database_url: str) -> None:
    Store.open(database_url).close_now()
    downgrade(database_url)

    store = Store.open(database_url)
    store.close_now()

    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    columns = [column["name"] for column in inspect(engine).get_columns("secrets")]
    assert columns == ["name", "value"]
    columns = [column["name"] for column in inspect(engine).get_columns("snapshot_parts")]
    assert columns == ["snapshot_id", "number", "data"]
    with engine.connect() as conn:
        assert conn.execute(select(COMPATIBILITY.c.oldest_compatible)).scalars().all() == [OLDEST_COMPATIBLE]
    if is_postgres(database_url):
        assert "state" in [column["name"] for column in inspect(engine).get_columns("members")]
        columns = [column["name"] for column in inspect(engine).get_columns("shared_values")]
        assert columns == ["name", "value", "changed_at"]
    engine.dispose()


def test_new_and_current_databases_open_without_alembic(database_url: str) -> None:
    program = (
        "import sys; from queenright.health.store.store import Store; "
        f"[Store.open({database_url!r}).close_now() for _ in range(2)]; print('alembic' in sys.modules)"
    )

    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert process.stdout.strip() == "False"


def test_second_process_is_refused_with_the_firsts_number(database_url: str) -> None:
    store = Store.open(database_url)
    program = (
        f"from queenright.health.store.store import Store; Store.open({database_url!r}, busy_timeout=0.05)"
    )

    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    store.close_now()

    assert process.returncode == 1
    name = database_url.removeprefix("sqlite:///")
    host_suffix = f" on {socket.gethostname()}" if is_postgres(database_url) else ""
    assert (
        f"another queenright (process {os.getpid()}{host_suffix}) is using {name}; stop it" in process.stderr
    )


def test_link_to_a_database_in_use_is_refused_too(tmp_path: Path) -> None:
    store = Store.open(make_url(tmp_path / "hive.db"))
    (tmp_path / "link.db").symlink_to(tmp_path / "hive.db")

    with pytest.raises(StoreError, match="another queenright"):
        Store.open(make_url(tmp_path / "link.db"))

    store.close_now()
    Store.open(make_url(tmp_path / "link.db")).close_now()


async def test_database_in_use_opens_read_only(store: Store, database_url: str) -> None:
    await store.append([make_step()])

    read_only_store = Store.open(database_url, read_only=True)

    assert read_only_store.read_now(count_events) == 1
    with pytest.raises(StoreError, match="opened read-only"):
        await read_only_store.append([make_step()])
    read_only_store.close_now()
    assert (await asyncio.to_thread(verify_log, database_url)).rows == 1


def test_read_only_open_of_a_missing_database_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no database at .*hive\.db; start the service first"):
        Store.open(make_url(tmp_path / "hive.db"), read_only=True)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_file_that_is_not_a_database_is_refused_unchanged(tmp_path: Path, *, read_only: bool) -> None:
    path = tmp_path / "hive.db"
    path.write_bytes(b"buzz" * 2000)

    with pytest.raises(StoreError, match=r"cannot use .*hive\.db: file is not a database; it is damaged"):
        Store.open(make_url(path), read_only=read_only)

    assert path.read_bytes() == b"buzz" * 2000


def test_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hive.db"
    Store.open(make_url(path)).close_now()
    raw = bytearray(path.read_bytes())
    raw[100:4096] = b"\xff" * 3996
    path.write_bytes(raw)

    with pytest.raises(StoreError, match="malformed; it is damaged"):
        Store.open(make_url(path))


def test_locked_database_is_refused(tmp_path: Path) -> None:
    Store.open(make_url(tmp_path / "hive.db")).close_now()
    other = sqlite3.connect(tmp_path / "hive.db", isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")

    with pytest.raises(StoreError, match="database is locked; another program holds it"):
        Store.open(make_url(tmp_path / "hive.db"), busy_timeout=0.05)

    other.close()
    Store.open(make_url(tmp_path / "hive.db")).close_now()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE schema_compatibility SET oldest_compatible = '9999'",
        "DELETE FROM schema_compatibility",
        "DROP TABLE schema_compatibility",
    ],
)
def test_newer_schema_is_refused(database_url: str, statement: str, *, read_only: bool) -> None:
    """The database opens if it declares this version compatible."""
    Store.open(database_url).close_now()
    change(database_url, "UPDATE alembic_version SET version_num = '9999'", statement)

    with pytest.raises(StoreError, match=r"hive.* has (a )?schema .*version"):
        Store.open(database_url, read_only=read_only)


async def test_newer_schema_that_this_version_can_use_stays_as_it_is(database_url: str) -> None:
    Store.open(database_url).close_now()
    change(
        database_url,
        "UPDATE alembic_version SET version_num = '9999'",
        "ALTER TABLE tickets ADD COLUMN mood TEXT",
    )

    store = Store.open(database_url)
    await store.append([make_step(1)])
    await store.close()

    read_only_store = Store.open(database_url, read_only=True)
    assert len(read_only_store.read_now(read_events)) == 1
    read_only_store.close_now()
    with connected(database_url) as conn:
        assert conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9999"


def test_database_of_another_program_is_refused_unchanged(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "hive.db")
    other.execute("CREATE TABLE honey (jar INTEGER)")
    other.commit()
    other.close()

    with pytest.raises(StoreError, match="another program's database; give another path"):
        Store.open(make_url(tmp_path / "hive.db"))


@pytest.mark.parametrize("path", ["/proc/queenright/hive.db", "/dev/null/hive.db", "/"])
def test_place_that_cannot_be_written_is_named(path: str) -> None:
    with pytest.raises(StoreError, match=r"cannot (create|write) .*; give (another path|a path to a file)"):
        Store.open(f"sqlite:///{path}")


@pytest.mark.parametrize(
    "address",
    [
        "hive.db",
        "",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///x?mode=ro",
        "mysql://bee:hush@host/db",
        "postgresql://bee:hush",
        "postgresql://bee:2@hush@host/db",
        "postgresql+psycopg2://bee:hush@host/db",
    ],
)
def test_database_url_without_a_path_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(StoreError, match=r"write sqlite:///path/to/queenright\.db") as error_info:
        Store.open(address)

    assert "hush" not in str(error_info.value)


def test_store_that_could_not_be_opened_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "hive.db"
    path.write_bytes(b"buzz" * 2000)
    for _ in range(2):
        with pytest.raises(StoreError, match="not a database"):
            Store.open(make_url(path))
    path.unlink()

    Store.open(make_url(path)).close_now()
