"""
Decide what to send to one peer, from the outbox and what the peer already has. Pure.

Notifications with equal labels are one alert in Alertmanager. The oldest one that fires provides its text,
and the alert ends when the last of them has ended.
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
Seconds after a peer accepted an end in which it is sent again if the peer, or this process, has restarted.
Alertmanager keeps its notification log over a restart but not its alerts, so it sends a resolve only if it
gets the ended alert again. A needless repeat may cause a notification if others of the
group ended in the meantime.
"""

RESEND_SECONDS: Final = 60.0
"""Prometheus' default; a peer that lost its state gets its alerts back within this time."""

_PEER_SECONDS: Final = 15.0
"""
Seconds between the ends that two peers of an Alertmanager cluster get, the last peer first, and for how long
an end waits for each peer behind to accept it: the default of ``--cluster.peer-timeout``.

A peer flushes a group, waits for that time for each peer before it, and sends what they have not sent. If it
flushed just before an end, and a peer before it sends the end meanwhile, it sends the beginning once more. So
it gets the end earlier by that time: none of its flushes waits with the beginning when a peer before it gets
the end.
"""
_PEER_POLL_SECONDS: Final = 1.0

_ON_TIME_FRACTION: Final = 1 / 12
"""A delivery within this share of ``late_resolve_seconds`` after the decision (default 5 s) is not late."""


@dataclass(frozen=True, slots=True)
class SentAlert:
    """The last firing alert sent to a peer: when, and the version of its text."""

    at: float
    text_version: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """An alert to send, and the notifications that it delivers for the first time."""

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
    """Ended notifications that need no delivery, because the peer never had them or others still fire."""
    pending: dict[int, float] = field(default_factory=dict)
    """Overdue notifications, by id, with the times at which they became due."""
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
        sent_alerts: Alerts that this process sent, by key. Empty after a restart, so that all are sent again.
        ends: Keys of alerts whose end this process sent since the peer's last restart.
        refused_versions: Alerts that the peer rejected, with the rejected version of their text.
        later_peers: The peers after it in the order of its Alertmanager cluster. They get ends first.
        began: When this process began to deliver.
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
        holding = [n for n in group if n.is_firing(now)]
        if holding:
            result.silent += [n for n in group if not n.is_firing(now)]
            result.next_due = min([result.next_due, *(n.ends_at for n in holding if n.ends_at is not None)])
            _keep_firing(
                result, key, holding, peer, sent_alerts.get(key), refused_versions.get(key), settings, now
            )
        else:
            _end(
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
    # A higher severity ends one alert and begins another, which must arrive first to inhibit that end.
    result.posts.sort(key=lambda post: post.status != "firing")
    return result


def _find_replaced(
    notifications: Iterable[Notification], peer: str, now: float
) -> dict[str, list[Notification]]:
    """Return the replaced alerts that a peer has, by ticket label."""
    by_ticket: dict[str, list[Notification]] = defaultdict(list)
    for notification in notifications:
        if notification.is_silent and peer in notification.fired and not notification.is_firing(now):
            by_ticket[notification.labels.get(ALERT_LABEL_TICKET_ID, "")].append(notification)
    return by_ticket


def _keep_firing(
    result: Plan,
    key: str,
    holding: list[Notification],
    peer: str,
    last: SentAlert | None,
    refused_version: float | None,
    settings: AlertingSettings,
    now: float,
) -> None:
    representative = min(holding, key=lambda n: n.id)
    if refused_version == representative.updated_at:
        return
    new = tuple(n for n in holding if peer not in n.fired)
    result.pending |= {n.id: n.created_at for n in new}
    # The lower bound covers a clock that was set back.
    is_fresh = last is not None and last.at <= now < last.at + RESEND_SECONDS
    if last is not None and is_fresh and last.text_version == representative.updated_at and not new:
        result.next_due = min(result.next_due, last.at + RESEND_SECONDS)
        return
    result.posts.append(_fire(key, representative, new, settings, now))
    result.next_due = min(result.next_due, now + RESEND_SECONDS)


def _end(
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
        # No peer was reachable while it fired. Send it as firing first, then its end, to notify people.
        result.pending |= {n.id: n.created_at for n in undelivered_ends}
        result.posts.append(_fire(key, newest, undelivered_ends, settings, now))
        result.next_due = min(result.next_due, now + settings.late_resolve_seconds)
        return
    next_due = max((_end_due_at(n, peer, settings) for n in notifications), default=now)
    for old_alert in replaced_notifications.get(newest.labels.get(ALERT_LABEL_TICKET_ID, ""), ()):
        if (
            old_alert.labels["severity"] != newest.labels["severity"]
            and (old_alert.ends_at or 0.0) <= newest.starts_at
        ):
            # Different severities are different groups: the old alert's end must arrive while this alert
            # still inhibits it, otherwise Alertmanager sends a resolve.
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
    alert = _ended_alert(newest, notifications, now)
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
    # A replaced alert may no longer be inhibited, so repeating its end could send a false resolve.
    if is_notified or all(n.is_replaced for n in notifications):
        return
    newest = max(notifications, key=lambda n: (n.ends_at or 0.0, n.id))
    alert = _ended_alert(newest, notifications, now)
    result.posts.append(
        Post(key=key, alert=alert, status="resolved", text_version=newest.updated_at, new_notifications=())
    )


def is_end_final(notification: Notification, peer: str, now: float) -> bool:
    """Return whether a peer accepted an end so long ago that it is not sent again."""
    return now >= notification.resolved.get(peer, float("inf")) + REPEAT_END_SECONDS


def _ended_alert(newest: Notification, notifications: list[Notification], now: float) -> PostedAlert:
    # After the clock was set back, the end may be before the start, which Alertmanager rejects.
    ends_at = min(newest.ends_at or now, now)
    return PostedAlert(
        labels=newest.labels,
        annotations=newest.annotations,
        starts_at=min([ends_at, *(n.starts_at for n in notifications)]),
        ends_at=ends_at,
    )


def _end_due_at(notification: Notification, peer: str, settings: AlertingSettings) -> float:
    """Return when the end may be sent: immediately, unless the firing alert was delivered late."""
    ended_at = notification.ends_at or 0.0
    if notification.is_silent or peer not in notification.fired:
        return ended_at
    if not notification.was_delivered_in_time:
        return notification.fired[peer] + settings.late_resolve_seconds
    # Alertmanager sends nothing for an alert that ends within its group_wait.
    first = min(notification.fired.values())
    late = first > notification.created_at + _ON_TIME_FRACTION * settings.late_resolve_seconds
    return max(ended_at, first + settings.late_resolve_seconds) if late else ended_at


def _find_turn(notifications: Sequence[Notification], later_peers: Collection[str], due: float) -> float:
    """Return when every later peer has had the end for long enough, or this peer stops waiting for them."""
    accepted_times = [n.resolved.get(peer) for n in notifications for peer in later_peers]
    if None in accepted_times:
        # Each of them waits for the peers after it.
        return due + _PEER_SECONDS * len(later_peers)
    return max((at + _PEER_SECONDS for at in accepted_times if at is not None), default=0.0)


def _fire(
    key: str,
    representative: Notification,
    new: tuple[Notification, ...],
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
        key=key, alert=alert, status="firing", text_version=representative.updated_at, new_notifications=new
    )
