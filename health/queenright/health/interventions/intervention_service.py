"""The intervention service: actions requested by people and orchestrators, and the life cycle of ladders."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from queenright.health.action_kind import ActionKind
from queenright.health.cluster.fleet import FleetState, SharedStorm, WorseWorker
from queenright.health.cluster.switch_state import SwitchState
from queenright.health.detection.deadlines import has_shown_its_end
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import WorkerKey, find_worst
from queenright.health.interventions import messages
from queenright.health.interventions.actions import Actions, SignEvent, TerminationLadders
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.interventions.escalation import (
    MORE_TIME_SECONDS,
    OPTIONS,
    Decision,
    Escalation,
    EscalationAnswer,
    EscalationStatus,
)
from queenright.health.interventions.instructions import Instruction, InstructionMailbox, InstructionStatus
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.health.interventions.ladder import Ladder, LadderInputs, Level, new_ladder, next_step
from queenright.health.interventions.ladder_scheduler import (
    LadderScheduler,
    TaskRecovery,
    decided_event,
    describe_cause,
    was_reset,
)
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.permissions import PermissionDecision, PermissionRequest
from queenright.health.interventions.permit import ActionRefusedError, Permit
from queenright.health.interventions.storm import StormWatch
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import WorkerControl
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.health.tickets.shared_cause import shared_cause
from queenright.instrumentation.errors import ConflictError, NotFoundError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock

_log = logging.getLogger(__name__)

_ANSWERS: Final = {
    InstructionStatus.DONE: InterventionOutcome.DONE,
    InstructionStatus.REFUSED: InterventionOutcome.REFUSED,
    InstructionStatus.FAILED: InterventionOutcome.FAILED,
    InstructionStatus.EXPIRED: InterventionOutcome.EXPIRED,
}
_MAX_MORE_TIME_SECONDS: Final = 7 * 86_400.0

Orchestrator = Callable[[Escalation], Awaitable[EscalationAnswer | None]]
"""Decides what to do about a worker. Returns None if the decision arrives later, through ``decide``."""


Unless = Callable[[WorkerHealth], str | None]
"""Returns an objection to acting on a worker, or None."""


class AgentNotFoundError(NotFoundError):
    """Raised when a requested worker is unknown."""

    def __init__(self, agent_id: str, session_id: str | None = None) -> None:
        session_note = f", session {session_id[:100]!r}" if session_id else ""
        super().__init__(f"no worker {agent_id[:100]!r}{session_note} is known; list them: queenright list")
        self.agent_id = agent_id
        self.session_id = session_id


class EscalationNotFoundError(NotFoundError):
    """Raised when no escalation has this id."""

    def __init__(self, escalation_id: str) -> None:
        super().__init__(
            f"there is no escalation {escalation_id[:64]!r}; list them: queenright escalations list"
        )


class EscalationClosedError(ConflictError):
    """Raised when an escalation that is no longer pending is answered."""

    def __init__(self, escalation: Escalation) -> None:
        super().__init__(
            f"escalation {escalation.escalation_id} is {escalation.status.value}"
            + (f" ({escalation.decision} by {escalation.decided_by})" if escalation.decision else "")
        )
        self.reason = str(self)


class IncarnationSpan(NamedTuple):
    """When a worker's incarnation began, and when it ended (None if it has not). Seconds since the epoch."""

    began: float
    over: float | None

    def is_over_before(self, other: IncarnationSpan) -> bool:
        """Return whether this incarnation ended before the other began."""
        return self.over is not None and self.over <= other.began


class InterventionService(LadderScheduler):
    """
    All interventions of one service: requested ones, and those of the ladders.

    Args:
        ledger: The ledger whose ``is_stopping`` the monitor uses.
        controls: The controls of workers that run in this service. They are iterated again for each action.
        recovery: Recovers workers that were stopped or crashed.
        orchestrator: Decides escalations. If None, subscribers of ``escalation_triggered`` decide them.
        fleet: The services that monitor other parts of the fleet.
    """

    def __init__(
        self,
        store: Store,
        ledger: InterventionLedger,
        *,
        settings: HealthSettings,
        monitor: HealthMonitor,
        controls: Iterable[WorkerControl],
        recovery: TaskRecovery,
        stop: EmergencyStop,
        storm: StormWatch,
        clock: Clock,
        sign: SignEvent,
        orchestrator: Orchestrator | None = None,
        ids: Callable[[], str] = new_id,
        fleet: FleetState | None = None,
    ) -> None:
        self._stop = stop
        self._storm = storm
        self._orchestrator = orchestrator
        self._fleet = fleet or FleetState()
        self._spans_elsewhere: dict[WorkerKey, IncarnationSpan] = {}
        self._seen_at: float | None = None
        self.instructions = InstructionMailbox(
            store, clock=clock, on_closed=self._handle_closed, why_withheld=self._find_withhold_reason
        )
        """Reaches workers in other processes."""
        actions = Actions(
            ledger,
            monitor=monitor,
            controls=controls,
            mailbox=self.instructions,
            settings=settings.intervention,
            stop_reason=lambda: stop.reason,
            clock=clock,
            ids=ids,
            sign=sign,
        )
        super().__init__(
            ledger,
            actions,
            settings=settings,
            monitor=monitor,
            recovery=recovery,
            stop_reason=lambda: stop.reason,
            clock=clock,
            ask=self._ask_orchestrator,
            fleet=fleet,
        )

    # -- start, stop and time -------------------------------------------------------------------

    async def load(self) -> None:
        """
        Load ladders and actions from before a restart, and resume them. The monitor must have its workers
        already.
        """
        await self.instructions.load()
        unfinished_actions = await self.ledger.load()
        for key in self.ledger.worker_keys():
            if (current_key := self._monitor.current_key(key)) != key:
                await self.rename(key, current_key)
        for intervention in unfinished_actions:
            ladder = self.ledger.ladders.get(intervention.target.key)
            detail = "interrupted by a restart; its end is unknown"
            await self._actions.end(intervention, InterventionOutcome.FAILED, ladder, detail=detail)
        await self._close_orphaned_terminations()
        for key in {*self.ledger.ladders, *self.ledger.uncertain}:
            self.schedule(key, self._clock())
        for worker in self._monitor.workers():
            self.consider(worker)
        for question in self.ledger.pending.values():
            self._ask_orchestrator(question)

    async def _close_orphaned_terminations(self) -> None:
        """Close interrupted terminations that no ladder resumes, because an operator requested them."""
        for key, intervention in list(self.ledger.uncertain.items()):
            ladder = self.ledger.ladders.get(key)
            is_resumed_by_ladder = (
                ladder is not None
                and ladder.target == intervention.target
                and ladder.level is Level.TERMINATING
            )
            if intervention.outcome is InterventionOutcome.STARTED and not is_resumed_by_ladder:
                detail = "interrupted by a restart, and the worker has not ended (yet)"
                await self._actions.end(intervention, InterventionOutcome.UNCONFIRMED, ladder, detail=detail)

    async def rename(self, old: WorkerKey, new: WorkerKey) -> None:
        """
        Move the ladder, interventions and escalations of a renamed worker to its new name.

        Raises:
            StoreError: Recording failed. The next start moves them.
        """
        async with self.lock(old):
            await self.ledger.rename(old, new, self._clock())
        if new in self.ledger.ladders:
            self.schedule(new, self._clock())

    def note_worse(self, event: AgentEvent) -> None:
        """
        Count a worker whose health got worse towards a storm.

        Warnings, ends of runs, and workers that share a cause (an incident) do not count.
        """
        key = self._worse_worker(event)
        if key is not None and self._storm.record_worse(
            key, self._clock(), is_consecutive=lambda other: self._is_consecutive(key, other)
        ):
            _log.warning("a storm: %d workers got worse at once", self._storm.workers)

    def _worse_worker(self, event: AgentEvent) -> WorkerKey | None:
        """Return the worker of a health change if it counts towards a storm, otherwise None."""
        worker = self._monitor.get(event.agent_id, event.session_id)
        if worker is not None and (worker.vitals.has_ended or self._shares_cause(worker)):
            return None
        before, after = HealthState(event.data["from"]), HealthState(event.data["to"])
        return (
            (event.agent_id, event.session_id) if after.rank > before.rank and after.is_in_trouble else None
        )

    def resume_storm(self, changes: Iterable[AgentEvent], shared_storm: SharedStorm) -> None:
        """
        Count health changes from before a restart towards a storm. The former process has announced it
        already.

        Args:
            changes: The latest health change of each worker that this service monitors.
            shared_storm: See ``inherit_storm``.
        """
        worse = {key: event.time for event in changes if (key := self._worse_worker(event)) is not None}
        logged_workers = [WorseWorker(*key, at, at, None) for key, at in worse.items()]
        self._inherit_storm(shared_storm._replace(inherited=[*logged_workers, *shared_storm.inherited]))

    def list_worse(self) -> list[WorseWorker]:
        """Return the workers of this service that count towards a storm, to be sent to other services."""
        worse_at = self._storm.list_local_workers(self._clock())
        lifetimes = {key: self._find_span(key) or IncarnationSpan(at, None) for key, at in worse_at.items()}
        return [WorseWorker(*key, at, *lifetimes[key]) for key, at in worse_at.items()]

    def join_storm(self, elsewhere: Iterable[WorseWorker], storm: tuple[str, float] | None) -> None:
        """
        Count the workers of other services towards a storm.

        Args:
            elsewhere: The results of ``list_worse`` on the other services.
            storm: The id of the storm that another service is in, and when it began; None if there is none.
        """
        if self._join_storm(elsewhere, storm):
            self._announce_fleet_storm()

    def inherit_storm(self, shared_storm: SharedStorm) -> None:
        """Join a storm like ``join_storm`` when this service has just started and took over workers."""
        if self._inherit_storm(shared_storm):
            self._announce_fleet_storm()

    def _inherit_storm(self, shared_storm: SharedStorm) -> bool:
        is_new = self._join_storm([*shared_storm.elsewhere, *shared_storm.inherited], shared_storm.storm)
        self._storm.inherit([worse.key for worse in shared_storm.inherited])
        return is_new

    def _announce_fleet_storm(self) -> None:
        _log.warning("a storm: %d workers got worse at once in the fleet", self._storm.workers)

    def _join_storm(self, elsewhere: Iterable[WorseWorker], storm: tuple[str, float] | None) -> bool:
        """Count the workers of other services. Return whether this began a storm that they are not in."""
        workers = {worse.key: worse for worse in elsewhere}
        self._spans_elsewhere = {
            key: IncarnationSpan(worse.began, worse.over) for key, worse in workers.items()
        }
        return self._storm.join(
            {key: worse.at for key, worse in workers.items()},
            storm,
            self._clock(),
            is_consecutive=self._is_consecutive,
        )

    def _shares_cause(self, worker: WorkerHealth) -> bool:
        monitor, finding = self._monitor, find_worst(worker.findings)
        now = self._clock()
        if finding is None:
            return False
        elsewhere = self._fleet.failing_elsewhere()
        return bool(shared_cause(worker, finding, monitor.workers, now, elsewhere=elsewhere))

    def _is_consecutive(self, key: WorkerKey, other: WorkerKey) -> bool:
        """Return whether one session ended before the other began."""
        first, second = self._find_span(key), self._find_span(other)
        if first is None or second is None:
            return False
        return first.is_over_before(second) or second.is_over_before(first)

    def _find_span(self, key: WorkerKey) -> IncarnationSpan | None:
        if (worker := self._monitor.get(*key)) is None:
            return self._spans_elsewhere.get(key)
        vitals = worker.vitals
        end = vitals.last_event if has_shown_its_end(vitals) else None
        return IncarnationSpan(vitals.incarnation_started, end)

    async def advance(self, now: float) -> None:
        """Begin due actions. Returns before they are done."""
        self._seen_at = now
        self.begin_due(now)

    def handle_clock_jump(self, now: float) -> None:
        """Defer every wait by the time in which the host slept, or by which its clock was set."""
        if self._seen_at is not None:
            self.start(self.shift(now - self._seen_at))
        self._seen_at = now

    async def exclude_outage(self, seconds: float) -> None:
        """Defer every wait by ``seconds``, because the service was down."""
        if seconds > 0:
            await self.shift(seconds)

    def _find_withhold_reason(self, target: Target) -> str | None:
        """Return why a worker must not get its instructions now, or None."""
        if (reason := self._stop.reason) is not None:
            return reason
        worker = self._monitor.get(*target.key)
        return "it waits" if worker is not None and worker.vitals.may_be_idle else None

    def _handle_closed(self, instruction: Instruction) -> None:
        """Record the result of a nudge that a worker fetched: done, refused, failed or expired."""
        outcome = _ANSWERS.get(instruction.status)
        if instruction.kind == "nudge" and outcome is not None:
            # In the background, because the fetching worker must not wait for another action on it.
            self.start(self._record_answer(instruction, outcome))

    async def _record_answer(self, instruction: Instruction, outcome: InterventionOutcome) -> None:
        key = self._monitor.current_key((instruction.agent_id, instruction.session_id))
        async with self.lock(key):
            intervention = await self.ledger.find_intervention(instruction.instruction_id)
            if intervention is not None and intervention.outcome is InterventionOutcome.QUEUED:
                answered_intervention = intervention.model_copy(update={"answered_at": self._clock()})
                await self._actions.end(
                    answered_intervention, outcome, self.ledger.ladders.get(key), detail=instruction.detail
                )

    # -- the orchestrator -----------------------------------------------------------------------

    def _ask_orchestrator(self, question: Escalation) -> None:
        if self._orchestrator is not None:
            self.start(self._consult(self._orchestrator, question))

    async def _consult(self, orchestrator: Orchestrator, question: Escalation) -> None:
        try:
            answer = await orchestrator(question)
            if answer is not None:
                await self.decide(
                    question.escalation_id,
                    answer.decision,
                    by="orchestrator",
                    reason=answer.reason,
                    more_time_seconds=answer.more_time_seconds,
                )
        except (ActionRefusedError, EscalationClosedError) as error:
            _log.info("the orchestrator's answer had no effect: %s", error)
        except Exception as error:
            # The deadline stays, and a person can still answer.
            _log.error("the orchestrator did not answer about %r: %s", question.agent_id, redact(str(error)))

    async def decide(
        self,
        escalation_id: str,
        decision: Decision,
        *,
        by: str,
        reason: str = "",
        more_time_seconds: float | None = None,
    ) -> Escalation:
        """
        Decide an escalation: ``more_time``, ``hand_off`` or ``terminate`` (and recover).

        The decision is durable on return. Its actions begin in the background.

        Raises:
            EscalationNotFoundError: There is no escalation with this id.
            EscalationClosedError: The escalation was decided, has timed out or was withdrawn.
            ActionRefusedError: No action on the worker is permitted now.
            ValueError: The decision is not one of the three, or the time is out of range.
            StoreError: Recording failed.
        """
        if decision not in OPTIONS:
            raise ValueError(f"decision must be one of {', '.join(OPTIONS)}, got {decision!r}")
        if more_time_seconds is not None and not 0 < more_time_seconds <= _MAX_MORE_TIME_SECONDS:
            raise ValueError(
                f"more_time_seconds must be above 0 and at most a week, got {more_time_seconds!r}"
            )
        question = await self.ledger.find_escalation(escalation_id)
        if question is None:
            raise EscalationNotFoundError(escalation_id)
        key = question.target.key
        async with self.lock(key):
            pending = self.ledger.pending.get(escalation_id)
            if pending is None:
                raise EscalationClosedError(await self.ledger.find_escalation(escalation_id) or question)
            ladder, now = await self._require_decidable(pending, decision), self._clock()
            ruling = pending.model_copy(
                update={
                    "status": EscalationStatus.DECIDED,
                    "decision": decision,
                    "decided_by": redact(by, 100),
                    "decided_at": now,
                    "decision_reason": redact(reason, 2000),
                    "more_time_seconds": more_time_seconds,
                }
            )
            await self.ledger.write(
                key,
                ladder=self._ladder_after(ruling, ladder, now),
                now=now,
                escalation=ruling,
                events=[decided_event(ruling, self._monitor.get(*key), now)],
            )
        self.start(self.climb(key))
        return ruling

    async def _require_decidable(self, question: Escalation, decision: Decision) -> Ladder:
        """
        Return the ladder of an escalation's worker, or raise ``ActionRefusedError`` if the decision comes too
        late.
        """
        key = question.target.key
        worker = self._monitor.get(*key)
        if worker is None or decision != "more_time":
            # More time is not an action, and needs no permit.
            self._actions.permit(ActionKind.ESCALATE, question.target)
        assert worker is not None
        ladder = self.ledger.ladders.get(key)
        after = next_step(ladder, LadderInputs.of(worker, self._settings), self._settings).ladder
        if ladder is None or after is None or was_reset(ladder, after):
            await self.reset_ladder(key, after, "the worker made progress")
            raise ActionRefusedError(ActionKind.ESCALATE, question.agent_id, "it has made progress since")
        return ladder

    def _ladder_after(self, ruling: Escalation, ladder: Ladder, now: float) -> Ladder:
        intervention = self._settings.intervention
        decision = {"acted_at": now, "by": ruling.decided_by, "reason": ruling.decision_reason}
        if ruling.decision == "more_time":
            extra_seconds = ruling.more_time_seconds or MORE_TIME_SECONDS
            return ladder.model_copy(
                update={"level": Level.MORE_TIME, "until": now + extra_seconds, "acted_at": now}
            )
        if ruling.decision == "hand_off":
            until = now + intervention.nudge.interval_seconds
            return ladder.model_copy(
                update=decision | {"level": Level.HANDING_OFF, "until": until, "is_informed": False}
            )
        return ladder.model_copy(update=decision | {"level": Level.TERMINATING, "until": now})

    # -- requests -------------------------------------------------------------------------------

    async def nudge(
        self,
        agent_id: str,
        message: str | None = None,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str,
        person: bool = True,
    ) -> Intervention:
        """
        Put a message into a worker's context. Without a message, the standard reminder is used.

        Args:
            session_id: The worker's session; None for the session that has not ended.
            incarnation_id: The incarnation that the caller has checked, if any. A later one is not nudged.
            person: False for an automatic nudge. It counts as a nudge of the ladder, whose intervals and
                limits apply.

        Raises:
            AgentNotFoundError: The worker is unknown.
            ActionRefusedError: No action on the worker is permitted now. The refusal is recorded.
            StoreError: Recording failed.
        """
        worker = self._find(agent_id, session_id)
        async with self.lock(worker.key):
            grant = await self._permit(
                ActionKind.NUDGE,
                worker,
                by=by,
                reason=message or "reminder",
                incarnation_id=incarnation_id,
                person=person,
            )
            current, now = self.ladder_of(worker), self._clock()
            await self.budget.take(now, force=True)
            # After any nudge, the ladder waits for its interval.
            ladder = current or new_ladder(LadderInputs.of(worker, self._settings))
            return await self._actions.nudge(
                grant,
                message=message or messages.nudge_text(worker, now),
                by=by,
                reason=describe_cause(worker) if worker.findings else f"requested by {by}",
                attempt=0 if person else ladder.nudges + 1,
                ladder=ladder.model_copy(
                    update={"acted_at": now, "nudges": ladder.nudges + (0 if person else 1)}
                ),
                since=current.trouble_since if current is not None else None,
            )

    async def escalate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str,
    ) -> Intervention:
        """
        Escalate a worker to the orchestrator.

        If no answer arrives, a worker that is healthy by then is not terminated.

        Args:
            session_id: The worker's session; None for the session that has not ended.
            incarnation_id: The incarnation that the caller has checked, if any. A later one is not escalated.

        Raises:
            AgentNotFoundError: The worker is unknown.
            ActionRefusedError: No action on the worker is permitted now, or an escalation is pending already.
            StoreError: Recording failed.
        """
        worker = self._find(agent_id, session_id)
        async with self.lock(worker.key):
            current = self.ladder_of(worker)
            if pending := self.pending_escalation(worker):
                raise ActionRefusedError(ActionKind.ESCALATE, agent_id, pending)
            await self._permit(
                ActionKind.ESCALATE, worker, by=by, reason=reason, incarnation_id=incarnation_id
            )
            await self.budget.take(self._clock(), force=True)
            ladder = current or new_ladder(LadderInputs.of(worker, self._settings))
            return await self.ask_orchestrator(ladder, by=by, reason=reason)

    def pending_escalation(self, worker: WorkerHealth) -> str:
        """Return that an escalation of the worker is pending, with its id, or an empty string."""
        current = self.ladder_of(worker)
        if current is None or current.escalation_id not in self.ledger.pending:
            return ""
        return f"escalation {current.escalation_id} to the orchestrator is pending already"

    async def terminate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str,
        person: bool = True,
        intervention_id: str = "",
        unless: Unless | None = None,
    ) -> Intervention:
        """
        Terminate a worker. It is not recovered automatically. If it does not stop, its ladder stays.

        Args:
            reason: The reason, which is signed and stored.
            session_id: The worker's session; None for the session that has not ended.
            incarnation_id: The incarnation that the caller has checked, if any. A later one is not stopped.
            person: False for an automatic termination, to which the ladder's intervals and limits apply.
            intervention_id: The id of the termination, if it has one already.
            unless: Called when the action is about to begin. Returns an objection, or None.

        Raises:
            AgentNotFoundError: The worker is unknown.
            ActionRefusedError: No action on the worker is permitted now. The refusal is recorded.
            StoreError: Recording failed.
        """
        worker = self._find(agent_id, session_id)
        async with self.lock(worker.key):
            grant = await self._permit(
                ActionKind.TERMINATE,
                worker,
                by=by,
                reason=reason,
                incarnation_id=incarnation_id,
                person=person,
                unless=unless,
            )
            return await self._terminate(
                grant, worker.key, by=by, reason=reason, intervention_id=intervention_id
            )

    async def answer_permission(
        self,
        request: PermissionRequest,
        decision: PermissionDecision,
        *,
        by: str,
        reason: str = "",
        unless: Callable[[], str | None],
        deliver: Callable[[], None],
    ) -> Intervention:
        """
        Answer a permission request, for the incarnation that sent it.

        Args:
            decision: ``allow`` or ``deny``.
            unless: Returns why the request can no longer be answered, or None.
            deliver: See ``Actions.answer``.

        Raises:
            AgentNotFoundError: The worker is unknown.
            ActionRefusedError: No action on the worker is permitted now, or the answer is too late. The
                refusal is recorded.
            StoreError: Recording failed, so nothing was answered.
        """
        worker = self._find(request.agent_id, request.session_id)
        async with self.lock(worker.key):
            grant = await self._permit(
                ActionKind.ANSWER,
                worker,
                by=by,
                reason=reason or decision,
                incarnation_id=request.incarnation_id,
                unless=lambda _: unless(),
            )
            return await self._actions.answer(
                grant,
                by=by,
                reason=reason or decision,
                message=f"{decision}: {request.question}",
                ladder=self.ledger.ladders.get(worker.key),
                deliver=deliver,
            )

    async def stop_for_recovery(self, target: Target, reason: str) -> Intervention:
        """
        Stop a worker before its recovery, under the same rules as every termination.

        Raises:
            ActionRefusedError: No action on the worker is permitted now, or its end is not confirmed.
            StoreError: Recording failed.
        """
        async with self.lock(target.key):
            grant = self._actions.permit(ActionKind.TERMINATE, target)
            intervention = await self._terminate(grant, target.key, by="recovery", reason=reason)
        if intervention.outcome is not InterventionOutcome.DONE:
            raise ActionRefusedError(
                ActionKind.RECOVER, target.agent_id, f"it may still be working: {intervention.detail}"
            )
        return intervention

    async def _terminate(
        self,
        grant: Permit,
        key: WorkerKey,
        *,
        by: str,
        reason: str,
        intervention_id: str = "",
    ) -> Intervention:
        now = self._clock()
        await self.budget.take(now, force=True)
        current = self.ledger.ladders.get(key)
        question = self.ledger.pending.get(current.escalation_id) if current is not None else None
        withdrawn, events = self.close_question(
            question, EscalationStatus.WITHDRAWN, f"terminated by {by}", now
        )
        return await self._actions.terminate(
            grant,
            by=by,
            reason=reason,
            ladders=TerminationLadders(
                during=current, after_confirmed_stop=None, after_unconfirmed_stop=current
            ),
            since=current.trouble_since if current is not None else None,
            withdrawn=withdrawn,
            events=events,
            intervention_id=intervention_id,
        )

    async def emergency_stop(self, on: bool, *, by: str, reason: str) -> None:
        """
        Stop all actions, or release the stop. The time while actions are stopped does not count towards any
        wait.

        Raises:
            StoreError: Writing failed. A stop still takes effect, until the next restart.
        """
        before = self._stop.state
        await self._stop.set(on, by=by, reason=reason)
        if not on and before.on and before.changed_at is not None:
            await self.shift(max(0.0, self._clock() - before.changed_at))

    def follow_emergency_stop(self, state: SwitchState) -> None:
        """Apply the state of the fleet's switch, which another service has changed."""
        before, self._stop.state = self._stop.state, state
        if before.on and not state.on and before.changed_at is not None:
            pause = max(0.0, self._clock() - before.changed_at)
            self.start(self.shift(pause))

    # -- helpers --------------------------------------------------------------------------------

    async def _permit(
        self,
        kind: ActionKind,
        worker: WorkerHealth,
        *,
        by: str,
        reason: str,
        incarnation_id: str | None = None,
        person: bool = True,
        unless: Unless | None = None,
    ) -> Permit:
        target = Target.of(worker.vitals)
        if incarnation_id is not None:
            target = target._replace(incarnation_id=incarnation_id)
        try:
            grant = self._actions.permit(kind, target)
            # The wait for the lock may have been long, so check again.
            now = self._monitor.get(*target.key) or worker
            if person:
                objection = None if unless is None else unless(now)
            else:
                objection = self.refusal_reason(kind, now)
            if objection is not None:
                raise ActionRefusedError(kind, target.agent_id, objection)
            return grant
        except ActionRefusedError as refusal:
            await self._actions.note(
                kind,
                target,
                InterventionOutcome.REFUSED,
                by=by,
                reason=reason,
                detail=refusal.reason,
                ladder=self.ledger.ladders.get(worker.key),
            )
            raise

    def _find(self, agent_id: str, session_id: str | None) -> WorkerHealth:
        worker = self._monitor.find(agent_id, session_id)
        if worker is None:
            raise AgentNotFoundError(agent_id, session_id)
        return worker
