"""The event log: appending, reading, and detection of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, text
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import IntegrityError

from queenright.health.store.event_chain import Verification, verify
from queenright.health.store.event_log import (
    append_events,
    read_events,
    read_history,
    replay,
)
from queenright.health.store.store import Store
from queenright.health.store.tables import EVENT_LOG_HEAD, EVENTS, METADATA
from queenright.runtime.bus import EventBus, UnknownEventError
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import change, connected, is_postgres, unguard, verify_log

ROWS = 12
COPIED_ROW = ", ".join(
    ["13", "'copy'", *(column.name for column in EVENTS.columns if column.name not in ("seq", "id"))]
)
TEXT_COLUMNS = [column.name for column in EVENTS.columns if column.name.endswith("_id")]


def make_step(number: int = 0, agent_id: str = "bee", **fields: Any) -> AgentEvent:
    return AgentEvent(
        **{"type": EventType.STEP_COMPLETED, "time": 1000.0 + number, "agent_id": agent_id, **fields}
    )


@pytest.fixture
def database(database_url: str) -> str:
    """Create a closed log of ``ROWS`` events, without the triggers that prevent changes."""
    write_log(database_url, [make_step(i, id=f"event-{i:02}", data={"index": i}) for i in range(1, ROWS + 1)])
    unguard(database_url)
    return database_url


def write_log(url: str, events: list[AgentEvent]) -> None:
    import asyncio

    async def run() -> None:
        store = Store.open(url)
        for event in events:
            await store.append([event])
        await store.close()

    asyncio.run(run())


def get_zero_hash(url: str) -> str:
    """Return an SQL expression for the hash before the first row."""
    return "decode(repeat('00', 32), 'hex')" if is_postgres(url) else "zeroblob(32)"


def verify_database(url: str) -> Verification:
    return verify_log(url)


def test_untouched_log_is_intact(database: str) -> None:
    verification = verify_database(database)

    assert (verification.ok, verification.rows, verification.first_bad, verification.reason) == (
        True,
        ROWS,
        None,
        "",
    )
    assert len(verification.head) == 64


def test_empty_log_is_whole(database_url: str) -> None:
    Store.open(database_url).close_now()

    assert verify_database(database_url) == Verification(ok=True, rows=0, head="0" * 64)


@pytest.mark.parametrize("column", [column.name for column in EVENTS.columns if column.name != "seq"])
def test_change_to_any_column_is_detected_at_its_row(database: str, column: str) -> None:
    """B80: every change to a row of the audit log is detected."""
    value = {"time": "time + 0.001", "hash": get_zero_hash(database)}.get(column, f"{column} || ' '")
    change(database, f"UPDATE events SET {column} = {value} WHERE seq = 7")

    verification = verify_database(database)

    assert (verification.ok, verification.rows, verification.first_bad) == (False, 6, 7)
    assert "row 7" in verification.reason


@pytest.mark.parametrize(
    ("statement", "first_bad", "reason"),
    [
        ("DELETE FROM events WHERE seq = 1", 1, "row 1 is missing"),
        ("DELETE FROM events WHERE seq = 5", 5, "row 5 is missing"),
        ("DELETE FROM events WHERE seq >= 10", 10, "rows are missing at the end: 3"),
        ("DELETE FROM events", 1, "rows are missing at the end: 12"),
        ("UPDATE events SET seq = 0 WHERE seq = 4", 0, "row 0 is added"),
        ("UPDATE events SET seq = 99 WHERE seq = 12", 12, "row 12 is missing"),
        (
            "UPDATE events SET seq = CASE seq WHEN 3 THEN -4 ELSE -3 END WHERE seq IN (3, 4)",
            -4,
            "row -4 is added",
        ),
        (
            f"INSERT INTO events SELECT {COPIED_ROW} FROM events WHERE seq = 12",
            13,
            "row 13 does not match its hash",
        ),
        ("UPDATE event_log_head SET length = 13", 13, "rows are missing at the end: 1"),
        ("UPDATE event_log_head SET length = 11", 12, "rows were added after the last that was written: 1"),
        ("UPDATE event_log_head SET hash = {zeros}", 12, "row 12 does not end in the hash"),
        ("DELETE FROM event_log_head", 13, "the record of the log's length is missing"),
    ],
)
def test_removed_added_or_moved_rows_are_detected(
    database: str, statement: str, first_bad: int, reason: str
) -> None:
    """B80: every change to the audit log is detected, including removed last rows."""
    change(database, statement.replace("{zeros}", get_zero_hash(database)))

    verification = verify_database(database)

    assert not verification.ok
    assert verification.first_bad == first_bad
    assert reason in verification.reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [("x'ff'", "row 6 does not match its hash"), ("CAST(x'ff' AS TEXT)", "row 6 cannot be read")],
)
def test_non_text_values_in_sqlite_are_detected(tmp_path: Path, value: str, reason: str) -> None:
    """B80: values of another type, including one that is not text, are detected."""
    url = f"sqlite:///{tmp_path / 'hive.db'}"
    write_log(url, [make_step(i) for i in range(ROWS)])
    unguard(url)
    change(url, f"UPDATE events SET data = {value} WHERE seq = 6")

    verification = verify_database(url)

    assert (verification.ok, verification.first_bad) == (False, 6)
    assert reason in verification.reason


def test_swapped_rows_are_detected(database: str) -> None:
    """B80: swapping two rows is detected."""
    change(
        database,
        "UPDATE events SET seq = -3 WHERE seq = 3",
        "UPDATE events SET seq = 3 WHERE seq = 4",
        "UPDATE events SET seq = 4 WHERE seq = -3",
    )

    assert verify_database(database).first_bad == 3


def test_row_rewritten_with_its_own_hash_is_detected_at_the_next(database: str) -> None:
    """B80: an attacker who recomputes a row's hash must also rewrite all later rows and the head."""
    import hashlib

    import orjson

    with connected(database) as conn:
        before = conn.execute(text("SELECT hash FROM events WHERE seq = 6")).scalar_one()
        row = list(conn.execute(text("SELECT * FROM events WHERE seq = 7")).one()[:-1])
        row[13] = '{"index":70}'
        digest = hashlib.sha256(before + orjson.dumps(row)).digest()
        conn.execute(EVENTS.update().where(EVENTS.c.seq == 7).values(data=row[13], hash=digest))

    assert verify_database(database).first_bad == 8


def test_database_refuses_to_change_or_delete_an_event(database_url: str) -> None:
    write_log(database_url, [make_step()])
    statements = ["UPDATE events SET type = 'x'", "DELETE FROM events"]
    if is_postgres(database_url):
        statements += ["TRUNCATE events", "TRUNCATE audit_archive"]

    for statement in statements:
        with pytest.raises(IntegrityError, match="append-only"):
            change(database_url, statement)

    assert verify_database(database_url).ok


def test_log_continues_after_a_restart(database: str) -> None:
    write_log(database, [make_step(100)])

    verification = verify_database(database)

    assert (verification.ok, verification.rows) == (True, ROWS + 1)


# -- reading --------------------------------------------------------------------------------------


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    Store.open(database_url).close_now()
    unguard(database_url)
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def open_memory_database(options: dict[str, Any]) -> Iterator[Connection]:
    engine = create_engine("sqlite://", **options)
    METADATA.create_all(engine)
    with engine.connect() as connection:
        connection.execute(EVENT_LOG_HEAD.insert().values(id=1, length=0, hash=bytes(32)))
        yield connection
    engine.dispose()


def test_events_are_read_in_pages_and_by_type_worker_and_time(conn: Connection) -> None:
    alert = EventType.TICKET_TRIAGED
    events = [
        make_step(i, agent_id="ab"[i % 2], type=alert if i % 3 == 0 else EventType.STEP_STARTED)
        for i in range(12)
    ]
    append_events(conn, events)

    def list_numbers(**filters: Any) -> list[int]:
        return [seq for seq, _ in read_events(conn, **filters)]

    assert list_numbers(limit=3) == [1, 2, 3]
    assert list_numbers(after=10) == [11, 12]
    assert list_numbers(types=[alert]) == [1, 4, 7, 10]
    assert list_numbers(types=[alert], agent_id="b", after=4) == [10]
    assert list_numbers(types=[]) == []
    assert list_numbers(agent_id="nobody") == []
    assert list_numbers(since=1010.0) == [11, 12]


def test_replay_gives_every_event_since_a_time_in_the_order_of_the_log(conn: Connection) -> None:
    events = [make_step(i % 5, data={"index": i}) for i in range(2500)]
    append_events(conn, events)

    replayed = list(replay(conn, 1003.0))

    assert replayed == [event for event in events if event.time >= 1003.0]
    assert list(replay(conn, 2000.0)) == []


def test_event_type_of_a_newer_version_is_skipped(conn: Connection) -> None:
    append_events(conn, [make_step(1), make_step(2), make_step(3)])
    conn.exec_driver_sql("UPDATE events SET type = 'swarmed' WHERE seq = 2")

    assert [seq for seq, _ in read_events(conn)] == [1, 3]
    assert [event.time for event in replay(conn, 0.0)] == [1001.0, 1003.0]


def test_append_returns_the_number_of_new_events(conn: Connection) -> None:
    event = make_step()

    assert append_events(conn, [event, event]) == 1
    assert append_events(conn, [event]) == 0
    assert append_events(conn, []) == 0
    with pytest.raises(IntegrityError):
        append_events(conn, [event], fresh=True)


@pytest.mark.parametrize("field", TEXT_COLUMNS)
def test_event_with_a_numeric_name_is_refused(conn: Connection, field: str) -> None:
    invalid_event = make_step()
    setattr(invalid_event, field, 5)

    with pytest.raises(TypeError):
        append_events(conn, [invalid_event])


def test_event_without_a_time_is_refused(conn: Connection) -> None:
    with pytest.raises(IntegrityError):
        append_events(conn, [make_step(time=float("nan"))])


@pytest.mark.parametrize("paramstyle", ["qmark", "named"])
def test_event_log_works_with_both_parameter_styles(paramstyle: str) -> None:
    for conn in open_memory_database({"paramstyle": paramstyle}):
        append_events(conn, [make_step(1), make_step(2)])
        append_events(conn, [make_step(3)])

        assert [seq for seq, _ in read_events(conn)] == [1, 2, 3]
        assert verify(conn).ok


def test_long_log_is_verified_page_by_page(conn: Connection) -> None:
    append_events(conn, [make_step(i) for i in range(2500)])
    selects: list[str] = []
    listener: Callable[..., None] = lambda *args: selects.append(args[2])  # noqa: E731
    sqlalchemy_event.listen(conn, "before_cursor_execute", listener)

    assert verify(conn).rows == 2500
    assert len(selects) == 5


# -- any event ------------------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# PostgreSQL does not store NUL in text; in JSON it is escaped.
_name = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_number = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_events = st.builds(
    AgentEvent,
    type=st.sampled_from(EventType),
    time=_number | st.integers(0, 2**40),
    **dict.fromkeys(
        (
            "agent_id",
            "session_id",
            "incarnation_id",
            "graph_id",
            "stream_id",
            "node_id",
            "execution_id",
            "trace_id",
            "span_id",
        ),
        _name,
    ),
    data=st.dictionaries(_text, _json, max_size=4),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(_events, max_size=4), max_size=4))
def test_any_event_round_trips_and_the_log_stays_intact(
    conn: Connection, batches: list[list[AgentEvent]]
) -> None:
    for batch in batches:
        append_events(conn, batch)

    assert [event for _, event in read_events(conn)] == [event for batch in batches for event in batch]
    assert verify(conn).ok
    conn.rollback()


# -- history ---------------------------------------------------------------------------------------


def make_events() -> list[AgentEvent]:
    """Return twelve events of two graphs and two workers; every third event is about a ticket."""
    return [
        make_step(
            i,
            agent_id="ab"[i % 2],
            id=f"event-{i:02}",
            type=EventType.WORKER_ESCALATION_TICKET if i % 3 == 0 else EventType.STEP_COMPLETED,
            graph_id="left" if i < 6 else "right",
            node_id="judge",
            session_id=f"s{i % 4}",
        )
        for i in range(12)
    ]


@pytest.mark.parametrize(
    ("filters", "indexes"),
    [
        ({}, range(12)),
        ({"limit": 3}, [9, 10, 11]),
        ({"limit": 3, "newest": False}, [0, 1, 2]),
        ({"after": "event-09"}, [10, 11]),
        ({"after": "event-03", "limit": 2, "newest": False}, [4, 5]),
        ({"after": "event-11"}, []),
        ({"types": [EventType.WORKER_ESCALATION_TICKET]}, [0, 3, 6, 9]),
        ({"types": [EventType.WORKER_ESCALATION_TICKET, EventType.STEP_COMPLETED], "limit": 4}, range(8, 12)),
        ({"types": []}, []),
        ({"filter_graph": "left", "filter_node": "judge"}, range(6)),
        ({"filter_graph": "left", "filter_node": "queen"}, []),
        ({"filter_agent": "a", "limit": 2}, [8, 10]),
        ({"session_id": "s1", "filter_graph": "right"}, [9]),
        ({"filter_stream": "right::e"}, []),
    ],
)
async def test_history_is_a_page_of_the_log_oldest_first(
    database_url: str, filters: dict[str, Any], indexes: Iterable[int]
) -> None:
    """B62, B63: events are found by graph and node, and name their graph."""
    store = Store.open(database_url)
    bus = EventBus(log=store)
    events = make_events()
    await bus.publish(*events)

    page = await bus.history(**filters)

    assert page == [events[n] for n in indexes]
    await store.close()


async def test_history_after_a_missing_event_is_an_error(database_url: str) -> None:
    store = Store.open(database_url)
    await store.append(make_events())

    with pytest.raises(UnknownEventError, match="event 'event-99' is not in the log"):
        await store.history(after="event-99")
    with pytest.raises(ValueError, match="limit must be at least 1, got -1"):
        await store.history(limit=-1)
    await store.close()


def test_unknown_event_types_do_not_shorten_a_page(conn: Connection) -> None:
    append_events(conn, [make_step(i) for i in range(6)])
    conn.exec_driver_sql("UPDATE events SET type = 'swarmed' WHERE seq IN (4, 5, 6)")

    assert [event.time for event in read_history(conn, limit=2)] == [1001.0, 1002.0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    limit=st.integers(1, 6),
    types=st.none()
    | st.sets(st.sampled_from([EventType.WORKER_ESCALATION_TICKET, EventType.STEP_COMPLETED])),
    graph=st.none() | st.sampled_from(["left", "right"]),
)
def test_paged_history_returns_every_event_once(
    conn: Connection, limit: int, types: set[EventType] | None, graph: str | None
) -> None:
    """This holds for any filter and page size."""
    events = make_events()
    append_events(conn, events)
    filters = {} if graph is None else {"graph_id": graph}
    history: list[AgentEvent] = []

    while page := read_history(
        conn, types=types, where=filters, limit=limit, newest=False, after=history[-1].id if history else None
    ):
        assert len(page) <= limit
        history += page

    assert history == [
        event
        for event in events
        if (types is None or event.type in types) and (graph is None or event.graph_id == graph)
    ]
    assert read_history(conn, types=types, where=filters, limit=limit) == history[-limit:]
