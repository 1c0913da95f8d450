"""
Decide what to send to one peer, given the outbox and what the peer already has. Pure.

Notifications with equal labels are one alert in Alertmanager. The oldest firing notification provides the
alert's text, and the alert ends when the last of its notifications has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queenright.alerting.alertmanager import PostedAlert
from queenright.alerting.notification import Notification, Status
from queenright.alerting.settings import AlertingSettings
from queenright.instrumentation.names import ALERT_LABEL_TICKET_ID

REPEAT_END_SECONDS: Final = 900.0
"""
For this many seconds after a peer accepted an end, the end is sent again if the peer or this process
restarts. Alertmanager keeps its notification log across a restart but not its alerts, so it notifies of the
end only if it gets the ended alert again. A needless repeat may cause a notification if other alerts of the
group ended in the meantime.
"""

RESEND_SECONDS: Final = 60.0
"""Prometheus' default. A peer that lost its state gets its alerts back within this time."""

_PEER_SECONDS: Final = 15.0
"""
Default of Alertmanager's ``--cluster.peer-timeout``. The peers of a cluster get an end this many seconds
apart, the last peer first, and a peer's end waits at most this long for each later peer to accept it.

A peer that flushes a group waits this long for each earlier peer, and then sends what they have not sent.
Suppose that it flushed just before an end arrived, and an earlier peer sends that end while it waits: then it
would send the firing alert once more. So it gets the end this much earlier, and has no flush with the firing
alert waiting when an earlier peer gets the end.
"""
_PEER_POLL_SECONDS: Final = 1.0

_ON_TIME_FRACTION: Final = 1 / 12
"""A delivery is in time within this share of ``late_resolve_seconds`` (by default 5 s) after the decision."""


@dataclass(frozen=True, slots=True)
class SentAlert:
    """When a firing alert was last sent to a peer, and with which version of its text."""

    at: float
    text_version: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """An alert to send, and the notifications that are delivered with it for the first time."""

    key: str
    alert: PostedAlert
    status: Status
    text_version: float
    new_notifications: tuple[Notification, ...]


@dataclass(slots=True)
class Plan:
    """What to send to one peer, and when to plan next."""

    posts: list[Post] = field(default_factory=list)
    silent: list[Notification] = field(default_factory=list)
    """Ended notifications that need no delivery, because the peer never had them or the alert still fires."""
    pending: dict[int, float] = field(default_factory=dict)
    """When each overdue notification became due, by notification id."""
    next_due: float = float("inf")


def plan(
    notifications: Collection[Notification],
    peer: str,
    *,
    sent_alerts: Mapping[str, SentAlert],
    ends: Collection[str],
    refused_versions: Mapping[str, float],
    settings: AlertingSettings,
    now: float,
    later_peers: Collection[str] = (),
    began: float = 0.0,
) -> Plan:
    """
    Return what to send to ``peer`` now.

    Args:
        sent_alerts: Firing alerts that this process sent, by key. Empty after a restart, so that all are sent
            again.
        ends: Keys of the alerts whose end this process has sent since the peer's last restart.
        refused_versions: The text version that the peer rejected, by alert key.
        later_peers: The peers after this one in their Alertmanager cluster. They get ends first.
        began: When this process began to deliver, in seconds since the epoch.
    """
    groups: dict[str, list[Notification]] = defaultdict(list)
    ended_groups: dict[str, list[Notification]] = defaultdict(list)
    for notification in notifications:
        (ended_groups if peer in notification.resolved else groups)[notification.key].append(notification)
    result = Plan()
    replaced_notifications = _find_replaced(notifications, peer, now)
    for key, group in ended_groups.items():
        if key not in groups and key not in refused_versions:
            _repeat_end(result, key, group, now, is_notified=key in ends)
    for key, group in groups.items():
        firing_notifications = [n for n in group if n.is_firing(now)]
        if firing_notifications:
            result.silent += [n for n in group if not n.is_firing(now)]
            result.next_due = min(
                [result.next_due, *(n.ends_at for n in firing_notifications if n.ends_at is not None)]
            )
            _keep_firing(
                result,
                key,
                firing_notifications,
                peer,
                sent_alerts.get(key),
                refused_versions.get(key),
                settings,
                now,
            )
        else:
            _end_alert(
                result,
                key,
                group,
                peer,
                refused_versions.get(key),
                replaced_notifications,
                settings,
                now,
                later_peers,
                began,
            )
    # When the severity rises, one alert ends and another begins. The new one must arrive first to inhibit
    # that end.
    result.posts.sort(key=lambda post: post.status != "firing")
    return result


def _find_replaced(
    notifications: Iterable[Notification], peer: str, now: float
) -> dict[str, list[Notification]]:
    """Return the replaced alerts that a peer has, by their ticket label."""
    by_ticket: dict[str, list[Notification]] = defaultdict(list)
    for notification in notifications:
        if notification.is_silent and peer in notification.fired and not notification.is_firing(now):
            by_ticket[notification.labels.get(ALERT_LABEL_TICKET_ID, "")].append(notification)
    return by_ticket


def _keep_firing(
    result: Plan,
    key: str,
    firing_notifications: list[Notification],
    peer: str,
    last: SentAlert | None,
    refused_version: float | None,
    settings: AlertingSettings,
    now: float,
) -> None:
    representative = min(firing_notifications, key=lambda n: n.id)
    if refused_version == representative.updated_at:
        return
    new_notifications = tuple(n for n in firing_notifications if peer not in n.fired)
    result.pending |= {n.id: n.created_at for n in new_notifications}
    # The lower bound covers a clock that was set back.
    is_fresh = last is not None and last.at <= now < last.at + RESEND_SECONDS
    if (
        last is not None
        and is_fresh
        and last.text_version == representative.updated_at
        and not new_notifications
    ):
        result.next_due = min(result.next_due, last.at + RESEND_SECONDS)
        return
    result.posts.append(_make_firing_post(key, representative, new_notifications, settings, now))
    result.next_due = min(result.next_due, now + RESEND_SECONDS)


def _end_alert(
    result: Plan,
    key: str,
    notifications: list[Notification],
    peer: str,
    refused_version: float | None,
    replaced_notifications: Mapping[str, Sequence[Notification]],
    settings: AlertingSettings,
    now: float,
    later_peers: Collection[str],
    began: float,
) -> None:
    newest = max(notifications, key=lambda n: (n.ends_at or 0.0, n.id))
    if refused_version == newest.updated_at:
        result.silent += notifications
        return
    undelivered_ends = tuple(n for n in notifications if not n.was_delivered_in_time and peer not in n.fired)
    if undelivered_ends:
        # No peer was reachable while the alert fired. Send it as firing and later its end, so that people are
        # notified.
        result.pending |= {n.id: n.created_at for n in undelivered_ends}
        result.posts.append(_make_firing_post(key, newest, undelivered_ends, settings, now))
        result.next_due = min(result.next_due, now + settings.late_resolve_seconds)
        return
    next_due = max((_end_due_at(n, peer, settings) for n in notifications), default=now)
    for old_alert in replaced_notifications.get(newest.labels.get(ALERT_LABEL_TICKET_ID, ""), ()):
        if (
            old_alert.labels["severity"] != newest.labels["severity"]
            and (old_alert.ends_at or 0.0) <= newest.starts_at
        ):
            # Alerts of different severities are in different groups. The old alert's end must arrive while
            # this alert still inhibits it; otherwise Alertmanager notifies of that end.
            next_due = max(next_due, old_alert.resolved.get(peer, now) + settings.late_resolve_seconds)
    # The upper bound covers a clock that was set back after a late delivery.
    if now < next_due <= now + settings.late_resolve_seconds:
        result.next_due = min(result.next_due, next_due)
        return
    turn = _find_turn(notifications, later_peers, max(began, next_due))
    # The upper bound covers a clock that was set back.
    if now < turn <= now + _PEER_SECONDS * len(later_peers):
        result.next_due = min(result.next_due, turn, now + _PEER_POLL_SECONDS)
        return
    result.pending |= {n.id: n.ends_at or now for n in notifications}
    alert = _make_ended_alert(newest, notifications, now)
    result.posts.append(
        Post(
            key=key,
            alert=alert,
            status="resolved",
            text_version=newest.updated_at,
            new_notifications=tuple(notifications),
        )
    )


def _repeat_end(
    result: Plan,
    key: str,
    notifications: list[Notification],
    now: float,
    *,
    is_notified: bool,
) -> None:
    # A replaced alert may no longer be inhibited, so repeating its end could notify people of a false
    # recovery.
    if is_notified or all(n.is_replaced for n in notifications):
        return
    newest = max(notifications, key=lambda n: (n.ends_at or 0.0, n.id))
    alert = _make_ended_alert(newest, notifications, now)
    result.posts.append(
        Post(key=key, alert=alert, status="resolved", text_version=newest.updated_at, new_notifications=())
    )


def is_end_final(notification: Notification, peer: str, now: float) -> bool:
    """Return whether a peer accepted an end so long ago that the end is not sent again."""
    return now >= notification.resolved.get(peer, float("inf")) + REPEAT_END_SECONDS


def _make_ended_alert(newest: Notification, notifications: list[Notification], now: float) -> PostedAlert:
    # If the clock was set back, the end may precede the start, which Alertmanager would reject.
    ends_at = min(newest.ends_at or now, now)
    return PostedAlert(
        labels=newest.labels,
        annotations=newest.annotations,
        starts_at=min([ends_at, *(n.starts_at for n in notifications)]),
        ends_at=ends_at,
    )


def _end_due_at(notification: Notification, peer: str, settings: AlertingSettings) -> float:
    """Return when the end may be sent: at once, unless the firing alert was delivered late."""
    ended_at = notification.ends_at or 0.0
    if notification.is_silent or peer not in notification.fired:
        return ended_at
    if not notification.was_delivered_in_time:
        return notification.fired[peer] + settings.late_resolve_seconds
    # Alertmanager does not notify of an alert that ends within its group_wait.
    first_fired_at = min(notification.fired.values())
    was_late = first_fired_at > notification.created_at + _ON_TIME_FRACTION * settings.late_resolve_seconds
    return max(ended_at, first_fired_at + settings.late_resolve_seconds) if was_late else ended_at


def _find_turn(notifications: Sequence[Notification], later_peers: Collection[str], due: float) -> float:
    """
    Return when this peer may get the end: every later peer has had it for long enough, or the wait times out.
    """
    accepted_times = [n.resolved.get(peer) for n in notifications for peer in later_peers]
    if None in accepted_times:
        # Each later peer waits for the peers after it.
        return due + _PEER_SECONDS * len(later_peers)
    return max((at + _PEER_SECONDS for at in accepted_times if at is not None), default=0.0)


def _make_firing_post(
    key: str,
    representative: Notification,
    new_notifications: tuple[Notification, ...],
    settings: AlertingSettings,
    now: float,
) -> Post:
    alert = PostedAlert(
        labels=representative.labels,
        annotations=representative.annotations,
        starts_at=representative.starts_at,
        ends_at=max(now, representative.starts_at) + settings.lifetime_seconds,
    )
    return Post(
        key=key,
        alert=alert,
        status="firing",
        text_version=representative.updated_at,
        new_notifications=new_notifications,
    )
