"""
What one peer must be told now, worked out from what is in the outbox and what it was told. Pure.

Two notifications with equal labels are one alert to Alertmanager. The oldest of them that still holds
speaks for all, and the alert ends when the last of them has ended.
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
How long after a peer took an end it is sent once more if the peer, or this process, was restarted since.
Alertmanager keeps no alerts over a restart, but what it told whom: it tells the end only of an alert that it
is sent again. An end that is repeated without need is news to it if others of its group ended meanwhile.
"""

_PROMPT: Final = 1 / 12
"""Taken within this share of ``late_resolve_seconds`` after the decision, 5 s by default, it is not late."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a peer was last told of one alert: when, and from which state of its text."""

    at: float
    content: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One alert to send, and the notifications that are told of by it for the first time."""

    key: str
    alert: PostedAlert
    status: Status
    content: float
    about: tuple[Notification, ...]


@dataclass(slots=True)
class Plan:
    """What to do for one peer."""

    posts: list[Post] = field(default_factory=list)
    silent: list[Notification] = field(default_factory=list)
    """Ended ones of which the peer need not be told, for it never knew or others still hold."""
    pending: dict[int, float] = field(default_factory=dict)
    """What the peer should have been told already: notification → since when."""
    next_due: float = float("inf")


def plan(
    notifications: Collection[Notification],
    peer: str,
    *,
    said: Mapping[str, Said],
    ends: Collection[str],
    refused: Mapping[str, float],
    settings: AlertingSettings,
    now: float,
) -> Plan:
    """
    Return what ``peer`` must be told.

    Args:
        notifications: Everything that is active in the outbox.
        peer: Its name.
        said: What this process told it, by alert; empty after a restart, and then all is repeated.
        ends: Alerts whose end this process told it, and it was not restarted since; empty after a restart
            of this process, too.
        refused: Alerts that it refused, by the state of their text that it refused.
        settings: How often to repeat, and how long an alert lives.
        now: Seconds since the epoch.
    """
    groups: dict[str, list[Notification]] = defaultdict(list)
    taken: dict[str, list[Notification]] = defaultdict(list)
    for notification in notifications:
        (taken if peer in notification.resolved else groups)[notification.key].append(notification)
    result = Plan()
    replaced = _find_replaced(notifications, peer, now)
    for key, group in taken.items():
        if key not in groups and key not in refused:
            _repeat_end(result, key, group, now, is_told=key in ends)
    for key, group in groups.items():
        holding = [n for n in group if n.is_firing(now)]
        if holding:
            result.silent += [n for n in group if not n.is_firing(now)]
            result.next_due = min([result.next_due, *(n.ends_at for n in holding if n.ends_at is not None)])
            _hold(result, key, holding, peer, said.get(key), refused.get(key), settings, now)
        else:
            _end(result, key, group, peer, refused.get(key), replaced, settings, now)
    # A rise ends one alert and begins another, which inhibits the end: so it must be known first.
    result.posts.sort(key=lambda post: post.status != "firing")
    return result


def _find_replaced(
    notifications: Iterable[Notification], peer: str, now: float
) -> dict[str, list[Notification]]:
    """Return, by the label of its ticket, what a peer knew and another alert has taken the place of."""
    found: dict[str, list[Notification]] = defaultdict(list)
    for one in notifications:
        if one.silent and peer in one.fired and not one.is_firing(now):
            found[one.labels.get(ALERT_LABEL_TICKET_ID, "")].append(one)
    return found


def _hold(
    result: Plan,
    key: str,
    holding: list[Notification],
    peer: str,
    last: Said | None,
    refused: float | None,
    settings: AlertingSettings,
    now: float,
) -> None:
    speaker = min(holding, key=lambda n: n.id)
    if refused == speaker.updated_at:
        return
    new = tuple(n for n in holding if peer not in n.fired)
    result.pending |= {n.id: n.created_at for n in new}
    # A clock that was set back must not silence the repeats.
    fresh = last is not None and last.at <= now < last.at + settings.resend_seconds
    if last is not None and fresh and last.content == speaker.updated_at and not new:
        result.next_due = min(result.next_due, last.at + settings.resend_seconds)
        return
    result.posts.append(_fire(key, speaker, new, settings, now))
    result.next_due = min(result.next_due, now + settings.resend_seconds)


def _end(
    result: Plan,
    key: str,
    ended: list[Notification],
    peer: str,
    refused: float | None,
    replaced: Mapping[str, Sequence[Notification]],
    settings: AlertingSettings,
    now: float,
) -> None:
    newest = max(ended, key=lambda n: (n.ends_at or 0.0, n.id))
    if refused == newest.updated_at:
        result.silent += ended
        return
    untold = tuple(n for n in ended if not n.told and peer not in n.fired)
    if untold:
        # Nobody could be told while it held. People still hear of it: first that it was, then that it ended.
        result.pending |= {n.id: n.created_at for n in untold}
        result.posts.append(_fire(key, newest, untold, settings, now))
        result.next_due = min(result.next_due, now + settings.late_resolve_seconds)
        return
    due = max((_due(n, peer, settings) for n in ended), default=now)
    for before in replaced.get(newest.labels.get(ALERT_LABEL_TICKET_ID, ""), ()):
        if (
            before.labels["severity"] != newest.labels["severity"]
            and (before.ends_at or 0.0) <= newest.starts_at
        ):
            # In a group of its own: Alertmanager must see that end while this inhibits it, or it tells it.
            due = max(due, before.resolved.get(peer, now) + settings.late_resolve_seconds)
    # The second bound is for a clock that was set back after the late one went out.
    if now < due <= now + settings.late_resolve_seconds:
        result.next_due = min(result.next_due, due)
        return
    result.pending |= {n.id: n.ends_at or now for n in ended}
    alert = _ended(newest, ended, now)
    result.posts.append(
        Post(key=key, alert=alert, status="resolved", content=newest.updated_at, about=tuple(ended))
    )


def _repeat_end(
    result: Plan,
    key: str,
    ended: list[Notification],
    now: float,
    *,
    is_told: bool,
) -> None:
    # Where another alert took its place, its inhibition may be over, and people would read a false all-clear.
    if is_told or all(n.is_replaced for n in ended):
        return
    newest = max(ended, key=lambda n: (n.ends_at or 0.0, n.id))
    alert = _ended(newest, ended, now)
    result.posts.append(Post(key=key, alert=alert, status="resolved", content=newest.updated_at, about=()))


def is_end_repeated(notification: Notification, peer: str, now: float) -> bool:
    """Return whether a peer took an end so long ago that it is not repeated any more."""
    return now >= notification.resolved.get(peer, float("inf")) + REPEAT_END_SECONDS


def _ended(newest: Notification, ended: list[Notification], now: float) -> PostedAlert:
    # After the clock was set back, an end may lie before the beginning, which Alertmanager refuses.
    ends_at = min(newest.ends_at or now, now)
    return PostedAlert(
        labels=newest.labels,
        annotations=newest.annotations,
        starts_at=min([ends_at, *(n.starts_at for n in ended)]),
        ends_at=ends_at,
    )


def _due(notification: Notification, peer: str, settings: AlertingSettings) -> float:
    """Return from when on the end may be told: at once, unless the beginning was told late."""
    ended = notification.ends_at or 0.0
    if notification.silent or peer not in notification.fired:
        return ended
    if not notification.told:
        return notification.fired[peer] + settings.late_resolve_seconds
    # Alertmanager says nothing of an alert that ends while it still gathers the group.
    first = min(notification.fired.values())
    late = first > notification.created_at + _PROMPT * settings.late_resolve_seconds
    return max(ended, first + settings.late_resolve_seconds) if late else ended


def _fire(
    key: str, speaker: Notification, new: tuple[Notification, ...], settings: AlertingSettings, now: float
) -> Post:
    alert = PostedAlert(
        labels=speaker.labels,
        annotations=speaker.annotations,
        starts_at=speaker.starts_at,
        ends_at=max(now, speaker.starts_at) + settings.lifetime_seconds,
    )
    return Post(key=key, alert=alert, status="firing", content=speaker.updated_at, about=new)
