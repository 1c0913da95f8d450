"""The latest notifications for the API, with their delivery to each peer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from queenright.alerting.notification import NO_PEER, Status, has_not_ended
from queenright.alerting.notification_ledger import DeliveredNotification, list_deliveries
from queenright.health.store.tables import OUTBOX, OUTBOX_DELIVERIES
from queenright.instrumentation.redaction import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDeliveryState:
    """The delivery of one notification, or of its end, to one peer."""

    peer: str
    """The peer's URL, without credentials."""
    status: Status
    delivered_at: float | None
    """When the peer accepted it, in seconds since the epoch."""
    attempts: int
    """Number of attempts until the peer answered; 0 if the end did not need to be sent."""
    last_error: str | None
    """Why the peer rejected the notification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRecord:
    """One notification and its delivery to each peer. Times are in seconds since the epoch."""

    id: int
    ticket_id: str
    agent: str
    cause: str
    severity: str
    """The severity label, which people see and routes match."""
    ticket_severity: str
    """The ticket's severity when the alert was first sent."""
    title: str
    status: Status
    """``resolved`` once the alert has ended, for any reason."""
    written_at: float
    ended_at: float | None
    active: bool
    """Whether the alert is firing, or its end still has to be sent to a peer."""
    peers: tuple[PeerDeliveryState, ...]
    """Sorted by peer, with the firing alert before its end. Peers that have not answered yet are left out."""
    notified: tuple[DeliveredNotification, ...] = ()
    """The receivers that Alertmanager has notified."""


def list_notifications(
    conn: Connection, limit: int = 50, *, now: float, before: int | None = None
) -> list[NotificationRecord]:
    """
    Return the latest notifications with their delivery to each peer, newest first.

    Args:
        now: Seconds since the epoch; decides which notifications still fire.
        before: Return only notifications with smaller ids; the cursor for the next page.
    """
    query = select(OUTBOX) if before is None else select(OUTBOX).where(OUTBOX.c.id < before)
    rows = conn.execute(query.order_by(OUTBOX.c.id.desc()).limit(limit)).all()
    states: dict[int, list[PeerDeliveryState]] = {row.id: [] for row in rows}
    table = OUTBOX_DELIVERIES
    deliveries = conn.execute(
        select(table)
        .where(table.c.outbox_id.in_(states), table.c.peer != NO_PEER)
        .order_by(table.c.peer, table.c.status)
    )
    for row in deliveries:
        states[row.outbox_id].append(
            PeerDeliveryState(
                peer=row.peer,
                status=row.status,
                delivered_at=row.delivered_at,
                attempts=row.attempts,
                # The error text of a peer or proxy may repeat parts of the request.
                last_error=redact(row.last_error) if row.last_error else None,
            )
        )
    deliveries_by_ticket = list_deliveries(conn, {row.ticket_id for row in rows})
    return [
        _to_record(row, tuple(states[row.id]), deliveries_by_ticket.get(row.ticket_id, ()), now)
        for row in rows
    ]


def _to_record(
    row: Row[Any],
    peers: tuple[PeerDeliveryState, ...],
    deliveries: Iterable[DeliveredNotification],
    now: float,
) -> NotificationRecord:
    is_firing = has_not_ended(row.ends_at, row.updated_at, now)
    return NotificationRecord(
        id=row.id,
        ticket_id=row.ticket_id,
        agent=row.labels["agent"],
        cause=row.labels["cause"],
        severity=row.labels["severity"],
        ticket_severity=row.labels["ticket_severity"],
        title=row.annotations["summary"],
        status="firing" if is_firing else "resolved",
        written_at=row.created_at,
        ended_at=None if is_firing else row.ends_at,
        active=row.active and not _is_end_delivered(row, peers),
        peers=peers,
        notified=tuple(delivery for delivery in deliveries if delivery.alert_key == row.alert_key),
    )


def _is_end_delivered(row: Row[Any], peers: Collection[PeerDeliveryState]) -> bool:
    """Return whether every peer that answered has accepted the end."""
    accepting_peers = {peer.peer for peer in peers if peer.status == "resolved"}
    return (
        row.ends_at is not None and bool(accepting_peers) and accepting_peers >= {peer.peer for peer in peers}
    )
