"""Partitions of a cluster in one PostgreSQL database: each a schema with its own log, lock and writer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from queenright.health.store.database import NoDatabaseError
from queenright.health.store.engines import list_partitions
from queenright.health.store.event_chain import verify
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store, StoreError
from queenright.health.store.store_copy import copy_database
from queenright.health.store.tables import SCHEMA_REVISION
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import Postgres, change, connected, downgrade

PARTITIONS = range(3)


@pytest.fixture
def cluster_url(postgres: Postgres) -> Iterator[str]:
    cluster_url = postgres.empty()
    yield cluster_url
    postgres.drop(cluster_url)


def make_step(number: int) -> AgentEvent:
    return AgentEvent(type=EventType.STEP_COMPLETED, time=1000.0 + number, agent_id="bee")


async def test_partitions_have_separate_logs(cluster_url: str) -> None:
    """Each partition has its own tables, triggers and row numbers."""
    stores = [Store.open(cluster_url, busy_timeout=0.05, partition=number) for number in PARTITIONS]
    for number, store in enumerate(stores):
        await store.append([make_step(number)] * (number + 1))
    event_times = [[event.time for _, event in await store.read(read_events)] for store in stores]
    checks = [await store.read(verify) for store in stores]
    await asyncio.gather(*(store.close() for store in stores))

    assert event_times == [[1000.0], [1001.0], [1002.0]]
    assert [(check.ok, check.rows) for check in checks] == [(True, 1)] * 3
    assert list_partitions(cluster_url) == [0, 1, 2]
    with pytest.raises(IntegrityError, match="append-only"):
        change(cluster_url, "SET search_path TO queenright_2", "DELETE FROM events")


async def test_second_writer_error_names_the_schema(cluster_url: str) -> None:
    store = Store.open(cluster_url, busy_timeout=0.05, partition=1)

    with pytest.raises(StoreError, match=r"another queenright .* is using .*\(schema queenright_1\)"):
        Store.open(cluster_url, busy_timeout=0.05, partition=1)
    Store.open(cluster_url, busy_timeout=0.05, partition=2).close_now()
    await store.close()


async def test_connection_that_broke_is_reopened_in_the_same_schema(
    cluster_url: str, postgres: Postgres
) -> None:
    store = Store.open(cluster_url, busy_timeout=0.05, partition=1)
    Store.open(cluster_url).close_now()
    name = cluster_url.rpartition("/")[2]

    postgres.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'")
    await store.append([make_step(7)])

    assert [event.time for _, event in await store.read(read_events)] == [1007.0]
    await store.close()
    with connected(cluster_url) as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM events").scalar() == 0


def test_read_only_open_does_not_create_a_partition(cluster_url: str) -> None:
    Store.open(cluster_url).close_now()

    with pytest.raises(NoDatabaseError):
        Store.open(cluster_url, read_only=True, partition=1)
    assert list_partitions(cluster_url) == [0]


def test_other_schemas_are_not_partitions(cluster_url: str, tmp_path: Path) -> None:
    Store.open(cluster_url).close_now()
    for name in ("queenright_", "queenright_01", "queenright_1x", "other_1"):
        change(cluster_url, f"CREATE SCHEMA {name}", f"CREATE TABLE {name}.event_log_head (id int)")

    assert list_partitions(cluster_url) == [0]
    Store.open(f"sqlite:///{tmp_path / 'q.db'}").close_now()
    assert list_partitions(f"sqlite:///{tmp_path / 'q.db'}") == [0]


def test_copy_of_a_database_with_several_partitions_is_refused(cluster_url: str, tmp_path: Path) -> None:
    for number in (0, 1):
        Store.open(cluster_url, partition=number).close_now()

    with pytest.raises(StoreError, match=r"has 2 partitions, and only one can be copied; use pg_dump"):
        copy_database(cluster_url, f"sqlite:///{tmp_path / 'copy.db'}", on_row=lambda: None)


def test_partition_has_its_own_revision(cluster_url: str) -> None:
    """The revision is that of the partition, not that of the default schema."""
    Store.open(cluster_url).close_now()
    Store.open(cluster_url, partition=1).close_now()
    change(cluster_url, "UPDATE queenright_1.alembic_version SET version_num = 'unknown'")

    with pytest.raises(StoreError, match="a schema that this version does not know"):
        Store.open(cluster_url, partition=1)
    Store.open(cluster_url).close_now()


def test_partitions_are_migrated_at_the_same_time(cluster_url: str) -> None:
    """This happens when a process of a new version takes over from one of the previous version."""
    count = 8
    for number in range(count):
        Store.open(cluster_url, partition=number).close_now()
        downgrade(cluster_url, number)
    barrier = threading.Barrier(count)

    def open_partition(number: int) -> None:
        barrier.wait()
        Store.open(cluster_url, partition=number).close_now()

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(open_partition, range(count)))

    with connected(cluster_url) as conn:
        for schema in ("public", *(f"queenright_{number}" for number in range(1, count))):
            revision = conn.exec_driver_sql(f"SELECT version_num FROM {schema}.alembic_version").scalar()
            assert revision == SCHEMA_REVISION, schema
            assert conn.exec_driver_sql(f"SELECT count(*) FROM {schema}.secrets").scalar() == 0
