"""B131: the cost of lookups for one ticket does not depend on the number of firing alerts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert

from queenright.alerting.notification import Receipt
from queenright.alerting.notification_rules import enqueue
from queenright.alerting.notification_table import read_changed, record_receipts
from queenright.alerting.settings import AlertingSettings
from queenright.health.store.store import Store
from queenright.health.store.tables import OUTBOX
from queenright.health.tickets.ticket import TicketStatus
from tests.alerting.conftest import MakeOutbox, ServedPeer
from tests.alerting.parts import T0, make_ticket


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield SQLite, which uses the first suitable index; PostgreSQL estimates the number of rows."""
    new_store = Store.open(f"sqlite:///{tmp_path}/outbox.db")
    yield new_store
    new_store.close_now()


def explain_queries(conn: Connection, statements: list[tuple[str, Any]]) -> list[str]:
    """Return SQLite's query steps in the outbox for each statement."""
    plan_steps = []
    for sql, values in statements:
        if not sql.startswith("INSERT"):
            steps = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
            plan_steps += [row[3] for row in steps if "outbox" in row[3]]
    return plan_steps


async def test_lookup_does_not_read_every_active_notification(store: Store) -> None:
    """B131: SQLite has an index for each lookup; ``active`` alone is not enough."""
    settings = AlertingSettings()
    statements: list[tuple[str, Any]] = []

    def use_outbox(conn: Connection) -> list[str]:
        event.listen(conn, "before_cursor_execute", lambda *args: statements.append((args[2], args[3])))
        enqueue(conn, make_ticket(), settings, T0)
        enqueue(
            conn,
            make_ticket(analysis="It has more details now."),
            settings,
            T0 + 1,
            earlier_tickets=["ticket-0"],
        )
        enqueue(conn, make_ticket(ticket_id="ticket-2"), settings, T0 + 2, earlier_tickets=["ticket-1"])
        enqueue(conn, make_ticket(reminders=1), settings, T0 + 2)
        read_changed(conn, {}, T0, above=0)
        receipt = Receipt(notification_id=1, peer="peer", status="firing", at=T0 + 2, attempts=1)
        record_receipts(conn, [receipt], [1], T0 + 3)
        enqueue(conn, make_ticket(status=TicketStatus.RESOLVED), settings, T0 + 4)
        lookup_statements = list(statements)
        return explain_queries(conn, lookup_statements)

    steps = await store.transact(use_outbox)

    assert len(steps) > 8
    assert not [step for step in steps if step.startswith("SCAN") or step.endswith("(active=?)")], steps


def insert_rows(conn: Connection, count: int, *, has_ended: bool, is_active: bool) -> None:
    """Write notifications for ``count`` tickets, an hour old."""
    at = T0 - 3600
    times = {"starts_at": at, "created_at": at, "updated_at": at, "ends_at": at if has_ended else None}
    labels = {"agent": "bee", "severity": "critical", "cause": "doom_loop", "ticket_severity": "high"}
    rows = [
        {"ticket_id": f"t{number}", "alert_key": f"{number:032x}", "active": is_active, **times}
        | {"labels": {**labels, "number": str(number)}, "annotations": {"summary": "It loops."}}
        for number in range(count)
    ]
    conn.execute(insert(OUTBOX), rows)


@pytest.fixture
def value_counts() -> Iterator[list[int]]:
    """Yield the number of values of each statement."""
    counts: list[int] = []

    def record_values(
        conn: Any, cursor: Any, statement: str, values: Any, context: Any, executemany: bool
    ) -> None:
        if not executemany and not statement.startswith("INSERT"):
            counts.append(len(values))

    event.listen(Engine, "before_cursor_execute", record_values)
    yield counts
    event.remove(Engine, "before_cursor_execute", record_values)


@pytest.mark.parametrize("rows", ["closed", "new", "ended"])
@pytest.mark.parametrize("peers", [0, 1])
async def test_round_limits_the_values_of_each_statement(
    make_outbox: MakeOutbox, peer: ServedPeer, value_counts: list[int], rows: str, peers: int
) -> None:
    """B131: databases accept at most some ten thousand values, however many alerts a round delivers."""
    outbox = make_outbox(*[peer.url] * peers)
    if rows == "new":
        await outbox.deliver()
    await outbox.store.transact(
        lambda conn: insert_rows(conn, 2_100, has_ended=rows != "new", is_active=rows != "closed")
    )

    for _ in range(3):
        await outbox.deliver(after=1)

    assert max(value_counts) < 2_000


async def test_round_reads_no_closed_rows_when_nothing_is_active(
    make_outbox: MakeOutbox, peer: ServedPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B131: closed rows cost a round nothing, however many are kept."""
    outbox = make_outbox(peer.url)
    await outbox.store.transact(lambda conn: insert_rows(conn, 20, has_ended=True, is_active=False))
    await outbox.deliver()
    # From here on, reading a row fails.
    monkeypatch.setattr("queenright.alerting.notification_table._read_where", None)

    await outbox.deliver(after=1)
