"""
Deliver notifications from the outbox to every Alertmanager peer, at least once, across crashes.

``enqueue`` writes rows in the transaction of the decision. Each peer has its own delivery, which sends the
rows, resends them while they fire, and retries their end until the peer has accepted it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.notification import Notification, Receipt
from queenright.alerting.notification_rules import enqueue
from queenright.alerting.notification_table import read_active, read_changed, read_last_id, record_receipts
from queenright.alerting.peer import PeerAddress
from queenright.alerting.peer_delivery import (
    Deliveries,
    Failure,
    Outcome,
    PeerDelivery,
    PeerStatus,
    RefusedAlert,
)
from queenright.alerting.settings import AlertingSettings
from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store, StoreError
from queenright.instrumentation import names
from queenright.instrumentation.families import counter, gauge
from queenright.runtime.events import AgentEvent, Clock, EventType

__all__ = ["Outbox", "enqueue"]

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 5.0
"""Seconds between two polls of the outbox if ``wake`` is not called."""

_WAKE_DELAYS: Final = (0.0, 0.01, 0.03, 0.06, 0.1, 0.3, 1.0)
"""Poll delays after a ``wake``, which may be called inside a transaction, before its commit."""

_POSITION_TIMEOUT_SECONDS: Final = 1.0
"""Maximum seconds that the first delivery to several peers waits for their places in the cluster."""
_PASSIVE_POLL_SECONDS: Final = 1.0
_STORE_RETRY_SECONDS: Final = 1.0

_PAUSE_PER_ROW_SECONDS: Final = 0.0002
"""Seconds of pause per notification between two rounds, to limit the load of many alerts."""

_FULL_READ_SECONDS: Final = 30.0
"""Seconds between full reads; other reads return only new and changed notifications."""
_READ_OVERLAP_SECONDS: Final = 5.0
"""Overlap in seconds between reads of changes, because their timestamps are older than their commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """The state of the outbox."""

    active: int
    """Number of firing alerts."""
    pending: int
    """Number of notifications that some peer has not accepted yet."""
    oldest: float | None
    """
    When the oldest pending notification was written, in seconds since the epoch; None if none is pending.
    """
    peers: list[PeerStatus]
    refused: list[RefusedAlert]


class Outbox:
    """
    Delivers the notifications that ``enqueue`` writes.

    Args:
        publish: Publishes ``NOTIFICATION_DELIVERED`` and ``NOTIFICATION_FAILED``, which are already durable.
        may_deliver: Returns whether this process may deliver. Called before each round.
    """

    def __init__(
        self,
        store: Store,
        settings: AlertingSettings,
        client: AlertmanagerClient,
        *,
        clock: Clock,
        publish: Callable[..., Awaitable[None]],
        registry: CollectorRegistry,
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
        may_deliver: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._settings = settings
        self._client = client
        self._clock = clock
        self._publish = publish
        self._may_deliver = may_deliver
        self._outcomes = _make_counter(registry)
        self._peer_deliveries = [
            PeerDelivery(PeerAddress.parse(url), settings, client, count=self._count, jitter=jitter)
            for url in settings.alertmanager_urls
        ]
        self._pending_without_peer: dict[int, float] = {}
        self._active = 0
        self._notifications: dict[int, Notification] = {}
        self._last_id = 0
        """Highest id at the last read; rows with a higher id are new."""
        self._read_at: float | None = None
        """Time of the last read, in seconds since the epoch; None forces a full read."""
        self._all_read_at = 0.0
        self._first_check: asyncio.Task[None] | None = None
        self._wakes = [asyncio.Event() for _ in self._deliveries_or_none]
        self._released = asyncio.Event()
        self._released.set()
        gauge(names.OUTBOX_PENDING, registry).set_function(lambda: float(len(self._find_pending())))
        gauge(names.OUTBOX_OLDEST, registry).set_function(
            lambda: min(self._find_pending().values(), default=0.0)
        )

    def __repr__(self) -> str:
        return f"Outbox({self._peer_deliveries!r})"

    def hold(self) -> None:
        """Deliver nothing until ``release`` is called, because the peers are still starting."""
        self._released.clear()

    def release(self) -> None:
        """Start delivering after ``hold``."""
        self._released.set()

    def wake(self) -> None:
        """Trigger a delivery round. Call it from the event loop's thread, before or after the commit."""
        for wake in self._wakes:
            wake.set()

    def status(self) -> OutboxStatus:
        """Return the state of the outbox and its peers, without credentials."""
        pending = self._find_pending()
        return OutboxStatus(
            active=self._active,
            pending=len(pending),
            oldest=min(pending.values(), default=None),
            peers=[delivery.status() for delivery in self._peer_deliveries],
            refused=[
                alert for delivery in self._peer_deliveries for _, alert in delivery.refused_alerts.values()
            ],
        )

    async def run(self) -> None:
        """Deliver to every peer independently until cancelled."""
        try:
            await self._released.wait()
            async with asyncio.TaskGroup() as group:
                for delivery, wake in zip(self._deliveries_or_none, self._wakes, strict=True):
                    group.create_task(self._run_peer(delivery, wake))
        finally:
            await asyncio.gather(*(delivery.aclose() for delivery in self._peer_deliveries))
            if self._first_check is not None:
                await self._first_check
            await self._client.aclose()

    async def deliver_due(self, now: float) -> float:
        """
        Deliver what is due to every peer. Return the time of the next round, in seconds since the epoch.

        Raises:
            StoreError: The store cannot be read or written. Notifications that were already sent are sent
                again later.
        """
        next_due = min(
            await asyncio.gather(*(self._deliver(delivery, now) for delivery in self._deliveries_or_none))
        )
        await asyncio.gather(*(delivery.finish_status_check() for delivery in self._peer_deliveries))
        return next_due

    @property
    def _deliveries_or_none(self) -> Sequence[PeerDelivery | None]:
        """The deliveries to the peers, or a single None if no peer is configured."""
        return self._peer_deliveries or (None,)

    async def _run_peer(self, delivery: PeerDelivery | None, wake: asyncio.Event) -> None:
        delays: Iterator[float] = iter(())
        while True:
            try:
                next_due = await self._deliver(delivery, self._clock())
            except StoreError as error:
                self._read_at = None
                _log.error("Cannot read or write the outbox; retrying: %s", error)
                next_due = self._clock() + _STORE_RETRY_SECONDS
            except Exception:
                self._read_at = None
                _log.exception("Delivery failed unexpectedly; retrying")
                next_due = self._clock() + _STORE_RETRY_SECONDS
            await asyncio.sleep(len(self._notifications) * _PAUSE_PER_ROW_SECONDS)
            pause = min(max(next_due - self._clock(), 0.005), next(delays, _POLL_SECONDS))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()
                wake.clear()
                delays = iter(_WAKE_DELAYS)

    async def _deliver(self, delivery: PeerDelivery | None, now: float) -> float:
        if len(self._peer_deliveries) > 1:
            self._first_check = self._first_check or asyncio.create_task(self._check_peers(now))
            await asyncio.shield(self._first_check)
        notifications = await self._read_active(now)
        if not self._may_deliver():
            return now + _PASSIVE_POLL_SECONDS
        self._active = sum(n.is_firing(now) for n in notifications)
        if delivery is None:
            return await self._deliver_without_peers(notifications, now)
        if delivery.retry.is_backing_off(now):
            delivery.update_pending(notifications, now)
            return delivery.retry.next_attempt_at
        later_peers = [other.peer.name for other in self._peer_deliveries if delivery.is_before(other)]
        result, next_due = await delivery.deliver(notifications, now, later_peers=later_peers)
        # An ended row is complete if a newer row of the same alert fires, because they share their end.
        firing_ids = {n.key: n.id for n in notifications if n.is_firing(now)}
        completed_ids = [
            n.id
            for n in notifications
            if (not n.is_firing(now) and n.id < firing_ids.get(n.key, 0))
            or all(peer_delivery.has_confirmed_end(n, now) for peer_delivery in self._peer_deliveries)
        ]
        if result.receipts or result.failures or completed_ids:
            events = self._make_events(delivery, result, now)

            def write(conn: Any) -> None:
                record_receipts(conn, result.receipts, completed_ids, now)
                append_events(conn, events)

            try:
                await self._store.transact(write)
            except BaseException:
                # The state in memory is ahead of the store, so read everything again.
                self._read_at = None
                raise
            self._apply_receipts(result.receipts, completed_ids)
            # The events are already durable, and the event log ignores duplicates.
            if events:
                await self._publish(*events)
        return next_due

    async def _check_peers(self, now: float) -> None:
        """Find out the peers' places in their cluster, which decide the order of ends."""
        checks = [delivery.begin_status_check(now) for delivery in self._peer_deliveries]
        await asyncio.wait(checks, timeout=_POSITION_TIMEOUT_SECONDS)

    async def _read_active(self, now: float) -> list[Notification]:
        """Return the active notifications from memory, updated with changes from the store."""
        at = self._read_at
        if at is None or not at <= now < self._all_read_at + _FULL_READ_SECONDS:
            changed_rows, self._last_id = await self._store.read(
                lambda conn: (read_active(conn), read_last_id(conn))
            )
            before, self._notifications = self._notifications, {}
            self._all_read_at = now
        else:
            known_rows, since, above = dict(self._notifications), at - _READ_OVERLAP_SECONDS, self._last_id
            changed_rows = await self._store.read(
                lambda conn: read_changed(conn, known_rows, since, above=above)
            )
            before = self._notifications
            self._last_id = max((self._last_id, *(notification.id for notification in changed_rows)))
        for notification in changed_rows:
            # Another peer may have accepted the notification during this read.
            if at is not None and (earlier := before.get(notification.id)) is not None:
                notification.fired.update(earlier.fired)
                notification.resolved.update(earlier.resolved)
            self._notifications[notification.id] = notification
        # `_read_at` is None if a write failed in the meantime. Then the next read must be a full one.
        if at is None or self._read_at is not None:
            self._read_at = now if at is None else max(now, at)
        return list(self._notifications.values())

    def _apply_receipts(self, receipts: Sequence[Receipt], completed_ids: Sequence[int]) -> None:
        """Apply the written changes to the notifications in memory."""
        for receipt in receipts:
            notification = self._notifications.get(receipt.notification_id)
            if notification is not None and receipt.error is None:
                accepted_times = notification.fired if receipt.status == "firing" else notification.resolved
                accepted_times.setdefault(receipt.peer, receipt.at)
        for notification_id in completed_ids:
            self._notifications.pop(notification_id, None)

    async def _deliver_without_peers(self, notifications: list[Notification], now: float) -> float:
        """Close ended notifications and keep firing ones, because no peer is configured."""
        self._pending_without_peer = {n.id: n.created_at for n in notifications if n.is_firing(now)}
        ended_ids = [n.id for n in notifications if not n.is_firing(now)]
        if ended_ids:
            await self._store.transact(lambda conn: record_receipts(conn, (), ended_ids, now))
            self._apply_receipts((), ended_ids)
        return float("inf")

    def _find_pending(self) -> dict[int, float]:
        if not self._peer_deliveries:
            return self._pending_without_peer
        pending: dict[int, float] = {}
        for delivery in self._peer_deliveries:
            for notification_id, since in delivery.pending.items():
                pending[notification_id] = min(since, pending.get(notification_id, since))
        return pending

    def _count(self, outcome: Outcome, amount: int) -> None:
        self._outcomes.labels(outcome).inc(amount)

    def _make_events(self, delivery: PeerDelivery, result: Deliveries, now: float) -> list[AgentEvent]:
        events = [
            _make_event(
                EventType.NOTIFICATION_DELIVERED,
                notification,
                now,
                delivery,
                receipt.status,
                receipt.attempts,
            )
            for notification, receipt in result.first_deliveries
        ]
        return events + [_make_failure_event(failure, now, delivery) for failure in result.failures]


def _make_failure_event(failure: Failure, now: float, delivery: PeerDelivery) -> AgentEvent:
    return _make_event(
        EventType.NOTIFICATION_FAILED,
        failure.notification,
        now,
        delivery,
        failure.post.status,
        failure.attempts,
        error=failure.error,
        final=failure.is_final,
    )


def _make_event(
    kind: EventType,
    notification: Notification,
    now: float,
    delivery: PeerDelivery,
    status: str,
    attempts: int,
    **more: Any,
) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=now,
        agent_id=notification.labels.get("agent", ""),
        session_id=notification.annotations.get("session_id", ""),
        graph_id=notification.annotations.get("graph_id", ""),
        data={
            "ticket_id": notification.ticket_id,
            "peer": delivery.peer.name,
            "status": status,
            "severity": notification.labels.get("severity", ""),
            "ticket_severity": notification.labels.get("ticket_severity", ""),
            "attempts": attempts,
            **more,
        },
    )


def _make_counter(registry: CollectorRegistry) -> Counter:
    notifications = counter(names.NOTIFICATIONS, registry)
    for outcome in ("delivered", "retried", "failed"):
        # Create the series with value 0, so that Prometheus sees the first failure as an increase.
        notifications.labels(outcome)
    return notifications
