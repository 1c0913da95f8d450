"""
Decide which notifications a changed ticket needs, and write them in the transaction that changes it.

A row is one alert with fixed labels. When the displayed severity rises or a reminder is due, the row ends and
a new one begins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from queenright.alerting.alert import (
    LABEL_REMINDER,
    LABEL_STORM,
    REMINDERS,
    SESSIONS,
    OperatorRequest,
    alert_severity,
    build_annotations,
    build_labels,
    count_reminders,
    reminder_labels,
)
from queenright.alerting.notification import Notification
from queenright.alerting.notification_table import (
    end_held,
    end_notification,
    find_firing,
    insert_notification,
    list_firing,
    mark_replaced,
    update_annotations,
)
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_table import find_ticket
from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID

_UNSENT_SECONDS: Final = 8.0
"""Alertmanager collects a group for 10 s, so people have not yet received an alert younger than this."""

_RANK: Final = {"info": 0, "warning": 1, "critical": 2}
_NOTIFIED_STATUSES: Final = frozenset({TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED})

_SESSION_COUNT: Final = re.compile(r" \d+ sessions, one after the other\.$")


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
        requests: Decisions or actions that the notification requests from people.
        earlier_tickets: Ids of tickets of the same agent and cause whose sessions ended before this ticket's
            session began, latest first. A new ticket joins the first of their alerts that still fires,
            without a new notification, because an agent that crashes repeatedly is one incident.
        is_replaced: Whether a newer incarnation runs in the ticket's session.
        hold_seconds: How long the alert keeps firing after the worker, its incarnation, or a series of failed
            runs has ended, so that the next ticket can join it. Does not apply if a person resolved the
            ticket. If several tickets share a cause, the first one to resolve ends the alert.
    """
    if ticket.status is TicketStatus.OPEN:
        return
    current = find_firing(conn, ticket.ticket_id, now)
    shared_alert = None
    if current is None and ticket.status in _NOTIFIED_STATUSES:
        shared_alert = _find_joined(conn, ticket, earlier_tickets, now)
    sessions = _get_session_count(current or shared_alert) + (shared_alert is not None)
    annotations = build_annotations(ticket, settings, requests=requests, sessions=sessions)
    if ticket.status in _NOTIFIED_STATUSES:
        if shared_alert is not None:
            _join_alert(conn, ticket, shared_alert, annotations, now)
        elif current is None:
            insert_notification(conn, ticket.ticket_id, build_labels(ticket, settings), annotations, now)
        elif _is_more_severe(ticket, current):
            _replace_for_all(conn, current, _raise_severity(current, ticket), annotations, now)
        elif _joins_storm(ticket, current, now):
            insert_notification(conn, ticket.ticket_id, build_labels(ticket, settings), annotations, now)
            end_notification(conn, current, now, now, silent=True)
        elif _needs_reminder(ticket, current):
            _replace_by_reminder(conn, current, ticket, annotations, now)
        else:
            update_annotations(conn, current, annotations, now)
    elif current is not None and current.ends_at is None:
        # Update the text as well: a worker that ended has not recovered.
        update_annotations(conn, current, annotations, now)
        ends_at = now + hold_seconds if _may_be_joined(ticket, is_replaced=is_replaced) else now
        silent = ends_at > now or ticket.status is not TicketStatus.RESOLVED
        end_notification(conn, current, now, ends_at, silent=silent)
        if not silent:
            end_held(conn, ticket, current.key, now)
    elif current is not None and ticket.incident_resolved_at is not None:
        end_notification(conn, current, now, now, silent=True)


def find_joined(
    conn: Connection, ticket: EscalationTicket, earlier_tickets: Sequence[str], now: float
) -> str | None:
    """
    Return the id of the ticket whose alert a new ticket joins silently; None if people are notified.

    Args:
        conn: A connection in the transaction that enqueues the ticket.
        ticket: A ticket that has no notification yet.
        earlier_tickets: See ``enqueue``.
    """
    shared_alert = _find_joined(conn, ticket, earlier_tickets, now)
    return None if shared_alert is None or _is_more_severe(ticket, shared_alert) else shared_alert.ticket_id


def _find_joined(
    conn: Connection, ticket: EscalationTicket, earlier_tickets: Sequence[str], now: float
) -> Notification | None:
    for earlier in earlier_tickets:
        notification = find_firing(conn, earlier, now)
        # All alerts of a storm are one incident; an agent that keeps crashing after it gets a separate
        # incident.
        if notification is not None and notification.labels.get(LABEL_STORM, "") in ("", ticket.storm_id):
            return notification
    return None


def _may_be_joined(ticket: EscalationTicket, *, is_replaced: bool) -> bool:
    """Return whether a ticket that has ended may be followed by another of the same incident."""
    may_recur = is_replaced or ticket.kind is FindingKind.RUNS_FAILED
    if may_recur and ticket.status is TicketStatus.RESOLVED:
        return (
            ticket.condition_cleared_at is not None
        )  # cleared if a run completed, otherwise a person resolved the ticket
    return ticket.status is TicketStatus.WORKER_GONE


def _is_more_severe(ticket: EscalationTicket, current: Notification) -> bool:
    return _RANK[alert_severity(ticket.severity)] > _RANK[current.labels["severity"]]


def _joins_storm(ticket: EscalationTicket, current: Notification, now: float) -> bool:
    """Return whether a ticket whose alert people have not received yet has become part of a storm."""
    # A ticket that joined an earlier one shares that ticket's alert.
    notified_at = None if ticket.incident_id else ticket.notified_at
    is_new = notified_at is not None and 0 <= now - notified_at < _UNSENT_SECONDS
    return is_new and bool(ticket.storm_id) and LABEL_STORM not in current.labels


def _needs_reminder(ticket: EscalationTicket, current: Notification) -> bool:
    return count_reminders(ticket) > int(current.annotations.get(REMINDERS, 0))


def _get_session_count(notification: Notification | None) -> int:
    return 1 if notification is None else int(notification.annotations.get(SESSIONS, 1))


def _join_alert(
    conn: Connection,
    ticket: EscalationTicket,
    earlier: Notification,
    annotations: dict[str, str],
    now: float,
) -> None:
    """
    Let a ticket share the alert of an earlier ticket. The alert's summary counts the sessions.

    If the ticket is more severe, an alert of its severity replaces the shared alert.
    """
    is_worse = _is_more_severe(ticket, earlier)
    labels = _raise_severity(earlier, ticket) if is_worse else dict(earlier.labels)
    shared_rows = list_firing(conn, earlier.key, now)
    insert_notification(conn, ticket.ticket_id, labels, annotations, now)
    count = annotations[SESSIONS]
    for row in shared_rows:
        if row.ends_at is not None:
            # The alert was held open for this ticket.
            end_notification(conn, row, now, now, silent=True)
        elif row.ticket_id != ticket.ticket_id:
            summary = (
                _SESSION_COUNT.sub("", row.annotations["summary"])
                + f" {count} sessions, one after the other."
            )
            new_annotations = {**row.annotations, "summary": summary, SESSIONS: count}
            if is_worse:
                _replace_alert(conn, row, labels, new_annotations, now)
            else:
                update_annotations(conn, row, new_annotations, now)
    if is_worse:
        mark_replaced(conn, earlier.key, now)


def _replace_by_reminder(
    conn: Connection, current: Notification, ticket: EscalationTicket, annotations: dict[str, str], now: float
) -> None:
    """Replace an alert by a reminder, for every ticket that shares the alert."""
    _replace_for_all(conn, current, reminder_labels(current.labels, ticket), annotations, now)


def _replace_for_all(
    conn: Connection, current: Notification, labels: dict[str, str], annotations: dict[str, str], now: float
) -> None:
    """Replace an alert for every ticket that shares it, beginning with the row ``current``."""
    others = []
    if current.labels.get(ALERT_LABEL_TICKET_ID) != current.ticket_id or SESSIONS in current.annotations:
        others = [
            notification
            for notification in list_firing(conn, current.key, now)
            if notification.id != current.id
        ]
    _replace_alert(conn, current, labels, annotations, now)
    for other in others:
        if other.ends_at is None:
            # Keep the reminder count of the other ticket, so that its next update is not taken for a
            # reminder.
            ticket = find_ticket(conn, other.ticket_id)
            reminder_count = {REMINDERS: str(count_reminders(ticket))} if ticket is not None else {}
            _replace_alert(conn, other, labels, other.annotations | reminder_count, now)
        else:
            end_notification(conn, other, now, now, silent=True)


def _raise_severity(current: Notification, ticket: EscalationTicket) -> dict[str, str]:
    # Agent, cause and cluster must not change, because the new alert inhibits the end of the old one by them.
    labels = {name: value for name, value in current.labels.items() if name != LABEL_REMINDER}
    return labels | {
        "severity": alert_severity(ticket.severity),
        "ticket_severity": ticket.severity.value,
    }


def _replace_alert(
    conn: Connection,
    current: Notification,
    labels: dict[str, str],
    annotations: dict[str, str],
    now: float,
) -> None:
    """Begin a new alert and silently end the one that it replaces."""
    insert_notification(conn, current.ticket_id, labels, annotations, now)
    end_notification(conn, current, now, now, silent=True)
    # This covers all rows of the alert, including those that ended before.
    mark_replaced(conn, current.key, now)
