"""Remediation: the parts that act on workers, from circuit breakers to recovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from queenright.health.audit.audit_key import AuditKey
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.breakers.store import BreakerStore
from queenright.health.cluster.fleet import FleetState
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding
from queenright.health.interventions.approvals import ApprovalChange, Approvals
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.interventions.intervention_service import InterventionService
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.permissions import Permissions
from queenright.health.interventions.runtime_control import RuntimeControl
from queenright.health.interventions.storm import QUIET_SECONDS, StormWatch
from queenright.health.interventions.worker_control import WorkerControl
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.recovery.recovery_service import RecoveryService
from queenright.health.recovery.respawner import Respawner
from queenright.health.recovery.runtime_respawner import RuntimeRespawner
from queenright.health.store.store import Store, StoreError
from queenright.health.tickets.shared_cause import shared_cause
from queenright.health.tickets.ticket import EscalationTicket
from queenright.judge.queen_actions import QueenActions
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.server.agents.worker_control import EachRuntime
from queenright.server.ops.secret_files import read_orchestrator_secret, read_respawner_secret
from queenright.server.settings import Settings
from queenright.server.webhooks.orchestrator import OrchestratorWebhook
from queenright.server.webhooks.respawn import RespawnWebhook

_log = logging.getLogger(__name__)

TICKET_DECISIONS: Final = frozenset({EventType.TICKET_TRIAGED, EventType.TICKET_RESOLVED})
"""Events after which ``Remediation.close_approvals`` must run."""

_EXPIRY_CHECK_SECONDS: Final = 30.0
_MAX_STATE_CHANGES: Final = 1_000
"""Maximum state changes that are read after a restart. Far more than any storm threshold."""

_BATCH_SIZE: Final = 200
"""Workers checked between two iterations of the event loop: about 5 ms."""


class Remediation:
    """
    Acts on workers. An instance belongs to one event loop.

    Args:
        store: Stores instructions, approvals and recoveries.
        ledger: The interventions.
        settings: All settings.
        monitor: The workers' health.
        runtime: Runs judge and queen, and other graphs.
        runtimes: The current runtimes of the service, at each iteration.
        breakers: The circuit breakers.
        on_approval: Called in the transaction of every change of an approval request.
        publish: Receives events once they are durable (``EventBus.fan_out``).
        clock: Seconds since the epoch.
        fleet: State shared with the services of other partitions.

    Raises:
        AuditKeyError, InvalidSecretError: A file with a key or a secret cannot be used.
    """

    def __init__(
        self,
        store: Store,
        ledger: InterventionLedger,
        settings: Settings,
        *,
        monitor: HealthMonitor,
        runtime: AgentRuntime,
        runtimes: Iterable[AgentRuntime],
        breakers: BreakerStore,
        on_approval: ApprovalChange,
        publish: Callable[..., None],
        clock: Clock,
        fleet: FleetState,
    ) -> None:
        health = settings.health_monitoring
        termination = health.intervention.termination
        self._settings = health
        self._store = store
        self._monitor = monitor
        self._breakers = breakers
        self._clock = clock
        self._quiet_until = 0.0
        self._fleet = fleet
        self._orchestrator_webhook = _open_orchestrator_webhook(settings)
        self._respawn_webhook = _open_respawn_webhook(settings, store, RuntimeRespawner(runtime))
        self.stop_switch = EmergencyStop(
            store,
            clock=clock,
            publish=publish,
            read=fleet.read_emergency_stop if fleet.is_shared else None,
        )
        self.storm = StormWatch(health.intervention.storm, ids=fleet.new_storm_id)
        self.recovery = RecoveryService(
            store,
            settings=health,
            monitor=monitor,
            respawners=EachRuntime[Respawner](
                RuntimeRespawner, runtimes, () if self._respawn_webhook is None else (self._respawn_webhook,)
            ),
            breakers=breakers.registry,
            clock=clock,
            publish=publish,
            stop_reason=self._get_stop_reason,
        )
        self.interventions = InterventionService(
            store,
            ledger,
            settings=health,
            monitor=monitor,
            controls=EachRuntime[WorkerControl](RuntimeControl, runtimes),
            recovery=self.recovery,
            stop=self.stop_switch,
            storm=self.storm,
            clock=clock,
            sign=AuditKey.load_or_create(settings.storage).sign,
            orchestrator=None if self._orchestrator_webhook is None else self._orchestrator_webhook.ask,
            fleet=fleet,
        )
        self.approvals = Approvals(
            store,
            monitor=monitor,
            terminate=self.interventions.terminate,
            stop_reason=self._get_stop_reason,
            clock=clock,
            publish=publish,
            on_change=on_approval,
        )
        self.permissions = Permissions(
            health.intervention.permission.wait_seconds,
            answer=self.interventions.answer_permission,
            clock=clock,
        )
        self.queen_actions = QueenActions(
            self.interventions, self.approvals, monitor=monitor, settings=termination
        )

    def _get_stop_reason(self) -> str | None:
        return self.stop_switch.reason

    def find_group(self, worker: WorkerHealth, finding: Finding) -> str:
        """Return the cause that a worker shares with others; else the id of its storm; else ""."""
        failing_elsewhere = self._fleet.failing_elsewhere()
        cause = shared_cause(
            worker, finding, self._monitor.workers, self._clock(), elsewhere=failing_elsewhere
        )
        return cause or self.storm.storm_of(worker.key)

    # -- lifecycle ----------------------------------------------------------------------------------

    async def load(self, seconds_away: float = 0.0) -> None:
        """
        Load the interventions that a restart interrupted. Call this once the monitor knows its workers.

        Args:
            seconds_away: Seconds for which the service was not running. Waits exclude this time.
        """
        await self._breakers.load()
        self._apply_open_breakers()
        await self.stop_switch.load()
        self._start_quiet_time(self._clock())
        await self.recovery.load()
        await self.interventions.load()
        await self.interventions.exclude_outage(seconds_away)
        await self.approvals.load()

    async def resume_storm(self, tickets: Iterable[EscalationTicket]) -> None:
        """
        Continue a storm from before a restart. Otherwise, the next worker would start another storm.

        Args:
            tickets: The open and the recently closed tickets.

        Raises:
            StoreError: The database cannot be read.
        """
        since = self._clock() - QUIET_SECONDS
        storms = [(t.first_seen, t.storm_id) for t in tickets if t.storm_id and not t.shares_cause]
        newest_at, storm_id = max(storms, default=(0.0, ""))
        started_at = min((first_seen for first_seen, id_ in storms if id_ == storm_id), default=0.0)
        changes = await self._store.history(types={EventType.HEALTH_STATE_CHANGED}, limit=_MAX_STATE_CHANGES)
        shared_storm = await self._fleet.read_storm()
        if shared_storm.storm is None and newest_at > since:
            shared_storm = shared_storm._replace(storm=(storm_id, started_at))
        self.interventions.resume_storm([event for event in changes if event.time > since], shared_storm)

    def _apply_open_breakers(self) -> None:
        """Pass open breakers to the monitor without logging. They may predate the replayed events."""
        now = self._clock()
        for breaker in self._breakers.registry.all():
            if breaker.agent_id and breaker.state is not BreakerState.CLOSED:
                self._monitor.apply(
                    AgentEvent(
                        type=EventType.CIRCUIT_BREAKER_STATE_CHANGED,
                        time=now,
                        agent_id=breaker.agent_id,
                        data={"name": breaker.name, "to": breaker.state.value},
                    ),
                    now,
                )

    async def close(self) -> None:
        """Stop all parts. Unfinished work resumes after the next start."""
        await self.approvals.close()
        await self.interventions.close()
        await self.recovery.close()
        await self._breakers.close()
        for webhook in (self._orchestrator_webhook, self._respawn_webhook):
            if webhook is not None:
                await webhook.close()

    async def run_breakers(self) -> None:
        """Write changes of circuit breakers to the store, until cancelled."""
        await self._breakers.run()

    async def run_expiry(self) -> None:
        """Close expired instructions, until cancelled."""
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_SECONDS)
            try:
                await self.interventions.instructions.expire(self._clock())
            except StoreError as error:
                _log.error("cannot close expired instructions, retrying: %s", error)

    # -- time and events ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when ``advance`` must run next; None without a deadline."""
        quiet_deadlines = [self.recovery.next_deadline(), self.approvals.next_deadline()]
        if self._clock() < self._quiet_until:
            quiet_deadlines = [
                deadline if deadline is None or deadline > self._clock() else self._quiet_until
                for deadline in quiet_deadlines
            ]
        deadlines = (self.interventions.next_deadline(), self.recovery.next_requested(), *quiet_deadlines)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    async def advance(self, now: float) -> None:
        """Start due actions, without waiting for them."""
        await self.recovery.advance(
            now, stop=self.interventions.stop_for_recovery, begin=now >= self._quiet_until
        )
        await self.interventions.advance(now)
        await self.approvals.advance(now, begin=now >= self._quiet_until)

    def handle_clock_jump(self, now: float, jump_seconds: float) -> None:
        """Hold all actions for the quiet time, and extend every wait, because a jump makes ages wrong."""
        self._start_quiet_time(now)
        self.interventions.handle_clock_jump(now)
        self.recovery.handle_clock_jump(jump_seconds)

    def _start_quiet_time(self, now: float) -> None:
        self._quiet_until = now + self._settings.intervention.quiet_seconds
        self.interventions.hold_until(self._quiet_until)

    async def check_all(self) -> None:
        """Check every stuck or failing worker, in case a change was missed."""
        for number, key in enumerate(list(self._monitor.keys())):
            worker = self._monitor.get(*key)
            if worker is not None and worker.state.rank >= HealthState.STUCK.rank:
                self.interventions.consider(worker)
            if number % _BATCH_SIZE == 0:
                await asyncio.sleep(0)

    async def update(self, worker: WorkerHealth) -> None:
        """Update recovery, interventions and approvals after a change of a worker."""
        await self.recovery.observe(worker)
        self.interventions.consider(worker)
        await self.approvals.observe(worker)

    async def close_approvals(self, event: AgentEvent) -> None:
        """Close the approval requests of a ticket that was dismissed or resolved."""
        if event.type is EventType.TICKET_RESOLVED or event.data.get("decision") == "dismiss":
            status = str(event.data.get("status", "dismissed")).replace("_", " ")
            await self.approvals.void_for_closed_ticket(
                str(event.data["ticket_id"]), f"its ticket is {status}"
            )


def _open_orchestrator_webhook(settings: Settings) -> OrchestratorWebhook | None:
    escalation = settings.health_monitoring.intervention.escalation
    if escalation.orchestrator != "webhook" or escalation.webhook_url is None:
        return None
    secret = read_orchestrator_secret(settings.health_monitoring)
    api = str(settings.alerting.console_url)
    return OrchestratorWebhook(escalation.webhook_url, api=api, secret=secret)


def _open_respawn_webhook(
    settings: Settings, store: Store, own_respawner: RuntimeRespawner
) -> RespawnWebhook | None:
    health = settings.health_monitoring
    if health.recovery.webhook_url is None:
        return None
    secret = read_respawner_secret(health)
    return RespawnWebhook(health.recovery.webhook_url, store, local=own_respawner, secret=secret)
