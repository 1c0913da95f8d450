"""
The ladder scheduler takes each worker's next step on the intervention ladder when it is due.

A heap holds the time at which each worker's next step may be due. The step itself is determined at that time,
from the worker's current state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from queenright.health.action_kind import ActionKind
from queenright.health.cluster.fleet import FleetState
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import WorkerKey, find_worst
from queenright.health.interventions import messages
from queenright.health.interventions.action_limits import ActionBudget, refusal_reason
from queenright.health.interventions.actions import Actions, TerminationLadders
from queenright.health.interventions.escalation import Escalation, EscalationStatus
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.health.interventions.ladder import Ladder, LadderInputs, Level, new_ladder, next_step
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.target import LADDER, Target
from queenright.health.interventions.worker_control import StopResult
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.instrumentation.redaction import redact
from queenright.runtime.deadline import TaskSet
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0

_START_BATCH: Final = 100
"""The number of actions that begin before the event loop runs other work. They take about 15 ms."""


class TaskRecovery(Protocol):
    """Recovers workers (``queenright.health.recovery``)."""

    async def request(self, target: Target, reason: str, *, by: str) -> Any:
        """Plan a recovery. The result has ``accepted`` and ``reason``."""
        ...

    def is_recovering(self, key: WorkerKey) -> bool:
        """Return whether a worker is being recovered, or is watched closely after a recovery."""
        ...

    def can_reach(self, target: Target) -> bool:
        """Return whether this service can start the worker again."""
        ...


class LadderScheduler:
    """
    Takes the due steps of all ladders. It belongs to one event loop.

    Args:
        recovery: Recovers workers that were stopped or crashed.
        stop_reason: Returns why all actions are stopped, or None.
        ask: Passes each escalation to the orchestrator.
    """

    def __init__(
        self,
        ledger: InterventionLedger,
        actions: Actions,
        *,
        settings: HealthSettings,
        monitor: HealthMonitor,
        recovery: TaskRecovery,
        stop_reason: Callable[[], str | None],
        clock: Clock,
        ask: Callable[[Escalation], None],
        fleet: FleetState | None = None,
    ) -> None:
        self.ledger = ledger
        self._actions = actions
        self._settings = settings
        self._monitor = monitor
        self._recovery = recovery
        self._stop_reason = stop_reason
        self._clock = clock
        self._ask = ask
        self.budget = ActionBudget(settings.intervention.storm.max_actions, fleet)
        self._heap: list[tuple[float, WorkerKey]] = []
        self._due_at: dict[WorkerKey, float] = {}
        self._locks: WeakValueDictionary[WorkerKey, asyncio.Lock] = WeakValueDictionary()
        self._tasks = TaskSet()
        self._quiet_until = 0.0

    # -- schedule -------------------------------------------------------------------------------

    def lock(self, key: WorkerKey) -> asyncio.Lock:
        """Return the lock of a worker, which allows one action at a time."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def hold_until(self, at: float) -> None:
        """Begin no action automatically before ``at``, in seconds since the epoch."""
        self._quiet_until = at

    def refusal_reason(self, kind: ActionKind, worker: WorkerHealth) -> str | None:
        """Return why only a person may act on a worker now, or None."""
        return refusal_reason(
            kind,
            worker,
            LadderInputs.of(worker, self._settings),
            self.ladder_of(worker),
            self._settings.intervention,
            now=self._clock(),
            quiet_until=self._quiet_until,
            budget=self.budget,
            is_recovering=self._recovery.is_recovering(worker.key),
        )

    def ladder_of(self, worker: WorkerHealth) -> Ladder | None:
        """Return the ladder of the worker's current incarnation, or None if it has none."""
        current = self.ledger.ladders.get(worker.key)
        return current if current is not None and current.target == Target.of(worker.vitals) else None

    def consider(self, worker: WorkerHealth) -> None:
        """Reschedule a worker that has changed, without I/O."""
        key = worker.key
        if worker.vitals.withdrawal_due:
            self.schedule(key, self._clock())
        current = self.ledger.ladders.get(key)
        if current is None and key not in self.ledger.uncertain and not self._settings.intervention.enabled:
            return
        step = next_step(current, LadderInputs.of(worker, self._settings), self._settings)
        if was_reset(current, step.ladder) or self._has_stopped(worker):
            self.schedule(key, self._clock())
        elif step.action is not None and self._settings.intervention.enabled:
            self.schedule(key, max(step.at, self._quiet_until))

    def schedule(self, key: WorkerKey, at: float) -> None:
        """Schedule a worker's next step at ``at``, unless it is due sooner."""
        current = self._due_at.get(key)
        if current is None or at < current:
            self._due_at[key] = at
            heappush(self._heap, (at, key))

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has work to do, or None if it has none."""
        while self._heap and self._due_at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def begin_due(self, now: float) -> None:
        """Begin a limited number of due actions. Returns before they are done."""
        for _ in range(_START_BATCH):
            if (due_at := self.next_deadline()) is None or due_at > now:
                return
            _, key = heappop(self._heap)
            del self._due_at[key]
            self.start(self.climb(key))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        self._tasks.start(work)

    async def wait_until_idle(self) -> None:
        """Wait until all work in progress is done."""
        await self._tasks.wait()

    async def close(self) -> None:
        """Stop. Unfinished actions are recorded and resume after the next start."""
        await self._tasks.cancel()

    # -- steps ----------------------------------------------------------------------------------

    async def climb(self, key: WorkerKey) -> None:
        """Take a worker's due step. If it fails, it is retried."""
        async with self.lock(key):
            try:
                await self._take_step(key)
            except Exception as error:
                _log.error("acting on %r failed and will be retried: %s", key[0], redact(str(error)))
                self.schedule(key, self._clock() + _RETRY_SECONDS)

    async def _take_step(self, key: WorkerKey) -> None:
        now = self._clock()
        worker = self._monitor.get(*key)
        current = self.ledger.ladders.get(key)
        if worker is None:
            self.ledger.forget_uncertain(key)
            if current is not None:
                await self.reset_ladder(key, None, "the worker is unknown")
            return
        if worker.vitals.withdrawal_due:
            await self._withdraw_confirmation(worker)
            current = self.ledger.ladders.get(key)
        if self._has_stopped(worker):
            await self._confirm(worker, current)
            current = self.ledger.ladders.get(key)
        step = next_step(current, LadderInputs.of(worker, self._settings), self._settings)
        if was_reset(current, step.ladder):
            await self.reset_ladder(key, step.ladder, "the worker made progress, or its run is over")
        elif (
            current is not None
            and (overdue_question := self._find_overdue_question(current, now))
            and step.action is None
        ):
            await self._withdraw_question(overdue_question, current)
        if step.ladder is None or step.action is None or self._should_leave_alone(key):
            return
        if self._is_left_to_others(worker, current, step.action, step.ladder):
            if current is not None:
                await self.reset_ladder(key, None, "its run failed, and its own launcher restarts it")
            return
        at = max(step.at, self._quiet_until)
        if at <= now:
            at = self.budget.free_at(now)
        if at > now:
            self.schedule(key, at)
        elif self._stop_reason() is None:
            # During the emergency stop, nothing is due. Its release reschedules every worker.
            if not await self.budget.take(now):
                self.schedule(key, max(self.budget.free_at(now), now + _RETRY_SECONDS))
                return
            await self._take_action(step.action, step.ladder, worker, now)
            self.consider(worker)

    def _should_leave_alone(self, key: WorkerKey) -> bool:
        # A worker that is being recovered needs no other action.
        return not self._settings.intervention.enabled or self._recovery.is_recovering(key)

    def _is_left_to_others(
        self, worker: WorkerHealth, current: Ladder | None, action: ActionKind, ladder: Ladder
    ) -> bool:
        """
        Return whether to leave a failed run to its launcher: this service cannot restart it, and has not
        acted on it.
        """
        if action is not ActionKind.RECOVER or ladder == current or self._recovery.can_reach(ladder.target):
            return False
        # If this service has acted on the run, its checkpoint still has to be recovered.
        return current is None or worker.vitals.last_checkpoint is None

    async def _take_action(
        self, action: ActionKind, ladder: Ladder, worker: WorkerHealth, now: float
    ) -> None:
        if action is ActionKind.NUDGE:
            await self._nudge(ladder, worker, now)
        elif action is ActionKind.ESCALATE:
            await self.ask_orchestrator(ladder, by=LADDER, reason=describe_cause(worker))
        elif action is ActionKind.TERMINATE:
            await self._handle_deadline(ladder, worker, now)
        else:
            await self._recover(ladder, describe_cause(worker))

    async def _nudge(self, ladder: Ladder, worker: WorkerHealth, now: float) -> None:
        grant = self._actions.permit(ActionKind.NUDGE, ladder.target)
        is_handing_off = ladder.level is Level.HANDING_OFF
        next_ladder = ladder.model_copy(
            update={"nudges": ladder.nudges + 1, "acted_at": now, "is_informed": True}
        )
        await self._actions.nudge(
            grant,
            message=messages.hand_off_text() if is_handing_off else messages.nudge_text(worker, now),
            by=ladder.by,
            reason=ladder.reason or describe_cause(worker),
            attempt=next_ladder.nudges,
            ladder=next_ladder,
            since=ladder.trouble_since,
        )

    async def ask_orchestrator(self, ladder: Ladder, *, by: str, reason: str) -> Intervention:
        """
        Escalate a worker to the orchestrator. The caller holds the worker's lock.

        Raises:
            ActionRefusedError: No action on the worker is permitted now.
            StoreError: Recording failed, so the orchestrator was not asked.
        """
        intervention, question, next_ladder = await self._actions.escalate(
            self._actions.permit(ActionKind.ESCALATE, ladder.target),
            by=by,
            reason=reason,
            ladder=ladder,
            context={"nudges": ladder.nudges, "trouble_since": ladder.trouble_since},
        )
        self.schedule(ladder.target.key, next_ladder.until or self._clock())
        if question is not None:
            self._ask(question)
        return intervention

    # -- termination and recovery ---------------------------------------------------------------

    async def _handle_deadline(self, ladder: Ladder, worker: WorkerHealth, now: float) -> None:
        if ladder.level is Level.ESCALATED:
            question = self.ledger.pending.get(ladder.escalation_id)
            is_automatic = self._settings.intervention.termination.automatic
            ladder = ladder.model_copy(
                update={
                    "level": Level.TERMINATING if is_automatic else Level.HUMAN,
                    "reason": f"no decision in time: {describe_cause(worker)}",
                }
            )
            outcome, events = self.close_question(question, EscalationStatus.TIMED_OUT, ladder.reason, now)
            await self.ledger.write(
                ladder.target.key, ladder=ladder, now=now, escalation=outcome, events=events
            )
            if not is_automatic:
                return
        await self._terminate_and_recover(ladder, worker)

    async def _terminate_and_recover(self, ladder: Ladder, worker: WorkerHealth) -> None:
        """Terminate a worker, and schedule its recovery once it has certainly stopped."""
        uncertain = self.ledger.uncertain.get(ladder.target.key)
        earlier = uncertain if uncertain is not None and uncertain.target == ladder.target else None
        terminating_ladder = ladder.model_copy(update={"level": Level.TERMINATING, "acted_at": self._clock()})
        intervention = await self._actions.terminate(
            self._actions.permit(ActionKind.TERMINATE, ladder.target),
            by=ladder.by,
            reason=ladder.reason or describe_cause(worker),
            ladders=TerminationLadders(
                during=terminating_ladder,
                after_confirmed_stop=self._make_ladder_after_stop(terminating_ladder),
                after_unconfirmed_stop=terminating_ladder.model_copy(
                    update={"level": Level.HUMAN, "until": None}
                ),
            ),
            since=ladder.trouble_since,
            earlier=earlier,
        )
        if intervention.outcome is InterventionOutcome.DONE:
            self.consider(worker)

    def _make_ladder_after_stop(self, ladder: Ladder) -> Ladder:
        recovers = self._settings.recovery.automatic
        return ladder.model_copy(
            update={"level": Level.TERMINATED if recovers else Level.HUMAN, "until": None}
        )

    def _has_stopped(self, worker: WorkerHealth) -> bool:
        """Return whether a worker with an unconfirmed termination has ended."""
        intervention = self.ledger.uncertain.get(worker.key)
        has_ended = worker.vitals.has_ended and worker.vitals.status is not WorkerStatus.UNKNOWN
        return intervention is not None and (has_ended or intervention.target != Target.of(worker.vitals))

    async def _confirm(self, worker: WorkerHealth, ladder: Ladder | None) -> None:
        intervention = self.ledger.uncertain[worker.key]
        if intervention.target != Target.of(worker.vitals):
            self.ledger.forget_uncertain(worker.key)
            if intervention.outcome is InterventionOutcome.STARTED:
                detail = (
                    "the worker was restarted in the meantime; the previous incarnation's outcome is unknown"
                )
                await self._actions.end(intervention, InterventionOutcome.FAILED, ladder, detail=detail)
            return
        was_terminated_by_ladder = (
            ladder is not None and ladder.level in (Level.TERMINATING, Level.HUMAN) and ladder.is_recoverable
        )
        await self._actions.confirm(
            intervention,
            StopResult(is_confirmed=True, checkpoint_id=intervention.checkpoint_id, detail="it has ended"),
            ladder=self._make_ladder_after_stop(ladder)
            if ladder is not None and was_terminated_by_ladder
            else None,
        )

    async def _withdraw_confirmation(self, worker: WorkerHealth) -> None:
        """Record that a worker continues after a confirmed termination. A person must then act."""
        target = Target.of(worker.vitals)
        intervention = self.ledger.uncertain.get(worker.key)
        if intervention is None or intervention.target != target:
            intervention = await self.ledger.find_stopped(target)
        if intervention is not None and intervention.outcome is InterventionOutcome.DONE:
            self.ledger.uncertain[worker.key] = intervention
            current = self.ledger.ladders.get(worker.key)
            if current is None or current.target != target:
                # A person terminated the worker, without recovery.
                current = new_ladder(LadderInputs.of(worker, self._settings)).model_copy(
                    update={"is_recoverable": False}
                )
            # Progress in that work does not reset the ladder, because a person must act.
            changes = {
                "level": Level.HUMAN,
                "until": None,
                "progress_before": worker.vitals.last_progress,
            }
            await self._actions.end(
                intervention,
                InterventionOutcome.UNCONFIRMED,
                current.model_copy(update=changes),
                detail="its termination was confirmed, but its telemetry shows that it is still working",
            )
        worker.vitals.withdrawal_due = False

    async def _recover(self, ladder: Ladder, reason: str) -> None:
        recovering_ladder = ladder.model_copy(update={"level": Level.RECOVERING, "until": None})
        human_ladder = ladder.model_copy(update={"level": Level.HUMAN, "until": None})
        detail, next_ladder = "", human_ladder
        try:
            self._actions.permit(ActionKind.RECOVER, ladder.target)
        except ActionRefusedError as refusal:
            outcome, detail = InterventionOutcome.REFUSED, refusal.reason
        else:
            if self._settings.intervention.is_dry(ActionKind.RECOVER):
                outcome = InterventionOutcome.DRY_RUN
            else:
                result = await self._recovery.request(ladder.target, reason, by=ladder.by)
                outcome = InterventionOutcome.DONE if result.accepted else InterventionOutcome.REFUSED
                detail, next_ladder = result.reason, recovering_ladder if result.accepted else human_ladder
                if not result.accepted:
                    _log.warning("%s is not recovered: %s", ladder.target, result.reason)
        await self._actions.note(
            ActionKind.RECOVER,
            ladder.target,
            outcome,
            by=ladder.by,
            reason=ladder.reason or reason,
            detail=detail,
            ladder=next_ladder,
            since=ladder.trouble_since,
        )

    # -- stepping down --------------------------------------------------------------------------

    async def reset_ladder(self, key: WorkerKey, after: Ladder | None, reason: str) -> None:
        """Replace a ladder by ``after`` and withdraw its escalation. The caller holds the worker's lock."""
        ladder, now = self.ledger.ladders.get(key), self._clock()
        question = self.ledger.pending.get(ladder.escalation_id) if ladder is not None else None
        outcome, events = self.close_question(question, EscalationStatus.WITHDRAWN, reason, now)
        await self.ledger.write(key, ladder=after, now=now, escalation=outcome, events=events)

    def close_question(
        self, question: Escalation | None, status: EscalationStatus, reason: str, now: float
    ) -> tuple[Escalation | None, list[AgentEvent]]:
        """Return an escalation that is closed without an answer, and the event that records this."""
        if question is None:
            return None, []
        outcome = question.model_copy(
            update={"status": status, "decision_reason": redact(reason, 2000), "decided_at": now}
        )
        return outcome, [decided_event(outcome, self._monitor.get(*question.target.key), now)]

    def _find_overdue_question(self, ladder: Ladder, now: float) -> Escalation | None:
        question = self.ledger.pending.get(ladder.escalation_id)
        return question if question is not None and question.deadline <= now else None

    async def _withdraw_question(self, question: Escalation, ladder: Ladder) -> None:
        """
        Withdraw an escalation because its worker is healthy or waits at the deadline. The ladder steps back.
        """
        now = self._clock()
        reason = "at the deadline the worker was not in trouble"
        outcome, events = self.close_question(question, EscalationStatus.WITHDRAWN, reason, now)
        previous_ladder = ladder.model_copy(
            update={"level": Level.NUDGED, "until": None, "escalation_id": ""}
        )
        await self.ledger.write(
            ladder.target.key, ladder=previous_ladder, now=now, escalation=outcome, events=events
        )

    async def shift(self, seconds: float) -> None:
        """Defer every wait by ``seconds``, a period in which no one could act or answer."""
        now = self._clock()
        for key in list(self.ledger.ladders):
            async with self.lock(key):
                ladder = self.ledger.ladders.get(key)
                if ladder is None:
                    continue
                question = self.ledger.pending.get(ladder.escalation_id)
                if question is not None:
                    question = question.model_copy(update={"deadline": question.deadline + seconds})
                shifted_times = {
                    # These are compared with the worker's last checkpoint and progress, which are shifted
                    # too.
                    "trouble_since": min(now, ladder.trouble_since + seconds),
                    "progress_before": (
                        None if ladder.progress_before is None else min(now, ladder.progress_before + seconds)
                    ),
                    "acted_at": None if ladder.acted_at is None else min(now, ladder.acted_at + seconds),
                    "until": None if ladder.until is None else ladder.until + seconds,
                }
                await self.ledger.write(
                    key, ladder=ladder.model_copy(update=shifted_times), now=now, escalation=question
                )
        for worker in list(self._monitor.workers()):
            if worker.key in self.ledger.ladders or worker.state.rank >= HealthState.STUCK.rank:
                self.consider(worker)


def was_reset(current: Ladder | None, after: Ladder | None) -> bool:
    """Return whether ``after`` resets a ladder on which actions were taken."""
    return current is not None and (after is None or (after.is_untouched and not current.is_untouched))


def describe_cause(worker: WorkerHealth) -> str:
    """Return the reason for an action on a worker."""
    worst_finding = find_worst(worker.findings)
    return worst_finding.evidence if worst_finding is not None else worker.reason


def decided_event(question: Escalation, worker: WorkerHealth | None, now: float) -> AgentEvent:
    """Return the event that records that an escalation was decided or withdrawn."""
    data = {
        "escalation_id": question.escalation_id,
        "status": question.status.value,
        "decision": question.decision,
        "by": question.decided_by,
        "reason": question.decision_reason,
        "more_time_seconds": question.more_time_seconds,
    }
    return messages.event_about(EventType.ESCALATION_DECIDED, question, worker, now, data)
