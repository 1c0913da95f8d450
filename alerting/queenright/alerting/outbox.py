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
from queenright.alerting.notification import (
    Notification,
    Receipt,
    enqueue,
    read_active,
    read_changed,
    read_last_id,
    record,
)
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

_REST_PER_ROW: Final = 0.0002
"""Seconds of rest for each notification between two rounds: in a crowd each new alert asks for a round."""

_READ_ALL: Final = 30.0
"""Seconds after which all notifications are read; in between only those that are new or have changed."""
_READ_BACK: Final = 5.0
"""Changes are read again from so many seconds before the last read: they are timed before their commit."""


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
        self._known: dict[int, Notification] = {}
        self._last_id = 0
        """What has a greater id is new: of all that there were at the last read, active or not."""
        self._read_at: float | None = None
        """When the last read was, in seconds since the epoch; None if all must be read."""
        self._all_read_at = 0.0
        self._wakes = [asyncio.Event() for _ in self._attended]
        self._released = asyncio.Event()
        self._released.set()
        gauge = Gauge(names.OUTBOX_PENDING.name, names.OUTBOX_PENDING.help, registry=registry)
        gauge.set_function(lambda: float(len(self._pending())))
        oldest = Gauge(names.OUTBOX_OLDEST.name, names.OUTBOX_OLDEST.help, registry=registry)
        oldest.set_function(lambda: min(self._pending().values(), default=0.0))

    def __repr__(self) -> str:
        return f"Outbox({self._lines!r})"

    def hold(self) -> None:
        """Deliver nothing until `release`: the peers are about to be started."""
        self._released.clear()

    def release(self) -> None:
        """Deliver from now on."""
        self._released.set()

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
            await self._released.wait()
            async with asyncio.TaskGroup() as group:
                for line, wake in zip(self._attended, self._wakes, strict=True):
                    group.create_task(self._attend(line, wake))
        finally:
            await asyncio.gather(*(line.aclose() for line in self._lines))
            await self._client.aclose()

    async def deliver_due(self, now: float) -> float:
        """
        Tell every peer what is due now; return when to look again, in seconds since the epoch.

        Raises:
            StoreError: the store cannot be read or written. What was sent is sent again later.
        """
        due = min(await asyncio.gather(*(self._deliver(line, now) for line in self._attended)))
        await asyncio.gather(*(line.finish_restart_check() for line in self._lines))
        return due

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
                self._read_at = None
                _log.error("the outbox cannot be read or written, and is tried again: %s", error)
                due = self._clock() + _STORE_FAILED
            except Exception:
                self._read_at = None
                _log.exception("a delivery failed in a way that was not foreseen, and is tried again")
                due = self._clock() + _STORE_FAILED
            await asyncio.sleep(len(self._known) * _REST_PER_ROW)
            pause = min(max(due - self._clock(), 0.005), next(glances, _IDLE))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await wake.wait()
                wake.clear()
                glances = iter(_GLANCES)

    async def _deliver(self, line: PeerLine | None, now: float) -> float:
        notifications = await self._read(now)
        self._active = sum(n.is_firing(now) for n in notifications)
        if line is None:
            return await self._wait_for_peers(notifications, now)
        if line.resting(now):
            line.note_pending(notifications, now)
            return line.next_attempt_at
        told, due = await line.tell(notifications, now)
        # Another ticket holds the same alert now, and its end is told with that one's.
        held = {n.key: n.id for n in notifications if n.is_firing(now)}
        done = [
            n.id
            for n in notifications
            if (not n.is_firing(now) and n.id < held.get(n.key, 0))
            or all(known.is_done_with(n, now) for known in self._lines)
        ]
        if told.receipts or told.failures or done:
            events = self._events(line, told, now)

            def write(conn: Any) -> None:
                record(conn, told.receipts, done, now)
                append_events(conn, events)

            try:
                await self._store.transact(write)
            except BaseException:
                # What is in memory says more than what is durable.
                self._read_at = None
                raise
            self._note(told.receipts, done)
            # Durable already; the log ignores what it has.
            if events:
                await self._publish(*events)
        return due

    async def _read(self, now: float) -> list[Notification]:
        """Return the active notifications: those in memory, brought up to date with what has changed."""
        at = self._read_at
        if at is None or not at <= now < self._all_read_at + _READ_ALL:
            found, self._last_id = await self._store.read(
                lambda conn: (read_active(conn), read_last_id(conn))
            )
            before, self._known = self._known, {}
            self._all_read_at = now
        else:
            known, since, above = dict(self._known), at - _READ_BACK, self._last_id
            found = await self._store.read(lambda conn: read_changed(conn, known, since, above=above))
            before = self._known
            self._last_id = max((self._last_id, *(one.id for one in found)))
        for one in found:
            # Another peer may have taken it while this was read.
            if at is not None and (earlier := before.get(one.id)) is not None:
                one.fired.update(earlier.fired)
                one.resolved.update(earlier.resolved)
            self._known[one.id] = one
        # None after a write that failed meanwhile: then all is read again.
        if at is None or self._read_at is not None:
            self._read_at = now if at is None else max(now, at)
        return list(self._known.values())

    def _note(self, receipts: Sequence[Receipt], done: Sequence[int]) -> None:
        """Bring what is in memory up to date with what was written."""
        for receipt in receipts:
            known = self._known.get(receipt.notification_id)
            if known is not None and receipt.error is None:
                taken = known.fired if receipt.status == "firing" else known.resolved
                taken.setdefault(receipt.peer, receipt.at)
        for key in done:
            self._known.pop(key, None)

    async def _wait_for_peers(self, notifications: list[Notification], now: float) -> float:
        """Without any peer: what has ended is closed, what holds waits until there is one."""
        self._unaddressed = {n.id: n.created_at for n in notifications if n.is_firing(now)}
        ended = [n.id for n in notifications if not n.is_firing(now)]
        if ended:
            await self._store.transact(lambda conn: record(conn, (), ended, now))
            self._note((), ended)
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
