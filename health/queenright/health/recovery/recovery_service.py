"""
The recovery service: recovers tasks within limits, durably.

Every step writes the recovery and its event in one transaction before it takes effect. The start of a worker
is recorded before it happens, so a service that is killed during it never starts the worker twice.
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
"""
How long a recovered worker is watched. Most that fail again do so in their first steps; this covers slow
workers.
"""
_STORE_SECONDS: Final = 5.0
"""The seconds until a write is retried after a store error."""

_EVENT_FIELDS: Final = ("recovery_id", "task_id", "attempt", "from_checkpoint", "skipped")
"""The fields of a recovery that its events contain."""
_RUN_EVENTS: Final = frozenset(
    {EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED}
)

_log = logging.getLogger(__name__)


class TaskNotFoundError(NotFoundError):
    """Raised when no worker has worked on a task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"no task {task_id[:100]!r} is known; list tasks with `queenright list`. "
            "A task without a name is listed by its session."
        )
        self.task_id = task_id


class RecoveryService:
    """
    Recovers the tasks of workers that failed or were stopped. It belongs to one event loop.

    Args:
        respawners: They start workers. They are iterated for each recovery, and the first that reaches the
            worker is used.
        breakers: Provides the circuit breakers of recoveries, one per agent; None for no breakers.
        publish: Receives events once they are durable (``EventBus.fan_out``).
        stop_reason: Returns why no recovery may begin now (the emergency stop is on), or None.
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
        self._lock = asyncio.Lock()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._requested_ids: set[str] = set()
        """The recoveries that a person requested since the start. The quiet time does not defer them."""

    # -- start and stop -----------------------------------------------------------------------------

    async def load(self) -> list[Recovery]:
        """
        Load open recoveries, and return them. Call it after the monitor has loaded its workers.

        A start that was in progress is not repeated. If the worker has started, it is watched; otherwise the
        recovery has failed.
        """
        rows = await self._ledger.load()
        now = self._clock()
        async with self._lock:
            for recovery in rows:
                if recovery.state is RecoveryState.STARTING:
                    await self._check_start(recovery, now)
        return list(self._ledger.open_recoveries.values())

    async def close(self) -> None:
        """Stop. The next start of the service checks for workers that were being started."""
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
        Request the recovery of a worker's task. While a recovery is open, another request has no effect.

        Args:
            target: The incarnation that has ended.
            task_id: The task. By default, the task id that the worker reported, otherwise the session id.
            reviewed: Whether a person has reviewed the task, so that it may exceed the limit for one task.
            from_start: Whether a person allows the task to start over if there is no checkpoint.

        Raises:
            StoreError: Recording failed. Nothing has changed.
        """
        reason = redact(reason, 1_000)
        task_id = task_id or self._find_task_id(target)
        async with self._lock:
            now = self._clock()
            open_recovery = self._ledger.open_recoveries.get(task_id)
            if open_recovery is not None:
                if not _has_failed(open_recovery, target):
                    return _accept(open_recovery, "it is in progress")
                return await self._record_failure(open_recovery, reason, now)
            history = await self._ledger.of_task(task_id)
            recovery = self._make_recovery(target, task_id, by, reason).model_copy(
                update={"reviewed": reviewed, "may_start_over": from_start}
            )
            if obstacle := await self._find_obstacle(recovery):
                return RecoveryResult(accepted=False, reason=obstacle)
            changes, drop_reason = Changes(), None
            if decisions.hour_is_full(self._list_start_times(recovery), now=now, limits=self._limits):
                drop_reason = await self._starter.find_drop_reason(
                    recovery
                )  # a dropped recovery does not count
            if drop_reason is not None:
                end = {"state": RecoveryState.DROPPED, "outcome": drop_reason, "ended_at": now}
                changes.rows.append(recovery.model_copy(update=end))
                result = RecoveryResult(accepted=False, recovery_id=recovery.recovery_id, reason=drop_reason)
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

        The person who requests it asserts that the worker is gone, so the quiet time after a start does not
        defer it.

        Raises:
            TaskNotFoundError: No worker has worked on the task.
            ActionRefusedError: All actions are stopped, or the task's worker is running.
            StoreError: Recording failed. Nothing has changed.
        """
        target = await self.target_of(task_id)
        task_id = self._resolve_task_id(task_id, target)
        if reason_to_wait := self._stop_reason():
            raise ActionRefusedError(ActionKind.RECOVER, target.agent_id, reason_to_wait)
        worker = self._monitor.find(*target.key)
        open_recovery = self._ledger.open_recoveries.get(task_id)
        is_settled = open_recovery is None or open_recovery.state is RecoveryState.WATCHING
        is_running = worker is not None and not worker.vitals.has_ended and not decisions.is_lost(worker)
        if worker is not None and is_settled and is_running:
            is_stopping = await self._was_asked_to_stop(target)
            objection = decisions.still_runs(
                worker, task_id, is_stopping=is_stopping, settings=self._settings
            )
            raise ActionRefusedError(ActionKind.RECOVER, target.agent_id, objection)
        if is_settled and not from_start:
            repeat_objection = await self._starter.find_repeat_objection(target, task_id)
            if repeat_objection is not None:
                obstacle = await self._find_obstacle(self._make_recovery(target, task_id, by, reason))
                return RecoveryResult(accepted=False, reason=obstacle or repeat_objection)
        result = await self.request(
            target, reason, by=by, task_id=task_id, reviewed=reviewed, from_start=from_start
        )
        if result.accepted:
            self._requested_ids.add(result.recovery_id)
        return result

    async def drop_waiting(self, agent_id: str, reason: str) -> None:
        """
        Drop the waiting recoveries of an agent and its graphs, because it was stopped on purpose.

        Raises:
            StoreError: Recording failed.
        """
        async with self._lock:
            for recovery in list(self._ledger.open_recoveries.values()):
                is_of_agent = recovery.agent_id == agent_id or recovery.agent_id.startswith(f"{agent_id}/")
                is_waiting = (
                    recovery.state is RecoveryState.WAITING and recovery.task_id not in self._starting
                )
                if is_of_agent and is_waiting:
                    await self._end(recovery, RecoveryState.DROPPED, reason, self._clock())

    async def status(self, task_id: str) -> RecoveryStatus:
        """
        Return the status of a task's recovery.

        Raises:
            TaskNotFoundError: No worker has worked on the task.
        """
        history = await self._ledger.of_task(task_id)
        if not history:
            task_id = self._resolve_task_id(task_id, await self.target_of(task_id))
            history = await self._ledger.of_task(task_id)
        attempts = sum(recovery.started_at is not None for recovery in history)
        agent = history[0].agent_id if history else (await self.target_of(task_id)).agent_id
        starts_this_hour = sum(at > self._clock() - decisions.HOUR for at in self._ledger.start_times(agent))
        return RecoveryStatus(
            task_id=task_id,
            attempts=attempts,
            attempts_left=max(0, self._limits.max_attempts_per_task - attempts),
            left_this_hour=max(0, self._limits.max_attempts_per_hour - starts_this_hour),
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
            for recovery in self._ledger.open_recoveries.values()
            for key in (recovery.target.key, recovery.successor.key)
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
            recovery.watch_until if recovery.state is RecoveryState.WATCHING else recovery.not_before
            for recovery in self._ledger.open_recoveries.values()
            if recovery.state is RecoveryState.WATCHING
            or (
                recovery.state is RecoveryState.WAITING
                and not is_stopped
                and recovery.task_id not in self._starting
            )
        ]
        return min((at for at in moments if at is not None), default=None)

    def next_requested(self) -> float | None:
        """Return when a requested recovery is due, or None if there is none or all actions are stopped."""
        if self._stop_reason() is not None:
            return None
        moments = [
            recovery.not_before
            for recovery in self._ledger.open_recoveries.values()
            if recovery.state is RecoveryState.WAITING
            and recovery.recovery_id in self._requested_ids
            and recovery.task_id not in self._starting
        ]
        return min(moments, default=None)

    async def advance(self, now: float, *, stop: Stop, begin: bool = True) -> None:
        """
        Begin due recoveries and finish due watches. This does not wait for workers to start.

        Call it at ``next_deadline``, from time to time, and when the emergency stop is released.

        Args:
            stop: Stops a recovered worker that fails again, before it is restarted. The rules of terminations
                apply.
            begin: If False, only recoveries that a person requested begin. The others stay due.

        Raises:
            StoreError: A result could not be recorded. Call this again.
        """
        reason_to_wait = self._stop_reason()
        self._requested_ids &= {
            open_recovery.recovery_id for open_recovery in self._ledger.open_recoveries.values()
        }
        async with self._lock:
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

        Watches and waits keep their length. The shift is not written, so after a restart they may end early,
        which does no harm.

        Args:
            by_seconds: The seconds by which the clock jumped; negative if it was set back.
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
        Check a worker that has changed. A recovered worker that fails again is recovered again.

        Raises:
            StoreError: Recording failed. ``advance`` checks the worker again.
        """
        if not any(
            self._concerns(open_recovery, worker) for open_recovery in self._ledger.open_recoveries.values()
        ):
            return
        async with self._lock:
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

    def _find_recovered_worker(self, recovery: Recovery) -> WorkerHealth | None:
        """
        Return the worker that continues a task: the recorded successor, or a new incarnation in the same
        session, or a worker in another session of the task.
        """
        worker = self._monitor.find(*recovery.successor.key)
        if recovery.new_incarnation_id or (
            worker is not None and worker.vitals.incarnation_id not in ("", recovery.incarnation_id)
        ):
            return worker
        heirs = [heir for heir in self._monitor.of_agent(recovery.agent_id) if self._is_heir(recovery, heir)]
        return max(heirs, key=lambda heir: heir.vitals.incarnation_started, default=worker)

    # -- decisions; the caller holds the lock -------------------------------------------------------

    def _plan(
        self,
        changes: Changes,
        recovery: Recovery,
        history: Sequence[Recovery],
        earliest: float,
    ) -> RecoveryResult:
        """Schedule a recovery, or return why there is none."""
        now = recovery.created_at
        plan = decisions.next_attempt(
            history,
            self._list_start_times(recovery),
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

    def _list_start_times(self, recovery: Recovery) -> list[float]:
        """Return the start times of the agent's recoveries, past and scheduled."""
        agent = recovery.agent_id
        waiting = self._ledger.waiting(agent, recovery.created_at, self._starting)
        return [*self._ledger.start_times(agent), *waiting]

    def _give_up(
        self, changes: Changes, recovery: Recovery, history: Sequence[Recovery], reason: str
    ) -> RecoveryResult:
        last = history[0] if history else None
        is_known = last is not None and last.exhausted and recovery.target in (last.target, last.successor)
        if last is None or not is_known or self._has_progressed(recovery.target, last.ended_at):
            last = recovery.model_copy(
                update={
                    "state": RecoveryState.FAILED,
                    "ended_at": recovery.created_at,
                    "outcome": reason,
                    "exhausted": True,
                }
            )
            changes.rows.append(last)
            changes.events.append(self._ledger.failure(last, history))
        return RecoveryResult(accepted=False, recovery_id=last.recovery_id, reason=reason)

    def _has_progressed(self, target: Target, since: float | None) -> bool:
        """
        Return whether a worker has made progress since its recovery was abandoned, so that it has no ticket.
        """
        worker = self._monitor.find(*target.key)
        progress = worker.vitals.last_progress if worker is not None else None
        return progress is not None and since is not None and progress > since

    async def _watch(self, recovery: Recovery, now: float) -> None:
        worker = self._find_recovered_worker(recovery)
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
        """Record a failed recovery, and schedule the next attempt or leave the task to a person."""
        failure = recovery.model_copy(
            update={"state": RecoveryState.FAILED, "outcome": redact(outcome, 1_000), "ended_at": now}
        )
        history = await self._ledger.of_task(recovery.task_id)
        history = [
            failure,
            *(recovery_row for recovery_row in history if recovery_row.recovery_id != failure.recovery_id),
        ]
        successor = failure.successor
        target = successor._replace(incarnation_id=successor.incarnation_id or failure.incarnation_id)
        next_recovery = self._make_recovery(target, failure.task_id, "recovery", failure.outcome)
        changes = Changes()
        result: RecoveryResult | None = None
        outcome_text = failure.outcome
        if not final and not self._limits.automatic:
            final, outcome_text = True, f"{failure.outcome}; recovery.automatic is off"
        if not final:
            next_changes = Changes()
            result = self._plan(next_changes, next_recovery, history, now)
            if result.accepted:
                changes.rows = next_changes.rows
            else:
                outcome_text = f"{failure.outcome}; {result.reason}"
        if result is None or not result.accepted:
            failure = failure.model_copy(update={"exhausted": True, "outcome": outcome_text})
            result = RecoveryResult(accepted=False, recovery_id=failure.recovery_id, reason=outcome_text)
        changes.rows.insert(0, failure)
        changes.events.append(self._ledger.failure(failure, history))
        await self._ledger.commit(changes)
        return result

    async def _check_start(self, recovery: Recovery, now: float) -> None:
        """Check whether the worker was started before the service ended."""
        worker = self._find_recovered_worker(recovery)
        since = recovery.started_at or 0.0
        if worker is not None:
            v = worker.vitals
            is_new = v.incarnation_started >= since or self._is_heir(recovery, worker)
            if v.incarnation_id != recovery.incarnation_id and is_new:
                await self._begin_watch(recovery, Target.of(v), now)
                return
        await self._record_failure(recovery, "the service ended while the worker was being started", now)

    async def _begin_watch(self, recovery: Recovery, successor: Target, now: float) -> None:
        successor_fields = {f"new_{name}": value for name, value in successor._asdict().items()}
        watch_fields = {"state": RecoveryState.WATCHING, "watch_until": now + WATCH_SECONDS}
        watched_recovery = recovery.model_copy(update=watch_fields | successor_fields)
        data = watched_recovery.model_dump(mode="json", include={*_EVENT_FIELDS, *successor_fields})
        event = self._ledger.event(EventType.RECOVERY_COMPLETED, watched_recovery.target, data)
        await self._ledger.commit(Changes([watched_recovery], [event]))

    # -- starting a worker --------------------------------------------------------------------------

    async def _start(self, recovery: Recovery, stop: Stop, now: float) -> None:
        """
        Begin a due recovery, or defer it if its agent has reached the hourly limit. The caller holds the
        lock.
        """
        free_at = decisions.free_at(self._ledger.start_times(recovery.agent_id), now=now, limits=self._limits)
        if free_at > now:
            limit = self._limits.max_attempts_per_hour
            reason = f"deferred: {limit} recoveries of this agent began within the hour"
            await self._defer(recovery, free_at, reason)
            return
        self._ledger.count_start(recovery.agent_id, now)
        task = asyncio.create_task(
            self._attempt(recovery, stop, now), name=f"recovery:{recovery.recovery_id}"
        )
        self._starting[recovery.task_id] = task
        task.add_done_callback(lambda _: self._starting.pop(recovery.task_id, None))

    async def _defer(self, recovery: Recovery, until: float, reason: str) -> None:
        deferred_recovery = recovery.model_copy(update={"not_before": until, "outcome": reason})
        await self._ledger.commit(Changes([deferred_recovery]))

    async def _attempt(self, recovery: Recovery, stop: Stop, started_at: float) -> None:
        is_counted = False
        try:
            outcome = await self._starter.start(recovery, stop, partial(self._record_start, recovery))
            async with self._lock:
                # Read the recovery again, because the start may be recorded by now. Nothing else ends it
                # while it is starting.
                current = self._ledger.open_recoveries[recovery.task_id]
                # A failed start counts towards the limit, unless no start can ever succeed.
                is_failure = isinstance(outcome, StartFailed) and not outcome.final
                is_counted = current.started_at is not None or is_failure
                await self._conclude(current, outcome)
        except StoreError as error:
            _log.error("the recovery of task %s waits for the store: %s", recovery.task_id, error)
            current_recovery = self._ledger.open_recoveries.get(recovery.task_id)
            if current_recovery is not None and current_recovery.state is RecoveryState.WAITING:
                retry_at = self._clock() + _STORE_SECONDS
                self._ledger.open_recoveries[recovery.task_id] = current_recovery.model_copy(
                    update={"not_before": retry_at}
                )
        except Exception:
            _log.exception("the recovery of task %s failed", recovery.task_id)
        finally:
            current_recovery = self._ledger.open_recoveries.get(recovery.task_id)
            if not is_counted and (current_recovery is None or current_recovery.started_at is None):
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

        It is called again if the checkpoint is invalid. It then publishes an event only if no checkpoint is
        left.
        """
        now = self._clock()
        open_recovery = self._ledger.open_recoveries[recovery.task_id]
        is_repeated = open_recovery.state is RecoveryState.STARTING
        starting_recovery = recovery.model_copy(
            update={
                "state": RecoveryState.STARTING,
                "started_at": open_recovery.started_at if is_repeated else now,
                "from_checkpoint": None if checkpoint is None else checkpoint.checkpoint_id,
                "from_start": checkpoint is None,
                "skipped": tuple(link.checkpoint_id for link in unusable),
                "outcome": "",
            }
        )
        changes = Changes([starting_recovery])
        data = starting_recovery.model_dump(
            mode="json", include={*_EVENT_FIELDS, "by", "reviewed", "may_start_over"}
        )
        if checkpoint is None:
            data["reason"] = decisions.start_over_reason(starting_recovery, unusable)
        if not is_repeated or checkpoint is None:
            changes.events.append(
                self._ledger.event(EventType.RECOVERY_INITIATED, starting_recovery.target, data)
            )
        async with self._lock:
            await self._ledger.commit(changes)

    # -- helpers ------------------------------------------------------------------------------------

    def _make_recovery(self, target: Target, task_id: str, by: str, reason: str) -> Recovery:
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

    async def _find_obstacle(self, recovery: Recovery) -> str | None:
        """Return why the task must not, or need not, be recovered, or None."""
        worker = self._monitor.find(*recovery.target.key)
        obstacle = decisions.recovery_obstacle(recovery, worker) or decisions.completed_elsewhere(
            recovery, self._monitor.of_agent(recovery.agent_id)
        )
        if obstacle is not None or worker is not None:
            return obstacle
        # The monitor removes workers that have ended, but the log has their events.
        last_events = await self._store.history(
            types=_RUN_EVENTS, filter_agent=recovery.agent_id, session_id=recovery.session_id, limit=1
        )
        if last_events and last_events[0].type is EventType.EXECUTION_COMPLETED:
            return "it is completed, and needs no recovery"
        return None

    async def _was_asked_to_stop(self, target: Target) -> bool:
        """Return whether this incarnation has an unconfirmed termination."""
        unconfirmed = await self._store.read(
            lambda conn: intervention_table.newest(
                conn, 100, agent_id=target.agent_id, outcome=InterventionOutcome.UNCONFIRMED
            )
        )
        return any(intervention.target == target for intervention in unconfirmed)

    def _find_task_id(self, target: Target) -> str:
        for recovery in self._ledger.open_recoveries.values():
            if self._monitor.current_key(recovery.successor.key) == target.key:
                return recovery.task_id
        worker = self._monitor.find(*target.key)
        task_id = getattr(worker.vitals, "task_id", "") if worker is not None else ""
        return task_id or target.session_id

    def _resolve_task_id(self, task_id: str, target: Target) -> str:
        """Return the id of a task. ``task_id`` may also be the session of its worker."""
        return self._find_task_id(target) if task_id == target.session_id else task_id

    async def target_of(self, task_id: str) -> Target:
        """
        Return the worker of a task: the current worker, or the worker of its last recovery.

        ``task_id`` may also be the worker's session.

        Raises:
            TaskNotFoundError: No worker has worked on the task.
        """
        workers = [
            worker
            for worker in self._monitor.workers()
            if self._find_task_id(Target.of(worker.vitals)) == task_id
        ]
        if not workers:
            workers = [worker for worker in self._monitor.workers() if worker.vitals.session_id == task_id]
        if workers:
            return Target.of(max(workers, key=lambda worker: worker.vitals.last_event).vitals)
        history = await self._ledger.of_task(task_id)
        if not history:
            raise TaskNotFoundError(task_id)
        return history[0].successor if history[0].new_incarnation_id else history[0].target


def _has_failed(live: Recovery, target: Target) -> bool:
    """Return whether a request about ``target`` means that the recovered worker has failed again."""
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
