"""
The service without its sockets: its parts, their start and their stop.

``build.build`` makes the parts; ``pipeline`` shows the path of an event through them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry

from queenright.alerting.outbox import Outbox
from queenright.alerting.recorder import Recorder
from queenright.alerting.silencing import SilenceWatch
from queenright.health.breakers.registry import BreakerRegistry
from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.instructions import InstructionMailbox
from queenright.health.interventions.intervention_service import InterventionService
from queenright.health.interventions.permissions import Permissions
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.monitoring_service import HealthMonitoringService
from queenright.health.recovery.recovery import Recovery
from queenright.health.store.retention import Retention
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.vitals.provider_traffic import ProviderTraffic
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, Clock
from queenright.server.agents.manager import AgentManager
from queenright.server.latest import LatestRows
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.metrics.worker_series import WorkerSeries
from queenright.server.monitoring.log_replay import replay_log
from queenright.server.monitoring.pipeline import EventPipeline
from queenright.server.monitoring.remediation import Remediation
from queenright.server.monitoring.scheduler import Scheduler
from queenright.server.monitoring.snapshots import Snapshots
from queenright.server.notifications.operator_requests import OperatorRequests
from queenright.server.notifications.ticket_notifications import TicketNotifications
from queenright.server.ops.background_tasks import BackgroundTasks, Work
from queenright.server.ops.step_logs import StepLogs
from queenright.server.ops.user_stack import UserStack
from queenright.server.settings import Settings
from queenright.server.stream.feed import Feed
from queenright.server.telemetry.intake import Intake
from queenright.server.webhooks.callbacks import Callbacks

_log = logging.getLogger(__name__)

_RECENT_EVENTS: Final = 200


@dataclass(kw_only=True, eq=False)
class Service:
    """The service: its parts, how they start, and how they stop. ``build`` creates it."""

    settings: Settings
    settings_read: Settings | None
    """The settings as last read from file and environment; None unless ``load_settings`` read them."""
    clock: Clock
    registry: CollectorRegistry
    store: Store
    bus: EventBus
    monitor: HealthMonitor
    runtime: AgentRuntime
    """Runs judge and queen, and other graphs."""
    breakers: BreakerRegistry
    agents: AgentManager
    outbox: Outbox
    silences: SilenceWatch
    ticket_notifications: TicketNotifications
    remediation: Remediation
    tickets: TicketService
    operator_requests: OperatorRequests
    callbacks: Callbacks
    user_stack: UserStack
    metrics: ServiceMetrics
    intake: Intake
    providers: ProviderTraffic
    worker_series: WorkerSeries
    feed: Feed
    pipeline: EventPipeline
    scheduler: Scheduler
    health: HealthMonitoringService
    judging: JudgeAndQueen
    retention: Retention
    snapshots: Snapshots
    recoveries: LatestRows[Recovery]
    stopping: asyncio.Event
    """Set when open event streams should end."""
    tasks: BackgroundTasks = field(default_factory=BackgroundTasks)
    started_at: float = field(init=False)
    recent: deque[AgentEvent] = field(default_factory=lambda: deque(maxlen=_RECENT_EVENTS))
    """The latest alert-class events, for the console."""
    recorder: Recorder | None = None
    """The stand-in for Slack and PagerDuty, if notifications are sent to it."""
    faults: list[str] = field(default_factory=list)
    """Faults outside the service, as sentences. The code that runs the service adds them."""

    def __post_init__(self) -> None:
        self.started_at = self.clock()

    # -- lifecycle ------------------------------------------------------------------------------

    async def start(self) -> None:
        """
        Restore the state from the log and the store, then start judging, delivery and the background tasks.

        Raises:
            StoreError: The database cannot be used.
        """
        await self.feed.start()
        replay = await replay_log(
            self.store,
            monitor=self.monitor,
            providers=self.providers,
            arrivals=self.pipeline.arrivals,
            clock=self.clock,
        )
        await self.silences.read_notifications()
        await self.recoveries.load()
        await self.remediation.load(replay.seconds_away)
        await self.judging.start()
        self.judging.resume_escalations(self.interventions.ledger.pending.values())
        await self.remediation.resume_storm(self.tickets.recent_tickets())
        self.pipeline.resume(replay)
        await self.pipeline.close_ended_tickets()
        await self.operator_requests.load()
        await self.tasks.start(self._list_background_work())
        await self._load_agents()

    def _list_background_work(self) -> dict[str, Work]:
        work: dict[str, Work] = {
            "deadlines": self.scheduler.run_deadlines,
            "vital-signs": self.pipeline.run_publishing,
            "sweep": self.scheduler.run_sweeps,
            "write-again": self.pipeline.run_write_checks,
            "outbox": self.outbox.run,
            "recoveries": self.recoveries.run,
            "silences": self.silences.run,
            "event-streams": partial(self.feed.run, self.stopping),
            "retention": self.retention.run,
            "snapshots": self.snapshots.run,
            "breakers": self.remediation.run_breakers,
            "instructions": self.remediation.run_expiry,
        }
        if self.settings.step_logs:
            skipped_counter = self.metrics.telemetry_dropped.labels("step_log")
            logs = StepLogs(
                self.settings.step_logs, ingest=self.pipeline.ingest_step_log, on_skipped=skipped_counter.inc
            )
            work["step-logs"] = logs.run
        return work

    async def _load_agents(self) -> None:
        """Load the agents in the settings. An agent that cannot be loaded becomes a fault in `readyz`."""
        for path in self.settings.agents.load:
            try:
                await self.agents.load(path)
            except (QueenrightError, OSError) as error:
                self.faults.append(f"the agent {path} is not loaded: {redact(str(error), 1000)}")
                _log.error("%s", self.faults[-1])

    async def stop(self) -> None:
        """Stop all parts. Decisions made so far are durable."""
        await self.tasks.stop()
        await self.pipeline.settle()
        await self.remediation.close()
        await self.judging.stop()
        await self.agents.shutdown_all()
        await self.user_stack.aclose()
        await self.pipeline.publish_pending()
        await self.bus.close()
        if self.tasks.is_started:  # otherwise the workers may not have been restored
            await self.snapshots.take()
        self.pipeline.close()
        await self.store.close()

    async def replace_settings(self, settings: Settings) -> None:
        """
        Replace the settings; only ``reload.RELOADABLE`` may differ.

        Every worker is evaluated immediately with the new settings.
        """
        self.settings = settings
        health = settings.health_monitoring
        self.monitor.replace_settings(health)
        self.tickets.replace_settings(health)
        self.ticket_notifications.settings = settings
        self.retention.replace_settings(health.retention)
        await self.scheduler.sweep()

    def ready(self) -> list[str]:
        """Return the reasons why the service is not ready, as sentences; empty if it is ready."""
        reasons = [f"{name} has stopped" for name in self.tasks.list_stopped()] + self.faults
        if not self.tasks.is_started:
            reasons.append("the service has not started")
        elif (failure := self.store.failure) is not None:
            reasons.append(f"the store cannot write: {str(failure).removeprefix('cannot write to ')}")
        return reasons

    # -- shortcuts for the API ------------------------------------------------------------------

    async def ingest(self, events: Sequence[AgentEvent]) -> None:
        """Record events from workers; see ``EventPipeline.ingest``."""
        await self.pipeline.ingest(events)

    def record_process_alive(self, heartbeat_intervals: Mapping[str, float | None]) -> None:
        """Record that processes are alive; see ``HealthMonitor.record_process_alive``."""
        self.pipeline.record_process_alive(heartbeat_intervals)

    @property
    def interventions(self) -> InterventionService:
        """Nudges, escalates, terminates and recovers workers."""
        return self.remediation.interventions

    @property
    def instructions(self) -> InstructionMailbox:
        """Queues of instructions for workers in other processes."""
        return self.interventions.instructions

    @property
    def approvals(self) -> Approvals:
        """The queen's requests to terminate a worker, which an operator approves or denies."""
        return self.remediation.approvals

    @property
    def permissions(self) -> Permissions:
        """Permission requests of coding agents."""
        return self.remediation.permissions

    def workers(self) -> list[WorkerHealth]:
        """Return the known workers, by name."""
        return sorted(self.monitor.workers(), key=lambda h: (h.vitals.agent_id, h.vitals.started_at))
