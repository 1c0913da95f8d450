"""
The health monitoring service: the public interface of the health layer in one class.

It implements IMPL-REQ-003 §6. The HTTP API and the command line are thin layers over it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from queenright.health.action_kind import ActionKind
from queenright.health.breakers.circuit_breaker import BreakerStatus
from queenright.health.breakers.store import BreakerStore
from queenright.health.cluster.switch_state import SwitchState
from queenright.health.detection.assessment import Signal, assess
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, WorkerKey
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.interventions.escalation import (
    Decision,
    Escalation,
    EscalationStatus,
    escalation_table,
)
from queenright.health.interventions.intervention import Intervention, InterventionOutcome, intervention_table
from queenright.health.interventions.intervention_service import (
    AgentNotFoundError,
    EscalationClosedError,
    EscalationNotFoundError,
    InterventionService,
)
from queenright.health.interventions.ladder import Ladder
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.target import Target
from queenright.health.monitoring.heartbeat import Heartbeat
from queenright.health.monitoring.history import HealthSnapshot, health_history
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.monitoring.process_breakers import ProcessBreakerError, process_breakers
from queenright.health.recovery.recovery import Recovery, RecoveryState
from queenright.health.recovery.recovery_service import (
    RecoveryResult,
    RecoveryService,
    RecoveryStatus,
    TaskNotFoundError,
)
from queenright.health.recovery.table import recovery_table
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS
from queenright.health.store.rows import Place
from queenright.health.store.store import Store
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock

__all__ = [
    "ActionRefusedError",
    "AgentHealth",
    "AgentNotFoundError",
    "EscalationClosedError",
    "EscalationNotFoundError",
    "HealthMetrics",
    "HealthMonitoringService",
    "TaskNotFoundError",
]

_SORT_ALL_BELOW_PAGES: Final = 50
"""Below this number of pages, all keys are sorted. Above it, a heap selects the keys of the page."""

_LIMIT: Final = 10_000

_DEFAULT_SESSION: Final = "default"

_BATCH_SIZE: Final = 10
"""The number of workers that are read before the event loop runs other work. They take about 2 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMetrics:
    """Totals of a worker in its session."""

    uptime_seconds: float
    """Seconds from the start of the incarnation to its end, or to now."""
    token_count: int
    error_count: int
    tool_call_count: int
    intervention_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHealth:
    """The health of a worker. Times are seconds since the epoch."""

    agent_id: str
    task_id: str
    session_id: str
    incarnation_id: str
    state: HealthState
    state_changed_at: float
    reason: str
    waiting: str
    """Why the worker may be idle; empty if it is not waiting."""
    ended: bool
    last_heartbeat: float | None
    last_checkpoint: float | None
    last_activity: float
    last_progress: float | None
    metrics: HealthMetrics
    signals: tuple[Signal, ...]
    """The result of each check, with evidence."""
    findings: tuple[Finding, ...]
    shadow_findings: tuple[Finding, ...]
    """Findings of detectors in shadow mode, which have no effect."""
    circuit_breakers: tuple[BreakerStatus, ...]
    ladder: Ladder | None
    """The worker's position on the intervention ladder; None if no intervention is in progress."""


class HealthMonitoringService:
    """
    The public interface of the health layer. It belongs to one event loop.

    Args:
        ingest: Ingests events as if a worker had sent them. They are durable on return.
    """

    def __init__(
        self,
        store: Store,
        *,
        monitor: HealthMonitor,
        interventions: InterventionService,
        recovery: RecoveryService,
        breakers: BreakerStore,
        stop: EmergencyStop,
        ingest: Callable[[Sequence[AgentEvent]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._store = store
        self._monitor = monitor
        self._interventions = interventions
        self._recovery = recovery
        self._breakers = breakers
        self._stop = stop
        self._ingest = ingest
        self._clock = clock

    # -- health -------------------------------------------------------------------------------------

    async def get_agent_health(self, agent_id: str, session_id: str | None = None) -> AgentHealth:
        """
        Return the health of a worker.

        Without ``session_id``, a session that has not ended is preferred, then the most recently active one.

        Raises:
            AgentNotFoundError: The worker is unknown.
        """
        return self.health_of(self._find(agent_id, session_id))

    def health_of(self, worker: WorkerHealth) -> AgentHealth:
        """Return the health of a worker that the monitor returned."""
        breakers = self._breakers.registry.of_agent(worker.vitals.agent_id)
        return self._make_agent_health(worker, [*breakers, *process_breakers(worker)], self._clock())

    async def get_all_agent_health(
        self, *, limit: int | None = None, after: WorkerKey | None = None
    ) -> list[AgentHealth]:
        """
        Return the health of every session of every worker, sorted by agent and session.

        The event loop runs other work in between, so the results do not show a single moment.

        Args:
            limit: The maximum number of sessions; None for all.
            after: Return only sessions after this agent and session, for paging.
        """
        result = []
        for number, worker in enumerate(self.workers(limit=limit, after=after), start=1):
            result.append(self.health_of(worker))
            if number % _BATCH_SIZE == 0:
                await asyncio.sleep(0)
        return result

    def workers(
        self,
        *,
        limit: int | None = None,
        after: WorkerKey | None = None,
        agent_id: str | None = None,
        state: HealthState | None = None,
    ) -> list[WorkerHealth]:
        """
        Return workers of the monitor, sorted by agent and session; see ``get_all_agent_health``.

        ``agent_id`` and ``state`` filter the workers.
        """
        keys = self._monitor.keys()
        if after is not None:
            keys = (key for key in keys if key > after)
        if agent_id is not None:
            keys = (key for key in keys if key[0] == agent_id)
        if state is not None:
            keys = (
                key
                for key in keys
                if (worker := self._monitor.get(*key)) is not None
                and (worker.fleet_state or worker.state) is state
            )
        page = _select_first(list(keys), limit)
        return [worker for key in page if (worker := self._monitor.get(*key)) is not None]

    async def get_health_history(
        self, agent_id: str, seconds: float, *, limit: int = _LIMIT, before: int | None = None
    ) -> list[HealthSnapshot]:
        """
        Return the newest ``limit`` entries of a worker's history in the last ``seconds``, oldest first.

        Args:
            seconds: The length of the period, up to now.
            before: Return only entries with a smaller ``seq``, for paging.

        Raises:
            StoreError: The database cannot be read.
        """
        now = self._clock()
        return await self._store.read(
            lambda conn: health_history(
                conn, agent_id, since=now - seconds, until=now, limit=limit, before=before
            )
        )

    def _make_agent_health(
        self, worker: WorkerHealth, breakers: Sequence[BreakerStatus], now: float
    ) -> AgentHealth:
        v = worker.vitals
        return AgentHealth(
            agent_id=v.agent_id,
            task_id=v.task_id or v.session_id,
            session_id=v.session_id,
            incarnation_id=v.incarnation_id,
            state=worker.fleet_state or worker.state,
            state_changed_at=worker.state_since,
            reason=worker.reason,
            waiting=v.waiting.value if v.waiting is not None else "",
            ended=v.has_ended,
            last_heartbeat=v.last_heartbeat,
            last_checkpoint=v.last_checkpoint,
            last_activity=v.last_activity,
            last_progress=v.last_progress,
            metrics=HealthMetrics(
                uptime_seconds=max(0.0, (v.ended_at or now) - v.incarnation_started),
                token_count=v.tokens,
                error_count=v.error_count,
                tool_call_count=v.tool_calls_total,
                intervention_count=self._interventions.ledger.count(worker.key),
            ),
            signals=tuple(assess(v, self._monitor.settings, now).values()),
            findings=worker.findings,
            shadow_findings=worker.shadow,
            circuit_breakers=tuple(breakers),
            ladder=self._interventions.ledger.ladders.get(worker.key),
        )

    def _find(self, agent_id: str, session_id: str | None = None) -> WorkerHealth:
        worker = self._monitor.get(agent_id, session_id)
        if worker is None:
            raise AgentNotFoundError(agent_id, session_id)
        return worker

    # -- heartbeats ---------------------------------------------------------------------------------

    async def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """
        Record a heartbeat. It is durable on return.

        A heartbeat without a session belongs to the worker's current session. If the worker is unknown or has
        ended, the heartbeat starts a new session, named after the task, or ``default``.

        Raises:
            StoreError: Writing failed.
        """
        now = self._clock()
        if heartbeat.session_id:
            worker = self._monitor.get(heartbeat.agent_id, heartbeat.session_id)
            sessions = {heartbeat.session_id: worker.vitals.incarnation_id if worker is not None else ""}
        else:
            sessions = self._find_heartbeat_sessions(heartbeat, now)
        await self._ingest(
            [
                heartbeat.make_event(now, session_id=session, incarnation_id=incarnation)
                for session, incarnation in sessions.items()
            ]
        )

    def _find_heartbeat_sessions(self, beat: Heartbeat, now: float) -> dict[str, str]:
        """Return the sessions to which a heartbeat without a session belongs, each with its incarnation."""
        worker = self._monitor.get(beat.agent_id)
        default = beat.task_id or _DEFAULT_SESSION
        if worker is None:
            return {default: ""}
        v = worker.vitals
        if v.ended_at is None:
            # A session that began with such heartbeats continues, even if the worker has a newer session.
            heartbeat_sessions = [
                session.vitals
                for session in self._monitor.of_agent(beat.agent_id)
                if f"{session.vitals.session_id}-".startswith(f"{default}-")
                and session.vitals.only_heartbeats
                and not session.vitals.has_ended
            ]
            return {session.session_id: session.incarnation_id for session in (v, *heartbeat_sessions)}
        if beat.incarnation_id not in ("", v.incarnation_id):
            return {v.session_id: v.incarnation_id}  # the heartbeat names another incarnation
        same_task = beat.task_id in ("", v.task_id or v.session_id)
        at = now if beat.timestamp is None else min(now, beat.timestamp)
        if at <= v.ended_at or (same_task and at < v.ended_at + CLOCK_TOLERANCE_SECONDS):
            return {v.session_id: v.incarnation_id}  # the heartbeat was sent before the end arrived
        names = itertools.chain([default], (f"{default}-{number}" for number in itertools.count(2)))
        return {next(name for name in names if self._monitor.get(beat.agent_id, name) is None): ""}

    async def get_last_heartbeat(self, agent_id: str) -> Heartbeat | None:
        """
        Return a worker's last heartbeat, or None.

        Raises:
            AgentNotFoundError: The worker is unknown.
        """
        v = self._find(agent_id).vitals
        if v.last_heartbeat is None:
            return None
        beat = v.beat
        return Heartbeat(
            agent_id=v.agent_id,
            session_id=v.session_id,
            incarnation_id=v.incarnation_id,
            task_id=v.task_id or v.session_id,
            timestamp=v.last_heartbeat,
            phase=redact(beat.phase) if beat is not None else "",
            last_tool_call=beat.last_tool_call if beat is not None else None,
            token_count=beat.token_count if beat is not None else None,
            error_count=beat.error_count if beat is not None else None,
            progress_indicator=(redact(beat.progress_indicator) or None) if beat is not None else None,
            interval=v.heartbeat_interval,
        )

    # -- interventions ------------------------------------------------------------------------------

    async def send_nudge(
        self,
        agent_id: str,
        message: str | None = None,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str = "operator",
    ) -> Intervention:
        """
        Put a message into a worker's context. Without a message, the standard reminder is used.

        Raises:
            AgentNotFoundError: The worker is unknown.
            ActionRefusedError: The worker waits, has ended or was restarted, or all actions are stopped.
            StoreError: Recording failed, so nothing was done.
        """
        return await self._interventions.nudge(
            agent_id, message, session_id=session_id, incarnation_id=incarnation_id, by=by
        )

    async def escalate_to_orchestrator(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str = "operator",
    ) -> Intervention:
        """
        Escalate a worker to the orchestrator.

        Raises:
            AgentNotFoundError: The worker is unknown.
            ActionRefusedError: The worker waits, has ended, was restarted or has an escalation, or all
                actions are stopped.
            StoreError: Recording failed, so the orchestrator was not asked.
        """
        return await self._interventions.escalate(
            agent_id, reason, session_id=session_id, incarnation_id=incarnation_id, by=by
        )

    async def decide_escalation(
        self,
        escalation_id: str,
        decision: Decision,
        *,
        by: str,
        reason: str = "",
        more_time_seconds: float | None = None,
    ) -> Escalation:
        """Decide an escalation; see ``InterventionService.decide``."""
        return await self._interventions.decide(
            escalation_id, decision, by=by, reason=reason, more_time_seconds=more_time_seconds
        )

    async def terminate_agent(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str = "operator",
    ) -> Intervention:
        """
        Terminate a worker: save its state, free its resources, and sign the record.

        Raises:
            AgentNotFoundError: The worker is unknown.
            ActionRefusedError: The worker waits, has ended or was restarted, or all actions are stopped.
            StoreError: Recording failed, so nothing was done.
        """
        return await self._interventions.terminate(
            agent_id, reason, session_id=session_id, incarnation_id=incarnation_id, by=by
        )

    async def interventions(
        self,
        limit: int = 100,
        agent_id: str | None = None,
        *,
        kind: ActionKind | None = None,
        outcome: InterventionOutcome | None = None,
        before: Place | None = None,
    ) -> list[Intervention]:
        """Return interventions, newest first. ``before`` is the cursor of the next page."""
        return await self._store.read(
            lambda conn: intervention_table.newest(
                conn, limit, before=before, agent_id=agent_id, kind=kind, outcome=outcome
            )
        )

    async def escalations(
        self, *, open_only: bool = False, limit: int = 100, before: Place | None = None
    ) -> list[Escalation]:
        """Return escalations, newest first. ``before`` is the cursor of the next page."""
        status = EscalationStatus.PENDING if open_only else None
        return await self._store.read(
            lambda conn: escalation_table.newest(conn, limit, before=before, status=status)
        )

    @property
    def emergency_stop_state(self) -> SwitchState:
        """The state of the emergency stop."""
        return self._stop.state

    async def emergency_stop(self, on: bool, *, by: str, reason: str) -> SwitchState:
        """
        Stop all actions, or release the stop. Detection, judging and notifications continue.

        Raises:
            StoreError: Writing failed. A stop still takes effect, until the next restart.
        """
        await self._interventions.emergency_stop(on, by=by, reason=reason)
        return self._stop.state

    # -- circuit breakers ---------------------------------------------------------------------------

    async def get_circuit_breaker_status(self, name: str) -> BreakerStatus:
        """
        Return one circuit breaker.

        Raises:
            BreakerNotFoundError: No breaker has this name.
        """
        breaker = next((breaker for breaker in self._list_process_breakers() if breaker.name == name), None)
        return breaker or self._breakers.registry.status(name)

    def all_circuit_breakers(self) -> list[BreakerStatus]:
        """Return every circuit breaker, including those in workers' own processes."""
        return [*self._list_process_breakers(), *self._breakers.registry.all()]

    def _list_process_breakers(self) -> list[BreakerStatus]:
        return [breaker for worker in self._monitor.workers() for breaker in process_breakers(worker)]

    async def circuit_breakers(
        self, limit: int = 100, *, after: str = "", only_open: bool = False
    ) -> list[BreakerStatus]:
        """
        Return a page of circuit breakers, sorted by name. With ``only_open``, closed breakers are omitted.
        """
        process_breakers_after = (
            breaker for breaker in self._list_process_breakers() if breaker.name > after
        )
        service_breakers = self._breakers.registry.page(limit, after=after, only_open=only_open)
        return sorted((*service_breakers, *process_breakers_after), key=lambda breaker: breaker.name)[:limit]

    async def reset_circuit_breaker(self, name: str, *, by: str = "operator") -> None:
        """
        Close a circuit breaker manually. The change is durable on return.

        Raises:
            BreakerNotFoundError: No breaker has this name.
            ProcessBreakerError: The breaker is in a worker's own process.
        """
        breaker = await self.get_circuit_breaker_status(name)
        if breaker.session_id:
            raise ProcessBreakerError(breaker)
        self._breakers.registry.reset(name, redact(by, 100))
        await asyncio.sleep(0)  # the event loop queues the change
        await self._breakers.flush()

    # -- recovery -----------------------------------------------------------------------------------

    async def initiate_recovery(
        self, task_id: str, *, by: str = "operator", reviewed: bool = False, from_start: bool = False
    ) -> RecoveryResult:
        """
        Recover a task from its last valid checkpoint, within the limits.

        With ``reviewed``, a person has looked at the task, so it may exceed the limit for one task, but not
        the hourly limit. With ``from_start``, it may start over if there is no valid checkpoint.

        Raises:
            TaskNotFoundError: The task is unknown.
            ActionRefusedError: All actions are stopped.
            StoreError: Recording failed, so nothing was done.
        """
        return await self._recovery.request_task(
            task_id, by=redact(by, 100), reviewed=reviewed, from_start=from_start
        )

    async def target_of_task(self, task_id: str) -> Target:
        """
        Return the worker of a task: the current worker, or the worker of its last recovery.

        Raises:
            TaskNotFoundError: The task is unknown.
        """
        return await self._recovery.target_of(task_id)

    async def get_recovery_status(self, task_id: str) -> RecoveryStatus:
        """
        Return the status of a task's recovery: attempts, limits, and the open recovery.

        Raises:
            TaskNotFoundError: The task is unknown.
        """
        return await self._recovery.status(task_id)

    async def recoveries(
        self, limit: int = 100, *, state: RecoveryState | None = None, before: Place | None = None
    ) -> list[Recovery]:
        """Return recoveries, newest first. ``before`` is the cursor of the next page."""
        return await self._store.read(
            lambda conn: recovery_table.newest(conn, limit, before=before, status=state)
        )


def _select_first(keys: list[WorkerKey], limit: int | None) -> list[WorkerKey]:
    """Return the first ``limit`` keys, sorted."""
    if limit is None or len(keys) < _SORT_ALL_BELOW_PAGES * limit:
        return sorted(keys)[:limit]
    return heapq.nsmallest(limit, keys)
