"""
Notifications in the store: written in the transaction of the decision, kept until every peer took them.

A row is one alert as it was first sent: its labels never change. When the severity that people see rises,
or they are reminded of what nobody acknowledged, the row ends and another begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Row,
    and_,
    bindparam,
    delete,
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
    annotations_for,
    labels_again,
    labels_for,
    outside_severity,
    times_brought_up,
)
from queenright.alerting.notification_ledger import DeliveredNotification, told_of
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind
from queenright.health.tables import OUTBOX, OUTBOX_DELIVERIES, TICKETS
from queenright.health.ticket_table import find_ticket
from queenright.health.tickets import EscalationTicket, TicketStatus
from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID
from queenright.instrumentation.redaction import redact

T = TypeVar("T")

Status = Literal["firing", "resolved"]

KEEP_UNDELIVERED_SECONDS: Final = 7 * 86_400
"""An ended notification that some peer has not taken for so long is given up."""
KEEP_SECONDS: Final = 30 * 86_400
"""How long delivered notifications are kept to look at."""

_RANK: Final = {"info": 0, "warning": 1, "critical": 2}
_TOLD: Final = frozenset({TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED})

_COUNTED: Final = re.compile(r" \d+ sessions, one after the other\.$")


def _is_firing(now: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition of ``_holds``."""
    ends_at, updated_at = OUTBOX.c.ends_at, OUTBOX.c.updated_at
    return or_(ends_at.is_(None), and_(ends_at > now, updated_at - (ends_at - updated_at) <= now))


# Built once: to build a statement takes several times as long as SQLite takes to run it.
_INSERT: Final = insert(OUTBOX)
_FIRING: Final = (
    select(OUTBOX)
    .where(
        OUTBOX.c.ticket_id == bindparam("of"),
        OUTBOX.c.active,
        _is_firing(bindparam("now")),
    )
    .order_by(OUTBOX.c.ends_at.is_not(None), OUTBOX.c.id.desc())
)
_INSERT_DELIVERY: Final = insert(OUTBOX_DELIVERIES)
_UPDATE_DELIVERY: Final = update(OUTBOX_DELIVERIES).where(
    OUTBOX_DELIVERIES.c.outbox_id == bindparam("of"),
    OUTBOX_DELIVERIES.c.peer == bindparam("at"),
    OUTBOX_DELIVERIES.c.status == bindparam("was"),
)
_AT_ONCE: Final = 500
"""Values in one statement: it takes no more than some ten thousand."""

_NOBODY: Final = ""
"""In place of a peer: nobody need be told that this ever fired; or, resolved, of its end."""

_MARK_REPLACED: Final = insert(OUTBOX_DELIVERIES).from_select(
    ["outbox_id", "peer", "status", "attempts", "delivered_at"],
    select(
        OUTBOX.c.id, literal(_NOBODY), literal("resolved"), literal(0), bindparam("now", type_=Float)
    ).where(
        OUTBOX.c.alert_key == bindparam("of"),
        OUTBOX.c.active,
        OUTBOX.c.ends_at.is_not(None),
        ~exists().where(
            OUTBOX_DELIVERIES.c.outbox_id == OUTBOX.c.id,
            OUTBOX_DELIVERIES.c.peer == _NOBODY,
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
    """When it ended, or will unless another ticket joins it; None if that is open."""
    created_at: float
    updated_at: float
    fired: dict[str, float] = field(default_factory=dict)
    """When each peer took the firing alert."""
    resolved: dict[str, float] = field(default_factory=dict)
    """When each peer took its end."""

    def is_firing(self, now: float) -> bool:
        """Return whether it has not ended yet."""
        # What a peer took the end of has ended, wherever the clock was set.
        return self.ends_at is None or (not self.resolved and _holds(self.ends_at, self.updated_at, now))

    @property
    def told(self) -> bool:
        """Whether an alert that has ended need not be sent firing first: somebody heard of it in time."""
        return self.ends_at is not None and any(at <= self.ends_at for at in self.fired.values())

    @property
    def silent(self) -> bool:
        """Whether nobody need hear that it was: another took its place, or its worker is no more."""
        return _NOBODY in self.fired

    @property
    def is_replaced(self) -> bool:
        """Whether another alert took its place, so that nobody may hear of its end."""
        return _NOBODY in self.resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of one notification at one peer. ``error`` says why it was not taken."""

    notification_id: int
    peer: str
    status: Status
    at: float
    attempts: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What became of one notification, or of its end, at one peer."""

    peer: str
    """The peer's URL, without credentials."""
    status: Status
    delivered_at: float | None
    """When the peer took it, in seconds since the epoch."""
    attempts: int
    """How often it was sent until the peer answered; 0 and delivered if it need not be told of this end."""
    last_error: str | None
    """Why the peer refused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """One notification, and what each peer has been told of it. Times in seconds since the epoch."""

    id: int
    ticket_id: str
    agent: str
    cause: str
    severity: str
    """The word that people see and alerts are routed by."""
    ticket_severity: str
    """The ticket's severity when this alert was first sent."""
    title: str
    status: Status
    """``resolved`` once it has ended, for whatever reason."""
    written_at: float
    ended_at: float | None
    active: bool
    """Whether it still holds, or some peer that was told of it is still to be told of its end."""
    peers: tuple[Handover, ...]
    """By peer, the firing alert before its end; a peer that has not answered yet is not among them."""
    told: tuple[DeliveredNotification, ...] = ()
    """Which receivers Alertmanager says it has told."""


def _holds(ends_at: float | None, updated_at: float, now: float) -> bool:
    """
    Return whether a notification has not ended yet.

    After the clock was set back an end lies in the future. It is none if it was not when it was written; and
    what is held open beyond the end of its worker is not held longer for that.
    """
    return ends_at is None or updated_at - (ends_at - updated_at) <= now < ends_at


def alert_key(labels: dict[str, str]) -> str:
    """Return what Alertmanager tells alerts apart by: all the labels, as 32 hex digits."""
    return hashlib.sha256(json.dumps(sorted(labels.items())).encode()).hexdigest()[:32]


def enqueue(
    conn: Connection,
    ticket: EscalationTicket,
    settings: AlertingSettings,
    now: float,
    *,
    requests: Sequence[OperatorRequest] = (),
    follows: Sequence[str] = (),
    hold: float = 0.0,
) -> None:
    """
    Write down what the outside must hear of a changed ticket, in the transaction that changes it.

    A ticket that waits for triage changes nothing outside. Calling this twice for one change is harmless.

    Args:
        conn: In a transaction.
        ticket: As it is now.
        settings: What links point at.
        now: Seconds since the epoch.
        requests: What the reader is asked to decide or do.
        follows: Tickets of the same agent and cause whose sessions were over before this one's began, the
            latest first. A new ticket joins the first of their alerts that fires, and nobody is told anew:
            an agent that crashes again and again is one incident.
        hold: Seconds that the alert goes on after the end of the worker, or of a row of failed runs, for the
            next ticket to join; not after a person's word.
    """
    if ticket.status is TicketStatus.OPEN:
        return
    current = _find_firing(conn, ticket.ticket_id, now)
    joined = None
    if current is None and ticket.status in _TOLD:
        joined = _find_joined(conn, ticket, follows, now)
    sessions = _sessions(current or joined) + (joined is not None)
    annotations = annotations_for(ticket, settings, requests=requests, sessions=sessions)
    if ticket.status in _TOLD:
        if joined is not None:
            _join(conn, ticket, joined, annotations, now)
        elif current is None:
            _insert(conn, ticket.ticket_id, labels_for(ticket, settings), annotations, now)
        elif _rises(ticket, current):
            _replace_for_all(conn, current, _risen(current, ticket), annotations, now)
        elif _is_reminder(ticket, current):
            _remind(conn, current, ticket, annotations, now)
        else:
            _say_anew(conn, current, annotations, now)
    elif current is not None and current.ends_at is None:
        # What people read of the end, too: a worker that ended has not recovered.
        _say_anew(conn, current, annotations, now)
        ends_at = now + hold if _may_be_joined(ticket) else now
        silent = ends_at > now or ticket.status is not TicketStatus.RESOLVED
        _end(conn, current, now, ends_at, silent=silent)
        if not silent:
            _end_held(conn, ticket, current.key, now)
    elif current is not None and ticket.incident_resolved_at is not None:
        _end(conn, current, now, now, silent=True)


def find_joined(conn: Connection, ticket: EscalationTicket, follows: Sequence[str], now: float) -> str | None:
    """
    Return the ticket whose alert a new one joins, without anybody being told; None if people are told of it.

    Args:
        conn: In the transaction in which people are to be told of the ticket.
        ticket: A ticket that people have not been told of.
        follows: As for ``enqueue``.
        now: Seconds since the epoch.
    """
    joined = _find_joined(conn, ticket, follows, now)
    return None if joined is None or _rises(ticket, joined) else joined.ticket_id


def _find_joined(
    conn: Connection, ticket: EscalationTicket, follows: Sequence[str], now: float
) -> Notification | None:
    for earlier in follows:
        found = _find_firing(conn, earlier, now)
        # A storm's alerts are one incident; an agent that crashes on after it has one of its own.
        if found is not None and found.labels.get(LABEL_STORM, "") in ("", ticket.storm_id):
            return found
    return None


def _may_be_joined(ticket: EscalationTicket) -> bool:
    """Return whether a ticket that has ended may be followed by another of the same incident."""
    if ticket.kind is FindingKind.RUNS_FAILED and ticket.status is TicketStatus.RESOLVED:
        return ticket.condition_cleared_at is not None  # a run completed; else a person has settled it
    return ticket.status is TicketStatus.WORKER_GONE


def _end_held(conn: Connection, ticket: EscalationTicket, key: str, now: float) -> None:
    """End what was held open for the next ticket: the incident is over, or all those of its agent are."""
    which = OUTBOX.c.alert_key == key
    if ticket.kind is FindingKind.RUNS_FAILED:
        of_agent = select(TICKETS.c.ticket_id).where(TICKETS.c.agent_id == ticket.worker_agent_id)
        which |= OUTBOX.c.ticket_id.in_(of_agent)
    for row in conn.execute(select(OUTBOX).where(which, OUTBOX.c.active, OUTBOX.c.ends_at > now)).all():
        _end(conn, _notification(row._mapping), now, now, silent=True)


def _rises(ticket: EscalationTicket, current: Notification) -> bool:
    return _RANK[outside_severity(ticket.severity)] > _RANK[current.labels["severity"]]


def _is_reminder(ticket: EscalationTicket, current: Notification) -> bool:
    return times_brought_up(ticket) > int(current.annotations.get(REMINDERS, 0))


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
    Let a ticket hold the alert of an earlier one, which says how many there are.

    If the ticket is worse, an alert of its severity takes the place of the earlier one, for all that hold it.
    """
    is_worse = _rises(ticket, earlier)
    labels = _risen(earlier, ticket) if is_worse else dict(earlier.labels)
    holding = _find_holding(conn, earlier.key, now)
    _insert(conn, ticket.ticket_id, labels, annotations, now)
    count = annotations[SESSIONS]
    for one in holding:
        if one.ends_at is not None:
            # It was held open for this ticket.
            _end(conn, one, now, now, silent=True)
        elif one.ticket_id != ticket.ticket_id:
            summary = (
                _COUNTED.sub("", one.annotations["summary"]) + f" {count} sessions, one after the other."
            )
            counted = {**one.annotations, "summary": summary, SESSIONS: count}
            if is_worse:
                _replace(conn, one, labels, counted, now)
            else:
                _say_anew(conn, one, counted, now)
    if is_worse:
        conn.execute(_MARK_REPLACED, {"of": earlier.key, "now": now})


def _remind(
    conn: Connection, current: Notification, ticket: EscalationTicket, annotations: dict[str, str], now: float
) -> None:
    """Bring an alert up again, for every ticket that holds it."""
    _replace_for_all(conn, current, labels_again(current.labels, ticket), annotations, now)


def _replace_for_all(
    conn: Connection, current: Notification, labels: dict[str, str], annotations: dict[str, str], now: float
) -> None:
    """Let another alert take the place of one, for every ticket that holds it; this one speaks for all."""
    others = []
    if current.labels.get(ALERT_LABEL_TICKET_ID) != current.ticket_id or SESSIONS in current.annotations:
        others = [one for one in _find_holding(conn, current.key, now) if one.id != current.id]
    _replace(conn, current, labels, annotations, now)
    for one in others:
        if one.ends_at is None:
            # As often as its own ticket: what is said anew of that later is no reminder.
            held = find_ticket(conn, one.ticket_id)
            count = {REMINDERS: str(times_brought_up(held))} if held is not None else {}
            _replace(conn, one, labels, one.annotations | count, now)
        else:
            _end(conn, one, now, now, silent=True)


def _find_holding(conn: Connection, key: str, now: float) -> list[Notification]:
    """Return what holds an alert, the one that speaks for all first."""
    found = select(OUTBOX).where(OUTBOX.c.alert_key == key, OUTBOX.c.active, _is_firing(literal(now)))
    return [_notification(row._mapping) for row in conn.execute(found.order_by(OUTBOX.c.id))]


def _say_anew(conn: Connection, current: Notification, annotations: dict[str, str], now: float) -> None:
    if annotations != current.annotations:
        values = {"annotations": annotations, "updated_at": now}
        conn.execute(update(OUTBOX).where(OUTBOX.c.id == current.id).values(values))


def _risen(current: Notification, ticket: EscalationTicket) -> dict[str, str]:
    # Agent, cause and cluster stay as they were sent: by these the new alert inhibits the old one's end.
    kept = {name: value for name, value in current.labels.items() if name != LABEL_REMINDER}
    return kept | {
        "severity": outside_severity(ticket.severity),
        "ticket_severity": ticket.severity.value,
    }


def _replace(
    conn: Connection,
    current: Notification,
    labels: dict[str, str],
    annotations: dict[str, str],
    now: float,
) -> None:
    """Begin another alert, and end the one that it takes the place of; nobody is told of that end."""
    _insert(conn, current.ticket_id, labels, annotations, now)
    _end(conn, current, now, now, silent=True)
    # Of all that held it, also of those that ended before.
    conn.execute(_MARK_REPLACED, {"of": current.key, "now": now})


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
    # What ends later than now is silent already.
    if silent and current.ends_at is None:
        values = {"outbox_id": current.id, "peer": _NOBODY, "status": "firing", "attempts": 0}
        conn.execute(insert(OUTBOX_DELIVERIES).values(**values, delivered_at=ends_at))


def _find_firing(conn: Connection, ticket_id: str, now: float) -> Notification | None:
    rows = conn.execute(_FIRING, {"of": ticket_id, "now": now})
    return next((_notification(row._mapping) for row in rows), None)


def read_active(conn: Connection) -> list[Notification]:
    """
    Return what is still active, or has ended and not been taken by every peer; oldest first.

    Args:
        conn: A connection that sees one state of the database for as long as this takes.
    """
    return _read(conn, OUTBOX.c.active)


def read_labels(conn: Connection) -> dict[str, dict[str, str]]:
    """Return, by ticket, the labels of each notification that has not ended, nor will at a known time."""
    found = select(OUTBOX.c.ticket_id, OUTBOX.c.labels).where(OUTBOX.c.active, OUTBOX.c.ends_at.is_(None))
    return {row.ticket_id: row.labels for row in conn.execute(found.order_by(OUTBOX.c.id))}


def read_held(conn: Connection, now: float) -> list[str]:
    """Return the tickets that have ended and whose alert is held open for the next of their incident."""
    held = select(OUTBOX.c.ticket_id).where(OUTBOX.c.active, OUTBOX.c.ends_at > now, _is_firing(literal(now)))
    return list(conn.execute(held.order_by(OUTBOX.c.id)).scalars())


def read_last_id(conn: Connection) -> int:
    """Return the greatest id of all notifications, active or not; 0 if there are none."""
    return conn.execute(select(func.max(OUTBOX.c.id))).scalar() or 0


def read_changed(
    conn: Connection, known: Mapping[int, Notification], since: float, *, above: int
) -> list[Notification]:
    """
    Return those that ``read_active`` would return and that are new, or not as they are known; oldest first.

    Args:
        conn: A connection that sees one state of the database for as long as this takes.
        known: By id.
        since: Only those that changed then or later, in seconds since the epoch.
        above: And whatever has a greater id, which is new.
    """
    state = select(OUTBOX.c.id, OUTBOX.c.updated_at, OUTBOX.c.ends_at, OUTBOX.c.active)
    # Two queries: of one with OR, SQLite would go through all that are active.
    new = state.where(OUTBOX.c.id > above)
    changed = state.where(OUTBOX.c.active, OUTBOX.c.updated_at >= since)
    ids = [
        row.id
        for row in conn.execute(union_all(new, changed))
        if row.active
        and (
            (one := known.get(row.id)) is None
            or (one.updated_at, one.ends_at) != (row.updated_at, row.ends_at)
        )
    ]
    return [one for some in _parts(sorted(set(ids))) for one in _read(conn, OUTBOX.c.id.in_(some))]


def _read(conn: Connection, wanted: ColumnElement[bool]) -> list[Notification]:
    found = {
        row.id: _notification(row._mapping)
        for row in conn.execute(select(OUTBOX).where(wanted).order_by(OUTBOX.c.id)).all()
        if row.active
    }
    deliveries = conn.execute(
        select(OUTBOX_DELIVERIES)
        .join(OUTBOX, OUTBOX.c.id == OUTBOX_DELIVERIES.c.outbox_id)
        .where(wanted, OUTBOX_DELIVERIES.c.delivered_at.is_not(None))
    )
    for row in deliveries.all():
        if (notification := found.get(row.outbox_id)) is not None:
            taken = notification.fired if row.status == "firing" else notification.resolved
            taken[row.peer] = row.delivered_at
    return list(found.values())


def handed_over(
    conn: Connection, limit: int = 50, *, now: float, before: int | None = None
) -> list[HandedOver]:
    """
    Return the latest notifications, active or not, with what became of them at each peer; newest first.

    Args:
        conn: A connection that sees one state of the database for as long as this takes.
        limit: At most so many.
        now: Seconds since the epoch: what ends later still holds.
        before: Only those with a smaller id: the next page.
    """
    query = select(OUTBOX) if before is None else select(OUTBOX).where(OUTBOX.c.id < before)
    rows = conn.execute(query.order_by(OUTBOX.c.id.desc()).limit(limit)).all()
    found: dict[int, list[Handover]] = {row.id: [] for row in rows}
    table = OUTBOX_DELIVERIES
    deliveries = conn.execute(
        select(table)
        .where(table.c.outbox_id.in_(found), table.c.peer != _NOBODY)
        .order_by(table.c.peer, table.c.status)
    )
    for row in deliveries:
        found[row.outbox_id].append(
            Handover(
                peer=row.peer,
                status=row.status,
                delivered_at=row.delivered_at,
                attempts=row.attempts,
                # A peer's own words: whatever it, or a proxy before it, chose to repeat of the request.
                last_error=redact(row.last_error) if row.last_error else None,
            )
        )
    told = told_of(conn, {row.ticket_id for row in rows})
    return [_handed_over(row, tuple(found[row.id]), told.get(row.ticket_id, ()), now) for row in rows]


def _handed_over(
    row: Row[Any], peers: tuple[Handover, ...], told: Iterable[DeliveredNotification], now: float
) -> HandedOver:
    holds = _holds(row.ends_at, row.updated_at, now)
    return HandedOver(
        id=row.id,
        ticket_id=row.ticket_id,
        agent=row.labels["agent"],
        cause=row.labels["cause"],
        severity=row.labels["severity"],
        ticket_severity=row.labels["ticket_severity"],
        title=row.annotations["summary"],
        status="firing" if holds else "resolved",
        written_at=row.created_at,
        ended_at=None if holds else row.ends_at,
        active=row.active and not _is_over(row, peers),
        peers=peers,
        told=tuple(one for one in told if one.alert_key == row.alert_key),
    )


def _is_over(row: Row[Any], peers: Collection[Handover]) -> bool:
    """Whether every peer that answered took the end; it is repeated for a while."""
    took = {one.peer for one in peers if one.status == "resolved"}
    return row.ends_at is not None and bool(took) and took >= {one.peer for one in peers}


def _notification(row: object) -> Notification:
    values = dict(row)  # type: ignore[call-overload]  # a RowMapping, which SQLAlchemy types as opaque
    values["key"] = values.pop("alert_key")
    del values["active"]
    return Notification(**values)


def record(conn: Connection, receipts: Sequence[Receipt], done: Collection[int], now: float) -> None:
    """
    Write down what peers took, and close what needs no more work.

    Args:
        conn: In a transaction.
        receipts: What became of notifications; one peer's first acceptance stays.
        done: Notifications that need no more work: every peer was told of their end.
        now: Seconds since the epoch.
    """
    for some in _parts(receipts):
        _record(conn, some)
    _close(conn, done, now)


def _record(conn: Connection, receipts: Sequence[Receipt]) -> None:
    table = OUTBOX_DELIVERIES.c
    found = conn.execute(
        select(table.outbox_id, table.peer, table.status, table.delivered_at).where(
            table.outbox_id.in_({receipt.notification_id for receipt in receipts})
        )
    )
    known = {(row.outbox_id, row.peer, row.status): row.delivered_at for row in found}
    taken = {key for key, delivered_at in known.items() if delivered_at is not None}
    rows: dict[tuple[int, str, str], dict[str, Any]] = {}
    for receipt in receipts:
        key = (receipt.notification_id, receipt.peer, receipt.status)
        if key in taken:
            continue
        rows[key] = {
            "attempts": receipt.attempts,
            "last_attempt_at": receipt.at,
            "delivered_at": receipt.at if receipt.error is None else None,
            "last_error": receipt.error,
        }
        if receipt.error is None:
            taken.add(key)
    changed = [
        {"of": key[0], "at": key[1], "was": key[2], **row} for key, row in rows.items() if key in known
    ]
    new = [
        {"outbox_id": key[0], "peer": key[1], "status": key[2], **row}
        for key, row in rows.items()
        if key not in known
    ]
    if changed:
        conn.execute(_UPDATE_DELIVERY, changed)
    if new:
        conn.execute(_INSERT_DELIVERY, new)


def _close(conn: Connection, done: Collection[int], now: float) -> None:
    too_old = now - KEEP_UNDELIVERED_SECONDS
    # What has ended does not change after its end; ``updated_at`` is in the index.
    given_up = (OUTBOX.c.updated_at < too_old) & (OUTBOX.c.ends_at < too_old)
    for closed in (*(OUTBOX.c.id.in_(some) for some in _parts(done)), given_up):
        conn.execute(update(OUTBOX).where(OUTBOX.c.active, closed).values(active=False, updated_at=now))
    old = select(OUTBOX.c.id).where(~OUTBOX.c.active, OUTBOX.c.updated_at < now - KEEP_SECONDS)
    conn.execute(delete(OUTBOX_DELIVERIES).where(OUTBOX_DELIVERIES.c.outbox_id.in_(old)))
    conn.execute(delete(OUTBOX).where(OUTBOX.c.id.in_(old)))


def _parts(values: Collection[T]) -> Iterator[list[T]]:
    every = list(values)
    for first in range(0, len(every), _AT_ONCE):
        yield every[first : first + _AT_ONCE]
