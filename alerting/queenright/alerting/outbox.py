"""
The outbox: what was decided reaches every Alertmanager peer, at least once, whatever dies in between.

Rows are written with the decision (``enqueue``). From then on each peer has a line of its own that sends
them, repeats them while they hold, and tells their end until the peer has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.notification import Notification, enqueue, read_active, record
from queenright.alerting.peer import PeerAddress
from queenright.alerting.peer_line import Failure, Outcome, PeerLine, Round
from queenright.alerting.settings import AlertingSettings
from queenright.health.event_log import append_events
from queenright.health.store import Store, StoreError
from queenright.instrumentation import names
from queenright.runtime.events import AgentEvent, Clock, EventType

__all__ = ["Outbox", "enqueue"]

_log = logging.getLogger(__name__)

_IDLE: Final = 5.0
"""Seconds after which the outbox is looked at though nobody said that there is anything."""

_GLANCES: Final = (0.0, 0.01, 0.03, 0.06, 0.1, 0.3, 1.0)
"""Pauses after a ``wake``: it may be called inside the transaction, some time before its commit."""

_STORE_FAILED: Final = 1.0


class Outbox:
    """
    Delivers what ``enqueue`` wrote.

    Args:
        store: Where the notifications are.
        settings: The peers, and how often to repeat.
        client: Speaks to Alertmanager.
        clock: Seconds since the epoch, UTC.
        publish: Takes ``NOTIFICATION_DELIVERED`` and ``NOTIFICATION_FAILED``, which are durable by then.
        registry: Where the metrics live.
        jitter: Gives a factor for each pause of a failing peer.
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
    ) -> None:
        self._store = store
        self._settings = settings
        self._client = client
        self._clock = clock
        self._publish = publish
        self._outcomes = _counter(registry)
        self._lines = [
            PeerLine(PeerAddress.parse(url), settings, client, count=self._count, jitter=jitter)
            for url in settings.alertmanager_urls
        ]
        self._unaddressed: dict[int, float] = {}
        self._active = 0
        self._wakes = [asyncio.Event() for _ in self._attended]
        gauge = Gauge(names.OUTBOX_PENDING.name, names.OUTBOX_PENDING.help, registry=registry)
        gauge.set_function(lambda: float(len(self._pending())))
        oldest = Gauge(names.OUTBOX_OLDEST.name, names.OUTBOX_OLDEST.help, registry=registry)
        oldest.set_function(lambda: min(self._pending().values(), default=0.0))

    def __repr__(self) -> str:
        return f"Outbox({self._lines!r})"

    def wake(self) -> None:
        """Say that something was or will be written, from the event loop's thread; may precede the commit."""
        for wake in self._wakes:
            wake.set()

    def status(self) -> dict[str, Any]:
        """Return what was handed over and what was not, for people: JSON values, no credentials."""
        pending = self._pending()
        return {
            "active": self._active,
            "pending": len(pending),
            "oldest": min(pending.values(), default=None),
            "peers": [
                {
                    "peer": line.peer.name,
                    "ok": line.failing_since is None,
                    "pending": len(line.pending),
                    "error": line.error,
                    "failing_since": line.failing_since,
                    "next_attempt_at": line.next_attempt_at or None,
                }
                for line in self._lines
            ],
            "refused": [shown for line in self._lines for _, shown in line.refused.values()],
        }

    async def run(self) -> None:
        """Deliver until cancelled. Peers do not wait for each other."""
        try:
            async with asyncio.TaskGroup() as group:
                for line, wake in zip(self._attended, self._wakes, strict=True):
                    group.create_task(self._attend(line, wake))
        finally:
            await self._client.aclose()

    async def deliver_due(self, now: float) -> float:
        """
        Tell every peer what is due now; return when to look again, in seconds since the epoch.

        Raises:
            StoreError: the store cannot be read or written. What was sent is sent again later.
        """
        return min(await asyncio.gather(*(self._deliver(line, now) for line in self._attended)))

    @property
    def _attended(self) -> Sequence[PeerLine | None]:
        """The lines; ``None`` in their place where no peer is configured."""
        return self._lines or (None,)

    async def _attend(self, line: PeerLine | None, wake: asyncio.Event) -> None:
        glances: Iterator[float] = iter(())
        while True:
            try:
                due = await self._deliver(line, self._clock())
            except StoreError as error:
                _log.error("the outbox cannot be read or written, and is tried again: %s", error)
                due = self._clock() + _STORE_FAILED
            except Exception:
                _log.exception("a delivery failed in a way that was not foreseen, and is tried again")
                due = self._clock() + _STORE_FAILED
            pause = min(max(due - self._clock(), 0.005), next(glances, _IDLE))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()
                wake.clear()
                glances = iter(_GLANCES)

    async def _deliver(self, line: PeerLine | None, now: float) -> float:
        if line is not None and line.resting(now):
            return line.next_attempt_at
        notifications = await self._store.read(read_active)
        self._active = sum(n.is_firing(now) for n in notifications)
        if line is None:
            return await self._wait_for_peers(notifications, now)
        told, due = await line.tell(notifications, now)
        done = [n.id for n in notifications if all(known.is_done_with(n, now) for known in self._lines)]
        if told.receipts or told.failures or done:
            events = self._events(line, told, now)

            def write(conn: Any) -> None:
                record(conn, told.receipts, done, now)
                append_events(conn, events)

            await self._store.transact(write)
            # Durable already; the log ignores what it has.
            if events:
                await self._publish(*events)
        return due

    async def _wait_for_peers(self, notifications: list[Notification], now: float) -> float:
        """Without any peer: what has ended is closed, what holds waits until there is one."""
        self._unaddressed = {n.id: n.created_at for n in notifications if n.ends_at is None}
        if any(n.ends_at is not None for n in notifications):
            ended = [n.id for n in notifications if n.ends_at is not None]
            await self._store.transact(lambda conn: record(conn, (), ended, now))
        return float("inf")

    def _pending(self) -> dict[int, float]:
        if not self._lines:
            return self._unaddressed
        found: dict[int, float] = {}
        for line in self._lines:
            for key, since in line.pending.items():
                found[key] = min(since, found.get(key, since))
        return found

    def _count(self, outcome: Outcome, amount: int) -> None:
        self._outcomes.labels(outcome).inc(amount)

    def _events(self, line: PeerLine, told: Round, now: float) -> list[AgentEvent]:
        events = [
            _event(EventType.NOTIFICATION_DELIVERED, about, now, line, receipt.status, receipt.attempts)
            for about, receipt in told.delivered
        ]
        return events + [_failed(failure, now, line) for failure in told.failures]


def _failed(failure: Failure, now: float, line: PeerLine) -> AgentEvent:
    return _event(
        EventType.NOTIFICATION_FAILED,
        failure.notification,
        now,
        line,
        failure.post.status,
        failure.attempts,
        error=failure.error,
        final=failure.final,
    )


def _event(
    kind: EventType,
    about: Notification,
    now: float,
    line: PeerLine,
    status: str,
    attempts: int,
    **more: Any,
) -> AgentEvent:
    return AgentEvent(
        type=kind,
        time=now,
        agent_id=about.labels.get("agent", ""),
        session_id=about.annotations.get("session_id", ""),
        graph_id=about.annotations.get("graph_id", ""),
        data={
            "ticket_id": about.ticket_id,
            "peer": line.peer.name,
            "status": status,
            "attempts": attempts,
            **more,
        },
    )


def _counter(registry: CollectorRegistry) -> Counter:
    metric = names.NOTIFICATIONS
    counter = Counter(metric.name.removesuffix("_total"), metric.help, metric.labels, registry=registry)
    for outcome in ("delivered", "retried", "failed"):
        # From the start at 0: the first failure must be an increase to Prometheus.
        counter.labels(outcome)
    return counter
