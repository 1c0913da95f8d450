"""Snapshots of worker state, from which a restart or takeover resumes."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, func, insert, select, update

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.monitor_snapshot import MonitorSnapshot
from queenright.health.monitoring.snapshot_table import write_part
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import SNAPSHOT_PARTS
from queenright.runtime.events import EventType
from queenright.server.build import build
from queenright.server.monitoring.snapshots import _MAX_EVENTS
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.cluster.test_keys import RECORDINGS, decode_events, load_recording
from tests.databases import Postgres
from tests.health.snapshot_parts import collect_state, finish_snapshot, restore_monitor
from tests.server.test_clocks import (
    HOUR,
    START_TIME,
    Clock,
    advance_clock,
    list_states,
    make_event,
    make_start_event,
)
from tests.waiting import until

_READ_LOG = "reading the last day of the event log"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(storage=tmp_path / "storage", database=database_url)


@asynccontextmanager
async def run_killed_service(settings: Settings, clock: Clock) -> AsyncIterator[Service]:
    """Run a service that ends as if killed: it writes no final snapshot and no last-alive time."""
    service = await build(settings, clock=clock)
    await service.start()
    try:
        yield service
    finally:
        await service.tasks.stop()
        service.pipeline.arrivals.close()
        await service.store.close()
        await service.stop()


async def list_snapshot_rows(service: Service) -> list[tuple[str, int]]:
    query = select(SNAPSHOT_PARTS.c.snapshot_id, SNAPSHOT_PARTS.c.number)
    rows = await service.store.read(lambda conn: conn.execute(query).all())
    return [(row.snapshot_id, row.number) for row in rows]


def execute_statement(settings: Settings, statement: Any) -> None:
    store = Store.open(settings.database_url)
    with store._database.writer.begin():
        store._database.writer.execute(statement)
    store.close_now()


async def test_killed_service_continues_from_its_snapshot(settings: Settings, clock: Clock) -> None:
    """B117: silence before and after the snapshot counts towards the stall limit. Downtime does not count."""
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now), make_start_event(clock.now, "other")])
        advance_clock(service, clock, 100)
        await service.snapshots.take()
        await service.ingest([make_event(EventType.STEP_COMPLETED, clock.now, "other", verdict="ACCEPT")])
        advance_clock(service, clock, 100)

    clock.now += HOUR
    async with run_killed_service(settings, clock) as service:
        assert list_states(service) == {"bee": "healthy", "other": "healthy"}
        advance_clock(service, clock, 41)
        assert list_states(service) == {"bee": "stuck", "other": "healthy"}
        advance_clock(service, clock, 100)
        assert list_states(service) == {"bee": "stuck", "other": "stuck"}


async def test_restart_reads_only_events_after_the_snapshot(
    settings: Settings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        await service.snapshots.take()
        clock.now += 60
        await service.ingest([make_event(EventType.STEP_COMPLETED, clock.now, verdict="RETRY")])
    async with run_killed_service(settings, clock) as service:
        [worker] = service.workers()

    assert worker.vitals.steps_total == 1
    assert "replayed 1 events after the snapshot 60 s ago" in caplog.text


async def test_clean_stop_leaves_a_snapshot_and_nothing_to_replay(
    settings: Settings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    service = await build(settings, clock=clock)
    await service.start()
    await service.ingest([make_start_event(clock.now)])
    await service.stop()
    async with run_killed_service(settings, clock) as service:
        assert list_states(service) == {"bee": "healthy"}

    assert "replayed 0 events after the snapshot 0 s ago" in caplog.text


async def test_only_the_newest_snapshot_is_kept(settings: Settings, clock: Clock) -> None:
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        await service.snapshots.take()
        rows_before = await list_snapshot_rows(service)
        await service.snapshots.take()
        rows_after = await list_snapshot_rows(service)

    assert sorted(number for _, number in rows_after) == [0, 1]
    assert {name for name, _ in rows_before}.isdisjoint(name for name, _ in rows_after)


async def test_snapshot_is_written_only_after_new_events(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_INTERVAL_SECONDS", "_MIN_INTERVAL_SECONDS", "_PAUSE_FACTOR"):
        monkeypatch.setattr(f"queenright.server.monitoring.snapshots.{name}", 0.0)
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        await until(lambda: service.snapshots._last_seq == service.feed.head.seq > 0, "a snapshot is written")
        first_rows = await list_snapshot_rows(service)
        await service.store.check_writable()
        assert await list_snapshot_rows(service) == first_rows
        await service.ingest([make_start_event(clock.now, "other")])
        await until(
            lambda: service.snapshots._last_seq == service.feed.head.seq, "another snapshot is written"
        )
        assert await list_snapshot_rows(service) != first_rows


async def test_many_events_trigger_an_early_snapshot(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B118: a takeover replays only a few events, even of a busy fleet."""
    for name in ("_MIN_INTERVAL_SECONDS", "_PAUSE_FACTOR"):
        monkeypatch.setattr(f"queenright.server.monitoring.snapshots.{name}", 0.01)
    async with run_killed_service(settings, clock) as service:
        for bee in range(_MAX_EVENTS // 2):
            await service.ingest([make_start_event(clock.now, f"bee-{bee}")])
        await asyncio.sleep(0.1)
        assert await list_snapshot_rows(service) == []
        while service.feed.head.seq < _MAX_EVENTS:
            await service.ingest([make_event(EventType.STEP_COMPLETED, clock.now, "bee-0", verdict="ACCEPT")])
        await until(lambda: service.snapshots._last_seq >= _MAX_EVENTS, "a snapshot is written")


async def test_events_stored_but_not_observed_before_the_snapshot_are_kept(
    settings: Settings, clock: Clock
) -> None:
    """B117: the snapshot is taken after the commit, but before the monitor applies the event."""
    accept_event = make_event(EventType.STEP_COMPLETED, clock.now, verdict="ACCEPT")
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        await service.store.append([accept_event])
        await service.ingest([make_start_event(clock.now, "other")])
        await service.snapshots.take()
        head = service.pipeline.describe_position(0)
    async with run_killed_service(settings, clock) as service:
        bee = service.monitor.get("bee")

    assert len(head.unobserved) == 1
    assert bee is not None
    assert bee.vitals.steps_total == 1


async def test_unobserved_event_is_kept_for_the_grace_period(
    settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_killed_service(settings, clock) as service:
        await service.store.append([make_start_event(clock.now)])
        for _ in range(3):
            await service.snapshots.take()
        within_grace = service.pipeline.describe_position(0).unobserved
        monkeypatch.setattr("queenright.server.monitoring.snapshots._GRACE_SECONDS", 0.0)
        await service.snapshots.take()

    assert len(within_grace) == 1
    assert service.pipeline.describe_position(0).unobserved == ()


async def test_findings_in_a_snapshot_are_logged_once(settings: Settings, clock: Clock) -> None:
    """B77: the service is killed before or after it logs the findings in the snapshot."""
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now), make_start_event(clock.now, "logged")])
        advance_clock(service, clock, 300)
        assert len(service.pipeline.pending) == 4
        await service.snapshots.take()
        logged_events = [event for event in service.pipeline.pending if event.agent_id == "logged"]
        await service.bus.publish(*logged_events)
    for _ in range(2):
        async with run_killed_service(settings, clock) as service:
            await service.pipeline.publish_pending()
            assert list_states(service) == {"bee": "stuck", "logged": "stuck"}
            types = {EventType.HEALTH_STATE_CHANGED, EventType.FINDING_OPENED}
            stored_events = await service.store.history(types=types)

    assert sorted((event.agent_id, event.type.value) for event in stored_events) == [
        ("bee", "finding_opened"),
        ("bee", "health_state_changed"),
        ("logged", "finding_opened"),
        ("logged", "health_state_changed"),
    ]


async def test_process_seen_after_the_snapshot_is_alive(settings: Settings, clock: Clock) -> None:
    """B88: reports of open work are not in the event log."""
    open_call = make_event(EventType.TOOL_CALL_STARTED, clock.now, tool="bash", call_id="1", foreign=True)
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now, framework="crewai", foreign=True), open_call])
        service.record_process_alive({"one": 5.0})
        await service.snapshots.take()
        for _ in range(10):
            clock.now += 5
            service.record_process_alive({"one": 5.0})
        advance_clock(service, clock, 1)
        [is_alive] = service.workers()
        assert not is_alive.vitals.has_ended
    async with run_killed_service(settings, clock) as service:
        [worker] = service.workers()

    assert not worker.vitals.has_ended


DAMAGED_SNAPSHOTS = {
    "part is damaged": update(SNAPSHOT_PARTS).where(SNAPSHOT_PARTS.c.number == 1).values(data=b"x"),
    "part is not a snapshot": update(SNAPSHOT_PARTS)
    .where(SNAPSHOT_PARTS.c.number == 1)
    .values(data=zlib.compress(b"x")),
    "part is missing": delete(SNAPSHOT_PARTS).where(SNAPSHOT_PARTS.c.number == 1),
    "head is damaged": update(SNAPSHOT_PARTS).where(SNAPSHOT_PARTS.c.number == 0).values(data=b"x"),
    "head has another version": update(SNAPSHOT_PARTS)
    .where(SNAPSHOT_PARTS.c.number == 0)
    .values(data=b'{"format": "of the future", "anything": 1}'),
}


@pytest.mark.parametrize("damage", DAMAGED_SNAPSHOTS)
async def test_service_without_a_readable_snapshot_reads_the_log(
    damage: str, settings: Settings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """B120: a version with another snapshot format loses no data."""
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        advance_clock(service, clock, 100)
        await service.snapshots.take()
        await service.ingest([make_start_event(clock.now, "other")])
    execute_statement(settings, DAMAGED_SNAPSHOTS[damage])
    async with run_killed_service(settings, clock) as service:
        advance_clock(service, clock, 141)
        assert list_states(service) == {"bee": "stuck", "other": "healthy"}
        await service.snapshots.take()
        assert len(await list_snapshot_rows(service)) == 2

    [warning] = [record.getMessage() for record in caplog.records if _READ_LOG in record.getMessage()]
    assert warning.startswith(_READ_LOG)


async def test_incomplete_snapshot_is_ignored_and_deleted(settings: Settings, clock: Clock) -> None:
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        await service.snapshots.take()
        advance_clock(service, clock, 100)
    execute_statement(settings, insert(SNAPSHOT_PARTS).values(snapshot_id="killed", number=1, data=b"x"))
    async with run_killed_service(settings, clock) as service:
        assert list_states(service) == {"bee": "healthy"}
        await service.snapshots.take()
        assert "killed" not in {name for name, _ in await list_snapshot_rows(service)}


async def test_service_that_does_not_start_keeps_the_snapshot(settings: Settings, clock: Clock) -> None:
    """The monitor of such a service has no workers yet."""
    async with run_killed_service(settings, clock) as service:
        await service.ingest([make_start_event(clock.now)])
        await service.snapshots.take()
        rows_before = await list_snapshot_rows(service)
    service = await build(settings, clock=clock)
    await service.stop()
    async with run_killed_service(settings, clock) as service:
        assert await list_snapshot_rows(service) == rows_before


async def test_replaced_owner_cannot_write_a_snapshot(
    postgres: Postgres, tmp_path: Path, clock: Clock
) -> None:
    """B116: a paused process that was replaced writes nothing more."""
    settings = Settings(storage=tmp_path / "storage", database=postgres.migrated())
    async with run_killed_service(settings, clock) as replaced_service:
        await replaced_service.ingest([make_start_event(clock.now)])
        engine = create_engine(settings.database_url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as conn:
            conn.exec_driver_sql(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks"
                " WHERE locktype = 'advisory' AND granted"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
        engine.dispose()
        successor = Store.open(settings.database_url)
        try:
            with pytest.raises(StoreError):
                await replaced_service.store.transact(
                    partial(write_part, snapshot_id="late", number=1, data=b"")
                )
            await replaced_service.snapshots.take()
            count = select(func.count()).select_from(SNAPSHOT_PARTS)
            assert await successor.read(lambda conn: conn.execute(count).scalar()) == 0
        finally:
            await successor.close()


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_recorded_run_continues_from_a_snapshot_in_its_middle(path: Path) -> None:
    """B117: in the middle of each recorded run."""
    settings = HealthSettings()
    events = decode_events(load_recording(path))
    middle = zlib.crc32(path.name.encode()) % (len(events) + 1)
    original = HealthMonitor(settings)
    for item in events[:middle]:
        original.apply(item, item.time)
        original.advance(item.time)
    restored_monitor = restore_monitor(finish_snapshot(MonitorSnapshot(original)), settings)

    for monitor in (original, restored_monitor):
        for item in events[middle:]:
            monitor.apply(item, item.time)
            monitor.advance(item.time)
        monitor.sweep(events[-1].time + HOUR if events else START_TIME)

    assert collect_state(restored_monitor) == collect_state(original)
    assert restored_monitor.next_deadline() == original.next_deadline()
