"""Delivery to one Alertmanager peer: send due alerts and remember what was sent."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from queenright.alerting.alertmanager import (
    PEER_TIMEOUT_SECONDS,
    AlertmanagerClient,
    AlertmanagerError,
    AlertsRejectedError,
    PeerUnavailableError,
)
from queenright.alerting.delivery_plan import RESEND_SECONDS, Plan, Post, SentAlert, is_end_final, plan
from queenright.alerting.notification import Notification, Receipt
from queenright.alerting.peer import PeerAddress
from queenright.alerting.settings import AlertingSettings

_FIRST_BACKOFF_SECONDS: Final = 1.0
_MAX_BACKOFF_SECONDS: Final = 30.0
# Shorter for a failed connection, which is a cheap attempt, so that a peer that has just started is reached
# soon.
_MAX_CONNECT_BACKOFF_SECONDS: Final = 5.0


def retry_jitter() -> float:
    """Return a random factor between 0.8 and 1.2."""
    return random.uniform(0.8, 1.2)


class DeliveryRetry:
    """Backoff after failures. ``next_attempt_at`` is in seconds since the epoch, 0 after a success."""

    def __init__(self, jitter: Callable[[], float] = retry_jitter) -> None:
        self.next_attempt_at = 0.0
        self._jitter = jitter
        self._failures = 0

    def is_backing_off(self, now: float) -> bool:
        """Return whether the backoff after a failure is still running."""
        # The upper bound covers a clock that was set back.
        return now < self.next_attempt_at <= now + 2 * _MAX_BACKOFF_SECONDS

    def schedule(self, now: float, *, was_reached: bool) -> None:
        """Schedule the next attempt after a failure."""
        limit = _MAX_BACKOFF_SECONDS if was_reached else _MAX_CONNECT_BACKOFF_SECONDS
        pause = min(_FIRST_BACKOFF_SECONDS * 2 ** min(self._failures, 10), limit)
        self._failures += 1
        self.next_attempt_at = now + pause * self._jitter()

    def reset(self) -> None:
        """End the backoff after a success."""
        self._failures, self.next_attempt_at = 0, 0.0


_log = logging.getLogger(__name__)

_BATCH_SIZE: Final = 100

Outcome = Literal["delivered", "retried", "failed"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A notification that was not delivered. If ``is_final``, it is not retried until its content changes."""

    post: Post
    notification: Notification
    error: str
    attempts: int
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAlert:
    """An alert that a peer rejected."""

    ticket_ids: list[str]
    peer: str
    status: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """The state of the deliveries to one peer. Times are in seconds since the epoch."""

    peer: str
    ok: bool
    pending: int
    error: str
    """The error of the last attempt; "" if it succeeded."""
    failing_since: float | None
    next_attempt_at: float | None


@dataclass(slots=True)
class Deliveries:
    """The result of one delivery round."""

    receipts: list[Receipt] = field(default_factory=list)
    first_deliveries: list[tuple[Notification, Receipt]] = field(default_factory=list)
    """Notifications that the peer accepted for the first time."""
    failures: list[Failure] = field(default_factory=list)
    """At most one per outage, and those of each rejected alert."""


class PeerDelivery:
    """
    Delivers due alerts to one peer.

    Args:
        count: Called with an outcome and the number of notifications that had it.
    """

    def __init__(
        self,
        peer: PeerAddress,
        settings: AlertingSettings,
        client: AlertmanagerClient,
        *,
        count: Callable[[Outcome, int], None],
        jitter: Callable[[], float] = retry_jitter,
    ) -> None:
        self.peer = peer
        self.pending: dict[int, float] = {}
        """When each overdue notification became due, by notification id."""
        self.refused_alerts: dict[str, tuple[float, RefusedAlert]] = {}
        """Text version and details of each alert that the peer rejected, by alert key."""
        self.failing_since: float | None = None
        self.error = ""
        self.position: int | None = None
        """
        The peer's place in its Alertmanager cluster, starting at 0; None if unknown or without a cluster.
        """
        self._began: float | None = None
        self.retry = DeliveryRetry(jitter)
        self._settings = settings
        self._client = client
        self._count = count
        self._sent_alerts: dict[str, SentAlert] = {}
        self._ends: set[str] = set()
        """Keys of the alerts whose end this process has sent since the peer's last restart."""
        self._peer_starts: set[str] = set()
        """Start times that the peer reported. A load balancer in front of several peers reports several."""
        self._status_read_at: float | None = None
        self._status_check: asyncio.Task[None] | None = None
        self._attempts: dict[tuple[int, str], int] = {}

    def __repr__(self) -> str:
        return f"PeerDelivery({self.peer.name!r}, pending={len(self.pending)}, error={self.error!r})"

    def update_pending(self, notifications: Sequence[Notification], now: float) -> None:
        """Update the overdue notifications without sending anything."""
        self.pending = self._plan(notifications, now, ()).pending

    def is_before(self, other: PeerDelivery) -> bool:
        """
        Return whether the other peer comes after this one in their Alertmanager cluster and is reachable.
        """
        if self.position is None or other.position is None or other.failing_since is not None:
            return False
        return self.position < other.position

    def has_confirmed_end(self, notification: Notification, now: float) -> bool:
        """Return whether the peer accepted a notification's end so long ago that the end is not repeated."""
        is_known = any(
            notification.key in keys for keys in (self._ends, self._sent_alerts, self.refused_alerts)
        )
        if not is_known and not notification.is_replaced:
            return False
        return is_end_final(notification, self.peer.name, now)

    async def deliver(
        self, notifications: Sequence[Notification], now: float, *, later_peers: Collection[str] = ()
    ) -> tuple[Deliveries, float]:
        """
        Send due alerts. Return the result and the time of the next delivery, in seconds since the epoch.

        Args:
            later_peers: The peers that get ends before this one.
        """
        self._began = now if self._began is None else self._began
        read_at = self._status_read_at
        # The lower bound covers a clock that was set back.
        if notifications and (read_at is None or not read_at <= now < read_at + RESEND_SECONDS):
            self.begin_status_check(now)
        due_plan = self._plan(notifications, now, later_peers)
        self.pending = due_plan.pending
        result = Deliveries()
        result.receipts += [self._make_receipt(n, "resolved", now) for n in due_plan.silent]
        for batch in _split_batches(due_plan.posts):
            if not await self._send(batch, result, now):
                return result, self.retry.next_attempt_at
        self._forget_inactive(notifications)
        if not due_plan.posts:
            return result, due_plan.next_due
        # Sending has changed what is due.
        new_plan = self._plan(_apply_receipts(notifications, result), now, later_peers)
        self.pending = new_plan.pending
        return (
            result,
            now if new_plan.posts or new_plan.silent else new_plan.next_due,
        )

    async def finish_status_check(self) -> None:
        """Wait for a running status check."""
        if self._status_check is not None:
            await self._status_check

    async def aclose(self) -> None:
        """Cancel a running status check."""
        if self._status_check is not None:
            self._status_check.cancel()
            await asyncio.wait([self._status_check])

    def begin_status_check(self, now: float) -> asyncio.Task[None]:
        """
        Start requesting the peer's start time and place, unless a request is running. Return the task.

        Only the first delivery to several peers waits for the task.
        """
        if self._status_check is None or self._status_check.done():
            self._status_read_at = now
            self._status_check = asyncio.create_task(self._check_status())
        return self._status_check

    async def _check_status(self) -> None:
        """
        Store the peer's place. If the peer may have restarted, forget which ends it accepted.

        A restart between two requests may go unnoticed, because the client reconnects silently.
        """
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(PEER_TIMEOUT_SECONDS):
                status = await self._client.status(self.peer)
        except PeerUnavailableError as error:
            if not error.was_reached:
                # The peer may be starting. Ask again in the next round, because the order of ends depends on
                # its place.
                self._status_read_at = None
        except (AlertmanagerError, TimeoutError):
            pass
        if status:
            self.position = _find_position(status)
        started_at = str(status.get("uptime") or "")
        # A peer that reports no start time, such as behind a proxy for alerts only, counts as not restarted.
        if self._peer_starts and started_at not in self._peer_starts:
            self._ends.clear()
        if started_at:
            self._peer_starts.add(started_at)

    def _plan(self, notifications: Sequence[Notification], now: float, later_peers: Collection[str]) -> Plan:
        refused_versions = {key: text_version for key, (text_version, _) in self.refused_alerts.items()}
        return plan(
            notifications,
            self.peer.name,
            sent_alerts=self._sent_alerts,
            ends=self._ends,
            refused_versions=refused_versions,
            settings=self._settings,
            now=now,
            later_peers=later_peers,
            began=self._began or 0.0,
        )

    async def _send(self, batch: Sequence[Post], result: Deliveries, now: float) -> bool:
        """Send one batch. Return False if the peer is unavailable."""
        for post in batch:
            for notification in post.new_notifications:
                key = (notification.id, post.status)
                self._attempts[key] = self._attempts.get(key, 0) + 1
        try:
            await self._post(batch)
        except PeerUnavailableError as error:
            self._fail(batch, error, result, now)
            return False
        except AlertsRejectedError as error:
            if len(batch) > 1:
                # The peer does not say which alert it rejects, so send the alerts one by one.
                for post in batch:
                    if not await self._send([post], result, now):
                        return False
                return True
            self._refuse(batch[0], error, result, now)
        else:
            for post in batch:
                self._accept(post, result, now)
        if self.failing_since is not None:
            _log.info("Alertmanager %s accepts notifications again", self.peer.name)
        self.failing_since, self.error = None, ""
        self.retry.reset()
        return True

    async def _post(self, batch: Sequence[Post]) -> None:
        try:
            async with asyncio.timeout(PEER_TIMEOUT_SECONDS):
                await self._client.post_alerts(self.peer, [post.alert for post in batch])
        except TimeoutError:
            reason = f"did not answer in {PEER_TIMEOUT_SECONDS:g} s"
            raise PeerUnavailableError(self.peer.name, reason) from None

    def _accept(self, post: Post, result: Deliveries, now: float) -> None:
        self.refused_alerts.pop(post.key, None)
        if post.status == "firing":
            self._sent_alerts[post.key] = SentAlert(now, post.text_version)
            self._ends.discard(post.key)
        else:
            self._sent_alerts.pop(post.key, None)
            self._ends.add(post.key)
        for notification in post.new_notifications:
            receipt = self._make_receipt(notification, post.status, now)
            result.receipts.append(receipt)
            result.first_deliveries.append((notification, receipt))
        self._count("delivered", len(post.new_notifications))

    def status(self) -> PeerStatus:
        """Return the state of the deliveries."""
        return PeerStatus(
            peer=self.peer.name,
            ok=self.failing_since is None,
            pending=len(self.pending),
            error=self.error,
            failing_since=self.failing_since,
            next_attempt_at=self.retry.next_attempt_at or None,
        )

    def _refuse(self, post: Post, error: AlertsRejectedError, result: Deliveries, now: float) -> None:
        _log.error("%s; the rejected notification is retried only after its content changes", error)
        refused_alert = RefusedAlert(
            ticket_ids=[n.ticket_id for n in post.new_notifications],
            peer=self.peer.name,
            status=post.status,
            error=error.reason,
        )
        self.refused_alerts[post.key] = (post.text_version, refused_alert)
        for notification in post.new_notifications:
            receipt = self._make_receipt(notification, post.status, now, error.reason)
            result.receipts.append(receipt)
            result.failures.append(Failure(post, notification, error.reason, receipt.attempts, is_final=True))
        self._count("failed", max(1, len(post.new_notifications)))

    def _fail(
        self, batch: Sequence[Post], error: PeerUnavailableError, result: Deliveries, now: float
    ) -> None:
        undelivered = [(post, notification) for post in batch for notification in post.new_notifications]
        self._count("retried", max(1, len(undelivered)))
        # The peer may have restarted and lost the ends that it accepted.
        self._ends.clear()
        if self.failing_since is None:
            self.failing_since = now
            _log.warning("%s; delivery is retried until it succeeds", error)
            for post, notification in undelivered[:1]:
                attempts = self._attempts[(notification.id, post.status)]
                result.failures.append(Failure(post, notification, error.reason, attempts, is_final=False))
        self.error = error.reason
        self.retry.schedule(now, was_reached=error.was_reached)

    def _make_receipt(
        self, notification: Notification, status: Any, now: float, error: str | None = None
    ) -> Receipt:
        return Receipt(
            notification_id=notification.id,
            peer=self.peer.name,
            status=status,
            at=now,
            attempts=self._attempts.get((notification.id, status), 0),
            error=error,
        )

    def _forget_inactive(self, notifications: Sequence[Notification]) -> None:
        """Drop the state of notifications that are no longer active."""
        active_ids, active_keys = {n.id for n in notifications}, {n.key for n in notifications}
        self._attempts = {
            key_status: count for key_status, count in self._attempts.items() if key_status[0] in active_ids
        }
        self._sent_alerts = {
            key: sent_alert for key, sent_alert in self._sent_alerts.items() if key in active_keys
        }
        self._ends &= active_keys
        self.refused_alerts = {
            key: details for key, details in self.refused_alerts.items() if key in active_keys
        }


def _find_position(status: Mapping[str, Any]) -> int | None:
    """
    Return a peer's place in its cluster, in which Alertmanager orders the peers by name; None if unknown.
    """
    cluster = status.get("cluster")
    if not isinstance(cluster, dict) or not isinstance(peers := cluster.get("peers"), list):
        return None
    names = sorted(str(peer["name"]) for peer in peers if isinstance(peer, dict) and "name" in peer)
    own_name = cluster.get("name")
    return names.index(own_name) if len(names) > 1 and own_name in names else None


def _split_batches(posts: Sequence[Post]) -> Iterator[Sequence[Post]]:
    for start in range(0, len(posts), _BATCH_SIZE):
        yield posts[start : start + _BATCH_SIZE]


def _apply_receipts(notifications: Sequence[Notification], result: Deliveries) -> list[Notification]:
    """Return the notifications with the receipts applied, as the store will contain them."""
    by_id = {n.id: n for n in notifications}
    for receipt in result.receipts:
        if receipt.error is None:
            notification = by_id[receipt.notification_id]
            accepted_times = notification.fired if receipt.status == "firing" else notification.resolved
            accepted_times.setdefault(receipt.peer, receipt.at)
    return list(by_id.values())
