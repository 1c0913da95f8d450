"""
The recovery service: recovers tasks within limits, durably.

Every step writes the recovery and its event in one transaction before it takes effect. The start of a worker
is recorded before it happens, so a service that is killed halfway never starts one twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Final

from queenright.health.action_kind import ActionKind
from queenright.health.findings import WorkerKey
from queenright.health.interventions.intervention import InterventionOutcome, intervention_table
from queenright.health.interventions.permit import ActionRefusedError
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.recovery import decisions
from queenright.health.recovery.decisions import AttemptsExhausted
from queenright.health.recovery.ledger import Changes, RecoveryLedger
from queenright.health.recovery.recovery import Recovery, RecoveryResult, RecoveryState, RecoveryStatus
from queenright.health.recovery.respawner import CheckpointRef, Respawner
from queenright.health.recovery.starter import (
    NO_RESPAWNER,
    StartDropped,
    Starter,
    StartFailed,
    StartPostponed,
    StartResult,
    Stop,
)
from queenright.health.settings import HealthSettings
from queenright.health.store.database import StoreError
from queenright.health.store.store import Store
from queenright.instrumentation.errors import NotFoundError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.breaker_protocols import Breakers
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock, EventType

__all__ = ["Recovery", "RecoveryResult", "RecoveryService", "RecoveryStatus", "TaskNotFoundError"]

WATCH_SECONDS: Final = 900.0
"""Most restarted workers fail again within their first steps; fifteen minutes cover slow ones."""
_STORE_SECONDS: Final = 5.0
"""Seconds until a failed store is retried."""

_IN_EVENTS: Final = ("recovery_id", "task_id", "attempt", "from_checkpoint", "skipped")
"""Fields of a recovery that its events have."""
_RUN_EVENTS: Final = frozenset(
    {EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED}
)

_log = logging.getLogger(__name__)


class TaskNotFoundError(NotFoundError):
    """Raised if no worker has worked on a task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"no task {task_id[:100]!r} is known; list tasks with `queenright list`. "
            "A task without a name is listed by its session."
        )
        self.task_id = task_id


class RecoveryService:
    """
    Recovers the work of workers that failed or were stopped. Belongs to one event loop.

    Args:
        respawners: Start workers; iterated for each recovery, and the first that reaches the worker is used.
        breakers: Provides the circuit breaker of an agent's recoveries, if any.
        publish: Receives events once they are durable (``EventBus.fan_out``).
        stop_reason: Returns why nothing may begin now (the emergency stop), or None.
    """

    def __init__(
        self,
        store: Store,
        *,
        settings: HealthSettings,
        monitor: HealthMonitor,
        respawners: Iterable[Respawner],
        breakers: Breakers | None = None,
        clock: Clock,
        ids: Callable[[], str] = new_id,
        random: Random | None = None,
        publish: Callable[..., None],
        stop_reason: Callable[[], str | None] = lambda: None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._ledger = RecoveryLedger(store, clock=clock, ids=ids, publish=publish)
        self._store = store
        self._settings = settings
        self._limits = settings.recovery
        self._monitor = monitor
        self._starter = Starter(
            monitor=monitor,
            respawners=respawners,
            breakers=breakers,
            sleep=sleep,
        )
        self._clock = clock
        self._ids = ids
        self._random = random or Random()
        self._stop_reason = stop_reason
        self._deciding = asyncio.Lock()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._requested_ids: set[str] = set()
        """Recoveries that a person requested since the start. The quiet time does not defer them."""

    # -- start and stop -----------------------------------------------------------------------------

    async def load(self) -> list[Recovery]:
        """
        Load open recoveries at start, after the monitor has loaded its workers, and return them.

        A recovery whose worker was being started is not repeated: if the worker is there it is watched,
        otherwise the recovery has failed.
        """
        rows = await self._ledger.load()
        now = self._clock()
        async with self._deciding:
            for recovery in rows:
                if recovery.state is RecoveryState.STARTING:
                    await self._check_start(recovery, now)
        return list(self._ledger.open_recoveries.values())

    async def close(self) -> None:
        """Stop. The next start looks for workers that were being started."""
        tasks = list(self._starting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._ledger.close()

    async def wait_until_idle(self) -> None:
        """Wait until no worker is being started."""
        while self._starting:
            await asyncio.gather(*self._starting.values(), return_exceptions=True)

    # -- requests -----------------------------------------------------------------------------------

    async def request(
        self,
        target: Target,
        reason: str,
        *,
        by: str,
        task_id: str | None = None,
        not_before: float | None = None,
        reviewed: bool = False,
        from_start: bool = False,
    ) -> RecoveryResult:
        """
        Request the recovery of a worker's task. While one is open, a further request changes nothing.

        Args:
            target: The incarnation that has ended.
            task_id: The task; by default the name that the worker gives it, otherwise its session's id.
            reviewed: A person has reviewed the task: it may exceed the limit for one task.
            from_start: A person allows it to start over if there is no checkpoint.

        Raises:
            StoreError: Recording failed; nothing has changed.
        """
        reason = redact(reason, 1_000)
        task_id = task_id or self._task_of(target)
        async with self._deciding:
            now = self._clock()
            live = self._ledger.open_recoveries.get(task_id)
            if live is not None:
                if not _has_failed(live, target):
                    return _accept(live, "it is in progress")
                return await self._record_failure(live, reason, now)
            history = await self._ledger.of_task(task_id)
            recovery = self._new(target, task_id, by, reason).model_copy(
                update={"reviewed": reviewed, "may_start_over": from_start}
            )
            if why := await self._obstacle(recovery):
                return RecoveryResult(accepted=False, reason=why)
            changes, why_dropped = Changes(), None
            if decisions.hour_is_full(self._start_times(recovery), now=now, limits=self._limits):
                why_dropped = await self._starter.why_dropped(recovery)  # a dropped recovery does not count
            if why_dropped is not None:
                end = {"state": RecoveryState.DROPPED, "outcome": why_dropped, "ended_at": now}
                changes.rows.append(recovery.model_copy(update=end))
                result = RecoveryResult(accepted=False, recovery_id=recovery.recovery_id, reason=why_dropped)
            else:
                result = self._plan(changes, recovery, history, not_before or now)
            await self._ledger.commit(changes)
            return result

    async def request_task(
        self,
        task_id: str,
        *,
        by: str,
        reason: str = "requested",
        reviewed: bool = False,
        from_start: bool = False,
    ) -> RecoveryResult:
        """
        Request the recovery of a task by its name; see ``request``.

        A person asserts that the worker is gone, so the quiet time after a start does not defer it.

        Raises:
            TaskNotFoundError: No worker is, or was, working on it.
            ActionRefusedError: All actions are stopped, or its worker is running.
            StoreError: Recording failed; nothing has changed.
        """
        target = await self.target_of(task_id)
        task_id = self._resolve_task_id(task_id, target)
        if reason_to_wait := self._stop_reason():
            raise ActionRefusedError(ActionKind.RECOVER, target.agent_id, reason_to_wait)
        worker = self._monitor.find(*target.key)
        live = self._ledger.open_recoveries.get(task_id)
        is_settled = live is None or live.state is RecoveryState.WATCHING
        runs = worker is not None and not worker.vitals.has_ended and not decisions.is_lost(worker)
        if worker is not None and is_settled and runs:
            is_stopping = await self._was_asked_to_stop(target)
            why = decisions.still_runs(worker, task_id, is_stopping=is_stopping, settings=self._settings)
            raise ActionRefusedError(ActionKind.RECOVER, target.agent_id, why)
        if is_settled and not from_start:
            objection = await self._starter.why_not_repeated(target, task_id)
            if objection is not None:
                objection = await self._obstacle(self._new(target, task_id, by, reason)) or objection
                return RecoveryResult(accepted=False, reason=objection)
        result = await self.request(
            target, reason, by=by, task_id=task_id, reviewed=reviewed, from_start=from_start
        )
        if result.accepted:
            self._requested_ids.add(result.recovery_id)
        return result

    async def drop_waiting(self, agent_id: str, reason: str) -> None:
        """
        Drop waiting recoveries of an agent and its graphs, because it was stopped on purpose.

        Raises:
            StoreError: Recording failed.
        """
        async with self._deciding:
            for recovery in list(self._ledger.open_recoveries.values()):
                is_its = recovery.agent_id == agent_id or recovery.agent_id.startswith(f"{agent_id}/")
                waits = recovery.state is RecoveryState.WAITING and recovery.task_id not in self._starting
                if is_its and waits:
                    await self._end(recovery, RecoveryState.DROPPED, reason, self._clock())

    async def status(self, task_id: str) -> RecoveryStatus:
        """
        Return the status of a task's recovery.

        Raises:
            TaskNotFoundError: No worker is, or was, working on it.
        """
        history = await self._ledger.of_task(task_id)
        if not history:
            task_id = self._resolve_task_id(task_id, await self.target_of(task_id))
            history = await self._ledger.of_task(task_id)
        attempts = sum(each.started_at is not None for each in history)
        agent = history[0].agent_id if history else (await self.target_of(task_id)).agent_id
        this_hour = sum(at > self._clock() - decisions.HOUR for at in self._ledger.start_times(agent))
        return RecoveryStatus(
            task_id=task_id,
            attempts=attempts,
            attempts_left=max(0, self._limits.max_attempts_per_task - attempts),
            left_this_hour=max(0, self._limits.max_attempts_per_hour - this_hour),
            active=self._ledger.open_recoveries.get(task_id),
            held=self._stop_reason(),
            history=tuple(history),
        )

    def active(self) -> list[Recovery]:
        """Return the open recoveries."""
        return list(self._ledger.open_recoveries.values())

    def is_recovering(self, key: WorkerKey) -> bool:
        """Return whether a worker is being recovered, or is watched closely after a recovery."""
        keys = (
            key
            for each in self._ledger.open_recoveries.values()
            for key in (each.target.key, each.successor.key)
        )
        return key in map(self._monitor.current_key, keys)

    def can_reach(self, target: Target) -> bool:
        """Return whether a respawner of this service can start this worker again."""
        return self._starter.respawner(target) is not None

    # -- time and events ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has work to do, or None if it has none or all actions are stopped."""
        is_stopped = self._stop_reason() is not None
        moments = [
            each.watch_until if each.state is RecoveryState.WATCHING else each.not_before
            for each in self._ledger.open_recoveries.values()
            if each.state is RecoveryState.WATCHING
            or (each.state is RecoveryState.WAITING and not is_stopped and each.task_id not in self._starting)
        ]
        return min((at for at in moments if at is not None), default=None)

    def next_requested(self) -> float | None:
        """Return when a requested recovery is due, or None if there is none or all actions are stopped."""
        if self._stop_reason() is not None:
            return None
        moments = [
            each.not_before
            for each in self._ledger.open_recoveries.values()
            if each.state is RecoveryState.WAITING
            and each.recovery_id in self._requested_ids
            and each.task_id not in self._starting
        ]
        return min(moments, default=None)

    async def advance(self, now: float, *, stop: Stop, begin: bool = True) -> None:
        """
        Begin due recoveries and finish watches. Does not wait for workers to start.

        Call it at ``next_deadline``, from time to time, and when the emergency stop is released.

        Args:
            stop: Stops a recovered worker that fails again, before it is restarted, under the rules of every
                termination.
            begin: If False, only requested recoveries begin; the others stay due.

        Raises:
            StoreError: A result could not be recorded; call it again.
        """
        reason_to_wait = self._stop_reason()
        self._requested_ids &= {each.recovery_id for each in self._ledger.open_recoveries.values()}
        async with self._deciding:
            for recovery in list(self._ledger.open_recoveries.values()):
                if recovery.task_id in self._starting:
                    continue
                if recovery.state is RecoveryState.WATCHING:
                    await self._watch(recovery, now)
                elif recovery.state is RecoveryState.STARTING:
                    await self._check_start(recovery, now)
                elif reason_to_wait is None and self._may_begin(recovery, now, begin):
                    await self._start(recovery, stop, now)

    def _may_begin(self, recovery: Recovery, now: float, begin: bool) -> bool:
        return recovery.not_before <= now and (begin or recovery.recovery_id in self._requested_ids)

    def handle_clock_jump(self, by_seconds: float) -> None:
        """
        Shift open recoveries with the clock, because the host slept or the clock was set.

        Watches and waits keep their length. The shift is in memory only: a restart before the next write ends
        them early, which does no harm.

        Args:
            by_seconds: How far it jumped; negative if it was set back.
        """
        for task, recovery in self._ledger.open_recoveries.items():
            shifted_times = {"not_before": recovery.not_before + by_seconds}
            if recovery.watch_until is not None:
                shifted_times["watch_until"] = recovery.watch_until + by_seconds
            if by_seconds < 0:
                # Later events of the worker must have later times than these.
                shifted_times["created_at"] = recovery.created_at + by_seconds
                if recovery.started_at is not None:
                    shifted_times["started_at"] = recovery.started_at + by_seconds
            self._ledger.open_recoveries[task] = recovery.model_copy(update=shifted_times)

    async def observe(self, worker: WorkerHealth) -> None:
        """
        Check a changed worker: a recovered worker that fails again is recovered again.

        Raises:
            StoreError: Recording failed; ``advance`` checks again.
        """
        if not any(self._concerns(each, worker) for each in self._ledger.open_recoveries.values()):
            return
        async with self._deciding:
            for recovery in list(self._ledger.open_recoveries.values()):
                if self._concerns(recovery, worker):
                    await self._watch(recovery, self._clock())

    def _concerns(self, recovery: Recovery, worker: WorkerHealth) -> bool:
        if recovery.state is not RecoveryState.WATCHING:
            return False
        successor = self._monitor.current_key(recovery.successor.key)
        return successor == worker.key or self._is_heir(recovery, worker)

    def _is_heir(self, recovery: Recovery, worker: WorkerHealth) -> bool:
        return not recovery.new_incarnation_id and decisions.is_heir(recovery, worker)

    def _recovered_worker(self, recovery: Recovery) -> WorkerHealth | None:
        """
        Return the worker that continues: the named one, otherwise one in the same session, otherwise one of
        the task.
        """
        worker = self._monitor.find(*recovery.successor.key)
        if recovery.new_incarnation_id or (
            worker is not None and worker.vitals.incarnation_id not in ("", recovery.incarnation_id)
        ):
            return worker
        heirs = [each for each in self._monitor.of_agent(recovery.agent_id) if self._is_heir(recovery, each)]
        return max(heirs, key=lambda each: each.vitals.incarnation_started, default=worker)

    # -- decisions (the lock is held) ---------------------------------------------------------------

    def _plan(
        self,
        changes: Changes,
        recovery: Recovery,
        history: Sequence[Recovery],
        earliest: float,
    ) -> RecoveryResult:
        """Schedule a recovery, or explain why there will be none."""
        now = recovery.created_at
        plan = decisions.next_attempt(
            history,
            self._start_times(recovery),
            now=now,
            limits=self._limits,
            dice=self._random.random(),
            reviewed=recovery.reviewed,
        )
        if isinstance(plan, decisions.AttemptAllowed) and self._starter.respawner(recovery.target) is None:
            plan = AttemptsExhausted(NO_RESPAWNER)
        if isinstance(plan, AttemptsExhausted):
            return self._give_up(changes, recovery, history, plan.reason)
        recovery = recovery.model_copy(
            update={"attempt": plan.attempt, "not_before": max(plan.not_before, earliest)}
        )
        changes.rows.append(recovery)
        return _accept(recovery, "it is scheduled")

    def _start_times(self, recovery: Recovery) -> list[float]:
        """Return the start times of the agent's recoveries, past and scheduled."""
        agent = recovery.agent_id
        waiting = self._ledger.waiting(agent, recovery.created_at, self._starting)
        return [*self._ledger.start_times(agent), *waiting]

    def _give_up(
        self, changes: Changes, recovery: Recovery, history: Sequence[Recovery], why: str
    ) -> RecoveryResult:
        last = history[0] if history else None
        is_known = last is not None and last.exhausted and recovery.target in (last.target, last.successor)
        if last is None or not is_known or self._has_progressed(recovery.target, last.ended_at):
            last = recovery.model_copy(
                update={
                    "state": RecoveryState.FAILED,
                    "ended_at": recovery.created_at,
                    "outcome": why,
                    "exhausted": True,
                }
            )
            changes.rows.append(last)
            changes.events.append(self._ledger.failure(last, history))
        return RecoveryResult(accepted=False, recovery_id=last.recovery_id, reason=why)

    def _has_progressed(self, target: Target, since: float | None) -> bool:
        """Return whether a worker with an abandoned recovery made progress since, so has no ticket."""
        worker = self._monitor.find(*target.key)
        progress = worker.vitals.last_progress if worker is not None else None
        return progress is not None and since is not None and progress > since

    async def _watch(self, recovery: Recovery, now: float) -> None:
        worker = self._recovered_worker(recovery)
        result = decisions.watch(recovery, worker, now)
        has_started = worker is not None and bool(result.incarnation_id) and not recovery.new_incarnation_id
        if has_started and worker is not None:
            recovery = recovery.model_copy(
                update={
                    "new_session_id": worker.vitals.session_id,
                    "new_incarnation_id": result.incarnation_id,
                }
            )
        if result.verdict == "failed":
            await self._record_failure(recovery, result.reason, now)
        elif result.verdict != "continues":
            state = RecoveryState.SUCCEEDED if result.verdict == "succeeded" else RecoveryState.DROPPED
            await self._end(recovery, state, result.reason, now)
        elif has_started:
            await self._ledger.commit(Changes([recovery]))

    async def _end(self, recovery: Recovery, state: RecoveryState, outcome: str, now: float) -> None:
        end = {"state": state, "outcome": outcome, "ended_at": now}
        await self._ledger.commit(Changes([recovery.model_copy(update=end)]))

    async def _record_failure(
        self, recovery: Recovery, outcome: str, now: float, *, final: bool = False
    ) -> RecoveryResult:
        """Record a failed recovery and what follows: the next one, or a person."""
        failure = recovery.model_copy(
            update={"state": RecoveryState.FAILED, "outcome": redact(outcome, 1_000), "ended_at": now}
        )
        history = await self._ledger.of_task(recovery.task_id)
        history = [failure, *(each for each in history if each.recovery_id != failure.recovery_id)]
        successor = failure.successor
        target = successor._replace(incarnation_id=successor.incarnation_id or failure.incarnation_id)
        following = self._new(target, failure.task_id, "recovery", failure.outcome)
        changes = Changes()
        result: RecoveryResult | None = None
        why = failure.outcome
        if not final and not self._limits.automatic:
            final, why = True, f"{failure.outcome}; recovery.automatic is off"
        if not final:
            later = Changes()
            result = self._plan(later, following, history, now)
            if result.accepted:
                changes.rows = later.rows
            else:
                why = f"{failure.outcome}; {result.reason}"
        if result is None or not result.accepted:
            failure = failure.model_copy(update={"exhausted": True, "outcome": why})
            result = RecoveryResult(accepted=False, recovery_id=failure.recovery_id, reason=why)
        changes.rows.insert(0, failure)
        changes.events.append(self._ledger.failure(failure, history))
        await self._ledger.commit(changes)
        return result

    async def _check_start(self, recovery: Recovery, now: float) -> None:
        """Check whether the worker was started before the service ended."""
        worker = self._recovered_worker(recovery)
        since = recovery.started_at or 0.0
        if worker is not None:
            v = worker.vitals
            is_new = v.incarnation_started >= since or self._is_heir(recovery, worker)
            if v.incarnation_id != recovery.incarnation_id and is_new:
                await self._begin_watch(recovery, Target.of(v), now)
                return
        await self._record_failure(recovery, "the service ended while the worker was being started", now)

    async def _begin_watch(self, recovery: Recovery, successor: Target, now: float) -> None:
        new = {f"new_{name}": value for name, value in successor._asdict().items()}
        watching = {"state": RecoveryState.WATCHING, "watch_until": now + WATCH_SECONDS}
        back = recovery.model_copy(update=watching | new)
        data = back.model_dump(mode="json", include={*_IN_EVENTS, *new})
        event = self._ledger.event(EventType.RECOVERY_COMPLETED, back.target, data)
        await self._ledger.commit(Changes([back], [event]))

    # -- starting a worker --------------------------------------------------------------------------

    async def _start(self, recovery: Recovery, stop: Stop, now: float) -> None:
        """Begin a due recovery if the hourly limit of its agent allows it; the lock is held."""
        free_at = decisions.free_at(self._ledger.start_times(recovery.agent_id), now=now, limits=self._limits)
        if free_at > now:
            limit = self._limits.max_attempts_per_hour
            why = f"deferred: {limit} recoveries of this agent began within the hour"
            await self._defer(recovery, free_at, why)
            return
        self._ledger.count_start(recovery.agent_id, now)
        task = asyncio.create_task(self._try(recovery, stop, now), name=f"recovery:{recovery.recovery_id}")
        self._starting[recovery.task_id] = task
        task.add_done_callback(lambda _: self._starting.pop(recovery.task_id, None))

    async def _defer(self, recovery: Recovery, until: float, why: str) -> None:
        later = recovery.model_copy(update={"not_before": until, "outcome": why})
        await self._ledger.commit(Changes([later]))

    async def _try(self, recovery: Recovery, stop: Stop, started_at: float) -> None:
        counts = False
        try:
            outcome = await self._starter.start(recovery, stop, partial(self._record_start, recovery))
            async with self._deciding:
                # Read the recovery again, because it may have begun. Nothing else ends one that is starting.
                current = self._ledger.open_recoveries[recovery.task_id]
                # A failed start counts, unless it can never succeed.
                is_failure = isinstance(outcome, StartFailed) and not outcome.final
                counts = current.started_at is not None or is_failure
                await self._conclude(current, outcome)
        except StoreError as error:
            _log.error("the recovery of task %s waits for the store: %s", recovery.task_id, error)
            live = self._ledger.open_recoveries.get(recovery.task_id)
            if live is not None and live.state is RecoveryState.WAITING:
                later = self._clock() + _STORE_SECONDS
                self._ledger.open_recoveries[recovery.task_id] = live.model_copy(update={"not_before": later})
        except Exception:
            _log.exception("the recovery of task %s failed", recovery.task_id)
        finally:
            live = self._ledger.open_recoveries.get(recovery.task_id)
            if not counts and (live is None or live.started_at is None):
                self._ledger.uncount_start(recovery.agent_id, started_at)

    async def _conclude(self, recovery: Recovery, outcome: StartResult) -> None:
        now = self._clock()
        match outcome:
            case Target():
                await self._begin_watch(recovery, outcome, now)
            case StartDropped(reason):
                await self._end(recovery, RecoveryState.DROPPED, reason, now)
            case StartPostponed(seconds, reason):
                await self._defer(recovery, now + seconds, reason)
            case StartFailed(reason, final):
                if recovery.started_at is None and not final:
                    recovery = recovery.model_copy(update={"started_at": now})
                await self._record_failure(recovery, reason, now, final=final)

    async def _record_start(
        self, recovery: Recovery, checkpoint: CheckpointRef | None, unusable: Sequence[CheckpointRef]
    ) -> None:
        """
        Record that the worker is about to be started, and from which checkpoint.

        Called again if the checkpoint is broken; then it publishes only if no checkpoint is left.
        """
        now = self._clock()
        live = self._ledger.open_recoveries[recovery.task_id]
        is_repeated = live.state is RecoveryState.STARTING
        starting = recovery.model_copy(
            update={
                "state": RecoveryState.STARTING,
                "started_at": live.started_at if is_repeated else now,
                "from_checkpoint": None if checkpoint is None else checkpoint.checkpoint_id,
                "from_start": checkpoint is None,
                "skipped": tuple(link.checkpoint_id for link in unusable),
                "outcome": "",
            }
        )
        changes = Changes([starting])
        data = starting.model_dump(mode="json", include={*_IN_EVENTS, "by", "reviewed", "may_start_over"})
        if checkpoint is None:
            data["reason"] = decisions.start_over_reason(starting, unusable)
        if not is_repeated or checkpoint is None:
            changes.events.append(self._ledger.event(EventType.RECOVERY_INITIATED, starting.target, data))
        async with self._deciding:
            await self._ledger.commit(changes)

    # -- helpers ------------------------------------------------------------------------------------

    def _new(self, target: Target, task_id: str, by: str, reason: str) -> Recovery:
        now = self._clock()
        return Recovery(
            recovery_id=self._ids(),
            task_id=task_id,
            **target._asdict(),
            state=RecoveryState.WAITING,
            attempt=0,
            by=by,
            reason=reason,
            created_at=now,
            not_before=now,
        )

    async def _obstacle(self, recovery: Recovery) -> str | None:
        """Return why the task need not, or must not, be recovered, or None."""
        worker = self._monitor.find(*recovery.target.key)
        why = decisions.recovery_obstacle(recovery, worker) or decisions.completed_elsewhere(
            recovery, self._monitor.of_agent(recovery.agent_id)
        )
        if why is not None or worker is not None:
            return why
        # The monitor removes ended workers; the log keeps them.
        last = await self._store.history(
            types=_RUN_EVENTS, filter_agent=recovery.agent_id, session_id=recovery.session_id, limit=1
        )
        if last and last[0].type is EventType.EXECUTION_COMPLETED:
            return "it is completed, and needs no recovery"
        return None

    async def _was_asked_to_stop(self, target: Target) -> bool:
        """Return whether a termination of this incarnation was not confirmed."""
        doubtful = await self._store.read(
            lambda conn: intervention_table.newest(
                conn, 100, agent_id=target.agent_id, outcome=InterventionOutcome.UNCONFIRMED
            )
        )
        return any(recovery.target == target for recovery in doubtful)

    def _task_of(self, target: Target) -> str:
        for recovery in self._ledger.open_recoveries.values():
            if self._monitor.current_key(recovery.successor.key) == target.key:
                return recovery.task_id
        worker = self._monitor.find(*target.key)
        task_id = getattr(worker.vitals, "task_id", "") if worker is not None else ""
        return task_id or target.session_id

    def _resolve_task_id(self, task_id: str, target: Target) -> str:
        """Return the task of ``task_id``, which may be the session of its worker."""
        return self._task_of(target) if task_id == target.session_id else task_id

    async def target_of(self, task_id: str) -> Target:
        """
        Return the worker of a task: the current one, or that of the last recovery.

        ``task_id`` may be the worker's session too.

        Raises:
            TaskNotFoundError: No worker is, or was, working on it.
        """
        workers = [
            each for each in self._monitor.workers() if self._task_of(Target.of(each.vitals)) == task_id
        ]
        if not workers:
            workers = [each for each in self._monitor.workers() if each.vitals.session_id == task_id]
        if workers:
            return Target.of(max(workers, key=lambda each: each.vitals.last_event).vitals)
        history = await self._ledger.of_task(task_id)
        if not history:
            raise TaskNotFoundError(task_id)
        return history[0].successor if history[0].new_incarnation_id else history[0].target


def _has_failed(live: Recovery, target: Target) -> bool:
    """Return whether a request about ``target`` means that the recovered worker is lost again."""
    if live.state is not RecoveryState.WATCHING or live.successor.key != target.key:
        return False
    return target.incarnation_id != live.incarnation_id


def _accept(recovery: Recovery, reason: str) -> RecoveryResult:
    return RecoveryResult(
        accepted=True,
        recovery_id=recovery.recovery_id,
        attempt=recovery.attempt,
        not_before=recovery.not_before,
        reason=reason,
    )
