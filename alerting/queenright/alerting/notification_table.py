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
"""Seconds after which an ended notification is dropped even if some peer has not accepted it."""


def _is_firing(now: ColumnElement[float]) -> ColumnElement[bool]:
    """Return ``has_not_ended`` as an SQL condition."""
    ends_at, updated_at = OUTBOX.c.ends_at, OUTBOX.c.updated_at
    return or_(ends_at.is_(None), and_(ends_at > now, updated_at - (ends_at - updated_at) <= now))


# Built once, because building a statement takes several times longer than running it in SQLite.
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
    """Insert an open-ended notification that starts now."""
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
    """Update a notification's annotations if they differ."""
    if annotations != current.annotations:
        values = {"annotations": annotations, "updated_at": now}
        conn.execute(update(OUTBOX).where(OUTBOX.c.id == current.id).values(values))


def end_notification(
    conn: Connection, current: Notification, now: float, ends_at: float, *, silent: bool
) -> None:
    """
    Set the end of a notification.

    Args:
        ends_at: Later than ``now`` if the alert is held open for the next ticket.
        silent: Whether to keep the firing alert from peers that do not have it yet.
    """
    conn.execute(update(OUTBOX).where(OUTBOX.c.id == current.id).values(ends_at=ends_at, updated_at=now))
    # A notification that already has an end is already silent.
    if silent and current.ends_at is None:
        values = {"outbox_id": current.id, "peer": NO_PEER, "status": "firing", "attempts": 0}
        conn.execute(insert(OUTBOX_DELIVERIES).values(**values, delivered_at=ends_at))


def end_held(conn: Connection, ticket: EscalationTicket, key: str, now: float) -> None:
    """End the alerts that are held open for the next ticket of an incident, because it is resolved."""
    condition = OUTBOX.c.alert_key == key
    if ticket.shares_cause:
        condition |= OUTBOX.c.labels[LABEL_STORM].as_string() == ticket.storm_id
    if ticket.kind is FindingKind.RUNS_FAILED:
        agent_ticket_ids = select(TICKETS.c.ticket_id).where(TICKETS.c.agent_id == ticket.agent_id)
        condition |= OUTBOX.c.ticket_id.in_(agent_ticket_ids)
    for row in conn.execute(select(OUTBOX).where(OUTBOX.c.active, OUTBOX.c.ends_at > now, condition)).all():
        end_notification(conn, _to_notification(row._mapping), now, now, silent=True)


def mark_replaced(conn: Connection, key: str, now: float) -> None:
    """Record that another alert replaced this one, so that the ends of its notifications are not sent."""
    conn.execute(_MARK_REPLACED, {"replaced_key": key, "now": now})


def find_firing(conn: Connection, ticket_id: str, now: float) -> Notification | None:
    """
    Return a ticket's newest open-ended notification, otherwise its newest firing one; None if none fires.
    """
    rows = conn.execute(_FIRING, {"firing_ticket_id": ticket_id, "now": now})
    return next((_to_notification(row._mapping) for row in rows), None)


def list_firing(conn: Connection, key: str, now: float) -> list[Notification]:
    """Return the firing notifications of an alert, oldest first. The first one provides the alert's text."""
    query = select(OUTBOX).where(OUTBOX.c.alert_key == key, OUTBOX.c.active, _is_firing(literal(now)))
    return [_to_notification(row._mapping) for row in conn.execute(query.order_by(OUTBOX.c.id))]


def read_active(conn: Connection) -> list[Notification]:
    """Return the notifications that fire, or whose end some peer has not accepted, oldest first."""
    return _read_where(conn, OUTBOX.c.active)


def read_labels(conn: Connection) -> dict[str, dict[str, str]]:
    """Return the labels of open-ended notifications, by ticket id."""
    query = select(OUTBOX.c.ticket_id, OUTBOX.c.labels).where(OUTBOX.c.active, OUTBOX.c.ends_at.is_(None))
    return {row.ticket_id: row.labels for row in conn.execute(query.order_by(OUTBOX.c.id))}


def read_held(conn: Connection, now: float) -> list[str]:
    """Return the ids of ended tickets whose alert is held open for the next ticket of the incident."""
    query = select(OUTBOX.c.ticket_id).where(
        OUTBOX.c.active, OUTBOX.c.ends_at > now, _is_firing(literal(now))
    )
    return list(conn.execute(query.order_by(OUTBOX.c.id)).scalars())


def read_last_id(conn: Connection) -> int:
    """Return the highest notification id; 0 if there is none."""
    return conn.execute(select(func.max(OUTBOX.c.id))).scalar() or 0


def read_changed(
    conn: Connection, known_rows: Mapping[int, Notification], since: float, *, above: int
) -> list[Notification]:
    """
    Return the active notifications that are new or have changed, oldest first.

    Args:
        known_rows: Known notifications by id.
        since: Seconds since the epoch; earlier changes are ignored.
        above: Notifications with a higher id are new.
    """
    state = select(OUTBOX.c.id, OUTBOX.c.updated_at, OUTBOX.c.ends_at, OUTBOX.c.active)
    # Two queries, because SQLite would scan all active rows for a single query with OR.
    new_rows = state.where(OUTBOX.c.id > above)
    changed_rows = state.where(OUTBOX.c.active, OUTBOX.c.updated_at >= since)
    ids = [
        row.id
        for row in conn.execute(union_all(new_rows, changed_rows))
        if row.active
        and (
            (known_row := known_rows.get(row.id)) is None
            or (known_row.updated_at, known_row.ends_at) != (row.updated_at, row.ends_at)
        )
    ]
    return [
        notification
        for batch in batches(sorted(set(ids)))
        for notification in _read_where(conn, OUTBOX.c.id.in_(batch))
    ]


def _read_where(conn: Connection, condition: ColumnElement[bool]) -> list[Notification]:
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
    Store receipts and close finished notifications.

    Args:
        receipts: Results of deliveries. Only the first acceptance by a peer is kept.
        completed_ids: Ids of the notifications that need no further delivery.
    """
    for batch in batches(receipts):
        _record_receipts(conn, batch)
    _close_finished(conn, completed_ids, now)


def _record_receipts(conn: Connection, receipts: Sequence[Receipt]) -> None:
    table = OUTBOX_DELIVERIES.c
    existing = conn.execute(
        select(table.outbox_id, table.peer, table.status, table.delivered_at).where(
            table.outbox_id.in_({receipt.notification_id for receipt in receipts})
        )
    )
    delivery_times = {(row.outbox_id, row.peer, row.status): row.delivered_at for row in existing}
    acceptances = {key for key, delivered_at in delivery_times.items() if delivered_at is not None}
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
    changed_rows = [
        {"row_id": key[0], "peer_name": key[1], "delivery_status": key[2], **row}
        for key, row in rows.items()
        if key in delivery_times
    ]
    new_rows = [
        {"outbox_id": key[0], "peer": key[1], "status": key[2], **row}
        for key, row in rows.items()
        if key not in delivery_times
    ]
    if changed_rows:
        conn.execute(_UPDATE_DELIVERY, changed_rows)
    if new_rows:
        conn.execute(_INSERT_DELIVERY, new_rows)


def _close_finished(conn: Connection, completed_ids: Collection[int], now: float) -> None:
    too_old = now - KEEP_UNDELIVERED_SECONDS
    # Ended rows no longer change, so `updated_at`, which is indexed, narrows the search.
    is_expired = (OUTBOX.c.updated_at < too_old) & (OUTBOX.c.ends_at < too_old)
    for condition in (*(OUTBOX.c.id.in_(batch) for batch in batches(completed_ids)), is_expired):
        conn.execute(update(OUTBOX).where(OUTBOX.c.active, condition).values(active=False, updated_at=now))
