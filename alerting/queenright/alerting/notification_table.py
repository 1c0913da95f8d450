"""Notifications in the store, kept until every peer has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
    update,
)

from queenright.alerting.alert import LABEL_STORM
from queenright.alerting.notification import NO_PEER, Notification, Receipt, alert_key
from queenright.health.findings import FindingKind
from queenright.health.store.rows import batches
from queenright.health.store.tables import OUTBOX, OUTBOX_DELIVERIES, TICKETS
from queenright.health.tickets.ticket import EscalationTicket

KEEP_UNDELIVERED_SECONDS: Final = 7 * 86_400
"""An ended notification that some peer has not accepted is dropped after this time."""


def _is_firing(now: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition of ``has_not_ended``."""
    ends_at, updated_at = OUTBOX.c.ends_at, OUTBOX.c.updated_at
    return or_(ends_at.is_(None), and_(ends_at > now, updated_at - (ends_at - updated_at) <= now))


# Built once: building a statement takes several times longer than running it in SQLite.
_INSERT: Final = insert(OUTBOX)
_FIRING: Final = (
    select(OUTBOX)
    .where(
        OUTBOX.c.ticket_id == bindparam("firing_ticket_id"),
        OUTBOX.c.active,
        _is_firing(bindparam("now")),
    )
    .order_by(OUTBOX.c.ends_at.is_not(None), OUTBOX.c.id.desc())
)
_INSERT_DELIVERY: Final = insert(OUTBOX_DELIVERIES)
_UPDATE_DELIVERY: Final = update(OUTBOX_DELIVERIES).where(
    OUTBOX_DELIVERIES.c.outbox_id == bindparam("row_id"),
    OUTBOX_DELIVERIES.c.peer == bindparam("peer_name"),
    OUTBOX_DELIVERIES.c.status == bindparam("delivery_status"),
)
_MARK_REPLACED: Final = insert(OUTBOX_DELIVERIES).from_select(
    ["outbox_id", "peer", "status", "attempts", "delivered_at"],
    select(
        OUTBOX.c.id, literal(NO_PEER), literal("resolved"), literal(0), bindparam("now", type_=Float)
    ).where(
        OUTBOX.c.alert_key == bindparam("replaced_key"),
        OUTBOX.c.active,
        OUTBOX.c.ends_at.is_not(None),
        ~exists().where(
            OUTBOX_DELIVERIES.c.outbox_id == OUTBOX.c.id,
            OUTBOX_DELIVERIES.c.peer == NO_PEER,
            OUTBOX_DELIVERIES.c.status == "resolved",
        ),
    ),
)


def insert_notification(
    conn: Connection,
    ticket_id: str,
    labels: dict[str, str],
    annotations: dict[str, str],
    now: float,
) -> None:
    """Insert an open-ended row that starts now."""
    values = {
        "ticket_id": ticket_id,
        "alert_key": alert_key(labels),
        "labels": labels,
        "annotations": annotations,
        "starts_at": now,
        "created_at": now,
        "updated_at": now,
        "active": True,
    }
    conn.execute(_INSERT, values)


def update_annotations(
    conn: Connection, current: Notification, annotations: dict[str, str], now: float
) -> None:
    """Change the text of a row, if it differs."""
    if annotations != current.annotations:
        values = {"annotations": annotations, "updated_at": now}
        conn.execute(update(OUTBOX).where(OUTBOX.c.id == current.id).values(values))


def end_notification(
    conn: Connection, current: Notification, now: float, ends_at: float, *, silent: bool
) -> None:
    """
    Set the end of a row.

    Args:
        ends_at: Later than ``now`` if the alert is held open for the next ticket.
        silent: Whether the firing alert must not be sent to a peer that does not have it yet.
    """
    conn.execute(update(OUTBOX).where(OUTBOX.c.id == current.id).values(ends_at=ends_at, updated_at=now))
    # A row with an end time is silent already.
    if silent and current.ends_at is None:
        values = {"outbox_id": current.id, "peer": NO_PEER, "status": "firing", "attempts": 0}
        conn.execute(insert(OUTBOX_DELIVERIES).values(**values, delivered_at=ends_at))


def end_held(conn: Connection, ticket: EscalationTicket, key: str, now: float) -> None:
    """End the alerts that are held open for a next ticket, because the incident is resolved."""
    condition = OUTBOX.c.alert_key == key
    if ticket.shares_cause:
        condition |= OUTBOX.c.labels[LABEL_STORM].as_string() == ticket.storm_id
    if ticket.kind is FindingKind.RUNS_FAILED:
        agent_ticket_ids = select(TICKETS.c.ticket_id).where(TICKETS.c.agent_id == ticket.agent_id)
        condition |= OUTBOX.c.ticket_id.in_(agent_ticket_ids)
    for row in conn.execute(select(OUTBOX).where(OUTBOX.c.active, OUTBOX.c.ends_at > now, condition)).all():
        end_notification(conn, _to_notification(row._mapping), now, now, silent=True)


def mark_replaced(conn: Connection, key: str, now: float) -> None:
    """Record that another alert replaced this one, so that its ends are not sent."""
    conn.execute(_MARK_REPLACED, {"replaced_key": key, "now": now})


def find_firing(conn: Connection, ticket_id: str, now: float) -> Notification | None:
    """Return the newest firing row of a ticket, an open-ended one first; None if there is none."""
    rows = conn.execute(_FIRING, {"firing_ticket_id": ticket_id, "now": now})
    return next((_to_notification(row._mapping) for row in rows), None)


def list_firing(conn: Connection, key: str, now: float) -> list[Notification]:
    """Return the firing rows of an alert; the first one provides its text."""
    query = select(OUTBOX).where(OUTBOX.c.alert_key == key, OUTBOX.c.active, _is_firing(literal(now)))
    return [_to_notification(row._mapping) for row in conn.execute(query.order_by(OUTBOX.c.id))]


def read_active(conn: Connection) -> list[Notification]:
    """Return notifications that fire or whose end some peer has not accepted, oldest first."""
    return _read(conn, OUTBOX.c.active)


def read_labels(conn: Connection) -> dict[str, dict[str, str]]:
    """Return the labels of open-ended notifications, by ticket."""
    query = select(OUTBOX.c.ticket_id, OUTBOX.c.labels).where(OUTBOX.c.active, OUTBOX.c.ends_at.is_(None))
    return {row.ticket_id: row.labels for row in conn.execute(query.order_by(OUTBOX.c.id))}


def read_held(conn: Connection, now: float) -> list[str]:
    """Return ended tickets whose alert is held open for the next ticket of the incident."""
    query = select(OUTBOX.c.ticket_id).where(
        OUTBOX.c.active, OUTBOX.c.ends_at > now, _is_firing(literal(now))
    )
    return list(conn.execute(query.order_by(OUTBOX.c.id)).scalars())


def read_last_id(conn: Connection) -> int:
    """Return the highest notification id; 0 if there are none."""
    return conn.execute(select(func.max(OUTBOX.c.id))).scalar() or 0


def read_changed(
    conn: Connection, known_rows: Mapping[int, Notification], since: float, *, above: int
) -> list[Notification]:
    """
    Return active notifications that are new or differ from the known ones, oldest first.

    Args:
        known_rows: Known notifications by id.
    """
    state = select(OUTBOX.c.id, OUTBOX.c.updated_at, OUTBOX.c.ends_at, OUTBOX.c.active)
    # Two queries, because SQLite would scan all active rows for one with OR.
    new = state.where(OUTBOX.c.id > above)
    changes = state.where(OUTBOX.c.active, OUTBOX.c.updated_at >= since)
    ids = [
        row.id
        for row in conn.execute(union_all(new, changes))
        if row.active
        and (
            (known_row := known_rows.get(row.id)) is None
            or (known_row.updated_at, known_row.ends_at) != (row.updated_at, row.ends_at)
        )
    ]
    return [
        notification
        for batch in batches(sorted(set(ids)))
        for notification in _read(conn, OUTBOX.c.id.in_(batch))
    ]


def _read(conn: Connection, condition: ColumnElement[bool]) -> list[Notification]:
    notifications = {
        row.id: _to_notification(row._mapping)
        for row in conn.execute(select(OUTBOX).where(condition).order_by(OUTBOX.c.id)).all()
        if row.active
    }
    deliveries = conn.execute(
        select(OUTBOX_DELIVERIES)
        .join(OUTBOX, OUTBOX.c.id == OUTBOX_DELIVERIES.c.outbox_id)
        .where(condition, OUTBOX_DELIVERIES.c.delivered_at.is_not(None))
    )
    for row in deliveries.all():
        if (notification := notifications.get(row.outbox_id)) is not None:
            acceptances = notification.fired if row.status == "firing" else notification.resolved
            acceptances[row.peer] = row.delivered_at
    return list(notifications.values())


def _to_notification(row: object) -> Notification:
    values = dict(row)  # type: ignore[call-overload]  # a RowMapping, which SQLAlchemy types as opaque
    values["key"] = values.pop("alert_key")
    del values["active"]
    return Notification(**values)


def record_receipts(
    conn: Connection, receipts: Sequence[Receipt], completed_ids: Collection[int], now: float
) -> None:
    """
    Store receipts, and close finished notifications.

    Args:
        receipts: Results of deliveries; the first acceptance by a peer is kept.
    """
    for batch in batches(receipts):
        _record(conn, batch)
    _close(conn, completed_ids, now)


def _record(conn: Connection, receipts: Sequence[Receipt]) -> None:
    table = OUTBOX_DELIVERIES.c
    existing = conn.execute(
        select(table.outbox_id, table.peer, table.status, table.delivered_at).where(
            table.outbox_id.in_({receipt.notification_id for receipt in receipts})
        )
    )
    row_times = {(row.outbox_id, row.peer, row.status): row.delivered_at for row in existing}
    acceptances = {key for key, delivered_at in row_times.items() if delivered_at is not None}
    rows: dict[tuple[int, str, str], dict[str, Any]] = {}
    for receipt in receipts:
        key = (receipt.notification_id, receipt.peer, receipt.status)
        if key in acceptances:
            continue
        rows[key] = {
            "attempts": receipt.attempts,
            "last_attempt_at": receipt.at,
            "delivered_at": receipt.at if receipt.error is None else None,
            "last_error": receipt.error,
        }
        if receipt.error is None:
            acceptances.add(key)
    changes = [
        {"row_id": key[0], "peer_name": key[1], "delivery_status": key[2], **row}
        for key, row in rows.items()
        if key in row_times
    ]
    new = [
        {"outbox_id": key[0], "peer": key[1], "status": key[2], **row}
        for key, row in rows.items()
        if key not in row_times
    ]
    if changes:
        conn.execute(_UPDATE_DELIVERY, changes)
    if new:
        conn.execute(_INSERT_DELIVERY, new)


def _close(conn: Connection, completed_ids: Collection[int], now: float) -> None:
    too_old = now - KEEP_UNDELIVERED_SECONDS
    # Ended rows no longer change, so `updated_at`, which is indexed, narrows the search.
    is_expired = (OUTBOX.c.updated_at < too_old) & (OUTBOX.c.ends_at < too_old)
    for condition in (*(OUTBOX.c.id.in_(batch) for batch in batches(completed_ids)), is_expired):
        conn.execute(update(OUTBOX).where(OUTBOX.c.active, condition).values(active=False, updated_at=now))
