"""
Build the parts of the service, in the order of their dependencies.

Each ``_make_`` function builds a group of parts from the groups before it. Then ``_subscribe`` subscribes the
parts that follow events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opentelemetry import trace
from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from queenright.alerting.alertmanager import AlertmanagerClient
from queenright.alerting.outbox import Outbox
from queenright.alerting.silencing import SilenceWatch
from queenright.health.breakers.store import BreakerStore
from queenright.health.cluster.fleet import FleetState
from queenright.health.detection.stall_clock import compute_ladder_seconds
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.spending_brake import SpendingBrake
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring_service import HealthMonitoringService
from queenright.health.settings import HealthSettings
from queenright.health.store.retention import Retention
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.vitals.provider_traffic import ProviderTraffic
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import ALERT_CLASS, RECOVERY_EVENTS, AgentEvent, Clock, EventType
from queenright.server.agents.companion_sessions import CompanionSessions
from queenright.server.agents.manager import AgentManager
from queenright.server.agents.node_guards import make_health_guard
from queenright.server.agents.worker_control import ServiceRuntimes
from queenright.server.agents.workspaces import LoadedWorkspaces
from queenright.server.latest import LatestRows
from queenright.server.metrics.event_metrics import EventMetrics
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.metrics.providers import ProviderMetrics
from queenright.server.metrics.tracing import TRACED_EVENTS, EventTracer
from queenright.server.metrics.worker_series import WorkerSeries
from queenright.server.monitoring.pipeline import WORKER_CHANGES, EventPipeline
from queenright.server.monitoring.remediation import TICKET_DECISIONS, Remediation
from queenright.server.monitoring.scheduler import Scheduler
from queenright.server.monitoring.snapshots import Snapshots
from queenright.server.notifications.operator_requests import REQUEST_EVENTS, OperatorRequests
from queenright.server.notifications.ticket_notifications import TicketNotifications
from queenright.server.ops.arrivals import ArrivalLog
from queenright.server.ops.folders import require_usable_storage
from queenright.server.ops.secret_files import read_callback_secrets
from queenright.server.ops.settings_files import check_files
from queenright.server.ops.user_stack import UserStack
from queenright.server.service import Service
from queenright.server.settings import Settings
from queenright.server.stream.feed import SUBSCRIBER, Feed
from queenright.server.telemetry.intake import Intake
from queenright.server.webhooks.callbacks import Callbacks

_NOTIFICATION_CHANGES = frozenset(
    {
        EventType.WORKER_ESCALATION_TICKET,
        EventType.QUEEN_INTERVENTION_REQUESTED,
        EventType.TICKET_REESCALATED,
        EventType.TICKET_UNACKNOWLEDGED,
        EventType.TICKET_RESOLVED,
        EventType.NOTIFICATION_DELIVERED,
        EventType.NOTIFICATION_FAILED,
    }
)
"""Events that may change the outbox."""
_MAX_RECENT_RECOVERIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _CoreParts:
    """The parts that every other part depends on."""

    settings: Settings
    store: Store
    clock: Clock
    registry: CollectorRegistry
    tracer: Tracer
    folder: Path
    fleet: FleetState
    event_metrics: EventMetrics
    bus: EventBus
    ledger: InterventionLedger
    monitor: HealthMonitor
    stopping: asyncio.Event

    @property
    def health_settings(self) -> HealthSettings:
        return self.settings.health_monitoring


@dataclass(frozen=True, slots=True, kw_only=True)
class _RuntimeParts:
    """The runtimes of graphs: judge, queen and loaded agents."""

    breakers: BreakerStore
    runtime: AgentRuntime
    agents: AgentManager


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResponseParts:
    """The parts that respond to findings: tickets, notifications and actions."""

    outbox: Outbox
    silences: SilenceWatch
    ticket_notifications: TicketNotifications
    remediation: Remediation
    tickets: TicketService


@dataclass(frozen=True, slots=True, kw_only=True)
class _EventParts:
    """The event pipeline, with the metrics and streams that it updates."""

    metrics: ServiceMetrics
    providers: ProviderTraffic
    worker_series: WorkerSeries
    feed: Feed
    pipeline: EventPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgingParts:
    """The judge and the queen, and the data that they and the API read."""

    user_stack: UserStack
    health: HealthMonitoringService
    judging: JudgeAndQueen


async def build(
    settings: Settings,
    *,
    clock: Clock = time.time,
    registry: CollectorRegistry | None = None,
    tracer: Tracer | None = None,
    may_deliver: Callable[[], bool] = lambda: True,
    can_receive: Callable[[], bool] = lambda: True,
    open_store: Callable[[str], Store] = Store.open,
    folder: Path | None = None,
    fleet: FleetState | None = None,
) -> Service:
    """
    Open the store and build the service. Nothing runs before ``Service.start``.

    Args:
        settings: All settings.
        clock: Seconds since the epoch, UTC.
        registry: The registry of the metrics.
        tracer: Makes the service's own spans.
        may_deliver: Whether this process may deliver notifications; see ``Outbox``.
        can_receive: Whether agents can send telemetry; see ``EventPipeline.check_listening``.
        open_store: Opens the store at a URL, in a thread.
        folder: The folder for the service's files, except the audit key; by default the storage folder.
        fleet: State shared with the services of other partitions; by default there are none.

    Raises:
        InvalidSecretError, ModelUnavailableError, InvalidPromptError: A file or model that a setting names
            cannot be used. In this case, the database is not opened.
        StoreError: The database cannot be used.
    """
    check_files(settings)
    folder = folder or settings.storage
    require_usable_storage(folder)
    store = await asyncio.to_thread(open_store, settings.database_url)
    try:
        base = _make_core_parts(
            settings,
            store,
            clock=clock,
            registry=registry or CollectorRegistry(),
            tracer=tracer or trace.get_tracer("queenright"),
            folder=folder,
            fleet=fleet or FleetState(),
        )
        runtimes = _make_runtime_parts(base)
        response = _make_response_parts(base, runtimes, may_deliver)
        event_path = _make_event_parts(base, runtimes, response, can_receive)
        judging = _make_judging_parts(base, runtimes, response, event_path.pipeline)
        service = _make_service(base, runtimes, response, event_path, judging)
        _subscribe(service, EventTracer(base.tracer, response.tickets), base.event_metrics)
    except BaseException:
        await store.close()
        raise
    return service


def _make_core_parts(
    settings: Settings,
    store: Store,
    *,
    clock: Clock,
    registry: CollectorRegistry,
    tracer: Tracer,
    folder: Path,
    fleet: FleetState,
) -> _CoreParts:
    health_settings = settings.health_monitoring
    event_metrics = EventMetrics(registry)
    bus = EventBus(log=store, on_drop=event_metrics.count_dropped)
    ledger = InterventionLedger(store, publish=bus.fan_out)
    shares_spending = fleet.is_shared and health_settings.spending.is_of_fleet
    monitor = HealthMonitor(
        health_settings,
        on_delay=event_metrics.observe_detection,
        on_shadow=event_metrics.record_shadow_finding,
        spent_elsewhere=fleet.spent_elsewhere if shares_spending else None,
        is_stopping=ledger.is_stopping,
    )
    return _CoreParts(
        settings=settings,
        store=store,
        clock=clock,
        registry=registry,
        tracer=tracer,
        folder=folder,
        fleet=fleet,
        event_metrics=event_metrics,
        bus=bus,
        ledger=ledger,
        monitor=monitor,
        stopping=asyncio.Event(),
    )


def _make_runtime_parts(base: _CoreParts) -> _RuntimeParts:
    store, bus, clock, health_settings = base.store, base.bus, base.clock, base.health_settings
    breakers = BreakerStore(store, settings=health_settings.circuit_breaker, clock=clock, publish=bus.fan_out)
    guards = make_health_guard(health_settings, hold_seconds=compute_ladder_seconds(health_settings))
    runtime = AgentRuntime(
        bus=bus, storage=base.folder, clock=clock, guards=guards, breakers=breakers.registry
    )
    companions = CompanionSessions()
    agents = AgentManager(
        base.settings.agents.roots,
        bus=partial(_open_agent_bus, store=store, bus=bus, companions=companions),
        companions=companions,
        storage=base.settings.agents.storage,
        clock=clock,
        guards=guards,
        breakers=breakers.registry,
    )
    return _RuntimeParts(breakers=breakers, runtime=runtime, agents=agents)


def _make_response_parts(
    base: _CoreParts, runtimes: _RuntimeParts, may_deliver: Callable[[], bool]
) -> _ResponseParts:
    settings, store, clock, bus, monitor = base.settings, base.store, base.clock, base.bus, base.monitor
    outbox = Outbox(
        store,
        settings.alerting,
        AlertmanagerClient(),
        clock=clock,
        publish=bus.publish,
        registry=base.registry,
        may_deliver=may_deliver,
    )
    silences = SilenceWatch(store, settings.alerting, AlertmanagerClient(), clock=clock)
    ticket_notifications = TicketNotifications(
        settings=settings,
        monitor=monitor,
        outbox=outbox,
        clock=clock,
        loop=asyncio.get_running_loop(),
    )
    remediation = Remediation(
        store,
        base.ledger,
        settings,
        monitor=monitor,
        runtime=runtimes.runtime,
        runtimes=ServiceRuntimes(runtimes.runtime, runtimes.agents),
        breakers=runtimes.breakers,
        on_approval=ticket_notifications.write_approval,
        publish=bus.fan_out,
        clock=clock,
        fleet=base.fleet,
    )
    tickets = TicketService(
        store,
        settings=base.health_settings,
        clock=clock,
        publish=bus.fan_out,
        on_change=ticket_notifications.write,
        silenced_until=silences.silenced_until,
        group=remediation.find_group,
        find_worker=monitor.get,
        dead_from=monitor.dead_from,
        find_joined=ticket_notifications.find_joined,
    )
    return _ResponseParts(
        outbox=outbox,
        silences=silences,
        ticket_notifications=ticket_notifications,
        remediation=remediation,
        tickets=tickets,
    )


def _make_event_parts(
    base: _CoreParts, runtimes: _RuntimeParts, response: _ResponseParts, can_receive: Callable[[], bool]
) -> _EventParts:
    registry, monitor, clock = base.registry, base.monitor, base.clock
    remediation, tickets = response.remediation, response.tickets
    metrics = ServiceMetrics(
        registry,
        monitor.workers,
        list_paged=tickets.paged_agents,
        breakers=runtimes.breakers.registry.all,
        list_recoveries=remediation.recovery.active,
    )
    providers = ProviderTraffic()
    worker_series = WorkerSeries(registry, monitor.workers, monitor.get, clock)
    feed = Feed(base.store, on_drop=base.event_metrics.count_dropped)
    pipeline = EventPipeline(
        store=base.store,
        bus=base.bus,
        monitor=monitor,
        tickets=tickets,
        remediation=remediation,
        brake=SpendingBrake(
            base.health_settings,
            monitor=monitor,
            interventions=remediation.interventions,
            approvals=remediation.approvals,
            find_open_ticket=tickets.open_for,
            clock=clock,
        ),
        providers=providers,
        event_metrics=base.event_metrics,
        metrics=metrics,
        provider_metrics=ProviderMetrics(registry, providers, clock),
        worker_series=worker_series,
        feed=feed,
        arrivals=ArrivalLog(base.folder / "arrivals"),
        can_receive=can_receive,
        reads_step_logs=bool(base.settings.step_logs),
        stopping=base.stopping,
        clock=clock,
    )
    return _EventParts(
        metrics=metrics, providers=providers, worker_series=worker_series, feed=feed, pipeline=pipeline
    )


def _make_judging_parts(
    base: _CoreParts, runtimes: _RuntimeParts, response: _ResponseParts, pipeline: EventPipeline
) -> _JudgingParts:
    settings, monitor, clock, remediation = base.settings, base.monitor, base.clock, response.remediation
    user_stack = UserStack(settings.judging, base.store, clock)
    health = HealthMonitoringService(
        base.store,
        monitor=monitor,
        interventions=remediation.interventions,
        recovery=remediation.recovery,
        breakers=runtimes.breakers,
        stop=remediation.stop_switch,
        ingest=pipeline.ingest,
        clock=clock,
    )
    workspaces = LoadedWorkspaces(
        runtimes.agents,
        bus=base.bus,
        stop=remediation.stop_switch,
        settings=base.health_settings.intervention,
        clock=clock,
    )
    judging = JudgeAndQueen(
        bus=base.bus,
        monitor=monitor,
        tickets=response.tickets,
        settings=base.health_settings,
        judge=settings.judging,
        clock=clock,
        storage=base.folder,
        registry=base.registry,
        tracer=base.tracer,
        runtime=runtimes.runtime,
        decide=remediation.interventions.decide,
        actions=remediation.queen_actions,
        read_tools=user_stack.tools,
        list_interventions=health.interventions,
        workspaces=workspaces,
        fleet=base.fleet,
    )
    return _JudgingParts(user_stack=user_stack, health=health, judging=judging)


def _make_service(
    base: _CoreParts,
    runtimes: _RuntimeParts,
    response: _ResponseParts,
    event_path: _EventParts,
    judging: _JudgingParts,
) -> Service:
    settings, store, clock = base.settings, base.store, base.clock
    remediation, tickets, pipeline = response.remediation, response.tickets, event_path.pipeline
    slack, pagerduty = read_callback_secrets(settings.alerting)
    return Service(
        settings=settings,
        settings_read=settings.as_read,
        clock=clock,
        registry=base.registry,
        store=store,
        bus=base.bus,
        monitor=base.monitor,
        runtime=runtimes.runtime,
        breakers=runtimes.breakers.registry,
        agents=runtimes.agents,
        outbox=response.outbox,
        silences=response.silences,
        ticket_notifications=response.ticket_notifications,
        remediation=remediation,
        tickets=tickets,
        operator_requests=OperatorRequests(
            store=store,
            tickets=tickets,
            monitor=base.monitor,
            ledger=base.ledger,
            settings=base.health_settings.intervention,
        ),
        callbacks=Callbacks(
            store, tickets, slack=slack, pagerduty=pagerduty, clock=clock, publish=base.bus.publish
        ),
        user_stack=judging.user_stack,
        metrics=event_path.metrics,
        intake=Intake(base.registry),
        providers=event_path.providers,
        worker_series=event_path.worker_series,
        feed=event_path.feed,
        pipeline=pipeline,
        scheduler=Scheduler(
            pipeline=pipeline,
            monitor=base.monitor,
            tickets=tickets,
            remediation=remediation,
            metrics=event_path.metrics,
            clock=clock,
        ),
        health=judging.health,
        judging=judging.judging,
        retention=Retention(store, base.health_settings.retention, clock=clock),
        snapshots=Snapshots(store=store, monitor=base.monitor, pipeline=pipeline, feed=event_path.feed),
        recoveries=LatestRows(
            partial(judging.health.recoveries, _MAX_RECENT_RECOVERIES), row_name="recoveries"
        ),
        stopping=base.stopping,
    )


def _subscribe(service: Service, tracer: EventTracer, event_metrics: EventMetrics) -> None:
    """Subscribe the parts that follow events. They receive each event in this order."""
    bus, pipeline, remediation = service.bus, service.pipeline, service.remediation
    bus.on_publish(pipeline.observe)
    service.store.on_commit(pipeline.record_stored)
    bus.subscribe(service.recent.append, name="status", types=ALERT_CLASS)
    bus.subscribe(service.silences.note_change, name="silences", types=_NOTIFICATION_CHANGES)
    bus.subscribe(tracer.trace, name="traces", types=TRACED_EVENTS)
    bus.subscribe(pipeline.update_tickets, name="tickets", types=WORKER_CHANGES)
    bus.subscribe(remediation.close_approvals, name="approvals", types=TICKET_DECISIONS)
    bus.subscribe(service.recoveries.note_change, name="recoveries", types=RECOVERY_EVENTS)
    bus.subscribe(service.operator_requests.note_change, name="operator-requests", types=REQUEST_EVENTS)
    event_metrics.add_subscribers([*(subscription.name for subscription in bus.subscriptions), SUBSCRIBER])


def _open_agent_bus(
    agent_id: Callable[[], str], *, store: Store, bus: EventBus, companions: CompanionSessions
) -> EventBus:
    """Return the bus of a loaded agent. It stores events durably, and forwards them to the service's bus."""
    agent_bus = EventBus(log=companions.wrap_log(store, agent_id), on_drop=bus.report_drop)
    agent_bus.on_publish(partial(_forward_events, bus))
    return agent_bus


def _forward_events(bus: EventBus, events: Sequence[AgentEvent]) -> None:
    bus.fan_out(*events)
