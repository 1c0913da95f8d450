"""B131: what is looked up about one ticket costs the same however many alerts fire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from queenright.alerting.notification import (
    Receipt,
    enqueue,
    read_changed,
    record,
)
from queenright.alerting.settings import AlertingSettings
from queenright.health.store import Store
from queenright.health.tickets import TicketStatus
from tests.alerting.parts import T0, ticket


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """SQLite, which takes the first index that fits: PostgreSQL knows how many rows it would lead to."""
    opened = Store.open(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close_now()


def plans(conn: Connection, statements: list[tuple[str, Any]]) -> list[str]:
    """Return SQLite's steps in the outbox for each statement."""
    found = []
    for sql, values in statements:
        if not sql.startswith("INSERT"):
            steps = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values).all()
            found += [row[3] for row in steps if "outbox" in row[3]]
    return found


async def test_lookup_does_not_read_every_active_notification(store: Store) -> None:
    """B131: SQLite has an index for each lookup, of which ``active`` is only a part."""
    settings = AlertingSettings()
    statements: list[tuple[str, Any]] = []

    def use_outbox(conn: Connection) -> list[str]:
        event.listen(conn, "before_cursor_execute", lambda *given: statements.append((given[2], given[3])))
        enqueue(conn, ticket(), settings, T0)
        enqueue(conn, ticket(analysis="It says more now."), settings, T0 + 1, follows=["ticket-0"])
        enqueue(conn, ticket(ticket_id="ticket-2"), settings, T0 + 2, follows=["ticket-1"])
        enqueue(conn, ticket(reminders=1), settings, T0 + 2)
        read_changed(conn, {}, T0)
        receipt = Receipt(notification_id=1, peer="peer", status="firing", at=T0 + 2, attempts=1)
        record(conn, [receipt], [1], T0 + 3)
        enqueue(conn, ticket(status=TicketStatus.RESOLVED), settings, T0 + 4)
        asked = list(statements)
        return plans(conn, asked)

    steps = await store.transact(use_outbox)

    assert len(steps) > 8
    assert not [step for step in steps if step.startswith("SCAN") or step.endswith("(active=?)")], steps
