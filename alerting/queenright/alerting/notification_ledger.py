"""The book of what people were told: which receiver, of which alert, when; kept over restarts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, insert, or_, select, update

from queenright.health.tables import OUTBOX, TICKETS, TOLD

_AT_ONCE: Final = 500
"""Values in one query: SQLite takes no endless lists."""

_HELD: Final = OUTBOX.alias("held")
_NAMED: Final = OUTBOX.alias("named")
_TOLD_OF_OTHERS: Final = (
    select(_HELD.c.ticket_id.label("holder"), TOLD)
    .distinct()
    .join(_NAMED, (_NAMED.c.alert_key == _HELD.c.alert_key) & (_NAMED.c.ticket_id != _HELD.c.ticket_id))
    .join(TOLD, (TOLD.c.ticket_id == _NAMED.c.ticket_id) & (TOLD.c.alert_key == _HELD.c.alert_key))
    .where(_HELD.c.ticket_id.in_(bindparam("of", expanding=True)), TOLD.c.status == "firing")
    .where(or_(_HELD.c.ends_at.is_(None), TOLD.c.first_told_at <= _HELD.c.ends_at))
)
"""Who was told of the alerts that tickets hold, in the name of another ticket that holds them, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredNotification:
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


def told_of(conn: Connection, tickets: Collection[str]) -> dict[str, list[DeliveredNotification]]:
    """
    Return who was told of tickets, the latest first; those that nobody was told of are left out.

    Of several tickets that hold one alert, Alertmanager names one; who was told of it was told of all.
    """
    found: dict[str, list[DeliveredNotification]] = {}
    for some in _parts(tickets):
        for row in conn.execute(select(TOLD).where(TOLD.c.ticket_id.in_(some))):
            found.setdefault(row.ticket_id, []).append(_told_to(row, row.ticket_id))
        for row in conn.execute(_TOLD_OF_OTHERS, {"of": some}):
            found.setdefault(row.holder, []).append(_told_to(row, row.holder))
    for some in found.values():
        some.sort(key=lambda one: (-one.last_at, one.receiver, one.status))
    return found


def tickets_of(conn: Connection, dedup_key: str) -> set[str]:
    """Return the tickets that a group's messages named: of each incident one or more."""
    return set(conn.execute(select(TOLD.c.ticket_id).where(TOLD.c.dedup_key == dedup_key)).scalars())


def _known(conn: Connection, tickets: Collection[str]) -> set[str]:
    known: set[str] = set()
    for some in _parts(tickets):
        known |= set(conn.execute(select(TICKETS.c.ticket_id).where(TICKETS.c.ticket_id.in_(some))).scalars())
    return known


def _parts(values: Collection[Any]) -> Iterator[list[Any]]:
    every = list(values)
    for start in range(0, len(every), _AT_ONCE):
        yield every[start : start + _AT_ONCE]


def _told_to(row: Row[Any], ticket_id: str) -> DeliveredNotification:
    return DeliveredNotification(
        ticket_id=ticket_id,
        receiver=row.receiver,
        status=row.status,
        alert_key=row.alert_key,
        first_at=row.first_told_at,
        last_at=row.told_at,
    )
