"""
The service: everything wired together, from telemetry that comes in to alerts that go out.

One asyncio loop. The order that must not change: an event is durable first,
then it moves vital signs, then what the monitor says of it is made durable,
then anyone acts on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.notification import find_joined
from queenright.alerting.outbox import Outbox, enqueue
from queenright.alerting.recorder import Recorder
from queenright.alerting.silence_watch import SilenceWatch
from queenright.health.findings import Finding, WorkerKey
from queenright.health.interventions.approvals_record import Approval
from queenright.health.interventions.spending_brake import SpendingBrake
from queenright.health.logged_health import LoggedHealth, missing_health_events
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.provider_traffic import WINDOW, ProviderTraffic
from queenright.health.retention import Retention
from queenright.health.shared_cause import shared_cause
from queenright.health.store import Store, StoreError
from queenright.health.ticket_service import TicketService
from queenright.health.ticket_table import find_ticket, recent_tickets
from queenright.health.tickets import EscalationTicket
from queenright.health.vitals import WORKER_EVENTS
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import ALERT_CLASS, AgentEvent, Clock, EventType
from queenright.server.acting import Acting
from queenright.server.agents.manager import AgentManager
from queenright.server.earlier_lives import RECENT_SECONDS, EarlierLives, find_earlier_lives
from queenright.server.guards import health_guard, ladder_seconds
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.metrics.providers import ProviderMetrics
from queenright.server.metrics.tracing import TRACED, EventTracer
from queenright.server.metrics.worker_series import WorkerSeries
from queenright.server.operator_requests import REQUESTING, OperatorRequests, find_requests
from queenright.server.ops.arrivals import ArrivalLog, ArrivalMark, Gap
from queenright.server.ops.folders import folder_error
from queenright.server.ops.rebuild import Rebuilt, model_calls, rebuild
from queenright.server.ops.secret_files import callback_secrets
from queenright.server.ops.settings_files import check_files
from queenright.server.ops.step_logs import StepLogs
from queenright.server.ops.user_stack import UserStack
from queenright.server.settings import Settings
from queenright.server.stream.feed import SUBSCRIBER, Feed
from queenright.server.telemetry.intake import Intake
from queenright.server.views.latest import Latest
from queenright.server.views.latest_notifications import CHANGING, LatestNotifications
from queenright.server.views.recent_notifications import RecentNotifications
from queenright.server.webhooks.callbacks import Callbacks

_log = logging.getLogger(__name__)

REBUILD_SECONDS = 24 * 3600
"""
How far back the event log is read at start to know the workers again.

Of sessions that began before, what matters is looked up.
"""

_SPENDING = frozenset({EventType.LLM_CALL_COMPLETED, EventType.WORKER_ESCALATION_TICKET})
"""After these a worker may have reached a limit of what may be spent."""
_HOLDS = 5
"""For so many times ``tickets.hold_seconds`` the alert of an agent that crashes again and again goes on."""

_LONGEST_SLEEP = 1.0
_RETRY_PAUSE = 1.0
_WRITE_AGAIN = 2.0
"""While we are not ready nobody may be let through to write: we try ourselves whether it works again."""

_OVERSLEPT = 30.0
"""If the loop comes back so late from a sleep of a second, nobody was listened to meanwhile."""

_JUMP = 5.0
"""If wall and monotonic time part by so much between two ticks, the clock jumped or the host slept."""

_SWEEP_PART = 500
"""Workers looked at before others have the loop: some 5 ms."""

_FANNED_OUT_AT_ONCE = 256
"""Events that are looked at before others have the loop: of workers in trouble some 10 ms."""

_DUE_AT_ONCE = 200
"""Workers that passed a deadline and are looked at before others have the loop: some 20 ms."""

TICKETS_SHOWN = 100
"""Open tickets on the status page, the worst."""

_WORKER_CHANGES = frozenset(
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
_TICKET_ENDS = frozenset({EventType.TICKET_TRIAGED, EventType.TICKET_RESOLVED})
_RECOVERY_CHANGES = frozenset(
    {EventType.RECOVERY_INITIATED, EventType.RECOVERY_COMPLETED, EventType.RECOVERY_FAILED}
)


class UnusableStorageError(QueenrightError):
    """Raised when the storage folder cannot be written to."""


def usable(storage: Path) -> None:
    """
    Make the storage folder if it is not there.

    Raises:
        UnusableStorageError: it cannot be made or written to.
    """
    if why := folder_error(storage):
        raise UnusableStorageError(
            f"The storage folder {storage} cannot be used ({why}); name another with --storage."
        )


def tune_garbage_collector() -> None:
    """
    Let the garbage collector look less often, and never at what is there for good. Once a process.

    Telemetry makes and drops many small objects, none of them in cycles; by default the collector
    goes through everything known about every worker again and again, which costs a tenth of the rate.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def shorten_switch_interval() -> None:
    """
    Let threads take turns after half a millisecond, not five. Once a process.

    Who reads the store does so in a thread, which has to wait for its turn several times; with this a read
    beside a busy loop takes two thirds of the time, its 99th percentile a third, and no more work is done.
    """
    sys.setswitchinterval(0.0005)


class Service:
    """
    Queenright itself, without its sockets.

    Args:
        settings: All settings.
        clock: Seconds since the epoch, UTC.
        registry: Where the metrics live.
        tracer: Makes the service's own spans.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock = time.time,
        registry: CollectorRegistry | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer or trace.get_tracer("queenright")
        self.settings = settings
        self.settings_read = settings.as_read
        """The settings as they were read last, which a program may have added to; None if they were not."""
        self.clock = clock
        self.registry = registry or CollectorRegistry()
        self.started_at = clock()
        self.recent: deque[AgentEvent] = deque(maxlen=200)
        """The latest alert-class events, for the status page."""
        self.recorder: Recorder | None = None
        """The stand-in for Slack and PagerDuty, where anything is sent to it."""
        self.deadman_at: float | None = None
        """When the Watchdog alert last came back through Prometheus and Alertmanager."""
        self.faults: list[str] = []
        """What is broken beside the service, in words; told by whoever runs it."""
        self.stopping = asyncio.Event()
        """Set when open event streams should end."""
        self._tasks: list[asyncio.Task[None]] = []
        self._said: list[AgentEvent] = []
        """What the monitor has to say and nobody has been told yet."""
        self._something_to_say = asyncio.Event()
        self._fan_out = asyncio.Lock()
        self._live: set[WorkerKey] = set()
        """Workers that tell of themselves, by OTLP or on the bus: their step logs tell nothing new."""
        self._reading_step_log = False
        self._replayed: dict[WorkerKey, float] = {}
        self._told: dict[WorkerKey, LoggedHealth] = {}
        self._arrivals = ArrivalLog(settings.storage / "arrivals")
        self._away = 0.0

    async def start(self, *, hold_outbox: bool = False) -> None:
        """
        Open the store, know the workers again, start judging and delivering.

        Args:
            hold_outbox: Whether nothing is delivered until ``Outbox.release``.

        Raises:
            InvalidSecretError, ModelUnavailableError, InvalidPromptError: a file that a setting names cannot
                be used; there is no database yet.
            StoreError: the database cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        settings = self.settings
        check_files(settings)
        usable(settings.storage)
        health = settings.health_monitoring
        self.store = await asyncio.to_thread(Store.open, settings.database_url)
        self.monitor = HealthMonitor(
            health,
            on_delay=lambda kind, delay: self.metrics.observe_detection(kind, delay),
            on_shadow=self._note_shadow,
        )
        self.metrics = ServiceMetrics(
            self.registry,
            lambda: self.monitor.workers(),
            paged=lambda: self.tickets.paged_agents(),
            breakers=lambda: self.breakers.all(),
            recovering=lambda: len(self.acting.recovery.active()),
        )
        self.intake = Intake(self.registry)
        self.providers = ProviderTraffic()
        self._provider_metrics = ProviderMetrics(
            self.registry, lambda: self.providers.providers(self.clock())
        )
        self.worker_series = WorkerSeries(self.registry, self.monitor.workers, self.monitor.get, self.clock)
        self.feed = Feed(self.store, on_drop=self.metrics.count_dropped)
        await self.feed.start()
        self.bus = EventBus(
            log=self.store,
            on_drop=self.metrics.count_dropped,
            on_error=lambda name, error: _log.error("subscriber %s failed: %r", name, error),
            on_publish=self._see,
        )
        self.outbox = Outbox(
            self.store,
            settings.alerting,
            AlertmanagerClient(),
            clock=self.clock,
            publish=self.bus.publish,
            registry=self.registry,
        )
        if hold_outbox:
            self.outbox.hold()
        self.silences = SilenceWatch(self.store, settings.alerting, AlertmanagerClient(), clock=self.clock)
        self.acting = Acting(
            self.store,
            settings,
            monitor=self.monitor,
            bus=self.bus,
            ingest=self.ingest,
            clock=self.clock,
        )
        self.breakers = self.acting.breakers
        self.instructions = self.acting.instructions
        self.approvals = self.acting.approvals
        self.permissions = self.acting.permissions
        self.approvals.on_change = self._tell_of_approval
        self.tickets = TicketService(
            self.store,
            settings=health,
            clock=self.clock,
            publish=self.bus.fan_out,
            on_change=self._hand_to_outbox,
            silenced_until=lambda ticket_id: self.silences.silenced_until(ticket_id),
            group=self._group_of,
            dead_from=lambda key: self.monitor.dead_from(key),
            find_joined=self._find_joined,
        )
        slack, pagerduty = callback_secrets(settings.alerting)
        self.callbacks = Callbacks(
            self.store, self.tickets, slack=slack, pagerduty=pagerduty, clock=self.clock
        )
        self.told = RecentNotifications(
            self.store, lambda: [ticket.ticket_id for ticket in self.shown_tickets()]
        )
        self._stack = UserStack(settings.judging, self.store, self.clock)
        guards = health_guard(health, hold_seconds=ladder_seconds(health))
        self.judging = JudgeAndQueen(
            bus=self.bus,
            monitor=self.monitor,
            tickets=self.tickets,
            settings=health,
            judge=settings.judging,
            clock=self.clock,
            storage=settings.storage,
            registry=self.registry,
            tracer=self._tracer,
            guards=guards,
            breakers=self.breakers,
            decide=self.acting.decide,
            hands=self.acting.hands,
            looks=self._stack.tools,
            done_to=lambda agent: self.health.interventions(50, agent),
        )
        self.agents = AgentManager(
            settings.agents.roots,
            bus=self._agents_bus,
            storage=settings.agents.storage,
            clock=self.clock,
            guards=guards,
            breakers=self.breakers,
        )
        self.acting.join(self.judging, self.agents.runtimes)
        self.health = self.acting.health
        self.interventions = self.acting.interventions
        self._brake = SpendingBrake(
            health,
            monitor=self.monitor,
            interventions=self.interventions,
            approvals=self.approvals,
            ticket_of=self.tickets.open_for,
            clock=self.clock,
        )
        self.recoveries = Latest(lambda: self.acting.recovery.recent(20), what="recoveries")
        self.notifications = LatestNotifications(self.store, clock=self.clock)
        self.bus.subscribe(self._remember, name="status", types=ALERT_CLASS)
        self.bus.subscribe(self.notifications.changed, name="notifications", types=CHANGING)
        self.bus.subscribe(self.silences.changed, name="silences", types=CHANGING)
        self.bus.subscribe(EventTracer(self._tracer, self.tickets).trace, name="traces", types=TRACED)
        self.bus.subscribe(self._worker_changed, name="tickets", types=_WORKER_CHANGES)
        self.bus.subscribe(self.acting.ticket_decided, name="approvals", types=_TICKET_ENDS)
        self.bus.subscribe(self.recoveries.changed, name="recoveries", types=_RECOVERY_CHANGES)
        requests = OperatorRequests(
            self.store,
            tickets=self.tickets,
            monitor=self.monitor,
            ledger=lambda: self.interventions.ledger,
            settings=health.intervention,
        )
        self.bus.subscribe(requests.changed, name="operator-requests", types=REQUESTING)
        self.metrics.add_subscribers([*(one.name for one in self.bus.subscriptions), SUBSCRIBER])
        await self._know_workers_again()
        await self.notifications.load()
        await self.silences.read_notifications()
        await self.recoveries.load()
        await self.acting.load(self._away)
        await self.judging.start()
        await self.told.load()
        self.judging.take_up(self.interventions.ledger.pending.values())
        self._retention = Retention(self.store, health.retention, clock=self.clock)
        self._say_what_was_not_said()
        await self._end_tickets_of_the_ended()
        await requests.load()
        self._tasks = [
            asyncio.create_task(self._watch(), name="deadlines"),
            asyncio.create_task(self._speak(), name="vital-signs"),
            asyncio.create_task(self._sweep(), name="sweep"),
            asyncio.create_task(self._write_again(), name="write-again"),
            asyncio.create_task(self.outbox.run(), name="outbox"),
            asyncio.create_task(self.notifications.run(), name="notifications"),
            asyncio.create_task(self.recoveries.run(), name="recoveries"),
            asyncio.create_task(self.silences.run(), name="silences"),
            asyncio.create_task(self.told.run(), name="told"),
            asyncio.create_task(self.feed.run(self.stopping), name="event-streams"),
            asyncio.create_task(self._retention.run(), name="retention"),
        ]
        self._tasks += [asyncio.create_task(work, name=name) for name, work in self.acting.tasks().items()]
        if settings.step_logs:
            logs = StepLogs(
                settings.step_logs,
                ingest=self._from_step_log,
                on_skipped=lambda lines: self.metrics.telemetry_dropped.labels("step_log").inc(lines),
            )
            self._tasks.append(asyncio.create_task(logs.run(), name="step-logs"))
        await self._load_agents()

    async def stop(self) -> None:
        """Stop everything; what was decided is durable already."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._brake.settled()
        await self.acting.close()
        await self.judging.stop()
        await self.agents.shutdown_all()
        await self._stack.aclose()
        await self._publish_said()
        await self.bus.close()
        self._arrivals.write_alive(self.clock(), at_once=True)
        self._arrivals.close()
        await self.store.close()

    async def exchange(self, settings: Settings) -> None:
        """
        Go on with other settings, of which only ``reload.RELOADABLE`` may differ.

        Everybody is looked at anew: a worker that is in trouble by them is so at once.
        """
        self.settings = settings
        health = settings.health_monitoring
        self.monitor.exchange(health)
        self.tickets.exchange(health)
        self._retention.exchange(health.retention)
        await self._sweep_everybody()

    def _agents_bus(self, agent_id: Callable[[], str]) -> EventBus:
        """Return a bus for an agent that is loaded: what it tells is durable, and seen here as well."""
        return EventBus(
            log=self.agents.beside.log(self.store, agent_id),
            on_drop=self.metrics.count_dropped,
            on_error=lambda name, error: _log.error("subscriber %s failed: %r", name, error),
            on_publish=lambda events: self.bus.fan_out(*events),
        )

    async def _load_agents(self) -> None:
        """Load the agents that the settings name; one that cannot be is a fault, and the service goes on."""
        for path in self.settings.agents.load:
            try:
                await self.agents.load(path)
            except (QueenrightError, OSError) as error:
                self.faults.append(f"the agent {path} is not loaded: {redact(str(error), 1000)}")
                _log.error("%s", self.faults[-1])

    def note_alive(self, signs: Mapping[str, float | None]) -> None:
        """Note which processes have sent something; see ``HealthMonitor.note_alive``."""
        now = self.clock()
        for incarnation_id, interval in signs.items():
            self.monitor.note_alive(incarnation_id, now, interval)

    async def ingest(self, events: Sequence[AgentEvent]) -> None:
        """
        Take in what workers sent. Returns once it is durable and has been seen.

        Raises:
            StoreError: it could not be made durable; nothing was taken in.
        """
        await self.store.append(events)
        # Nobody else's events come between: those of a worker are seen in the order of the log.
        async with self._fan_out:
            for first in range(0, len(events), _FANNED_OUT_AT_ONCE):
                if first:
                    await asyncio.sleep(0)
                self.bus.fan_out(*events[first : first + _FANNED_OUT_AT_ONCE])
        await self._publish_said()

    def _group_of(self, worker: WorkerHealth, finding: Finding) -> str:
        """Return what a worker's trouble shares with others', or the storm that it is part of."""
        now = self.clock()
        found = shared_cause(worker, finding, self.monitor.workers, self.monitor.settings, now)
        return found or self.acting.storm.storm_of(worker.key, now)

    def _note_shadow(self, worker: WorkerKey, finding: Finding) -> None:
        self.metrics.shadowed(finding)
        what = f"{finding.kind.value} of severity {finding.severity.value}"
        _log.info("in shadow, nothing follows: %s of worker %r, session %r", what, *worker)

    def _see(self, events: Sequence[AgentEvent]) -> None:
        """
        Let what goes over the bus move vital signs, before any subscriber acts on it.

        All of it comes by here once: what arrived by OTLP or was read in a step log, and what graphs on
        the runtime publish themselves.
        """
        self.metrics.count_events(events)
        self.feed.add_transient(events)
        if self.settings.step_logs and not self._reading_step_log:
            self._live.update(
                (event.agent_id, event.session_id) for event in events if event.type in WORKER_EVENTS
            )
        now = self.clock()
        self._arrivals.record_events(events, now)
        if not self.settings.health_monitoring.enabled:
            return
        for event in events:
            try:
                if event.type is EventType.HEALTH_STATE_CHANGED and not self.stopping.is_set():
                    self.acting.interventions.worse(event)
                self._said += self.monitor.apply(event, now)
                self.worker_series.count(event)
                if event.type in _SPENDING and not self.stopping.is_set():
                    self._brake.consider(event.agent_id, event.session_id)
                if (call := self.providers.note(event, now)) is not None:
                    self._provider_metrics.count(call)
            except Exception:
                _log.exception("an event of %r could not be looked at: %s", event.agent_id, event.type)
        if self._said:
            self._something_to_say.set()

    async def _publish_said(self) -> bool:
        """
        Publish what the monitor had to say: durable first, then to whoever acts on it. False if it failed.

        What cannot be made durable now is kept, and tried again: the monitor says nothing twice.
        """
        said, self._said = self._said, []
        try:
            if said:
                await self.bus.publish(*said)
        except StoreError as error:
            _log.error("%d findings and states cannot be stored, and are tried again: %s", len(said), error)
            self._said = said + self._said
            self._something_to_say.set()
            return False
        return True

    def ready(self) -> list[str]:
        """Return what is not ready, in words; empty when all is well."""
        missing = [f"{task.get_name()} has stopped" for task in self._tasks if task.done()]
        missing += self.faults
        if not self._tasks:
            missing.append("the service has not started")
        elif (failure := self.store.failure) is not None:
            missing.append(f"the store cannot write: {str(failure).removeprefix('cannot write to ')}")
        return missing

    @property
    def runtime(self) -> AgentRuntime:
        """Where judge and queen run, and other graphs may."""
        return self.judging.runtime

    # -- parts that run by themselves -----------------------------------------------------------

    async def _speak(self) -> None:
        """Publish what the monitor says of events that nobody waits for, as ``ingest`` waits for its own."""
        while True:
            await self._something_to_say.wait()
            self._something_to_say.clear()
            if not await self._publish_said():
                await asyncio.sleep(_RETRY_PAUSE)

    async def _write_again(self) -> None:
        """After a write that failed, see whether it can be done again: we are not ready until one is."""
        while True:
            await asyncio.sleep(_WRITE_AGAIN)
            if not self.store.writable:
                with contextlib.suppress(StoreError):
                    await self.store.try_writing()

    async def _watch(self) -> None:
        """Wake at the next deadline, a second at the latest, and see who has passed theirs."""
        ahead = self.clock() - time.monotonic()
        while True:
            lay_down = time.monotonic()
            await asyncio.sleep(self._pause())
            now, moment = self.clock(), time.monotonic()
            jumped, slept = now - moment - ahead, moment - lay_down
            ahead = now - moment
            if abs(jumped) > _JUMP or slept > _OVERSLEPT:
                # Only what was slept counts: a turn that takes long is a slow database, and no jump.
                self._clock_jumped(now, jumped if abs(jumped) > _JUMP else slept)
            try:
                self._arrivals.write_alive(now)
                self._said += self.monitor.advance(now, _DUE_AT_ONCE)
                await self._publish_said()
                await self.tickets.settle(now)
                await self.acting.advance(now)
            except Exception:
                _log.exception("a deadline could not be handled; the next tick tries again")

    def _clock_jumped(self, now: float, by: float) -> None:
        self.monitor.clock_jumped(now)
        self.acting.clock_jumped(now, by)
        self._arrivals.record_clock_jump(now - by, now)

    def _pause(self) -> float:
        known = (self.monitor.next_deadline(), self.tickets.next_deadline(), self.acting.next_deadline())
        deadlines = [deadline for deadline in known if deadline is not None]
        if not deadlines:
            return _LONGEST_SLEEP
        return min(max(min(deadlines) - self.clock(), 0.02), _LONGEST_SLEEP)

    async def _sweep(self) -> None:
        """Look at every worker, in case a deadline was missed; and say how many were looked at."""
        while True:
            began = time.perf_counter()
            try:
                evaluated = await self._sweep_everybody()
                self.metrics.swept(evaluated, time.perf_counter() - began)
                await self.acting.look_at_all()
                self._live &= set(self.monitor.keys())
            except Exception:
                _log.exception("a sweep failed")
                self.metrics.swept(0, time.perf_counter() - began, failed=True)
            await asyncio.sleep(self.settings.health_monitoring.health_check.interval_seconds)

    async def _sweep_everybody(self) -> int:
        looked, done = 0, False
        while not done:
            part = self.monitor.sweep_part(self.clock(), _SWEEP_PART)
            looked, done = looked + part.looked, part.done
            for fault in part.faults:
                _log.error("%s", fault)
            self._said += part.said
            await self._publish_said()
            await asyncio.sleep(0)
        return looked

    async def _from_step_log(self, events: Sequence[AgentEvent]) -> None:
        news = [event for event in events if self._is_news(event)]
        await self.store.append(news)
        self._reading_step_log = True
        try:
            self.bus.fan_out(*news)
        finally:
            self._reading_step_log = False
        await self._publish_said()

    def _is_news(self, event: AgentEvent) -> bool:
        """Not what the worker tells itself, nor what was read before a restart."""
        if (event.agent_id, event.session_id) in self._live:
            return False
        known = self.monitor.get(event.agent_id, event.session_id)
        return known is None or event.time > self._replayed.get(known.key, 0.0)

    # -- what events set off --------------------------------------------------------------------

    def _remember(self, event: AgentEvent) -> None:
        self.recent.append(event)

    async def _worker_changed(self, event: AgentEvent) -> None:
        key = (event.agent_id, event.session_id)
        if event.type is EventType.AGENT_RENAMED and (new := self.monitor.new_name(key)) is not None:
            await self.tickets.worker_renamed(key, new)
            return
        health = self.monitor.get(*key)
        if health is not None:
            await self.tickets.observe(health)
            await self.acting.changed(health)

    def _hand_to_outbox(self, connection: Connection, ticket: EscalationTicket) -> None:
        """Runs inside the ticket's transaction: the decision and its notification are one write."""
        settings = self.settings.health_monitoring.intervention
        requests = find_requests(connection, ticket, settings)
        earlier = self._earlier_lives(connection, ticket)
        hold = _HOLDS * self.settings.health_monitoring.tickets.hold_seconds if earlier.is_recurring else 0.0
        enqueue(
            connection,
            ticket,
            self.settings.alerting,
            self.clock(),
            requests=requests,
            follows=earlier.tickets,
            hold=hold,
        )
        self._loop.call_soon_threadsafe(self.outbox.wake)

    def _earlier_lives(self, connection: Connection, ticket: EscalationTicket) -> EarlierLives:
        """Return what the same happened to before."""
        agent, now = ticket.worker_agent_id, self.clock()
        if self.monitor.get(agent, ticket.worker_session_id) is None:
            return EarlierLives()
        others = recent_tickets(connection, agent, ticket.kind, now - RECENT_SECONDS)
        known = (
            (one, self.monitor.get(agent, one)) for one in {t.worker_session_id for t in (ticket, *others)}
        )
        sessions = {session: health.vitals for session, health in known if health is not None}
        return find_earlier_lives(ticket, others, sessions, now)

    def _find_joined(self, connection: Connection, ticket: EscalationTicket) -> EscalationTicket | None:
        """Return the earlier life's ticket whose incident a new one joins."""
        follows = self._earlier_lives(connection, ticket).tickets
        earlier = find_joined(connection, ticket, follows, self.clock())
        return None if earlier is None else find_ticket(connection, earlier)

    def _tell_of_approval(self, connection: Connection, approval: Approval) -> None:
        """Runs inside the transaction of the request, or its answer: its ticket's notification says so."""
        ticket = find_ticket(connection, approval.ticket_id)
        if ticket is not None and ticket.live and ticket.notified_severity is not None:
            self._hand_to_outbox(connection, ticket)

    async def _know_workers_again(self) -> None:
        """
        Replay the event log, silently: a restart must not forget a count (B33) nor repeat an alert.

        The time in which the service was away is taken out of every age: nobody could be heard then.
        """
        began = self.clock()
        since = began - REBUILD_SECONDS
        notes = self._arrivals.read(since)
        self.monitor.listening_since = began

        def replay(connection: Connection) -> Rebuilt:
            alive_until = self._arrivals.alive_until
            return rebuild(
                connection, self.monitor, since=since, now=began, notes=notes, alive_until=alive_until
            )

        found = await asyncio.to_thread(self.store.read_now, replay)
        for call in await self.store.read(lambda conn: model_calls(conn, began - WINDOW)):
            self.providers.note(call, began)
        self._replayed = {health.key: health.vitals.last_event for health in self.monitor.workers()}
        now = self.clock()
        if found.alive_until is not None:
            self.monitor.was_away(found.alive_until, now)
            self._away = max(0.0, now - found.alive_until)
            if found.last_id:
                notes.append(ArrivalMark(found.alive_until, found.last_id))
            notes.append(Gap("away", found.alive_until, now))
        self._arrivals.start(notes, now)
        self._told = found.logged_health
        if found.events:
            _log.info("read %d events of the last day again", found.events)

    async def _end_tickets_of_the_ended(self) -> None:
        """A worker says once that it ended: the service may have been killed before its ticket followed."""
        for ticket in self.tickets.open_tickets():
            key = (ticket.worker_agent_id, ticket.worker_session_id)
            health, new = self.monitor.get(*key), self.monitor.new_name(key)
            if health is not None and health.vitals.ended:
                await self.tickets.observe(health)
            elif health is None and new is not None:
                await self.tickets.worker_renamed(key, new)

    def _say_what_was_not_said(self) -> None:
        """Let the log say how workers are where it does not: the service may have been killed before that."""
        now = self.clock()
        for health in self.monitor.workers():
            self._said += missing_health_events(health, self._told.get(health.key) or LoggedHealth(), now)
        self._told = {}
        if self._said:
            self._something_to_say.set()

    # -- what others ask ------------------------------------------------------------------------

    def shown_tickets(self) -> list[EscalationTicket]:
        """Return the open tickets that the status page shows, newest first: the worst ``TICKETS_SHOWN``."""
        newest = sorted(self.tickets.open_tickets(), key=lambda ticket: ticket.first_seen, reverse=True)
        worst = sorted(newest, key=lambda ticket: -ticket.severity.rank)[:TICKETS_SHOWN]
        return sorted(worst, key=lambda ticket: ticket.first_seen, reverse=True)

    def workers(self) -> list[WorkerHealth]:
        """Return the workers that are known, by name."""
        return sorted(self.monitor.workers(), key=lambda h: (h.vitals.agent_id, h.vitals.started_at))
