"""
The service's object graph, built in dependency order.

Every part gets what it needs as constructor arguments. Three steps close the cycles:
``Remediation`` connects recovery and instructions to the interventions, ``EventPipeline.connect`` puts the
pipeline on the bus, and ``_subscribe`` subscribes the parts that follow events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
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
from queenright.health.detection.stall_clock import ladder_seconds
from queenright.health.interventions.spending_brake import SpendingBrake
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring_service import HealthMonitoringService
from queenright.health.store.retention import Retention
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.vitals.provider_traffic import ProviderTraffic
from queenright.instrumentation.errors import QueenrightError
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import ALERT_CLASS, RECOVERY_EVENTS, AgentEvent, Clock, EventType
from queenright.server.agents.companion_sessions import CompanionSessions
from queenright.server.agents.manager import AgentManager
from queenright.server.agents.node_guards import health_guard
from queenright.server.agents.worker_control import ServiceRuntimes
from queenright.server.agents.workspaces import LoadedWorkspaces
from queenright.server.latest import Latest
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.metrics.providers import ProviderMetrics
from queenright.server.metrics.tracing import TRACED, EventTracer
from queenright.server.metrics.worker_series import WorkerSeries
from queenright.server.monitoring.pipeline import WORKER_CHANGES, EventPipeline
from queenright.server.monitoring.remediation import TICKET_DECISIONS, Remediation
from queenright.server.monitoring.scheduler import Scheduler
from queenright.server.monitoring.snapshots import Snapshots
from queenright.server.notifications.operator_requests import REQUESTING, OperatorRequests
from queenright.server.notifications.ticket_notifications import TicketNotifications
from queenright.server.ops.arrivals import ArrivalLog
from queenright.server.ops.folders import folder_error
from queenright.server.ops.secret_files import callback_secrets
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
"""Events that may have changed the outbox."""
_RECOVERIES_SHOWN = 20


class UnusableStorageError(QueenrightError):
    """Raised when the storage folder cannot be written to."""


def require_usable_storage(storage: Path) -> None:
    """
    Create the storage folder if it does not exist.

    Raises:
        UnusableStorageError: The folder cannot be created or written to.
    """
    if why := folder_error(storage):
        raise UnusableStorageError(
            f"The storage folder {storage} cannot be used ({why}); name another with --storage."
        )


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
        registry: Where the metrics are registered.
        tracer: Makes the service's own spans.
        may_deliver: Whether this process may deliver notifications; see ``Outbox``.
        can_receive: Whether agents can send telemetry; see ``EventPipeline.check_listening``.
        open_store: Opens the store at a URL, in a thread.
        folder: Where it keeps its files, except the audit key; by default the storage folder.
        fleet: The services that watch other parts of the fleet; by default there are none.

    Raises:
        InvalidSecretError, ModelUnavailableError, InvalidPromptError: A file or model that a setting names
            cannot be used; there is no database yet.
        StoreError: The database cannot be used.
    """
    check_files(settings)
    folder = folder or settings.storage
    require_usable_storage(folder)
    store = await asyncio.to_thread(open_store, settings.database_url)
    try:
        return _build(
            settings,
            store,
            clock=clock,
            registry=registry or CollectorRegistry(),
            tracer=tracer or trace.get_tracer("queenright"),
            may_deliver=may_deliver,
            can_receive=can_receive,
            folder=folder,
            fleet=fleet or FleetState(),
        )
    except BaseException:
        await store.close()
        raise


def _build(
    settings: Settings,
    store: Store,
    *,
    clock: Clock,
    registry: CollectorRegistry,
    tracer: Tracer,
    may_deliver: Callable[[], bool],
    can_receive: Callable[[], bool],
    folder: Path,
    fleet: FleetState,
) -> Service:
    health_settings = settings.health_monitoring
    stopping = asyncio.Event()
    bus = EventBus(log=store)
    monitor = HealthMonitor(health_settings)
    if fleet.is_shared and health_settings.spending.is_of_fleet:
        monitor.today.elsewhere = fleet.spent_elsewhere

    # Runtimes of graphs: judge, queen and loaded agents.
    breakers = BreakerStore(store, settings=health_settings.circuit_breaker, clock=clock, publish=bus.fan_out)
    guards = health_guard(health_settings, hold_seconds=ladder_seconds(health_settings))
    runtime = AgentRuntime(bus=bus, storage=folder, clock=clock, guards=guards, breakers=breakers.registry)
    companions = CompanionSessions()
    agents = AgentManager(
        settings.agents.roots,
        bus=partial(_open_agent_bus, store=store, bus=bus, companions=companions),
        companions=companions,
        storage=settings.agents.storage,
        clock=clock,
        guards=guards,
        breakers=breakers.registry,
    )

    # Notifications and remediation.
    outbox = Outbox(
        store,
        settings.alerting,
        AlertmanagerClient(),
        clock=clock,
        publish=bus.publish,
        registry=registry,
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
        settings,
        monitor=monitor,
        runtime=runtime,
        runtimes=ServiceRuntimes(runtime, agents),
        breakers=breakers,
        on_approval=ticket_notifications.write_approval,
        publish=bus.fan_out,
        clock=clock,
        fleet=fleet,
    )

    tickets = TicketService(
        store,
        settings=health_settings,
        clock=clock,
        publish=bus.fan_out,
        on_change=ticket_notifications.write,
        silenced_until=silences.silenced_until,
        group=remediation.find_group,
        find_worker=monitor.get,
        dead_from=monitor.dead_from,
        find_joined=ticket_notifications.find_joined,
    )

    # Requests of operators and models.
    interventions = remediation.interventions
    operator_requests = OperatorRequests(
        store=store,
        tickets=tickets,
        monitor=monitor,
        ledger=interventions.ledger,
        settings=health_settings.intervention,
    )
    slack, pagerduty = callback_secrets(settings.alerting)
    callbacks = Callbacks(store, tickets, slack=slack, pagerduty=pagerduty, clock=clock, publish=bus.publish)
    user_stack = UserStack(settings.judging, store, clock)

    # Metrics and streams.
    metrics = ServiceMetrics(
        registry,
        monitor.workers,
        paged=tickets.paged_agents,
        breakers=breakers.registry.all,
        recovering=remediation.recovery.active,
    )
    providers = ProviderTraffic()
    worker_series = WorkerSeries(registry, monitor.workers, monitor.get, clock)
    feed = Feed(store, on_drop=metrics.count_dropped)

    # The event pipeline.
    pipeline = EventPipeline(
        store=store,
        bus=bus,
        monitor=monitor,
        tickets=tickets,
        remediation=remediation,
        brake=SpendingBrake(
            health_settings,
            monitor=monitor,
            interventions=interventions,
            approvals=remediation.approvals,
            find_open_ticket=tickets.open_for,
            clock=clock,
        ),
        providers=providers,
        metrics=metrics,
        provider_metrics=ProviderMetrics(registry, providers, clock),
        worker_series=worker_series,
        feed=feed,
        arrivals=ArrivalLog(folder / "arrivals"),
        can_receive=can_receive,
        reads_step_logs=bool(settings.step_logs),
        stopping=stopping,
        clock=clock,
    )
    snapshots = Snapshots(store=store, monitor=monitor, pipeline=pipeline, feed=feed)
    health = HealthMonitoringService(
        store,
        monitor=monitor,
        interventions=interventions,
        recovery=remediation.recovery,
        breakers=breakers,
        stop=remediation.stop_switch,
        ingest=pipeline.ingest,
        clock=clock,
    )
    judging = JudgeAndQueen(
        bus=bus,
        monitor=monitor,
        tickets=tickets,
        settings=health_settings,
        judge=settings.judging,
        clock=clock,
        storage=folder,
        registry=registry,
        tracer=tracer,
        runtime=runtime,
        decide=interventions.decide,
        actions=remediation.queen_actions,
        read_tools=user_stack.tools,
        list_interventions=health.interventions,
        workspaces=LoadedWorkspaces(
            agents,
            bus=bus,
            stop=remediation.stop_switch,
            settings=health_settings.intervention,
            clock=clock,
        ),
        fleet=fleet,
    )
    service = Service(
        settings=settings,
        settings_read=settings.as_read,
        clock=clock,
        registry=registry,
        store=store,
        bus=bus,
        monitor=monitor,
        runtime=runtime,
        breakers=breakers.registry,
        agents=agents,
        outbox=outbox,
        silences=silences,
        ticket_notifications=ticket_notifications,
        remediation=remediation,
        tickets=tickets,
        operator_requests=operator_requests,
        callbacks=callbacks,
        user_stack=user_stack,
        metrics=metrics,
        intake=Intake(registry),
        providers=providers,
        worker_series=worker_series,
        feed=feed,
        pipeline=pipeline,
        scheduler=Scheduler(
            pipeline=pipeline,
            monitor=monitor,
            tickets=tickets,
            remediation=remediation,
            metrics=metrics,
            clock=clock,
        ),
        health=health,
        judging=judging,
        retention=Retention(store, health_settings.retention, clock=clock),
        snapshots=snapshots,
        recoveries=Latest(partial(health.recoveries, _RECOVERIES_SHOWN), what="recoveries"),
        stopping=stopping,
    )
    pipeline.connect()
    _subscribe(service, EventTracer(tracer, tickets))
    return service


def _subscribe(service: Service, tracer: EventTracer) -> None:
    """Subscribe the parts that follow events, in the order in which they see one."""
    bus, remediation = service.bus, service.remediation
    bus.subscribe(service.recent.append, name="status", types=ALERT_CLASS)
    bus.subscribe(service.silences.note_change, name="silences", types=_NOTIFICATION_CHANGES)
    bus.subscribe(tracer.trace, name="traces", types=TRACED)
    bus.subscribe(service.pipeline.update_tickets, name="tickets", types=WORKER_CHANGES)
    bus.subscribe(remediation.close_approvals, name="approvals", types=TICKET_DECISIONS)
    bus.subscribe(service.recoveries.note_change, name="recoveries", types=RECOVERY_EVENTS)
    bus.subscribe(service.operator_requests.note_change, name="operator-requests", types=REQUESTING)
    service.metrics.add_subscribers([*(subscription.name for subscription in bus.subscriptions), SUBSCRIBER])


def _open_agent_bus(
    agent_id: Callable[[], str], *, store: Store, bus: EventBus, companions: CompanionSessions
) -> EventBus:
    """Return the bus of a loaded agent: its events are durable, and observed by the service as well."""
    return EventBus(
        log=companions.recording_log(store, agent_id),
        on_drop=bus.report_drop,
        on_publish=partial(_forward, bus),
    )


def _forward(bus: EventBus, events: Sequence[AgentEvent]) -> None:
    bus.fan_out(*events)
