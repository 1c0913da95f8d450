"""The book of what people were told: which receiver, of which alert, when; kept over restarts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, insert, select, update

from queenright.health.tables import TICKETS, TOLD

_AT_ONCE: Final = 500
"""Values in one query: SQLite takes no endless lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldTo:
    """That a receiver was told of an alert, or of its end. Times in seconds since the epoch."""

    ticket_id: str
    receiver: str
    """What Alertmanager's configuration calls it."""
    status: str
    """``firing`` or ``resolved``."""
    alert_key: str
    first_at: float
    last_at: float


def note(
    conn: Connection,
    receiver: str,
    dedup_key: str,
    alerts: Iterable[tuple[str, str, str]],
    now: float,
) -> int:
    """
    Write down that a receiver was told of a group; return of how many alerts about tickets of ours.

    Args:
        conn: In a transaction.
        receiver: Who was told.
        dedup_key: Which group.
        alerts: Ticket, key and status of each alert.
        now: Seconds since the epoch.
    """
    said = dict.fromkeys(alerts)
    known = _known(conn, {ticket_id for ticket_id, _, _ in said})
    where = (TOLD.c.dedup_key == dedup_key, TOLD.c.receiver == receiver)
    rows = conn.execute(select(TOLD).where(*where)).all()
    before = {(row.ticket_id, row.alert_key, row.status): row.id for row in rows}
    told = [alert for alert in said if alert[0] in known]
    again = [before[alert] for alert in told if alert in before]
    for some in _parts(again):
        conn.execute(update(TOLD).where(TOLD.c.id.in_(some)).values(told_at=now))
    new = [
        {"ticket_id": ticket_id, "alert_key": key, "status": status}
        | {"receiver": receiver, "dedup_key": dedup_key, "first_told_at": now, "told_at": now}
        for ticket_id, key, status in told
        if (ticket_id, key, status) not in before
    ]
    if new:
        conn.execute(insert(TOLD), new)
    return len(told)


def tell_joined(conn: Connection, earlier: str, key: str, joined: str, now: float) -> None:
    """Write down that whoever was told of a ticket's alert was told of a ticket that joined it, too."""
    where = (TOLD.c.alert_key == key, TOLD.c.status == "firing")
    if conn.execute(select(TOLD.c.id).where(TOLD.c.ticket_id == joined, *where)).first() is not None:
        return
    rows = conn.execute(select(TOLD).where(TOLD.c.ticket_id == earlier, *where)).all()
    values = [
        {"ticket_id": joined, "alert_key": key, "status": row.status, "receiver": row.receiver}
        | {"dedup_key": row.dedup_key, "first_told_at": row.first_told_at, "told_at": now}
        for row in rows
    ]
    if values:
        conn.execute(insert(TOLD), values)


def told_of(conn: Connection, tickets: Collection[str]) -> dict[str, list[ToldTo]]:
    """Return who was told of tickets, the latest first; those that nobody was told of are left out."""
    found: dict[str, list[ToldTo]] = {}
    for one in _read(conn, TOLD.c.ticket_id, tickets):
        found.setdefault(one.ticket_id, []).append(one)
    for some in found.values():
        some.sort(key=lambda one: (-one.last_at, one.receiver, one.status))
    return found


def told_by_alert(conn: Connection, keys: Collection[str]) -> dict[tuple[str, str], list[ToldTo]]:
    """Return who was told of alerts, by ticket and key; a ticket that is back has the key of one before."""
    found: dict[tuple[str, str], list[ToldTo]] = {}
    for one in _read(conn, TOLD.c.alert_key, keys):
        found.setdefault((one.ticket_id, one.alert_key), []).append(one)
    for some in found.values():
        some.sort(key=lambda one: (one.receiver, one.status))
    return found


def tickets_of(conn: Connection, dedup_key: str) -> dict[str, bool]:
    """Return the tickets that a group was about, and whether each is live; the latest told first."""
    query = (
        select(TOLD.c.ticket_id, TICKETS.c.closed_at)
        .join(TICKETS, TICKETS.c.ticket_id == TOLD.c.ticket_id)
        .where(TOLD.c.dedup_key == dedup_key)
        .order_by(TOLD.c.told_at.desc(), TOLD.c.id)
    )
    return {row.ticket_id: row.closed_at is None for row in conn.execute(query)}


def _known(conn: Connection, tickets: Collection[str]) -> set[str]:
    known: set[str] = set()
    for some in _parts(tickets):
        known |= set(conn.execute(select(TICKETS.c.ticket_id).where(TICKETS.c.ticket_id.in_(some))).scalars())
    return known


def _read(conn: Connection, column: ColumnElement[Any], values: Collection[str]) -> Iterator[ToldTo]:
    for some in _parts(values):
        for row in conn.execute(select(TOLD).where(column.in_(some))):
            yield _told_to(row)


def _parts(values: Collection[Any]) -> Iterator[list[Any]]:
    every = list(values)
    for start in range(0, len(every), _AT_ONCE):
        yield every[start : start + _AT_ONCE]


def _told_to(row: Row[Any]) -> ToldTo:
    return ToldTo(
        ticket_id=row.ticket_id,
        receiver=row.receiver,
        status=row.status,
        alert_key=row.alert_key,
        first_at=row.first_told_at,
        last_at=row.told_at,
    )
