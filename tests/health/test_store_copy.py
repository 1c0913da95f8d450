"""Copies of a database: complete on both engines, atomic, and refused if the target has data."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import JSON, Boolean, Column, Float, Integer, LargeBinary, Table, insert, null, select

from queenright.health.settings import RetentionSettings
from queenright.health.store import sqlite
from queenright.health.store.engines import open_database
from queenright.health.store.event_chain import verify
from queenright.health.store.event_log import append_events
from queenright.health.store.retention import prune
from queenright.health.store.store import Store, StoreError
from queenright.health.store.store_copy import StoreCopy, copy_database, count_rows
from queenright.health.store.tables import (
    AUDIT_ARCHIVE,
    EVENT_LOG_HEAD,
    EVENTS,
    KEYED_REQUESTS,
    METADATA,
    OUTBOX,
)
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import Postgres, change, connected, is_postgres, unguard, verify_log

DAY: Final = 86_400.0
Rows = dict[str, list[Any]]
Fresh = Callable[[], str]

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
LOG_TABLES = (EVENTS, EVENT_LOG_HEAD, AUDIT_ARCHIVE)
OTHER_TABLES = [table for table in METADATA.sorted_tables if table not in LOG_TABLES]


def make_values(column: Column[Any]) -> st.SearchStrategy[Any]:
    """Generate values that both engines can store in a column."""
    of_type: dict[type, st.SearchStrategy[Any]] = {
        Boolean: st.booleans(),
        Float: st.floats(allow_nan=False),
        Integer: st.integers(1, 9),
        JSON: st.dictionaries(TEXTS, TEXTS | st.integers() | st.none() | st.just("\0\ud83d"), max_size=3),
        LargeBinary: st.binary(max_size=20),
    }
    values = next((strategy for kind, strategy in of_type.items() if isinstance(column.type, kind)), TEXTS)
    return values | st.just(null()) if column.nullable else values


def make_rows(table: Table) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Generate rows that satisfy the constraints of a table."""
    keys = [tuple(index.columns.keys()) for index in table.indexes if index.unique]
    keys.append(tuple(table.primary_key.columns.keys()))
    row = st.fixed_dictionaries({column.name: make_values(column) for column in table.columns})
    unique_keys = tuple(lambda row, key=key: tuple(str(row[name]) for name in key) for key in keys)
    return st.lists(row, max_size=3, unique_by=unique_keys)


DATABASES = st.fixed_dictionaries({table.name: make_rows(table) for table in OTHER_TABLES})


def fill_database(url: str, rows: Rows, events: int) -> None:
    """Write rows, and an event log of which retention has deleted the older half."""
    log = [
        AgentEvent(type=kind, time=day * DAY, agent_id="bee", data={"text": "hé\0llo"})
        for day in range(events)
        for kind in (EventType.STEP_COMPLETED, EventType.HEALTH_STATE_CHANGED)
    ]
    database = open_database(url, read_only=False, busy_timeout=5)
    with database.writer.begin():
        append_events(database.writer, log)
        prune(
            database.writer, events / 2 * DAY + DAY, RetentionSettings(days=1, audit_days=max(2, events // 3))
        )
        outbox_ids = {row["id"] for row in rows.get(OUTBOX.name, ())}
        for table in OTHER_TABLES:
            for row in rows.get(table.name, ()):
                if "outbox_id" not in row or row["outbox_id"] in outbox_ids:
                    database.writer.execute(insert(table).values(row))
    database.close()


def read_rows(url: str) -> Rows:
    """Return every row of every table, and which nullable JSON values are null."""
    with connected(url) as conn:
        rows_by_table: Rows = {
            table.name: [tuple(row) for row in conn.execute(select(table).order_by(*table.primary_key))]
            for table in METADATA.sorted_tables
        }
        headers = select(KEYED_REQUESTS.c.headers.is_(None)).order_by(*KEYED_REQUESTS.primary_key)
        rows_by_table["without headers"] = list(conn.execute(headers).scalars())
    return rows_by_table


def copy_rows(source: str, target: str) -> StoreCopy:
    return copy_database(source, target, on_row=lambda: None)


@pytest.fixture
def create_databases(postgres: Postgres, tmp_path: Path) -> Iterator[dict[str, Fresh]]:
    """Return, for each engine, a function that creates an empty database and returns its URL."""
    urls: list[str] = []

    def create_on_server() -> str:
        urls.append(postgres.empty())
        return urls[-1]

    def create_in_file() -> str:
        urls.append(f"sqlite:///{tmp_path / f'hive-{len(urls)}.db'}")
        return urls[-1]

    yield {"sqlite": create_in_file, "postgresql": create_on_server}
    for url in filter(is_postgres, urls):
        postgres.drop(url)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "hive.db"
    fill_database(f"sqlite:///{path}", {}, 1500)
    return path


@pytest.fixture
def source(original: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(original, tmp_path / 'source.db')}"


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, create_databases: dict[str, Fresh]) -> str:
    return create_databases[request.param]()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=DATABASES, events=st.integers(0, 6))
def test_copy_to_postgresql_and_back_has_the_same_rows(
    create_databases: dict[str, Fresh], rows: Rows, events: int
) -> None:
    source, server, sqlite_copy = (
        create_databases["sqlite"](),
        create_databases["postgresql"](),
        create_databases["sqlite"](),
    )
    fill_database(source, rows, events)

    first, second = copy_rows(source, server), copy_rows(server, sqlite_copy)

    assert read_rows(source) == read_rows(server) == read_rows(sqlite_copy)
    assert first.log == second.log
    assert first.archive == second.archive
    assert verify_log(server) == first.log
    assert sum(first.rows.values()) == count_rows(source) == count_rows(sqlite_copy)


def test_copy_continues_log_and_numbers(source: str, target: str) -> None:
    change(
        source,
        "INSERT INTO receiver_notifications VALUES (7, 'd', 'r', 't', 'a', 'firing', 1.0, 1.0)",
        *(
            f"INSERT INTO outbox VALUES ({number}, 't', 'a', '{{}}', '{{}}', 1.0, NULL, 1.0, 1.0, true)"
            for number in (3, 41)
        ),
    )

    copy_rows(source, target)

    before = verify_log(target)
    with connected(target) as conn:
        append_events(conn, [AgentEvent(type=EventType.STEP_COMPLETED, time=1.0, agent_id="bee")])
        assert verify(conn).rows == before.rows + 1
        for table, expected in (("outbox", 42), ("receiver_notifications", 8)):
            columns = {column.name: column for column in METADATA.tables[table].columns}
            [row] = conn.exec_driver_sql(f"SELECT * FROM {table} WHERE id = {expected - 1}").mappings()
            values = {name: row[name] for name in columns if name != "id"} | {"alert_key": "b"}
            inserted = conn.execute(insert(METADATA.tables[table]).values(values))
            assert inserted.inserted_primary_key == (expected,)


@pytest.mark.parametrize("rows", [1, 2300])
def test_killed_copy_leaves_an_empty_database_and_can_be_repeated(
    source: str, target: str, rows: int
) -> None:
    command = [sys.executable, "-m", "tests.health.killed_copy", source, target, str(rows)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL

    assert verify_log(target).rows == 0
    assert count_rows(target) == 1
    assert copy_rows(source, target).log == verify_log(source)
    assert read_rows(target) == read_rows(source)


def test_source_in_use_is_refused(source: str, target: str) -> None:
    service = Store.open(source)

    with pytest.raises(StoreError, match=r"another queenright \(process \d+\) is using .*source.db; stop it"):
        copy_rows(source, target)

    service.close_now()


def test_target_in_use_is_refused(source: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenright.health.store.store_copy._BUSY_SECONDS", 0.05)
    service = Store.open(target)

    with pytest.raises(StoreError, match=r"another queenright .* is using"):
        copy_rows(source, target)

    service.close_now()


def test_target_with_rows_is_refused_unchanged(source: str, target: str) -> None:
    fill_database(target, {}, 3)
    before = read_rows(target)

    with pytest.raises(StoreError, match=r"is not empty \(.* has rows\); give an empty database"):
        copy_rows(source, target)

    assert read_rows(target) == before


def test_target_of_another_program_is_refused(source: str, target: str) -> None:
    change(target, "CREATE TABLE honey (jar integer)")

    with pytest.raises(StoreError, match="another program's database"):
        copy_rows(source, target)


@pytest.mark.parametrize("side", ["source", "target"])
def test_another_schema_is_refused_and_not_migrated(source: str, target: str, side: str) -> None:
    Store.open(target).close_now()
    url = source if side == "source" else target
    change(url, "UPDATE alembic_version SET version_num = '0009'")

    with pytest.raises(StoreError, match="has schema 0009, and this version reads"):
        copy_rows(source, target)

    with connected(url) as conn:
        assert conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "0009"


def test_copy_to_itself_is_refused(database_url: str, tmp_path: Path) -> None:
    fill_database(database_url, {}, 1)
    target_url = database_url
    if is_postgres(database_url):
        target_url = database_url.replace("127.0.0.1", "localhost")
    else:
        (tmp_path / "link.db").symlink_to(tmp_path / "hive.db")
        target_url = f"sqlite:///{tmp_path / 'link.db'}"

    with pytest.raises(StoreError, match="is the database to copy; give another one to copy to"):
        copy_rows(database_url, target_url)


def test_missing_source_is_refused_and_no_target_is_created(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no database at"):
        copy_rows(f"sqlite:///{tmp_path / 'none.db'}", f"sqlite:///{tmp_path / 'target.db'}")

    assert list(tmp_path.iterdir()) == []


def test_unreachable_target_is_refused_without_its_password(source: str) -> None:
    with pytest.raises(StoreError, match="Connection refused; start the server, or check host") as error_info:
        copy_rows(source, "postgresql://ada:hush@127.0.0.1:1/x")

    assert "hush" not in str(error_info.value)


def test_changed_source_is_refused_and_nothing_is_copied(source: str, target: str) -> None:
    unguard(source)
    change(source, "UPDATE events SET data = '{}' WHERE seq = 2900")

    with pytest.raises(StoreError, match=r"source.db was changed: row 2900 does not match its hash; look"):
        copy_rows(source, target)

    assert count_rows(target) == 1


def test_full_disk_leaves_an_empty_database(
    source: str, create_databases: dict[str, Fresh], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = create_databases["sqlite"]()

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_PRAGMAS", (*sqlite._PRAGMAS, "max_page_count=100"))
        with pytest.raises(StoreError, match=r"cannot use .*: database or disk is full; free space"):
            copy_rows(source, target)

    assert count_rows(target) == 1
    assert copy_rows(source, target).log.ok


def test_unreadable_source_is_named(source: str, target: str) -> None:
    change(source, "INSERT INTO breakers VALUES (CAST(x'ff' AS TEXT), 'open', 1.0, '{}')")

    with pytest.raises(StoreError, match=r"cannot use .*source.db: Could not decode to UTF-8"):
        copy_rows(source, target)

    assert count_rows(target) == 1


def test_value_that_the_target_refuses_is_not_shown(source: str, create_databases: dict[str, Fresh]) -> None:
    change(source, "INSERT INTO breakers VALUES ('secret' || char(0), 'open', 1.0, '{}')")
    target = create_databases["postgresql"]()

    with pytest.raises(StoreError, match=r"cannot use postgresql://.*NUL") as error_info:
        copy_rows(source, target)

    assert "secret" not in str(error_info.value)
    assert count_rows(target) == 1
