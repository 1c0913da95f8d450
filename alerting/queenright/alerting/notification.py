"""
Notifications in the store, written in the transaction of the decision and kept until every peer has them.

A row is one alert with fixed labels. When the displayed severity rises, or a reminder is due, the row ends
and a new one begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Row,
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

from queenright.alerting.alert import (
    LABEL_REMINDER,
    LABEL_STORM,
    REMINDERS,
    SESSIONS,
    OperatorRequest,
    alert_severity,
    annotations_for,
    count_reminders,
    labels_for,
    reminder_labels,
)
from queenright.alerting.notification_ledger import DeliveredNotification, deliveries_of
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind
from queenright.health.store.rows import batches
from queenright.health.store.tables import OUTBOX, OUTBOX_DELIVERIES, TICKETS
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_table import find_ticket
from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID
from queenright.instrumentation.redaction import redact

Status = Literal["firing", "resolved"]

KEEP_UNDELIVERED_SECONDS: Final = 7 * 86_400
"""An ended notification that some peer has not accepted is dropped after this time."""

_COLLECTED_SECONDS: Final = 8.0
"""Alertmanager collects a group for 10 s, so people have not received an alert that is newer than this."""

_RANK: Final = {"info": 0, "warning": 1, "critical": 2}
_NOTIFIED_STATUSES: Final = frozenset({TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED})

_SESSION_COUNT: Final = re.compile(r" \d+ sessions, one after the other\.$")


def _is_firing(now: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition of ``_has_not_ended``."""
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
_NO_PEER: Final = ""
"""Pseudo peer. Its delivery row says that the firing alert, or its end, must not be sent to anyone."""

_MARK_REPLACED: Final = insert(OUTBOX_DELIVERIES).from_select(
    ["outbox_id", "peer", "status", "attempts", "delivered_at"],
    select(
        OUTBOX.c.id, literal(_NO_PEER), literal("resolved"), literal(0), bindparam("now", type_=Float)
    ).where(
        OUTBOX.c.alert_key == bindparam("replaced_key"),
        OUTBOX.c.active,
        OUTBOX.c.ends_at.is_not(None),
        ~exists().where(
            OUTBOX_DELIVERIES.c.outbox_id == OUTBOX.c.id,
            OUTBOX_DELIVERIES.c.peer == _NO_PEER,
            OUTBOX_DELIVERIES.c.status == "resolved",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One row of the outbox. Times in seconds since the epoch."""

    id: int
    ticket_id: str
    key: str
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: float
    ends_at: float | None = None
    """When it ended, or will end unless another ticket joins it; None if open-ended."""
    created_at: float
    updated_at: float
    fired: dict[str, float] = field(default_factory=dict)
    """When each peer accepted the firing alert."""
    resolved: dict[str, float] = field(default_factory=dict)
    """When each peer accepted its end."""

    def is_firing(self, now: float) -> bool:
        """Return whether it has not ended yet."""
        # If a peer accepted the end, it has ended, even if the clock was set back.
        return self.ends_at is None or (
            not self.resolved and _has_not_ended(self.ends_at, self.updated_at, now)
        )

    @property
    def was_delivered_in_time(self) -> bool:
        """Whether the alert ended and some peer accepted it before its end, so that only the end is sent."""
        return self.ends_at is not None and any(at <= self.ends_at for at in self.fired.values())

    @property
    def is_silent(self) -> bool:
        """Whether it needs no delivery: another alert replaced it, or its worker is gone."""
        return _NO_PEER in self.fired

    @property
    def is_replaced(self) -> bool:
        """Whether another alert replaced it, so that its end must not be sent."""
        return _NO_PEER in self.resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of sending one notification to one peer. ``error`` is the reason of a rejection."""

    notification_id: int
    peer: str
    status: Status
    at: float
    attempts: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerDeliveryState:
    """The delivery of one notification, or of its end, to one peer."""

    peer: str
    """The peer's URL, without credentials."""
    status: Status
    delivered_at: float | None
    """When the peer accepted it, in seconds since the epoch."""
    attempts: int
    """Number of attempts until the peer answered; 0 if this end did not need to be sent."""
    last_error: str | None
    """Why the peer rejected it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRecord:
    """One notification and its delivery to each peer. Times in seconds since the epoch."""

    id: int
    ticket_id: str
    agent: str
    cause: str
    severity: str
    """The severity label that people see and routes match."""
    ticket_severity: str
    """The ticket's severity when this alert was first sent."""
    title: str
    status: Status
    """``resolved`` after it ended, for any reason."""
    written_at: float
    ended_at: float | None
    active: bool
    """Whether it is firing, or its end still has to be sent to a peer."""
    peers: tuple[PeerDeliveryState, ...]
    """Sorted by peer, the firing alert before its end; without peers that have not answered yet."""
    notified: tuple[DeliveredNotification, ...] = ()
    """The receivers that Alertmanager has notified."""


def _has_not_ended(ends_at: float | None, updated_at: float, now: float) -> bool:
    """
    Return whether a notification has not ended yet.

    If the clock is set back, an end in the past is in the future. It still counts as past if it was in the
    past when it was written. An alert that is held open for the next ticket is not held longer.
    """
    return ends_at is None or updated_at - (ends_at - updated_at) <= now < ends_at


def alert_key(labels: dict[str, str]) -> str:
    """Return the identity of an alert in Alertmanager: a hash of all labels, as 32 hex digits."""
    return hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()[:32]


def enqueue(
    conn: Connection,
    ticket: EscalationTicket,
    settings: AlertingSettings,
    now: float,
    *,
    requests: Sequence[OperatorRequest] = (),
    earlier_tickets: Sequence[str] = (),
    is_replaced: bool = False,
    hold_seconds: float = 0.0,
) -> None:
    """
    Enqueue the notifications for a changed ticket, in the transaction that changes it.

    A ticket that waits for triage enqueues nothing. The call is idempotent.

    Args:
        requests: Decisions or actions that the message asks for.
        earlier_tickets: Tickets of the same agent and cause whose sessions ended before this one's began,
            latest first. A new ticket joins the first of their alerts that still fires, without a new
            notification: an agent that crashes repeatedly is one incident.
        is_replaced: Whether a newer incarnation runs in the ticket's session.
        hold_seconds: How long the alert keeps firing after the end of the worker, of its incarnation, or of a
            series of failed runs, so that the next ticket can join it. Not applied if a person resolved the
            ticket. If it shares a cause, the first ticket with that cause that resolves ends it.
    """
    if ticket.status is TicketStatus.OPEN:
        return
    current = _find_firing(conn, ticket.ticket_id, now)
    shared_alert = None
    if current is None and ticket.status in _NOTIFIED_STATUSES:
        shared_alert = _find_joined(conn, ticket, earlier_tickets, now)
    sessions = _sessions(current or shared_alert) + (shared_alert is not None)
    annotations = annotations_for(ticket, settings, requests=requests, sessions=sessions)
    if ticket.status in _NOTIFIED_STATUSES:
        if shared_alert is not None:
            _join(conn, ticket, shared_alert, annotations, now)
        elif current is None:
            _insert(conn, ticket.ticket_id, labels_for(ticket, settings), annotations, now)
        elif _is_more_severe(ticket, current):
            _replace_for_all(conn, current, _raise_severity(current, ticket), annotations, now)
        elif _joins_storm(ticket, current, now):
            _insert(conn, ticket.ticket_id, labels_for(ticket, settings), annotations, now)
            _end(conn, current, now, now, silent=True)
        elif _is_reminder(ticket, current):
            _remind(conn, current, ticket, annotations, now)
        else:
            _update_annotations(conn, current, annotations, now)
    elif current is not None and current.ends_at is None:
        # The text of the end matters too: a worker that ended has not recovered.
        _update_annotations(conn, current, annotations, now)
        ends_at = now + hold_seconds if _may_be_joined(ticket, is_replaced=is_replaced) else now
        silent = ends_at > now or ticket.status is not TicketStatus.RESOLVED
        _end(conn, current, now, ends_at, silent=silent)
        if not silent:
            _end_held(conn, ticket, current.key, now)
    elif current is not None and ticket.incident_resolved_at is not None:
        _end(conn, current, now, now, silent=True)


def find_joined(
    conn: Connection, ticket: EscalationTicket, earlier_tickets: Sequence[str], now: float
) -> str | None:
    """
    Return the ticket whose alert a new ticket joins without a notification; None if people are notified.

    Args:
        conn: A connection in the transaction that enqueues the ticket.
        ticket: A ticket without a notification.
        earlier_tickets: See ``enqueue``.
    """
    shared_alert = _find_joined(conn, ticket, earlier_tickets, now)
    return None if shared_alert is None or _is_more_severe(ticket, shared_alert) else shared_alert.ticket_id


def _find_joined(
    conn: Connection, ticket: EscalationTicket, earlier_tickets: Sequence[str], now: float
) -> Notification | None:
    for earlier in earlier_tickets:
        notification = _find_firing(conn, earlier, now)
        # A storm's alerts are one incident; an agent that keeps crashing after it gets a separate one.
        if notification is not None and notification.labels.get(LABEL_STORM, "") in ("", ticket.storm_id):
            return notification
    return None


def _may_be_joined(ticket: EscalationTicket, *, is_replaced: bool) -> bool:
    """Return whether a ticket that has ended may be followed by another of the same incident."""
    may_recur = is_replaced or ticket.kind is FindingKind.RUNS_FAILED
    if may_recur and ticket.status is TicketStatus.RESOLVED:
        return ticket.condition_cleared_at is not None  # a run completed; otherwise a person resolved it
    return ticket.status is TicketStatus.WORKER_GONE


def _end_held(conn: Connection, ticket: EscalationTicket, key: str, now: float) -> None:
    """End the alerts that are held open for the next ticket, because the incident is resolved."""
    condition = OUTBOX.c.alert_key == key
    if ticket.shares_cause:
        condition |= OUTBOX.c.labels[LABEL_STORM].as_string() == ticket.storm_id
    if ticket.kind is FindingKind.RUNS_FAILED:
        agent_ticket_ids = select(TICKETS.c.ticket_id).where(TICKETS.c.agent_id == ticket.agent_id)
        condition |= OUTBOX.c.ticket_id.in_(agent_ticket_ids)
    for row in conn.execute(select(OUTBOX).where(OUTBOX.c.active, OUTBOX.c.ends_at > now, condition)).all():
        _end(conn, _notification(row._mapping), now, now, silent=True)


def _is_more_severe(ticket: EscalationTicket, current: Notification) -> bool:
    return _RANK[alert_severity(ticket.severity)] > _RANK[current.labels["severity"]]


def _joins_storm(ticket: EscalationTicket, current: Notification, now: float) -> bool:
    """Return whether an alert that has not been delivered yet becomes part of an incident."""
    # A ticket that joined an earlier one shares its alert.
    notified_at = None if ticket.incident_id else ticket.notified_at
    is_new = notified_at is not None and 0 <= now - notified_at < _COLLECTED_SECONDS
    return is_new and bool(ticket.storm_id) and LABEL_STORM not in current.labels


def _is_reminder(ticket: EscalationTicket, current: Notification) -> bool:
    return count_reminders(ticket) > int(current.annotations.get(REMINDERS, 0))


def _sessions(notification: Notification | None) -> int:
    return 1 if notification is None else int(notification.annotations.get(SESSIONS, 1))


def _join(
    conn: Connection,
    ticket: EscalationTicket,
    earlier: Notification,
    annotations: dict[str, str],
    now: float,
) -> None:
    """
    Let a ticket share the alert of an earlier one, whose summary counts the sessions.

    If the ticket is more severe, an alert of its severity replaces the shared one.
    """
    is_worse = _is_more_severe(ticket, earlier)
    labels = _raise_severity(earlier, ticket) if is_worse else dict(earlier.labels)
    holding = _find_holding(conn, earlier.key, now)
    _insert(conn, ticket.ticket_id, labels, annotations, now)
    count = annotations[SESSIONS]
    for holder in holding:
        if holder.ends_at is not None:
            # It was held open for this ticket.
            _end(conn, holder, now, now, silent=True)
        elif holder.ticket_id != ticket.ticket_id:
            summary = (
                _SESSION_COUNT.sub("", holder.annotations["summary"])
                + f" {count} sessions, one after the other."
            )
            new_annotations = {**holder.annotations, "summary": summary, SESSIONS: count}
            if is_worse:
                _replace(conn, holder, labels, new_annotations, now)
            else:
                _update_annotations(conn, holder, new_annotations, now)
    if is_worse:
        conn.execute(_MARK_REPLACED, {"replaced_key": earlier.key, "now": now})


def _remind(
    conn: Connection, current: Notification, ticket: EscalationTicket, annotations: dict[str, str], now: float
) -> None:
    """Replace an alert by its reminder, for every ticket that shares it."""
    _replace_for_all(conn, current, reminder_labels(current.labels, ticket), annotations, now)


def _replace_for_all(
    conn: Connection, current: Notification, labels: dict[str, str], annotations: dict[str, str], now: float
) -> None:
    """Replace an alert for every ticket that shares it; the row of ``current`` comes first."""
    others = []
    if current.labels.get(ALERT_LABEL_TICKET_ID) != current.ticket_id or SESSIONS in current.annotations:
        others = [
            notification
            for notification in _find_holding(conn, current.key, now)
            if notification.id != current.id
        ]
    _replace(conn, current, labels, annotations, now)
    for other in others:
        if other.ends_at is None:
            # Keep the reminder count of its own ticket, so that a later update is not taken for a reminder.
            ticket = find_ticket(conn, other.ticket_id)
            count = {REMINDERS: str(count_reminders(ticket))} if ticket is not None else {}
            _replace(conn, other, labels, other.annotations | count, now)
        else:
            _end(conn, other, now, now, silent=True)


def _find_holding(conn: Connection, key: str, now: float) -> list[Notification]:
    """Return the firing rows of an alert; the first one provides its text."""
    query = select(OUTBOX).where(OUTBOX.c.alert_key == key, OUTBOX.c.active, _is_firing(literal(now)))
    return [_notification(row._mapping) for row in conn.execute(query.order_by(OUTBOX.c.id))]


def _update_annotations(
    conn: Connection, current: Notification, annotations: dict[str, str], now: float
) -> None:
    if annotations != current.annotations:
        values = {"annotations": annotations, "updated_at": now}
        conn.execute(update(OUTBOX).where(OUTBOX.c.id == current.id).values(values))


def _raise_severity(current: Notification, ticket: EscalationTicket) -> dict[str, str]:
    # Agent, cause and cluster must not change: they let the new alert inhibit the end of the old one.
    labels = {name: value for name, value in current.labels.items() if name != LABEL_REMINDER}
    return labels | {
        "severity": alert_severity(ticket.severity),
        "ticket_severity": ticket.severity.value,
    }


def _replace(
    conn: Connection,
    current: Notification,
    labels: dict[str, str],
    annotations: dict[str, str],
    now: float,
) -> None:
    """Begin a new alert and silently end the one that it replaces."""
    _insert(conn, current.ticket_id, labels, annotations, now)
    _end(conn, current, now, now, silent=True)
    # For all rows of the alert, including those that ended before.
    conn.execute(_MARK_REPLACED, {"replaced_key": current.key, "now": now})


def _insert(
    conn: Connection,
    ticket_id: str,
    labels: dict[str, str],
    annotations: dict[str, str],
    now: float,
) -> None:
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


def _end(conn: Connection, current: Notification, now: float, ends_at: float, *, silent: bool) -> None:
    conn.execute(update(OUTBOX).where(OUTBOX.c.id == current.id).values(ends_at=ends_at, updated_at=now))
    # A row with an end time is silent already.
    if silent and current.ends_at is None:
        values = {"outbox_id": current.id, "peer": _NO_PEER, "status": "firing", "attempts": 0}
        conn.execute(insert(OUTBOX_DELIVERIES).values(**values, delivered_at=ends_at))


def _find_firing(conn: Connection, ticket_id: str, now: float) -> Notification | None:
    rows = conn.execute(_FIRING, {"firing_ticket_id": ticket_id, "now": now})
    return next((_notification(row._mapping) for row in rows), None)


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
        row.id: _notification(row._mapping)
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


def list_notifications(
    conn: Connection, limit: int = 50, *, now: float, before: int | None = None
) -> list[NotificationRecord]:
    """
    Return the latest notifications with their delivery to each peer, newest first.

    Args:
        now: Seconds since the epoch, to decide which still fire.
        before: Return only smaller ids; the cursor of the next page.
    """
    query = select(OUTBOX) if before is None else select(OUTBOX).where(OUTBOX.c.id < before)
    rows = conn.execute(query.order_by(OUTBOX.c.id.desc()).limit(limit)).all()
    states: dict[int, list[PeerDeliveryState]] = {row.id: [] for row in rows}
    table = OUTBOX_DELIVERIES
    deliveries = conn.execute(
        select(table)
        .where(table.c.outbox_id.in_(states), table.c.peer != _NO_PEER)
        .order_by(table.c.peer, table.c.status)
    )
    for row in deliveries:
        states[row.outbox_id].append(
            PeerDeliveryState(
                peer=row.peer,
                status=row.status,
                delivered_at=row.delivered_at,
                attempts=row.attempts,
                # The peer, or a proxy, may have repeated parts of the request.
                last_error=redact(row.last_error) if row.last_error else None,
            )
        )
    deliveries_by_ticket = deliveries_of(conn, {row.ticket_id for row in rows})
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
    is_firing = _has_not_ended(row.ends_at, row.updated_at, now)
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
        active=row.active and not _is_over(row, peers),
        peers=peers,
        notified=tuple(delivery for delivery in deliveries if delivery.alert_key == row.alert_key),
    )


def _is_over(row: Row[Any], peers: Collection[PeerDeliveryState]) -> bool:
    """Return whether every peer that answered has accepted the end."""
    acceptances = {peer.peer for peer in peers if peer.status == "resolved"}
    return row.ends_at is not None and bool(acceptances) and acceptances >= {peer.peer for peer in peers}


def _notification(row: object) -> Notification:
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
