"""
The climber: climbs each worker's ladder when it is time.

It acts by deadline: a heap holds when each worker's next rung is due, and what is due is decided anew at that
moment, from how the worker is then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from queenright.health.findings import HealthState, WorkerKey, worst
from queenright.health.interventions import messages
from queenright.health.interventions.actions import Actions, Rungs
from queenright.health.interventions.control import Stopped
from queenright.health.interventions.ladder import Ladder, Level, Standing, foot, next_step
from queenright.health.interventions.ledger import Ledger
from queenright.health.interventions.limits import held_back
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.record import Escalation, EscalationStatus, Intervention, Outcome
from queenright.health.interventions.storm import ActionBudget
from queenright.health.interventions.target import LADDER, ActionKind, Target
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.vitals import SessionStatus
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0

_AT_ONCE: Final = 100
"""Workers that are begun with before others have the loop: some 15 ms."""


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


class Climber:
    """
    Climbs ladders. Belongs to one event loop.

    Args:
        ledger: Knows how far each has been climbed.
        actions: Does what is due.
        settings: The rungs and their times.
        monitor: Knows the workers.
        recovery: Brings back what was stopped or crashed.
        stopped: Says why nothing may be done to anybody, or None.
        clock: Seconds since the epoch.
        ask: Is given each question, to put it to the orchestrator.
    """

    def __init__(
        self,
        ledger: Ledger,
        actions: Actions,
        *,
        settings: HealthSettings,
        monitor: HealthMonitor,
        recovery: Recovers,
        stopped: Callable[[], str | None],
        clock: Clock,
        ask: Callable[[Escalation], None],
    ) -> None:
        self._ledger = ledger
        self._actions = actions
        self._settings = settings
        self._monitor = monitor
        self._recovery = recovery
        self._stopped = stopped
        self._clock = clock
        self._ask = ask
        self.budget = ActionBudget(settings.intervention.storm.max_actions)
        self._heap: list[tuple[float, WorkerKey]] = []
        self._due: dict[WorkerKey, float] = {}
        self._locks: WeakValueDictionary[WorkerKey, asyncio.Lock] = WeakValueDictionary()
        self._running: set[asyncio.Task[Any]] = set()
        self._quiet_until = 0.0

    # -- when -----------------------------------------------------------------------------------

    def lock(self, key: WorkerKey) -> asyncio.Lock:
        """Return what whoever acts on a worker holds: one at a time."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def hold_until(self, at: float) -> None:
        """Do nothing by itself before ``at``, in seconds since the epoch."""
        self._quiet_until = at

    def held_back(self, kind: ActionKind, worker: WorkerHealth) -> str | None:
        """Return why nothing may be done about a worker now but by a person; None if it may."""
        known = self._ledger.ladders.get(worker.key)
        return held_back(
            kind,
            worker,
            Standing.of(worker, self._settings),
            known if known is not None and known.target == Target.of(worker.vitals) else None,
            self._settings.intervention,
            now=self._clock(),
            quiet_until=self._quiet_until,
            budget=self.budget,
            in_hand=self._recovery.in_hand(worker.key),
        )

    def consider(self, worker: WorkerHealth) -> None:
        """See, because a worker changed, when its next rung is due. Quick, no I/O."""
        key = worker.key
        if worker.vitals.withdrawal_due:
            self.look_at(key, self._clock())
        known = self._ledger.ladders.get(key)
        if known is None and key not in self._ledger.uncertain and not self._settings.intervention.enabled:
            return
        step = next_step(known, Standing.of(worker, self._settings), self._settings)
        if came_down(known, step.ladder) or self._is_certain(worker):
            self.look_at(key, self._clock())
        elif step.action is not None and self._settings.intervention.enabled:
            self.look_at(key, max(step.at, self._quiet_until))

    def look_at(self, key: WorkerKey, at: float) -> None:
        """Look at a worker at ``at``."""
        known = self._due.get(key)
        if known is None or at < known:
            self._due[key] = at
            heappush(self._heap, (at, key))

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has something to do; None if nothing is due, whatever the time."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def advance(self, now: float) -> None:
        """Begin what is due, of a crowd a part; the rest stays due. Returns before it is done."""
        for _ in range(_AT_ONCE):
            if (due := self.next_deadline()) is None or due > now:
                return
            _, key = heappop(self._heap)
            del self._due[key]
            self.start(self.climb(key))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin some work that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def settled(self) -> None:
        """Wait until everything that was begun is done."""
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    async def close(self) -> None:
        """Leave off; what was begun is written down, and gone on with after the next start."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- climbing -------------------------------------------------------------------------------

    async def climb(self, key: WorkerKey) -> None:
        """Do for one worker what is due now; what fails is tried again."""
        async with self.lock(key):
            try:
                await self._climb(key)
            except Exception as error:
                _log.error("acting on %r failed, and is tried again: %s", key[0], redact(str(error)))
                self.look_at(key, self._clock() + _RETRY_SECONDS)

    async def _climb(self, key: WorkerKey) -> None:
        now = self._clock()
        worker = self._monitor.get(*key)
        known = self._ledger.ladders.get(key)
        if worker is None:
            self._ledger.forget_uncertain(key)
            if known is not None:
                await self.come_down(key, None, "the worker is not known any more")
            return
        if worker.vitals.withdrawal_due:
            await self._withdraw_confirmation(worker)
            known = self._ledger.ladders.get(key)
        if self._is_certain(worker):
            await self._confirm(worker, known)
            known = self._ledger.ladders.get(key)
        step = next_step(known, Standing.of(worker, self._settings), self._settings)
        if came_down(known, step.ladder):
            await self.come_down(key, step.ladder, "the worker got further, or its run is over")
        elif known is not None and (overdue := self._overdue(known, now)) and step.action is None:
            await self._drop_question(overdue, known)
        if step.ladder is None or step.action is None or self._leaves_alone(key):
            return
        if self._is_left_to_others(worker, known, step.action, step.ladder):
            if known is not None:
                await self.come_down(key, None, "its run failed, and whoever runs it starts it again")
            return
        at = max(step.at, self._quiet_until)
        if at <= now:
            at = self.budget.free_at(now)
        if at > now:
            self.look_at(key, at)
        elif self._stopped() is None:
            # While the emergency stop is on nothing is due; its release looks at everybody again.
            self.budget.spend(now)
            await self._do(step.action, step.ladder, worker, now)
            self.consider(worker)

    def _leaves_alone(self, key: WorkerKey) -> bool:
        # What is being brought back needs nothing else: its recovery sees to it.
        return not self._settings.intervention.enabled or self._recovery.in_hand(key)

    def _is_left_to_others(
        self, worker: WorkerHealth, known: Ladder | None, action: ActionKind, ladder: Ladder
    ) -> bool:
        """Return whether a run failed that nobody here can start again, and that nobody here has stopped."""
        if action is not ActionKind.RECOVER or ladder == known or self._recovery.reaches(ladder.target):
            return False
        # Of one that was acted on while it ran, somebody has to take up what it saved.
        return known is None or worker.vitals.last_checkpoint is None

    async def _do(self, action: ActionKind, ladder: Ladder, worker: WorkerHealth, now: float) -> None:
        if action is ActionKind.NUDGE:
            await self._nudge(ladder, worker, now)
        elif action is ActionKind.ESCALATE:
            await self.escalate(ladder, by=LADDER, reason=because(worker))
        elif action is ActionKind.TERMINATE:
            await self._time_is_up(ladder, worker, now)
        else:
            await self._bring_back(ladder, because(worker))

    async def _nudge(self, ladder: Ladder, worker: WorkerHealth, now: float) -> None:
        given = self._actions.permit(ActionKind.NUDGE, ladder.target)
        hands_off = ladder.level is Level.HANDING_OFF
        climbed = ladder.model_copy(update={"nudges": ladder.nudges + 1, "acted_at": now, "told": True})
        await self._actions.nudge(
            given,
            message=messages.hand_off() if hands_off else messages.reminder(worker, now),
            by=ladder.by,
            reason=ladder.reason or because(worker),
            attempt=climbed.nudges,
            ladder=climbed,
            since=ladder.trouble_since,
        )

    async def escalate(self, ladder: Ladder, *, by: str, reason: str) -> Intervention:
        """
        Ask the orchestrator about a worker; the caller holds its lock.

        Raises:
            ActionRefusedError: It must not be acted on now.
            StoreError: It could not be written down; nobody was asked.
        """
        done, question, climbed = await self._actions.escalate(
            self._actions.permit(ActionKind.ESCALATE, ladder.target),
            by=by,
            reason=reason,
            ladder=ladder,
            context={"nudges": ladder.nudges, "trouble_since": ladder.trouble_since},
        )
        self.look_at(ladder.target.key, climbed.until or self._clock())
        if question is not None:
            self._ask(question)
        return done

    # -- the end of a worker --------------------------------------------------------------------

    async def _time_is_up(self, ladder: Ladder, worker: WorkerHealth, now: float) -> None:
        if ladder.level is Level.ESCALATED:
            question = self._ledger.pending.get(ladder.escalation_id)
            automatic = self._settings.intervention.termination.automatic
            ladder = ladder.model_copy(
                update={
                    "level": Level.TERMINATING if automatic else Level.HUMAN,
                    "reason": f"nobody decided in time: {because(worker)}",
                }
            )
            closed, said = self.closed(question, EscalationStatus.TIMED_OUT, ladder.reason, now)
            await self._ledger.write(
                ladder.target.key, ladder=ladder, now=now, escalation=closed, events=said
            )
            if not automatic:
                return
        await self._end_it(ladder, worker)

    async def _end_it(self, ladder: Ladder, worker: WorkerHealth) -> None:
        """Terminate, and bring back what is certain to have stopped."""
        begun = self._ledger.uncertain.get(ladder.target.key)
        again = begun if begun is not None and begun.target == ladder.target else None
        terminating = ladder.model_copy(update={"level": Level.TERMINATING, "acted_at": self._clock()})
        done = await self._actions.terminate(
            self._actions.permit(ActionKind.TERMINATE, ladder.target),
            by=ladder.by,
            reason=ladder.reason or because(worker),
            rungs=Rungs(
                during=terminating,
                done=self._after_its_end(terminating),
                otherwise=terminating.model_copy(update={"level": Level.HUMAN, "until": None}),
            ),
            since=ladder.trouble_since,
            again=again,
        )
        if done.outcome is Outcome.DONE:
            self.consider(worker)

    def _after_its_end(self, ladder: Ladder) -> Ladder:
        recovers = self._settings.recovery.automatic
        return ladder.model_copy(
            update={"level": Level.TERMINATED if recovers else Level.HUMAN, "until": None}
        )

    def _is_certain(self, worker: WorkerHealth) -> bool:
        """Return whether a worker that was asked to stop has ended, and nobody has written that down."""
        one = self._ledger.uncertain.get(worker.key)
        ended = worker.vitals.ended and worker.vitals.status is not SessionStatus.UNKNOWN
        return one is not None and (ended or one.target != Target.of(worker.vitals))

    async def _confirm(self, worker: WorkerHealth, ladder: Ladder | None) -> None:
        one = self._ledger.uncertain[worker.key]
        if one.target != Target.of(worker.vitals):
            self._ledger.forget_uncertain(worker.key)
            if one.outcome is Outcome.STARTED:
                detail = "it was restarted meanwhile; nothing is known of the end of the life before"
                await self._actions.interrupted(one, ladder, detail)
            return
        ours = (
            ladder is not None and ladder.level in (Level.TERMINATING, Level.HUMAN) and ladder.is_recoverable
        )
        await self._actions.confirm(
            one,
            Stopped(confirmed=True, checkpoint_id=one.checkpoint_id, detail="it has ended"),
            ladder=self._after_its_end(ladder) if ladder is not None and ours else None,
        )

    async def _withdraw_confirmation(self, worker: WorkerHealth) -> None:
        """Write down that a worker works on after its termination, and leave it to a person."""
        target = Target.of(worker.vitals)
        one = self._ledger.uncertain.get(worker.key)
        if one is None or one.target != target:
            one = await self._ledger.find_stopped(target)
        if one is not None and one.outcome is Outcome.DONE:
            self._ledger.uncertain[worker.key] = one
            known = self._ledger.ladders.get(worker.key)
            if known is None or known.target != target:
                # It was a person who had it stopped, and not for it to be brought back.
                known = foot(Standing.of(worker, self._settings)).model_copy(update={"is_recoverable": False})
            # What came of the work after the end is no progress since: a person is to look at it.
            human = {
                "level": Level.HUMAN,
                "until": None,
                "progress_before": worker.vitals.last_progress,
            }
            await self._actions.unconfirmed(
                one,
                known.model_copy(update=human),
                "it was said to have stopped, and it works on: its telemetry goes on after that",
            )
        worker.vitals.withdrawal_due = False

    async def _bring_back(self, ladder: Ladder, reason: str) -> None:
        recovering = ladder.model_copy(update={"level": Level.RECOVERING, "until": None})
        human = ladder.model_copy(update={"level": Level.HUMAN, "until": None})
        detail, after = "", human
        try:
            self._actions.permit(ActionKind.RECOVER, ladder.target)
        except ActionRefusedError as refusal:
            outcome, detail = Outcome.REFUSED, refusal.reason
        else:
            if self._settings.intervention.is_dry(ActionKind.RECOVER):
                outcome = Outcome.DRY_RUN
            else:
                result = await self._recovery.request(ladder.target, reason, by=ladder.by)
                outcome = Outcome.DONE if result.accepted else Outcome.REFUSED
                detail, after = result.reason, recovering if result.accepted else human
                if not result.accepted:
                    _log.warning("%s is not brought back: %s", ladder.target, result.reason)
        await self._actions.note(
            ActionKind.RECOVER,
            ladder.target,
            outcome,
            by=ladder.by,
            reason=ladder.reason or reason,
            detail=detail,
            ladder=after,
            since=ladder.trouble_since,
        )

    # -- coming down ----------------------------------------------------------------------------

    async def come_down(self, key: WorkerKey, after: Ladder | None, reason: str) -> None:
        """Lead a ladder back to the ground, and withdraw what was asked; the caller holds the lock."""
        ladder, now = self._ledger.ladders.get(key), self._clock()
        question = self._ledger.pending.get(ladder.escalation_id) if ladder is not None else None
        closed, said = self.closed(question, EscalationStatus.WITHDRAWN, reason, now)
        await self._ledger.write(key, ladder=after, now=now, escalation=closed, events=said)

    def closed(
        self, question: Escalation | None, status: EscalationStatus, reason: str, now: float
    ) -> tuple[Escalation | None, list[AgentEvent]]:
        """Return a question as it is when nobody has answered it, and what is said of that."""
        if question is None:
            return None, []
        closed = question.model_copy(
            update={"status": status, "decision_reason": redact(reason, 2000), "decided_at": now}
        )
        return closed, [decided_event(closed, self._monitor.get(*question.target.key), now)]

    def _overdue(self, ladder: Ladder, now: float) -> Escalation | None:
        question = self._ledger.pending.get(ladder.escalation_id)
        return question if question is not None and question.deadline <= now else None

    async def _drop_question(self, question: Escalation, ladder: Ladder) -> None:
        """Close a question whose worker is well, or waits, at its deadline: the ladder stays where it was."""
        now = self._clock()
        reason = "at the deadline the worker was not in trouble"
        closed, said = self.closed(question, EscalationStatus.WITHDRAWN, reason, now)
        back = ladder.model_copy(update={"level": Level.NUDGED, "until": None, "escalation_id": ""})
        await self._ledger.write(ladder.target.key, ladder=back, now=now, escalation=closed, events=said)

    async def shift(self, seconds: float) -> None:
        """Let every wait go on ``seconds`` later: nothing was done, or could be answered, meanwhile."""
        now = self._clock()
        for key in list(self._ledger.ladders):
            async with self.lock(key):
                ladder = self._ledger.ladders.get(key)
                if ladder is None:
                    continue
                question = self._ledger.pending.get(ladder.escalation_id)
                if question is not None:
                    question = question.model_copy(update={"deadline": question.deadline + seconds})
                moved = {
                    # Compared with the worker's last checkpoint and progress, which have moved as well.
                    "trouble_since": min(now, ladder.trouble_since + seconds),
                    "progress_before": (
                        None if ladder.progress_before is None else min(now, ladder.progress_before + seconds)
                    ),
                    "acted_at": None if ladder.acted_at is None else min(now, ladder.acted_at + seconds),
                    "until": None if ladder.until is None else ladder.until + seconds,
                }
                await self._ledger.write(
                    key, ladder=ladder.model_copy(update=moved), now=now, escalation=question
                )
        for worker in list(self._monitor.workers()):
            if worker.key in self._ledger.ladders or worker.state.rank >= HealthState.STUCK.rank:
                self.consider(worker)


def came_down(known: Ladder | None, after: Ladder | None) -> bool:
    """Return whether a ladder that was climbed is not any more."""
    return known is not None and (after is None or (after.grounded and not known.grounded))


def because(worker: WorkerHealth) -> str:
    """Return why something is done about a worker."""
    lead = worst(worker.findings)
    return lead.evidence if lead is not None else worker.reason


def decided_event(question: Escalation, worker: WorkerHealth | None, now: float) -> AgentEvent:
    """Return the word that a question is answered, or needs no answer any more."""
    data = {
        "escalation_id": question.escalation_id,
        "status": question.status.value,
        "decision": question.decision,
        "by": question.decided_by,
        "reason": question.decision_reason,
        "more_time_seconds": question.more_time_seconds,
    }
    return messages.event_about(EventType.ESCALATION_DECIDED, question, worker, now, data)
