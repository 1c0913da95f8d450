"""Retention: old rows are deleted, the remaining rows stay verifiable, and a changed row is never deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, insert, select
from sqlalchemy.exc import IntegrityError

from queenright.health.settings import RetentionSettings as Settings
from queenright.health.store.event_chain import verify, verify_archive
from queenright.health.store.event_log import append_events, read_events, read_history, replay
from queenright.health.store.keyed_requests import claim
from queenright.health.store.retention import INTERVAL_SECONDS, PruneResult, Retention, prune
from queenright.health.store.store import Store
from queenright.health.store.tables import (
    AUDIT_ARCHIVE,
    ESCALATIONS,
    EVENT_LOG_HEAD,
    EVENTS,
    INSTRUCTIONS,
    INTERVENTIONS,
    KEYED_REQUESTS,
    METADATA,
    OUTBOX,
    OUTBOX_DELIVERIES,
    RECOVERIES,
    TICKETS,
)
from queenright.runtime.bus import UnknownEventError
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import change, is_postgres

DAY = 86_400.0
NOW = 1_000 * DAY
SETTINGS = Settings(days=30, audit_days=365)
STEP, CHANGE = EventType.STEP_COMPLETED, EventType.HEALTH_STATE_CHANGED


def make_event(age: float, kind: EventType = STEP, **fields: Any) -> AgentEvent:
    """Return an event that is ``age`` days old."""
    return AgentEvent(type=kind, time=NOW - age * DAY, agent_id="bee", session_id="s1", **fields)


def open_memory_database() -> Iterator[Connection]:
    """Yield an empty SQLite database without its triggers, which other tests cover on files."""
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.connect() as connection:
        connection.execute(EVENT_LOG_HEAD.insert().values(id=1, length=0, hash=bytes(32)))
        yield connection
    engine.dispose()


@pytest.fixture
def conn() -> Iterator[Connection]:
    yield from open_memory_database()


def list_logged_numbers(conn: Connection) -> list[int]:
    return list(conn.execute(select(EVENTS.c.seq).order_by(EVENTS.c.seq)).scalars())


def list_archived_numbers(conn: Connection) -> list[int]:
    return list(conn.execute(select(AUDIT_ARCHIVE.c.seq).order_by(AUDIT_ARCHIVE.c.seq)).scalars())


def is_chain_intact(conn: Connection) -> bool:
    return verify(conn).ok and verify_archive(conn).ok


async def test_old_events_are_pruned_and_audit_events_archived(database_url: str) -> None:
    store = Store.open(database_url)
    await store.append(
        [make_event(40), make_event(39, CHANGE, data={"to": "stuck"}), make_event(38), make_event(1, CHANGE)]
    )

    pruned_rows = await store.transact(lambda conn: prune(conn, NOW, SETTINGS))

    assert pruned_rows == PruneResult(rows=3, archived_rows=1)
    assert await store.read(list_logged_numbers) == [4]
    assert await store.read(list_archived_numbers) == [2]
    assert await store.read(is_chain_intact)
    assert (await store.read(verify)).let_go == 3
    await store.append([make_event(0)])
    assert (await store.read(verify)).rows == 2
    await store.close()


async def test_archive_has_its_own_retention(database_url: str) -> None:
    store = Store.open(database_url)
    await store.append(
        [make_event(400, CHANGE), make_event(380, CHANGE), make_event(360, CHANGE), make_event(10)]
    )

    pruned_rows = await store.transact(lambda conn: prune(conn, NOW, SETTINGS))

    assert pruned_rows == PruneResult(rows=5, archived_rows=3)
    assert await store.read(list_archived_numbers) == [3]
    assert (await store.read(verify_archive)).let_go == 2
    assert await store.read(is_chain_intact)
    await store.close()


def test_one_transaction_prunes_at_most_one_batch(conn: Connection) -> None:
    append_events(conn, [make_event(40) for _ in range(250)])

    batches = [prune(conn, NOW, SETTINGS, 100) for _ in range(4)]

    assert [(batch.rows, batch.is_done) for batch in batches] == [
        (100, False),
        (100, False),
        (50, True),
        (0, True),
    ]
    assert verify(conn).ok


def test_younger_event_keeps_all_later_logged_events(conn: Connection) -> None:
    append_events(conn, [make_event(40), make_event(5), make_event(50)])

    prune(conn, NOW, SETTINGS)

    assert list_logged_numbers(conn) == [2, 3]


def test_event_with_a_future_time_is_pruned_with_its_neighbours(conn: Connection) -> None:
    append_events(conn, [make_event(40), make_event(-500), make_event(39), make_event(-500), make_event(1)])

    prune(conn, NOW, SETTINGS)

    assert list_logged_numbers(conn) == [4, 5]


def test_young_log_is_not_pruned(conn: Connection) -> None:
    append_events(conn, [make_event(29), make_event(1)])

    assert prune(conn, NOW, SETTINGS) == PruneResult()
    assert list_logged_numbers(conn) == [1, 2]


def test_emptied_log_is_intact_and_continues(conn: Connection) -> None:
    append_events(conn, [make_event(40, CHANGE), make_event(40)])
    prune(conn, NOW, SETTINGS)

    assert is_chain_intact(conn)
    append_events(conn, [make_event(1)])
    assert (is_chain_intact(conn), list_logged_numbers(conn)) == (True, [3])


def test_changed_row_stops_retention_of_the_log(conn: Connection) -> None:
    """B80: deleting old rows does not delete the proof that one was changed."""
    append_events(conn, [make_event(40, CHANGE) for _ in range(6)])
    conn.exec_driver_sql("UPDATE events SET agent_id = 'wasp' WHERE seq = 4")

    pruned_rows = prune(conn, NOW, SETTINGS)

    assert "row 4 of the event log" in str(pruned_rows.refusal)
    assert list_logged_numbers(conn) == [4, 5, 6]
    assert verify(conn).first_bad == 4


def test_changed_row_stops_retention_of_the_archive(conn: Connection) -> None:
    """B80: this also holds in the archive."""
    append_events(conn, [make_event(400, CHANGE) for _ in range(4)])
    prune(conn, NOW, SETTINGS.model_copy(update={"audit_days": 500}))
    conn.exec_driver_sql("UPDATE audit_archive SET data = '{}  ' WHERE seq = 3")

    pruned_rows = prune(conn, NOW, SETTINGS)

    assert "row 3 of the audit archive" in str(pruned_rows.refusal)
    assert list_archived_numbers(conn) == [3, 4]
    assert verify_archive(conn).first_bad == 3


async def test_triggers_allow_deleting_only_pruned_rows(database_url: str) -> None:
    store = Store.open(database_url)
    await store.append([make_event(40, CHANGE), make_event(1, CHANGE)])
    await store.transact(lambda conn: prune(conn, NOW, SETTINGS))
    await store.close()

    statements = ["DELETE FROM events", "DELETE FROM audit_archive", "UPDATE audit_archive SET type = 'x'"]
    for statement in [*statements, *(["TRUNCATE audit_archive"] if is_postgres(database_url) else [])]:
        with pytest.raises(IntegrityError, match="append-only"):
            change(database_url, statement)

    store = Store.open(database_url)
    assert await store.read(is_chain_intact)
    await store.close()


async def test_pruned_log_is_read_and_replayed_as_before(database_url: str) -> None:
    store = Store.open(database_url)
    events = [make_event(40, id="old"), make_event(2, id="a"), make_event(1, id="b")]
    await store.append(events)
    await store.transact(lambda conn: prune(conn, NOW, SETTINGS))

    assert await store.read(lambda conn: list(replay(conn, 0.0))) == events[1:]
    assert await store.read(lambda conn: read_history(conn, after="a")) == events[2:]
    assert await store.read(lambda conn: [seq for seq, _ in read_events(conn)]) == [2, 3]
    with pytest.raises(UnknownEventError):
        await store.read(lambda conn: read_history(conn, after="old"))
    await store.close()


# -- records other than events ------------------------------------------------------------------------


def make_ticket(name: str, age: float, closed_at: float | None) -> dict[str, Any]:
    return {
        "ticket_id": name,
        "fingerprint": name,
        "agent_id": name,
        "session_id": "s",
        "kind": "stall",
        "severity": "high",
        "status": "open" if closed_at is None else "resolved",
        "first_seen": NOW - age * DAY,
        "updated_at": NOW - age * DAY,
        "closed_at": None if closed_at is None else NOW - closed_at * DAY,
        "body": "{}",
    }


def make_record(record_kind: str, name: str, age: float, **fields: Any) -> dict[str, Any]:
    row = {f"{record_kind}_id": name, "agent_id": "bee", "session_id": "s", "created_at": NOW - age * DAY}
    return {**row, "body": "{}", **fields}


def make_notification(number: int, age: float, active: bool) -> dict[str, Any]:
    at = NOW - age * DAY
    return {
        "id": number,
        "ticket_id": "t",
        "alert_key": f"k{number}",
        "labels": {},
        "annotations": {},
        "starts_at": at,
        "created_at": at,
        "updated_at": at,
        "active": active,
    }


async def test_only_old_closed_records_are_pruned(database_url: str) -> None:
    def fill(conn: Connection) -> None:
        conn.execute(
            insert(TICKETS),
            [make_ticket("old", 50, 40), make_ticket("open", 50, None), make_ticket("late", 50, 5)],
        )
        conn.execute(
            insert(OUTBOX),
            [make_notification(1, 40, False), make_notification(2, 40, True), make_notification(3, 1, False)],
        )
        delivery_fields = {"peer": "p", "status": "resolved", "attempts": 1}
        conn.execute(insert(OUTBOX_DELIVERIES), [{"outbox_id": n, **delivery_fields} for n in (1, 2, 3)])
        acted_at = {"incarnation_id": "i", "kind": "nudge"}
        conn.execute(
            insert(INTERVENTIONS),
            [make_record("intervention", name, age, outcome="done", **acted_at) for name, age in AGES],
        )
        conn.execute(
            insert(INSTRUCTIONS),
            [
                make_record("instruction", name, age, status="done", expires_at=NOW - age * DAY, **acted_at)
                for name, age in AGES
            ],
        )
        conn.execute(
            insert(ESCALATIONS),
            [
                make_record("escalation", name, age, status=status, deadline=NOW)
                for name, age, status in (
                    ("old", 40, "decided"),
                    ("asked", 40, "pending"),
                    ("new", 2, "decided"),
                )
            ],
        )
        conn.execute(
            insert(RECOVERIES),
            [
                make_record("recovery", name, age, task_id="t", status=status)
                for name, age, status in (
                    ("old", 40, "failed"),
                    ("goes on", 40, "watching"),
                    ("new", 2, "failed"),
                )
            ],
        )

    def list_remaining_keys(conn: Connection) -> dict[str, list[Any]]:
        tables = (TICKETS, OUTBOX, OUTBOX_DELIVERIES, INTERVENTIONS, INSTRUCTIONS, ESCALATIONS, RECOVERIES)
        keys = {table.name: next(iter(table.primary_key)) for table in tables}
        return {name: sorted(conn.execute(select(key)).scalars()) for name, key in keys.items()}

    store = Store.open(database_url)
    await store.transact(fill)

    pruned_rows = await store.transact(lambda conn: prune(conn, NOW, SETTINGS))

    assert pruned_rows == PruneResult(rows=6)
    assert await store.read(list_remaining_keys) == {
        "tickets": ["late", "open"],
        "outbox": [2, 3],
        "outbox_deliveries": [2, 3],
        "interventions": ["new"],
        "instructions": ["new"],
        "escalations": ["asked", "new"],
        "recoveries": ["goes on", "new"],
    }
    await store.close()


AGES = (("old", 40.0), ("new", 2.0))


def test_last_notification_keeps_its_number(conn: Connection) -> None:
    """SQLite would reuse the number of a deleted last row."""
    conn.execute(insert(OUTBOX), [make_notification(1, 40, False), make_notification(2, 40, False)])

    prune(conn, NOW, SETTINGS)

    assert list(conn.execute(select(OUTBOX.c.id)).scalars()) == [2]


# -- the task --------------------------------------------------------------------------------------


class PauseRecorder:
    """Records sleeps without sleeping, and ends the task after ``end_after`` sleeps."""

    def __init__(self, end_after: int, meanwhile: Callable[[], Any] = lambda: None) -> None:
        self.pause_lengths: list[float] = []
        self._end_after = end_after
        self._meanwhile = meanwhile

    async def __call__(self, seconds: float) -> None:
        self.pause_lengths.append(seconds)
        self._meanwhile()
        if len(self.pause_lengths) == self._end_after:
            raise asyncio.CancelledError


async def test_pruning_pauses_between_batches_and_repeats_after_the_interval(database_url: str) -> None:
    store = Store.open(database_url)
    await store.append([make_event(40) for _ in range(1250)])
    retention = Retention(store, SETTINGS, clock=lambda: NOW)
    pauses = PauseRecorder(end_after=4)

    with pytest.raises(asyncio.CancelledError):
        await retention.run(pauses)

    assert pauses.pause_lengths[:2] == [0.1, 0.1]
    assert pauses.pause_lengths[2:] == [INTERVAL_SECONDS] * 2
    assert await store.read(list_logged_numbers) == []
    await store.close()


async def test_other_writes_run_between_batches(database_url: str) -> None:
    store = Store.open(database_url)
    await store.append([make_event(40) for _ in range(1250)])
    write_tasks: list[asyncio.Task[None]] = []

    async def write_meanwhile(_seconds: float) -> None:
        write_tasks.append(asyncio.create_task(store.append([make_event(0)])))
        await write_tasks[-1]

    pruned_rows = await Retention(store, SETTINGS, clock=lambda: NOW).prune(write_meanwhile)

    assert pruned_rows.rows == 1250
    assert await store.read(list_logged_numbers) == [1251, 1252]
    assert await store.read(is_chain_intact)
    await store.close()


async def test_failure_is_logged_and_retried(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(database_url)
    await store.close()

    with pytest.raises(asyncio.CancelledError):
        await Retention(store, SETTINGS, clock=lambda: NOW).run(PauseRecorder(end_after=2))

    assert caplog.text.count("retrying later") == 2


async def test_changed_log_is_logged_once(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queenright.health.store.retention")
    store = Store.open(database_url)
    await store.append([make_event(40, id="one"), make_event(40, id="two")])
    await store.close()
    disable = "ALTER TABLE events DISABLE TRIGGER ALL"
    change(database_url, disable if is_postgres(database_url) else "DROP TRIGGER events_refuse_update")
    change(database_url, "UPDATE events SET node_id = 'x' WHERE seq = 2")
    store = Store.open(database_url)

    with pytest.raises(asyncio.CancelledError):
        await Retention(store, SETTINGS, clock=lambda: NOW).run(PauseRecorder(end_after=3))

    assert [log_record.levelname for log_record in caplog.records] == ["INFO", "ERROR"]
    assert "row 2 of the event log" in caplog.text
    assert "`queenright audit verify`" in caplog.text
    await store.close()


# -- any changes --------------------------------------------------------------------------------------

_days = st.integers(0, 500)
_append = st.lists(st.tuples(_days, st.sampled_from([STEP, CHANGE])), min_size=1, max_size=6)
_prune = st.tuples(st.integers(0, 600), st.integers(1, 8))
_work = st.lists(_append | _prune, max_size=10)


def apply_steps(conn: Connection, steps: list[Any]) -> None:
    for step in steps:
        if isinstance(step, list):
            append_events(conn, [make_event(age, kind) for age, kind in step])
        else:
            day, batch = step
            prune(conn, NOW + day * DAY, SETTINGS, batch)


@given(steps=_work)
def test_hash_chains_are_intact_after_any_appends_and_prunes(steps: list[Any]) -> None:
    for conn in open_memory_database():
        apply_steps(conn, steps)

        assert is_chain_intact(conn)


_HEAD = [column.name for column in EVENT_LOG_HEAD.columns if column.name != "id"]


@given(steps=_work, later_steps=_work, data=st.data())
def test_any_change_is_detected_after_any_pruning(
    steps: list[Any], later_steps: list[Any], data: st.DataObject
) -> None:
    """
    B80: a changed column or a removed row is detected in the log, the archive and the record of their ends.
    """
    for conn in open_memory_database():
        apply_steps(conn, steps)
        tables = [table for table in (EVENTS, AUDIT_ARCHIVE) if conn.execute(select(table)).first()]
        if not tables:
            return
        table = data.draw(st.sampled_from(tables))
        seq = data.draw(st.sampled_from(list(conn.execute(select(table.c.seq)).scalars())))
        name = data.draw(st.sampled_from([column.name for column in table.columns] + ["row", "head"]))
        if name == "head":
            name = data.draw(st.sampled_from(_HEAD))
            value = "randomblob(32)" if name.endswith(("hash", "check")) else f"{name} + 1"
            conn.exec_driver_sql(f"UPDATE event_log_head SET {name} = {value}")
        elif name == "row":
            conn.exec_driver_sql(f"DELETE FROM {table.name} WHERE seq = {seq}")
        else:
            new_value = {"time": "time + 1", "seq": "-seq"}.get(name, f"{name} || 'x'")
            new_value = "randomblob(32)" if name.endswith("hash") else new_value
            conn.exec_driver_sql(f"UPDATE {table.name} SET {name} = {new_value} WHERE seq = {seq}")

        assert not is_chain_intact(conn)
        apply_steps(conn, [step for step in later_steps if not isinstance(step, list)])
        assert not is_chain_intact(conn)


@pytest.mark.parametrize("audit_ages", [[], [400], [40], [400, 40]], ids=["empty", "emptied", "kept", "both"])
def test_moved_archive_start_is_detected(conn: Connection, audit_ages: list[int]) -> None:
    """B80: this holds for an empty archive, and before the first row, whose number need not be the next."""
    for age in audit_ages:
        append_events(conn, [make_event(age, CHANGE), make_event(age), make_event(age)])
        prune(conn, NOW, SETTINGS)
    append_events(conn, [make_event(0)])
    was_whole = is_chain_intact(conn)
    conn.execute(EVENT_LOG_HEAD.update().values(archive_base_seq=EVENT_LOG_HEAD.c.archive_base_seq + 1))

    verification = verify_archive(conn)
    error = prune(conn, NOW + 600 * DAY, SETTINGS).refusal

    assert was_whole
    assert not verification.ok
    assert verification.reason == "the record of where the archive begins was changed"
    assert verification.reason in error
    assert not verify_archive(conn).ok


def test_idempotency_keys_expire_after_a_day(conn: Connection) -> None:
    """Two callers may use the same key, and each key expires separately."""
    claim(conn, "ada", "k1", "request", NOW - DAY - 1)
    claim(conn, "bob", "k1", "request", NOW - DAY + 1)
    prune(conn, NOW, SETTINGS)

    assert list(conn.execute(select(KEYED_REQUESTS.c.caller)).scalars()) == ["bob"]
