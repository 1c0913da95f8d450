"""
The path of an event through the service.

1. Received: ``EventPipeline.ingest`` for OTLP, hooks, heartbeats and the API, ``ingest_step_log`` for step
   logs, ``EventBus.publish`` for agents that run here.
2. Log: ``Store.append``. The event is durable before anything acts on it.
3. Monitor: ``EventBus.fan_out`` calls ``EventPipeline.observe``, which applies the event to the worker's
   vital signs. Findings and states that follow wait in ``pending``.
4. Log again: ``publish_pending`` makes them durable, then fans them out to the subscribers, judge included.
5. Tickets: ``update_tickets`` updates the worker's tickets and the interventions on it.
6. Outbox: ``TicketNotifications.write`` runs in the ticket's transaction; ``Outbox.run`` delivers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection

from queenright.health.findings import WorkerKey
from queenright.health.interventions.spending_brake import SpendingBrake
from queenright.health.monitoring.logged_health import LoggedHealth, missing_health_events
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.monitor_snapshot import SnapshotHead
from queenright.health.store.event_log import LogSegment
from queenright.health.store.store import Store, StoreError
from queenright.health.ticket_service import TicketService
from queenright.health.vitals.provider_traffic import ProviderTraffic
from queenright.health.vitals.vital_signs import WORKER_EVENTS
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.server.metrics.event_metrics import EventMetrics
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.metrics.providers import ProviderMetrics
from queenright.server.metrics.worker_series import WorkerSeries
from queenright.server.monitoring.log_replay import ReplayedLog
from queenright.server.monitoring.remediation import Remediation
from queenright.server.ops.arrivals import ArrivalLog, Gap
from queenright.server.stream.feed import Feed

_log = logging.getLogger(__name__)

WORKER_CHANGES: Final = frozenset(
    {
        EventType.FINDING_OPENED,
        EventType.FINDING_CLEARED,
        EventType.HEALTH_STATE_CHANGED,
        EventType.EXECUTION_COMPLETED,
        EventType.EXECUTION_FAILED,
        EventType.AGENT_TERMINATED,
        EventType.EXECUTION_STARTED,
        EventType.AGENT_RENAMED,
    }
)
"""Events after which ``EventPipeline.update_tickets`` must run."""

_SPENDING_EVENTS: Final = frozenset({EventType.LLM_CALL_COMPLETED, EventType.WORKER_ESCALATION_TICKET})
"""Events after which a worker may have reached a spending limit."""

_BATCH_SIZE: Final = 256
"""Events fanned out between two iterations of the event loop: about 10 ms if their workers are in trouble."""

_RETRY_PAUSE_SECONDS: Final = 1.0
_WRITE_CHECK_PAUSE_SECONDS: Final = 2.0


@dataclass(kw_only=True, eq=False)
class EventPipeline:
    """
    Carries events from receivers to tickets. An instance belongs to one event loop.

    It follows the bus with ``observe`` and the store with ``record_stored`` before anything is published.
    """

    store: Store
    bus: EventBus
    monitor: HealthMonitor
    tickets: TicketService
    remediation: Remediation
    brake: SpendingBrake
    providers: ProviderTraffic
    event_metrics: EventMetrics
    metrics: ServiceMetrics
    provider_metrics: ProviderMetrics
    worker_series: WorkerSeries
    feed: Feed
    arrivals: ArrivalLog
    can_receive: Callable[[], bool]
    """Returns whether agents can send telemetry; see ``check_listening``."""
    reads_step_logs: bool
    stopping: asyncio.Event
    """Set when the service stops. No intervention starts after that."""
    clock: Clock
    pending: list[AgentEvent] = field(default_factory=list, init=False)
    """Findings and states that are not published yet."""
    _publishing: dict[str, AgentEvent] = field(default_factory=dict, init=False)
    """Findings and states that are being published, by id."""
    _unobserved_seqs: dict[str, int] = field(default_factory=dict, init=False)
    """Sequence numbers of stored events that the monitor has not processed yet, by event id."""
    _has_pending: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _fan_out_lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _listened_until: float | None = field(default=None, init=False)
    """The time of the last check at which telemetry could arrive."""
    _live_workers: set[WorkerKey] = field(default_factory=set, init=False)
    """Workers that report by OTLP or on the bus. Their step logs are ignored."""
    _is_reading_step_log: bool = field(default=False, init=False)
    _replayed_times: Mapping[WorkerKey, float] = field(default_factory=dict, init=False)

    def record_stored(self, segments: Sequence[LogSegment]) -> None:
        """Record events that were appended to the log; see ``Store.on_commit``."""
        for first_seq, events in segments:
            self._unobserved_seqs.update((event.id, seq) for seq, event in enumerate(events, first_seq))

    # -- 1. received, 2. log --------------------------------------------------------------------

    async def ingest(
        self, events: Sequence[AgentEvent], *, also: Callable[[Connection], None] | None = None
    ) -> None:
        """
        Ingest events of workers. Return once they are durable and applied.

        Args:
            events: The events.
            also: Called in the transaction that stores the events; see ``Store.append``.

        Raises:
            StoreError: Writing failed; no event was ingested.
        """
        await self.store.append(events, also=also)
        # Hold a lock, so that a worker's events are applied in the order of the log.
        async with self._fan_out_lock:
            for start in range(0, len(events), _BATCH_SIZE):
                if start:
                    await asyncio.sleep(0)
                self.bus.fan_out(*events[start : start + _BATCH_SIZE])
        await self.publish_pending()

    async def ingest_step_log(self, events: Sequence[AgentEvent]) -> None:
        """
        Ingest the new events of a step log.

        Raises:
            StoreError: Writing failed; no event was ingested.
        """
        new_events = [event for event in events if self._is_new(event)]
        await self.store.append(new_events)
        self._is_reading_step_log = True
        try:
            self.bus.fan_out(*new_events)
        finally:
            self._is_reading_step_log = False
        await self.publish_pending()

    def _is_new(self, event: AgentEvent) -> bool:
        if (event.agent_id, event.session_id) in self._live_workers:
            return False
        worker = self.monitor.get(event.agent_id, event.session_id)
        return worker is None or event.time > self._replayed_times.get(worker.key, 0.0)

    def record_process_alive(self, heartbeat_intervals: Mapping[str, float | None]) -> None:
        """Record which processes are alive, by incarnation; see ``HealthMonitor.record_process_alive``."""
        now = self.clock()
        for incarnation_id, interval in heartbeat_intervals.items():
            self.monitor.record_process_alive(incarnation_id, now, interval)

    # -- 3. monitor -----------------------------------------------------------------------------

    def observe(self, events: Sequence[AgentEvent]) -> None:
        """Apply events from the bus. The bus passes each event of the service exactly once."""
        self.event_metrics.count_events(events)
        self.metrics.interventions.count_events(events)
        for event in events:
            self._unobserved_seqs.pop(event.id, None)
        self.feed.add_transient(events)
        if self.reads_step_logs and not self._is_reading_step_log:
            self._live_workers.update(
                (event.agent_id, event.session_id) for event in events if event.type in WORKER_EVENTS
            )
        now = self.clock()
        self.check_listening(now)
        self.arrivals.record_events(events, now)
        if not self.monitor.settings.enabled:
            return
        for event in events:
            try:
                self._apply(event, now)
            except Exception:
                _log.exception("cannot apply event %s of agent %r", event.type, event.agent_id)
        if self.pending:
            self._has_pending.set()

    def _apply(self, event: AgentEvent, now: float) -> None:
        if event.type is EventType.HEALTH_STATE_CHANGED and not self.stopping.is_set():
            self.remediation.interventions.note_worse(event)
        self.pending += self.monitor.apply(event, now)
        self.worker_series.count(event)
        if event.type in _SPENDING_EVENTS and not self.stopping.is_set():
            self.brake.brake_if_limit_reached(event.agent_id, event.session_id)
        if (call := self.providers.note(event, now)) is not None:
            self.provider_metrics.count(call)

    # -- 4. log, then subscribers ---------------------------------------------------------------

    async def publish_pending(self) -> bool:
        """
        Store pending findings and states, then publish them to subscribers. Return whether it succeeded.

        Events that cannot be stored stay pending, because the monitor reports each of them only once.
        """
        events, self.pending = self.pending, []
        publishing_events = {event.id: event for event in events}
        self._publishing |= publishing_events
        try:
            if events:
                await self.bus.publish(*events)
        except StoreError as error:
            _log.error("cannot store %d findings and states, retrying: %s", len(events), error)
            self.pending = events + self.pending
            self._has_pending.set()
            return False
        finally:
            for event_id in publishing_events:
                del self._publishing[event_id]
        return True

    async def run_publishing(self) -> None:
        """Publish findings from events that agents in the service put on the bus, until cancelled."""
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            if not await self.publish_pending():
                await asyncio.sleep(_RETRY_PAUSE_SECONDS)

    async def run_write_checks(self) -> None:
        """After a failed write, retry until one succeeds; until then, the service is not ready."""
        while True:
            await asyncio.sleep(_WRITE_CHECK_PAUSE_SECONDS)
            if not self.store.is_writable:
                with contextlib.suppress(StoreError):
                    await self.store.check_writable()

    # -- 5. tickets -----------------------------------------------------------------------------

    async def update_tickets(self, event: AgentEvent) -> None:
        """Update a worker's tickets and interventions after a change of its health, or after its end."""
        key = (event.agent_id, event.session_id)
        if event.type is EventType.AGENT_RENAMED and "former_agent_id" not in event.data:
            new_key = (event.data["agent_id"], event.data["session_id"])
            await self.tickets.worker_renamed(key, new_key)
            await self.remediation.interventions.rename(key, new_key)
            return
        health = self.monitor.get(*key)
        if health is not None:
            await self.tickets.observe(health)
            await self.remediation.update(health)

    # -- after a restart ------------------------------------------------------------------------

    def resume(self, replay: ReplayedLog) -> None:
        """Continue after a replay: publish findings and states that were not logged before a kill."""
        self._replayed_times = replay.last_events
        self.pending += replay.unlogged_events
        now = self.clock()
        for health in self.monitor.workers():
            logged_health = replay.logged_health.get(health.key) or LoggedHealth()
            self.pending += missing_health_events(health, logged_health, now)
        if self.pending:
            self._has_pending.set()

    def describe_position(self, last_seq: int) -> SnapshotHead:
        """
        Return the position in the log up to which the monitor has processed events.

        Args:
            last_seq: The sequence number of the last event in the log.
        """
        now = self.clock()
        publishing = [
            event for event_id, event in self._publishing.items() if event_id not in self._unobserved_seqs
        ]
        return SnapshotHead(
            # The rest of an outage still has to be excluded from every age.
            time=now if self.check_listening(now) else self._listened_until or now,
            seq=last_seq,
            unobserved=tuple(self._unobserved_seqs.values()),
            unlogged=(*publishing, *self.pending),
        )

    def forget_unobserved(self, last_seq: int) -> None:
        """Stop tracking unobserved events up to ``last_seq``, such as those of a cancelled request."""
        self._unobserved_seqs = {key: seq for key, seq in self._unobserved_seqs.items() if seq > last_seq}

    async def close_ended_tickets(self) -> None:
        """Close tickets of workers that ended just before a kill, and move those of renamed workers."""
        for ticket in self.tickets.open_tickets():
            key = (ticket.agent_id, ticket.session_id)
            health, new_key = self.monitor.get(*key), self.monitor.current_key(key)
            if health is not None and health.vitals.has_ended:
                await self.tickets.observe(health)
            elif health is None and new_key != key:
                await self.tickets.worker_renamed(key, new_key)

    async def settle(self) -> None:
        """Wait until the spending brake has finished."""
        await self.brake.wait_until_idle()

    def close(self) -> None:
        """Record when the service stopped."""
        now = self.clock()
        if self.check_listening(now):
            self.arrivals.write_alive(now, at_once=True)
        self.arrivals.close()

    # -- time -----------------------------------------------------------------------------------

    def check_listening(self, now: float) -> bool:
        """
        Return whether telemetry can arrive and be stored.

        While it cannot, silence means nothing. Afterwards, the time in between is excluded from every age, as
        after a restart.
        """
        was_listening, since = self.metrics.is_listening, self._listened_until
        is_listening = self.metrics.is_listening = self.store.is_writable and self.can_receive()
        if is_listening or since is None:
            self._listened_until = now
        if is_listening and not was_listening and since is not None and since < now:
            _log.info(
                "telemetry can arrive again after %.0f s; this time does not count as silence", now - since
            )
            self.monitor.exclude_outage(since, now)
            self.remediation.handle_clock_jump(now, now - since)
            self.arrivals.record_gap(Gap("away", since, now))
        return is_listening

    async def advance(self, now: float, limit: int) -> None:
        """Evaluate at most ``limit`` workers whose deadline has passed, and publish the results."""
        self.arrivals.write_alive(now)
        self.pending += self.monitor.advance(now, limit)
        await self.publish_pending()

    async def sweep(self, batch: int) -> int:
        """
        Evaluate every worker, in batches. Return the number of workers.

        Args:
            batch: Number of workers to evaluate between two iterations of the event loop.
        """
        worker_count, is_done = 0, False
        while not is_done:
            batch_result = self.monitor.sweep_part(self.clock(), batch)
            worker_count, is_done = worker_count + batch_result.worker_count, batch_result.is_last
            for fault in batch_result.faults:
                _log.error("%s", fault)
            self.pending += batch_result.events
            await self.publish_pending()
            await asyncio.sleep(0)
        self._live_workers &= set(self.monitor.keys())
        return worker_count
