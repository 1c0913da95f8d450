"""
The intervention service: climbs each worker's ladder when it is time, and carries out what people ask for.

It acts by deadline: a heap holds when each worker's next rung is due, and what is due is decided anew at that
moment, from how the worker is then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from heapq import heappop, heappush
from typing import Any, Final, Protocol

from queenright.health.findings import HealthState, WorkerKey, worst
from queenright.health.interventions import messages
from queenright.health.interventions.actions import Actions, Sign
from queenright.health.interventions.control import WorkerControl
from queenright.health.interventions.ladder import Ladder, Level, Standing, next_step
from queenright.health.interventions.ledger import Ledger
from queenright.health.interventions.permit import ActionRefused, permit
from queenright.health.interventions.record import (
    OPTIONS,
    Answer,
    Decision,
    Escalation,
    EscalationStatus,
    Intervention,
    Outcome,
)
from queenright.health.interventions.storm import ActionBudget, StormWatch
from queenright.health.interventions.switch import EmergencyStop
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store import Store
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

LADDER: Final = "ladder"
"""Who acts when nobody asked."""

_RETRY_SECONDS: Final = 5.0

Orchestrator = Callable[[Escalation], Awaitable[Answer | None]]
"""Is asked what is to be done about a worker. None: the answer comes later, by ``decide``."""


class Recovers(Protocol):
    """Brings workers back; see ``queenright.health.recovery``."""

    async def request(self, target: Target, reason: str, *, by: str) -> Any:
        """Plan a recovery; the result says by ``accepted`` and ``reason`` whether there will be one."""
        ...

    def in_hand(self, key: WorkerKey) -> bool:
        """Return whether a worker is being brought back, or has been and is watched closely."""
        ...

    def reaches(self, target: Target) -> bool:
        """Return whether anybody here could start this worker again."""
        ...


class AgentUnknown(QueenrightError):
    """Raised when a worker is asked for that is not known."""

    def __init__(self, agent_id: str, session_id: str | None = None) -> None:
        which = f", session {session_id[:100]!r}" if session_id else ""
        super().__init__(f"no worker {agent_id[:100]!r}{which} is known; queenright list shows who is")


class EscalationUnknown(QueenrightError):
    """Raised when no escalation has this id."""

    def __init__(self, escalation_id: str) -> None:
        super().__init__(
            f"there is no escalation {escalation_id[:64]!r}; queenright escalations list shows what there is"
        )


class EscalationOver(QueenrightError):
    """Raised when an escalation is answered that needs no answer any more."""

    def __init__(self, escalation: Escalation) -> None:
        super().__init__(
            f"escalation {escalation.escalation_id} is {escalation.status.value}"
            + (f" ({escalation.decision} by {escalation.decided_by})" if escalation.decision else "")
        )
        self.reason = str(self)


class InterventionService:
    """
    All interventions of one service. Belongs to one event loop.

    Args:
        store: Where ladders, interventions and escalations are kept.
        settings: The rungs and their times.
        monitor: Knows the workers.
        controls: Reach workers.
        recovery: Brings back what was stopped or crashed.
        stop: The emergency stop.
        storm: Sees storms.
        clock: Seconds since the epoch.
        publish: Is given events once they are durable (``EventBus.fan_out``).
        sign: Signs the word that a worker was terminated.
        orchestrator: Is asked at the second level; None: whoever listens for ``escalation_triggered``.
        ids: Makes ids.
    """

    def __init__(
        self,
        store: Store,
        *,
        settings: HealthSettings,
        monitor: HealthMonitor,
        controls: Sequence[WorkerControl],
        recovery: Recovers,
        stop: EmergencyStop,
        storm: StormWatch,
        clock: Clock,
        publish: Callable[..., None],
        sign: Sign,
        orchestrator: Orchestrator | None = None,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._settings = settings
        self._monitor = monitor
        self._recovery = recovery
        self._stop = stop
        self._storm = storm
        self._clock = clock
        self._orchestrator = orchestrator
        self._budget = ActionBudget(settings.intervention.storm.max_actions)
        self.ledger = Ledger(store, publish=publish)
        self._actions = Actions(
            self.ledger,
            monitor=monitor,
            controls=controls,
            settings=settings.intervention,
            clock=clock,
            ids=ids,
            sign=sign,
        )
        self._heap: list[tuple[float, WorkerKey]] = []
        self._due: dict[WorkerKey, float] = {}
        self._locks: dict[WorkerKey, asyncio.Lock] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._quiet_until = 0.0

    # -- life ---------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Know again what was done before a restart, and go on from there. The monitor knows its workers."""
        for one in await self.ledger.load():
            ended = one.model_copy(
                update={
                    "outcome": Outcome.FAILED,
                    "finished_at": self._clock(),
                    "detail": "a restart came in between; nothing is known of its end",
                }
            )
            await self.ledger.write(
                one.target.key,
                ladder=self._taken_up(self.ledger.ladders.get(one.target.key)),
                now=self._clock(),
                intervention=ended,
            )
        for key in self.ledger.ladders:
            self._look_at(key, self._clock())
        for worker in self._monitor.workers():
            self.consider(worker)
        if self._orchestrator is not None:
            for question in self.ledger.pending.values():
                self._start(self._consult(question))

    def _taken_up(self, ladder: Ladder | None) -> Ladder | None:
        """Return the ladder of a worker that was being stopped: it may have ended by that."""
        if ladder is None or ladder.level is not Level.TERMINATING:
            return ladder
        worker = self._monitor.get(*ladder.target.key)
        if worker is None or not worker.vitals.ended:
            return ladder
        return ladder.model_copy(update={"level": Level.TERMINATED})

    async def close(self) -> None:
        """End what is being done; what it was is written down, and gone on with after the next start."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    # -- the ladder ---------------------------------------------------------------------------------

    def worse(self, event: AgentEvent) -> None:
        """Let a change of state count towards a storm: a warning sign is none."""
        before, after = HealthState(event.data["from"]), HealthState(event.data["to"])
        if after.rank > before.rank and after in (HealthState.STUCK, HealthState.FAILING):
            began = self._storm.worse((event.agent_id, event.session_id), self._clock())
            if began:
                _log.warning("a storm: %d workers got worse at once", self._storm.workers)

    def consider(self, worker: WorkerHealth) -> None:
        """See, because a worker changed, when its next rung is due. Quick, no I/O."""
        known = self.ledger.ladders.get(worker.key)
        if known is None and not self._settings.intervention.enabled:
            return
        step = next_step(known, Standing.of(worker, self._settings), self._settings)
        if _came_down(known, step.ladder):
            self._look_at(worker.key, self._clock())
        elif step.action is not None and self._settings.intervention.enabled:
            self._look_at(worker.key, max(step.at, self._quiet_until))

    def hold_until(self, at: float) -> None:
        """Do nothing by itself before ``at``, in seconds since the epoch."""
        self._quiet_until = at

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has something to do; None if nothing is due, whatever the time."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    async def advance(self, now: float) -> None:
        """Begin what is due. Returns before it is done."""
        while (due := self.next_deadline()) is not None and due <= now:
            _, key = heappop(self._heap)
            del self._due[key]
            self._start(self._climb(key))

    def _look_at(self, key: WorkerKey, at: float) -> None:
        known = self._due.get(key)
        if known is None or at < known:
            self._due[key] = at
            heappush(self._heap, (at, key))

    async def settled(self) -> None:
        """Wait until everything that was begun is done."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _climb(self, key: WorkerKey) -> None:
        async with self._lock(key):
            try:
                await self._climb_alone(key)
            except Exception as error:
                _log.error("acting on %r failed, and is tried again: %s", key[0], redact(str(error)))
                self._look_at(key, self._clock() + _RETRY_SECONDS)

    async def _climb_alone(self, key: WorkerKey) -> None:
        now = self._clock()
        worker = self._monitor.get(*key)
        known = self.ledger.ladders.get(key)
        if worker is None:
            if known is not None:
                await self._come_down(key, None, "the worker is not known any more")
            return
        step = next_step(known, Standing.of(worker, self._settings), self._settings)
        if _came_down(known, step.ladder):
            await self._come_down(key, step.ladder, "the worker got further, or its run is over")
        elif known is not None and (overdue := self._overdue(known, now)) and step.action is None:
            await self._drop_question(overdue, known)
        if step.ladder is None or step.action is None or not self._settings.intervention.enabled:
            return
        if self._recovery.in_hand(key):
            return  # what it needs, its recovery sees to
        if (
            known is None
            and step.action is ActionKind.RECOVER
            and not self._recovery.reaches(step.ladder.target)
        ):
            return  # it crashed somewhere else, and whoever runs it there starts it again
        if max(step.at, self._quiet_until) > now:
            self._look_at(key, max(step.at, self._quiet_until))
        elif self._stop.reason is None:
            # While the emergency stop is on nothing is due; its release looks at everybody again.
            free = self._budget.free_at(now)
            if free > now:
                self._look_at(key, free)
                return
            self._budget.spend(now)
            await self._do(step.action, step.ladder, worker, now)
            self.consider(worker)

    async def _do(self, action: ActionKind, ladder: Ladder, worker: WorkerHealth, now: float) -> None:
        reason = _reason(worker)
        given = permit(action, ladder.target, worker, stopped=self._stop.reason)
        if action is ActionKind.NUDGE:
            climbed = ladder.model_copy(
                update={"level": Level.NUDGED, "nudges": ladder.nudges + 1, "acted_at": now}
            )
            await self._actions.nudge(
                given,
                message=messages.reminder(worker, now),
                by=LADDER,
                reason=reason,
                attempt=climbed.nudges,
                ladder=climbed,
                since=ladder.trouble_since,
            )
        elif action is ActionKind.ESCALATE:
            await self._ask(ladder, worker, by=LADDER, reason=reason)
        elif action is ActionKind.TERMINATE:
            await self._time_is_up(ladder, worker, reason, now)
        else:
            await self._bring_back(ladder, reason, by=LADDER)

    async def _ask(self, ladder: Ladder, worker: WorkerHealth, *, by: str, reason: str) -> Intervention:
        given = permit(ActionKind.ESCALATE, ladder.target, worker, stopped=self._stop.reason)
        done, question, climbed = await self._actions.escalate(
            given,
            by=by,
            reason=reason,
            attempt=1,
            ladder=ladder,
            context={"nudges": ladder.nudges, "trouble_since": ladder.trouble_since},
        )
        self._look_at(ladder.target.key, climbed.until or self._clock())
        if question is not None and self._orchestrator is not None:
            self._start(self._consult(question))
        return done

    async def _consult(self, question: Escalation) -> None:
        assert self._orchestrator is not None
        try:
            answer = await self._orchestrator(question)
            if answer is not None:
                await self.decide(
                    question.escalation_id,
                    answer.decision,
                    by="orchestrator",
                    reason=answer.reason,
                    more_time_seconds=answer.more_time_seconds,
                )
        except (ActionRefused, EscalationOver) as error:
            _log.info("the orchestrator's answer came to nothing: %s", error)
        except Exception as error:
            # Its silence is no decision: the deadline stands, and a person can still answer.
            _log.error("the orchestrator gave no answer about %r: %s", question.agent_id, redact(str(error)))

    async def _time_is_up(self, ladder: Ladder, worker: WorkerHealth, reason: str, now: float) -> None:
        question = self.ledger.pending.get(ladder.escalation_id)
        unanswered = ladder.level is Level.ESCALATED
        if question is not None:
            question = question.model_copy(update={"status": EscalationStatus.TIMED_OUT})
        if unanswered and not self._settings.intervention.termination.automatic:
            human = ladder.model_copy(update={"level": Level.HUMAN, "until": None})
            await self.ledger.write(ladder.target.key, ladder=human, now=now, escalation=question)
            return
        why = f"nobody decided in time: {reason}" if unanswered else reason
        await self._end_it(ladder, worker, by=LADDER, reason=why, escalation=question)

    async def _end_it(
        self,
        ladder: Ladder,
        worker: WorkerHealth,
        *,
        by: str,
        reason: str,
        escalation: Escalation | None = None,
    ) -> Intervention:
        """Terminate, and bring back what is certain to have stopped."""
        given = permit(ActionKind.TERMINATE, ladder.target, worker, stopped=self._stop.reason)
        recovers = self._settings.recovery.automatic
        terminated = ladder.model_copy(
            update={"level": Level.TERMINATED if recovers else Level.HUMAN, "until": None}
        )
        done = await self._actions.terminate(
            given,
            by=by,
            reason=reason,
            ladder=ladder.model_copy(update={"level": Level.TERMINATING, "acted_at": self._clock()}),
            after=terminated,
            since=ladder.trouble_since,
            escalation=escalation,
        )
        if done.outcome is Outcome.DONE and recovers:
            await self._bring_back(terminated, reason, by=by)
        return done

    async def _bring_back(self, ladder: Ladder, reason: str, *, by: str) -> None:
        key = ladder.target.key
        recovering = ladder.model_copy(update={"level": Level.RECOVERING, "until": None})
        human = ladder.model_copy(update={"level": Level.HUMAN, "until": None})
        worker = self._monitor.get(*key)
        since = ladder.trouble_since
        try:
            permit(ActionKind.RECOVER, ladder.target, worker, stopped=self._stop.reason)
        except ActionRefused as refusal:
            await self._actions.note(
                ActionKind.RECOVER,
                ladder.target,
                Outcome.REFUSED,
                by=by,
                reason=reason,
                detail=refusal.reason,
                ladder=human,
                since=since,
            )
            return
        if self._settings.intervention.dry_run:
            outcome, detail, after = Outcome.DRY_RUN, "", human
        else:
            result = await self._recovery.request(ladder.target, reason, by=by)
            outcome = Outcome.DONE if result.accepted else Outcome.REFUSED
            detail, after = result.reason, recovering if result.accepted else human
            if not result.accepted:
                _log.warning("%s is not brought back: %s", ladder.target, result.reason)
        await self._actions.note(
            ActionKind.RECOVER,
            ladder.target,
            outcome,
            by=by,
            reason=reason,
            detail=detail,
            ladder=after,
            since=since,
        )

    # -- coming down --------------------------------------------------------------------------------

    async def _come_down(self, key: WorkerKey, after: Ladder | None, reason: str) -> None:
        ladder = self.ledger.ladders.get(key)
        question = self.ledger.pending.get(ladder.escalation_id) if ladder is not None else None
        if question is not None:
            question = question.model_copy(
                update={"status": EscalationStatus.WITHDRAWN, "decision_reason": reason}
            )
        await self.ledger.write(key, ladder=after, now=self._clock(), escalation=question)

    def _overdue(self, ladder: Ladder, now: float) -> Escalation | None:
        question = self.ledger.pending.get(ladder.escalation_id)
        return question if question is not None and question.deadline <= now else None

    async def _drop_question(self, question: Escalation, ladder: Ladder) -> None:
        """Close a question whose worker is well, or waits, at its deadline: the ladder stays where it was."""
        closed = question.model_copy(
            update={
                "status": EscalationStatus.WITHDRAWN,
                "decision_reason": "at the deadline the worker was not in trouble",
            }
        )
        back = ladder.model_copy(update={"level": Level.NUDGED, "until": None, "escalation_id": ""})
        await self.ledger.write(ladder.target.key, ladder=back, now=self._clock(), escalation=closed)

    # -- what people and orchestrators ask for ------------------------------------------------------

    async def nudge(
        self, agent_id: str, message: str | None = None, *, session_id: str | None = None, by: str
    ) -> Intervention:
        """
        Put a message into a worker's context; without one, the reminder.

        Raises:
            AgentUnknown: No such worker is known.
            ActionRefused: It must not be; the refusal is written down.
            StoreError: It could not be written down.
        """
        worker = self._find(agent_id, session_id)
        async with self._lock(worker.key):
            known = self._ladder(worker)
            given = await self._permit(ActionKind.NUDGE, worker, by=by, reason=message or "reminder")
            now = self._clock()
            self._budget.spend(now)
            ladder = known.model_copy(update={"acted_at": now}) if known is not None else None
            return await self._actions.nudge(
                given,
                message=message or messages.reminder(worker, now),
                by=by,
                reason=_reason(worker),
                attempt=known.nudges + 1 if known is not None else 1,
                ladder=ladder,
                since=known.trouble_since if known is not None else None,
            )

    async def escalate(
        self, agent_id: str, reason: str, *, session_id: str | None = None, by: str
    ) -> Intervention:
        """
        Ask the orchestrator about a worker.

        One that is well is not terminated when nobody answers.

        Raises:
            AgentUnknown: No such worker is known.
            ActionRefused: It must not be, or the orchestrator is asked already.
            StoreError: It could not be written down.
        """
        worker = self._find(agent_id, session_id)
        async with self._lock(worker.key):
            known = self._ladder(worker)
            if known is not None and known.escalation_id in self.ledger.pending:
                asked = f"the orchestrator is asked already (escalation {known.escalation_id})"
                raise ActionRefused(ActionKind.ESCALATE, agent_id, asked)
            given = await self._permit(ActionKind.ESCALATE, worker, by=by, reason=reason)
            ladder = known or Ladder(
                agent_id=given.target.agent_id,
                session_id=given.target.session_id,
                incarnation_id=given.target.incarnation_id,
                trouble_since=self._clock(),
                progress_before=worker.vitals.last_progress,
            )
            self._budget.spend(self._clock())
            return await self._ask(ladder, worker, by=by, reason=reason)

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
        Answer an escalation: ``more_time``, ``hand_off`` or ``terminate`` (and recover).

        Raises:
            EscalationUnknown: There is none of this id.
            EscalationOver: It has been answered, its time is over, or the worker has got further.
            ActionRefused: The worker must not be acted on now.
            ValueError: The decision is none of the three, or the time is not above zero.
            StoreError: It could not be written down.
        """
        if decision not in OPTIONS:
            raise ValueError(f"decision must be one of {', '.join(OPTIONS)}, got {decision!r}")
        if more_time_seconds is not None and not 0 < more_time_seconds <= 7 * 86_400:
            raise ValueError(
                f"more_time_seconds must be above 0 and at most a week, got {more_time_seconds!r}"
            )
        question = await self.ledger.find_escalation(escalation_id)
        if question is None:
            raise EscalationUnknown(escalation_id)
        key = question.target.key
        async with self._lock(key):
            question = self.ledger.pending.get(escalation_id)
            if question is None:
                raise EscalationOver(
                    (await self.ledger.find_escalation(escalation_id)) or _gone(escalation_id)
                )
            worker = self._monitor.get(*key)
            ladder = self.ledger.ladders.get(key)
            if worker is None or decision != "more_time":
                # To leave a worker in peace, nothing about it need be asked.
                permit(ActionKind.ESCALATE, question.target, worker, stopped=self._stop.reason)
            assert worker is not None
            standing = Standing.of(worker, self._settings)
            after = next_step(ladder, standing, self._settings).ladder
            if ladder is None or after is None or _came_down(ladder, after):
                await self._come_down(key, after, "the worker got further")
                raise ActionRefused(ActionKind.ESCALATE, question.agent_id, "it has got further since")
            now = self._clock()
            decided = question.model_copy(
                update={
                    "status": EscalationStatus.DECIDED,
                    "decision": decision,
                    "decided_by": redact(by, 100),
                    "decided_at": now,
                    "decision_reason": redact(reason, 2000),
                    "more_time_seconds": more_time_seconds,
                }
            )
            await self._carry_out(decided, ladder, worker, now)
            return decided

    async def _carry_out(self, decided: Escalation, ladder: Ladder, worker: WorkerHealth, now: float) -> None:
        data = {
            "escalation_id": decided.escalation_id,
            "decision": decided.decision,
            "by": decided.decided_by,
            "reason": decided.decision_reason,
            "more_time_seconds": decided.more_time_seconds,
        }
        said = [messages.event_about(EventType.ESCALATION_DECIDED, decided, worker, now, data)]
        intervention = self._settings.intervention
        level, wait = {
            "more_time": (
                Level.MORE_TIME,
                decided.more_time_seconds or intervention.escalation.more_time_seconds,
            ),
            "hand_off": (Level.HANDING_OFF, intervention.nudge.interval_seconds),
            "terminate": (Level.TERMINATING, 0.0),
        }[str(decided.decision)]
        after = ladder.model_copy(update={"level": level, "until": now + wait, "acted_at": now})
        await self.ledger.write(ladder.target.key, ladder=after, now=now, escalation=decided, events=said)
        if decided.decision == "hand_off":
            given = permit(ActionKind.NUDGE, ladder.target, worker, stopped=self._stop.reason)
            await self._actions.nudge(
                given,
                message=messages.hand_off(),
                by=decided.decided_by,
                reason="hand off",
                attempt=ladder.nudges + 1,
                ladder=after,
                since=ladder.trouble_since,
            )
        elif decided.decision == "terminate":
            await self._end_it(
                after, worker, by=decided.decided_by, reason=decided.decision_reason or decided.reason
            )
        self.consider(worker)

    async def terminate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str,
    ) -> Intervention:
        """
        Stop a worker for good: it is not brought back by itself.

        Args:
            agent_id: The worker.
            reason: Why; it is signed and kept.
            session_id: Which of its sessions; the one that is not over, without.
            incarnation_id: Which life, if that was looked at before: a later one is not stopped.
            by: Who wants it.

        Raises:
            AgentUnknown: No such worker is known.
            ActionRefused: It must not be; the refusal is written down.
            StoreError: It could not be written down.
        """
        worker = self._find(agent_id, session_id)
        async with self._lock(worker.key):
            given = await self._permit(
                ActionKind.TERMINATE, worker, by=by, reason=reason, incarnation_id=incarnation_id
            )
            self._budget.spend(self._clock())
            known = self.ledger.ladders.get(worker.key)
            question = self.ledger.pending.get(known.escalation_id) if known is not None else None
            if question is not None:
                question = question.model_copy(
                    update={"status": EscalationStatus.WITHDRAWN, "decision_reason": f"terminated by {by}"}
                )
            return await self._actions.terminate(
                given, by=by, reason=reason, ladder=None, after=None, escalation=question
            )

    async def take_down(self, target: Target, reason: str, *, by: str) -> Intervention:
        """
        Stop a worker that is to be started again, past the same guard as every other termination.

        Raises:
            ActionRefused: It must not be, or nothing says that it has stopped.
            StoreError: It could not be written down.
        """
        async with self._lock(target.key):
            given = permit(
                ActionKind.TERMINATE, target, self._monitor.get(*target.key), stopped=self._stop.reason
            )
            done = await self._actions.terminate(given, by=by, reason=reason, ladder=None, after=None)
        if done.outcome is not Outcome.DONE:
            raise ActionRefused(
                ActionKind.RECOVER, target.agent_id, f"it may be at work still: {done.detail}"
            )
        return done

    async def emergency_stop(self, on: bool, *, by: str, reason: str) -> None:
        """Freeze all acting, or release it: then every wait begins anew, so that nothing is due at once."""
        await self._stop.set(on, by=by, reason=reason)
        if on:
            return
        now = self._clock()
        for key, ladder in list(self.ledger.ladders.items()):
            renewed = ladder.model_copy(
                update={
                    "acted_at": now if ladder.acted_at is not None else None,
                    "until": now + self._settings.intervention.escalation.timeout_seconds
                    if ladder.until is not None
                    else None,
                }
            )
            async with self._lock(key):
                if self.ledger.ladders.get(key) == ladder:
                    await self.ledger.write(key, ladder=renewed, now=now)
        for worker in list(self._monitor.workers()):
            self.consider(worker)

    # -- inside -------------------------------------------------------------------------------------

    async def _permit(
        self,
        kind: ActionKind,
        worker: WorkerHealth,
        *,
        by: str,
        reason: str,
        incarnation_id: str | None = None,
    ) -> Any:
        target = Target.of(worker.vitals)
        if incarnation_id is not None:
            target = Target(
                agent_id=target.agent_id, session_id=target.session_id, incarnation_id=incarnation_id
            )
        try:
            return permit(kind, target, worker, stopped=self._stop.reason)
        except ActionRefused as refusal:
            await self._actions.note(
                kind,
                target,
                Outcome.REFUSED,
                by=by,
                reason=reason,
                detail=refusal.reason,
                ladder=self.ledger.ladders.get(worker.key),
            )
            raise

    def _ladder(self, worker: WorkerHealth) -> Ladder | None:
        """Return how far the ladder of this very life was climbed."""
        known = self.ledger.ladders.get(worker.key)
        return known if known is not None and known.target == Target.of(worker.vitals) else None

    def _find(self, agent_id: str, session_id: str | None) -> WorkerHealth:
        worker = self._monitor.get(agent_id, session_id)
        if worker is None:
            raise AgentUnknown(agent_id, session_id)
        return worker

    def _lock(self, key: WorkerKey) -> asyncio.Lock:
        if len(self._locks) > 1000:
            self._locks = {k: lock for k, lock in self._locks.items() if lock.locked()}
        return self._locks.setdefault(key, asyncio.Lock())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def _came_down(known: Ladder | None, after: Ladder | None) -> bool:
    """Return whether a ladder that was climbed is not any more."""
    return known is not None and (after is None or (after.grounded and not known.grounded))


def _reason(worker: WorkerHealth) -> str:
    lead = worst(worker.findings)
    return lead.evidence if lead is not None else worker.reason


def _gone(escalation_id: str) -> Escalation:
    raise EscalationUnknown(escalation_id)
