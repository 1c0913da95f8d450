"""
Persistent record of the notifications that Alertmanager sent to receivers.

``notification_rules`` decides which alerts are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, insert, or_, select, update

from queenright.health.store.rows import batches
from queenright.health.store.tables import OUTBOX, RECEIVER_NOTIFICATIONS, TICKETS

_LEDGER: Final = RECEIVER_NOTIFICATIONS
_OWN_ROW: Final = OUTBOX.alias("own")
_SHARED_ROW: Final = OUTBOX.alias("shared")
_SHARED_DELIVERIES: Final = (
    select(_OWN_ROW.c.ticket_id.label("holder"), _LEDGER)
    .distinct()
    .join(
        _SHARED_ROW,
        (_SHARED_ROW.c.alert_key == _OWN_ROW.c.alert_key) & (_SHARED_ROW.c.ticket_id != _OWN_ROW.c.ticket_id),
    )
    .join(
        _LEDGER,
        (_LEDGER.c.ticket_id == _SHARED_ROW.c.ticket_id) & (_LEDGER.c.alert_key == _OWN_ROW.c.alert_key),
    )
    .where(_OWN_ROW.c.ticket_id.in_(bindparam("ticket_ids", expanding=True)), _LEDGER.c.status == "firing")
    .where(or_(_OWN_ROW.c.ends_at.is_(None), _LEDGER.c.first_notified_at <= _OWN_ROW.c.ends_at))
)
"""For tickets that share an alert: its deliveries that are recorded under another of these tickets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredNotification:
    """A notification of an alert, or of its end, to a receiver. Times are in seconds since the epoch."""

    ticket_id: str
    receiver: str
    """The receiver's name in Alertmanager's configuration."""
    status: str
    """``firing`` or ``resolved``."""
    alert_key: str
    first_at: float
    last_at: float


def record_deliveries(
    conn: Connection,
    receiver: str,
    dedup_key: str,
    alerts: Iterable[tuple[str, str, str]],
    now: float,
) -> int:
    """
    Record a notification of a group to a receiver. Return the number of its alerts about known tickets.

    Args:
        alerts: Ticket id, alert key and status of each alert.
    """
    unique_alerts = dict.fromkeys(alerts)
    known_ids = _find_known_ticket_ids(conn, {ticket_id for ticket_id, _, _ in unique_alerts})
    conditions = (_LEDGER.c.dedup_key == dedup_key, _LEDGER.c.receiver == receiver)
    rows = conn.execute(select(_LEDGER).where(*conditions)).all()
    row_ids = {(row.ticket_id, row.alert_key, row.status): row.id for row in rows}
    known_alerts = [alert for alert in unique_alerts if alert[0] in known_ids]
    repeated_ids = [row_ids[alert] for alert in known_alerts if alert in row_ids]
    for batch in batches(repeated_ids):
        conn.execute(update(_LEDGER).where(_LEDGER.c.id.in_(batch)).values(notified_at=now))
    new_rows = [
        {"ticket_id": ticket_id, "alert_key": key, "status": status}
        | {"receiver": receiver, "dedup_key": dedup_key, "first_notified_at": now, "notified_at": now}
        for ticket_id, key, status in known_alerts
        if (ticket_id, key, status) not in row_ids
    ]
    if new_rows:
        conn.execute(insert(_LEDGER), new_rows)
    return len(known_alerts)


def list_deliveries(conn: Connection, tickets: Collection[str]) -> dict[str, list[DeliveredNotification]]:
    """
    Return the deliveries by ticket id, latest first. Tickets without deliveries are left out.

    If several tickets share an alert, Alertmanager names only one of them; its deliveries count for all.
    """
    deliveries: dict[str, list[DeliveredNotification]] = {}
    for batch in batches(tickets):
        for row in conn.execute(select(_LEDGER).where(_LEDGER.c.ticket_id.in_(batch))):
            deliveries.setdefault(row.ticket_id, []).append(_to_delivery(row, row.ticket_id))
        for row in conn.execute(_SHARED_DELIVERIES, {"ticket_ids": batch}):
            deliveries.setdefault(row.holder, []).append(_to_delivery(row, row.holder))
    for ticket_deliveries in deliveries.values():
        ticket_deliveries.sort(key=lambda delivery: (-delivery.last_at, delivery.receiver, delivery.status))
    return deliveries


def list_group_tickets(conn: Connection, dedup_key: str) -> set[str]:
    """Return the ids of the tickets named in a group's notifications, at least one of each incident."""
    return set(conn.execute(select(_LEDGER.c.ticket_id).where(_LEDGER.c.dedup_key == dedup_key)).scalars())


def _find_known_ticket_ids(conn: Connection, tickets: Collection[str]) -> set[str]:
    known_ids: set[str] = set()
    for batch in batches(tickets):
        known_ids |= set(
            conn.execute(select(TICKETS.c.ticket_id).where(TICKETS.c.ticket_id.in_(batch))).scalars()
        )
    return known_ids


def _to_delivery(row: Row[Any], ticket_id: str) -> DeliveredNotification:
    return DeliveredNotification(
        ticket_id=ticket_id,
        receiver=row.receiver,
        status=row.status,
        alert_key=row.alert_key,
        first_at=row.first_notified_at,
        last_at=row.notified_at,
    )
