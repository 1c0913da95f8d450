"""
The recovery service: brings tasks back, within limits, durably.

Every step is one transaction that holds the try and the event that says so; only then is anything done or
told. That a worker is about to be started is written down first, so that a service which is killed in the
middle finds out whether it was, and never starts it twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final, TypeVar

from sqlalchemy import Connection

from queenright.health.database import StoreError
from queenright.health.event_log import append_events
from queenright.health.findings import WorkerKey
from queenright.health.interventions.permit import ActionRefused
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.recovery import plan, table
from queenright.health.recovery.attempt import Recovery, RecoveryResult, RecoveryState, RecoveryStatus
from queenright.health.recovery.plan import Exhausted
from queenright.health.recovery.respawner import CheckpointRef, Respawned, Respawner, RespawnRefused
from queenright.health.settings import HealthSettings
from queenright.health.store import Store
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.redaction import redact
from queenright.runtime.breakers import BreakerKind, Breakers, CallRefused, Permit
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.events import AgentEvent, Clock, EventType

__all__ = ["Recovery", "RecoveryResult", "RecoveryService", "RecoveryStatus", "TaskUnknown"]

T = TypeVar("T")

START_SECONDS: Final = 60.0
"""So long a worker may take to be looked up or started."""

_LOOKED_BACK: Final = 5_000
"""Rows that are read at start to know what was begun within the hour."""

_STORE_SECONDS: Final = 5.0

_NOBODY: Final = (
    "nobody here can start its worker again; start it where it ran, or give the service a respawner for it"
)

_log = logging.getLogger(__name__)


class TaskUnknown(QueenrightError):
    """Raised when a task is asked for that no worker is, or was, about."""

    def __init__(self, task_id: str) -> None:
        super().__init__(
            f"no task {task_id[:100]!r} is known; a task is what its worker says, else its session's id: "
            "queenright list shows both"
        )
        self.task_id = task_id


class _Changes:
    """What one transaction does: rows with whether they are new, in order, and events."""

    def __init__(self) -> None:
        self.rows: list[tuple[bool, Recovery]] = []
        self.events: list[AgentEvent] = []

    def new(self, recovery: Recovery) -> None:
        self.rows.append((True, recovery))

    def set(self, recovery: Recovery) -> None:
        self.rows.append((False, recovery))

    def write(self, conn: Connection) -> None:
        for is_new, recovery in self.rows:
            (table.insert_recovery if is_new else table.update_recovery)(conn, recovery)
        append_events(conn, self.events)


class RecoveryService:
    """
    Brings back the work of workers that failed or were stopped. Belongs to one event loop.

    Args:
        store: Where tries and their events are kept.
        settings: The limits, the backoff, the watch.
        monitor: Knows how the workers are.
        respawners: Who can start workers; the first that reaches one does.
        breakers: Gives the breaker before the recoveries of an agent; None: there is none.
        clock: Seconds since the epoch.
        ids: Makes ids.
        random: Spreads the backoff.
        publish: Is given events once they are durable (``EventBus.fan_out``).
        held: Says why nothing may be begun now (the emergency stop), or None.
        stop: Takes down a worker that was brought back and fails again, past the guard that every
            termination passes; None: it is left to whoever starts the next.
        tell_human: Is told when work must begin again from the start, as no checkpoint of it is valid.
        sleep: The clock of time limits.
    """

    def __init__(
        self,
        store: Store,
        *,
        settings: HealthSettings,
        monitor: HealthMonitor,
        respawners: Sequence[Respawner],
        breakers: Breakers | None = None,
        clock: Clock,
        ids: Callable[[], str] = new_id,
        random: Random | None = None,
        publish: Callable[..., None],
        held: Callable[[], str | None] = lambda: None,
        stop: Callable[[Target, str], Awaitable[object]] | None = None,
        tell_human: Callable[[Target, str], Awaitable[object]] | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._store = store
        self._limits = settings.recovery
        self._monitor = monitor
        self._respawners = respawners
        self._breakers = breakers
        self._clock = clock
        self._ids = ids
        self._random = random or Random()
        self._publish = publish
        self._held = held
        self._stop = stop
        self._tell_human = tell_human
        self._sleep = sleep
        self._live: dict[str, Recovery] = {}
        """By task: the try that has not ended."""
        self._begun: list[float] = []
        """When tries of the last hour were begun."""
        self._deciding = asyncio.Lock()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._committing: set[asyncio.Task[Any]] = set()

    # -- life ---------------------------------------------------------------------------------------

    async def load(self) -> list[Recovery]:
        """
        Read what was under way, at start, and return it; call it once the monitor knows the workers again.

        A try whose worker was being started is not made again: if the worker is there it is watched, else
        the try has failed.
        """
        rows, newest = await self._store.read(
            lambda conn: (table.under_way(conn), table.newest(conn, _LOOKED_BACK))
        )
        self._begun = [each.started_at for each in newest if each.started_at is not None]
        self._live = {each.task_id: each for each in rows}
        now = self._clock()
        async with self._deciding:
            for recovery in rows:
                if recovery.state is RecoveryState.STARTING:
                    await self._look_again(recovery, now)
        return list(self._live.values())

    async def close(self) -> None:
        """Leave off; a worker that was being started is looked for at the next start."""
        tasks = list(self._starting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._committing, return_exceptions=True)

    async def settled(self) -> None:
        """Wait until no worker is being started any more."""
        while self._starting:
            await asyncio.gather(*self._starting.values(), return_exceptions=True)

    # -- asking -------------------------------------------------------------------------------------

    async def request(
        self,
        target: Target,
        reason: str,
        *,
        by: str,
        task_id: str | None = None,
        not_before: float | None = None,
        reviewed: bool = False,
    ) -> RecoveryResult:
        """
        Ask for a worker's work to be brought back; while that is under way, asking again changes nothing.

        Args:
            target: The life of the worker that is over.
            reason: What happened to it.
            by: Who asks.
            task_id: What the work is about; without, what the worker says, else its session's id.
            not_before: The earliest time, in seconds since the epoch.
            reviewed: A human has looked at the task, and it may go beyond the limit for one task.

        Raises:
            StoreError: It could not be written down; nothing has changed.
        """
        reason = redact(reason, 1_000)
        task_id = task_id or self._task_of(target)
        async with self._deciding:
            now = self._clock()
            live = self._live.get(task_id)
            if live is not None:
                if not _has_failed(live, target):
                    return _accepted(live, "it is under way")
                return await self._failed(live, reason, now)
            past = await self._store.read(lambda conn: table.of_task(conn, task_id))
            recovery = Recovery(
                recovery_id=self._ids(),
                task_id=task_id,
                agent_id=target.agent_id,
                session_id=target.session_id,
                incarnation_id=target.incarnation_id,
                state=RecoveryState.WAITING,
                attempt=0,
                by=by,
                reason=reason,
                created_at=now,
                not_before=now,
            )
            if why := plan.not_needed(recovery, self._monitor.get(*target.key)):
                return RecoveryResult(accepted=False, recovery_id="", attempt=0, not_before=None, reason=why)
            changes = _Changes()
            result = self._plan(changes, recovery, past, not_before or now, reviewed=reviewed)
            await self._commit(changes)
            return result

    async def request_task(
        self, task_id: str, *, by: str, reason: str = "asked for", reviewed: bool = False
    ) -> RecoveryResult:
        """
        Ask for a task to be brought back, by its name; see ``request``.

        Raises:
            TaskUnknown: No worker is, or was, about it.
            ActionRefused: All acting is stopped, or its worker is running.
            StoreError: It could not be written down; nothing has changed.
        """
        target = await self._target_of(task_id)
        if held := self._held():
            raise ActionRefused(ActionKind.RECOVER, target.agent_id, held)
        worker = self._monitor.get(*target.key)
        live = self._live.get(task_id)
        settled = live is None or live.state is RecoveryState.WATCHING
        if settled and worker is not None and not worker.vitals.ended:
            raise ActionRefused(
                ActionKind.RECOVER, target.agent_id, "it is running; terminate it first: queenright terminate"
            )
        return await self.request(target, reason, by=by, task_id=task_id, reviewed=reviewed)

    async def status(self, task_id: str) -> RecoveryStatus:
        """
        Return where the recovery of a task stands.

        Raises:
            TaskUnknown: No worker is, or was, about it.
        """
        history = await self._store.read(lambda conn: table.of_task(conn, task_id))
        if not history:
            await self._target_of(task_id)
        begun = sum(each.started_at is not None for each in history)
        this_hour = sum(at > self._clock() - plan.HOUR for at in self._begun)
        return RecoveryStatus(
            task_id=task_id,
            attempts=begun,
            attempts_left=max(0, self._limits.max_attempts_per_task - begun),
            left_this_hour=max(0, self._limits.max_attempts_per_hour - this_hour),
            active=self._live.get(task_id),
            held=self._held(),
            history=tuple(history),
        )

    async def recent(self, limit: int = 100) -> list[Recovery]:
        """Return the newest tries of all tasks, newest first."""
        return await self._store.read(lambda conn: table.newest(conn, limit))

    def active(self) -> list[Recovery]:
        """Return the tries that have not ended."""
        return list(self._live.values())

    def in_hand(self, key: WorkerKey) -> bool:
        """Return whether a worker is being brought back, or has been and is watched closely."""
        return any(key in (each.target.key, each.successor.key) for each in self._live.values())

    # -- time and events ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has something to do; None if time alone brings nothing, or it is held."""
        held = self._held() is not None
        moments = [
            each.watch_until if each.state is RecoveryState.WATCHING else each.not_before
            for each in self._live.values()
            if each.state is RecoveryState.WATCHING
            or (each.state is RecoveryState.WAITING and not held and each.task_id not in self._starting)
        ]
        return min((at for at in moments if at is not None), default=None)

    async def advance(self, now: float) -> None:
        """
        Begin the tries that are due, and end the watches that are over. Does not wait for workers to start.

        Call it at ``next_deadline``, now and then besides, and when the emergency stop is released.

        Raises:
            StoreError: What was seen could not be written down; call it again.
        """
        held = self._held()
        async with self._deciding:
            for recovery in list(self._live.values()):
                if recovery.task_id in self._starting:
                    continue
                if recovery.state is RecoveryState.WATCHING:
                    await self._watch(recovery, self._monitor.get(*recovery.successor.key), now)
                elif recovery.state is RecoveryState.STARTING:
                    await self._look_again(recovery, now)
                elif held is None and recovery.not_before <= now:
                    self._start(recovery)

    async def observe(self, worker: WorkerHealth) -> None:
        """
        Look at a worker that has changed: one that was brought back and fails again is tried once more.

        Raises:
            StoreError: It could not be written down; ``advance`` looks again.
        """
        if not any(self._concerns(each, worker) for each in self._live.values()):
            return
        async with self._deciding:
            for recovery in list(self._live.values()):
                if self._concerns(recovery, worker):
                    await self._watch(recovery, worker, self._clock())

    @staticmethod
    def _concerns(recovery: Recovery, worker: WorkerHealth) -> bool:
        return recovery.state is RecoveryState.WATCHING and recovery.successor.key == worker.key

    # -- decisions: with the lock held --------------------------------------------------------------

    def _plan(
        self,
        changes: _Changes,
        recovery: Recovery,
        past: Sequence[Recovery],
        earliest: float,
        *,
        reviewed: bool = False,
    ) -> RecoveryResult:
        """Let a try wait for its time, or say that there will be none."""
        now = recovery.created_at
        waiting = [e.not_before for e in self._live.values() if e.state is RecoveryState.WAITING]
        planned = plan.next_attempt(
            past,
            [*self._begun, *waiting],
            now=now,
            limits=self._limits,
            dice=self._random.random(),
            reviewed=reviewed,
        )
        if isinstance(planned, plan.Allowed) and self._respawner(recovery.target) is None:
            planned = Exhausted(_NOBODY)
        if isinstance(planned, Exhausted):
            return self._give_up(changes, recovery, past, planned.reason)
        recovery = recovery.model_copy(
            update={"attempt": planned.attempt, "not_before": max(planned.not_before, earliest)}
        )
        changes.new(recovery)
        return _accepted(recovery, "it waits for its time")

    def _give_up(
        self, changes: _Changes, recovery: Recovery, past: Sequence[Recovery], why: str
    ) -> RecoveryResult:
        last = past[0] if past else None
        told = last is not None and last.exhausted and recovery.target in (last.target, last.successor)
        if last is None or not told:
            last = recovery.model_copy(
                update={
                    "state": RecoveryState.FAILED,
                    "ended_at": recovery.created_at,
                    "outcome": why,
                    "exhausted": True,
                }
            )
            changes.new(last)
            changes.events.append(self._failure(last, past))
        return RecoveryResult(
            accepted=False, recovery_id=last.recovery_id, attempt=0, not_before=None, reason=why
        )

    async def _watch(self, recovery: Recovery, worker: WorkerHealth | None, now: float) -> None:
        seen = plan.watch(recovery, worker, now)
        if seen.incarnation_id and not recovery.new_incarnation_id:
            recovery = recovery.model_copy(update={"new_incarnation_id": seen.incarnation_id})
        if seen.verdict == "failed":
            await self._failed(recovery, seen.reason, now)
        elif seen.verdict != "goes_on":
            state = RecoveryState.SUCCEEDED if seen.verdict == "succeeded" else RecoveryState.DROPPED
            await self._end(recovery, state, seen.reason, now)

    async def _end(self, recovery: Recovery, state: RecoveryState, outcome: str, now: float) -> None:
        changes = _Changes()
        changes.set(recovery.model_copy(update={"state": state, "outcome": outcome, "ended_at": now}))
        await self._commit(changes)

    async def _failed(
        self, recovery: Recovery, outcome: str, now: float, *, final: bool = False
    ) -> RecoveryResult:
        """Write down that a try has failed, and what follows: the next one, or a human."""
        failed = recovery.model_copy(
            update={"state": RecoveryState.FAILED, "outcome": redact(outcome, 1_000), "ended_at": now}
        )
        past = await self._store.read(lambda conn: table.of_task(conn, recovery.task_id))
        past = [failed, *(each for each in past if each.recovery_id != failed.recovery_id)]
        successor = failed.successor
        following = Recovery(
            recovery_id=self._ids(),
            task_id=failed.task_id,
            agent_id=successor.agent_id,
            session_id=successor.session_id,
            incarnation_id=successor.incarnation_id or failed.incarnation_id,
            state=RecoveryState.WAITING,
            attempt=0,
            by="recovery",
            reason=failed.outcome,
            created_at=now,
            not_before=now,
        )
        changes = _Changes()
        result: RecoveryResult | None = None
        why = failed.outcome
        if not final and not self._limits.automatic:
            final, why = True, f"{failed.outcome}; recovery.automatic is off"
        if not final:
            later = _Changes()
            result = self._plan(later, following, past, now)
            if result.accepted:
                changes.rows = later.rows
            else:
                why = f"{failed.outcome}; {result.reason}"
        if result is None or not result.accepted:
            failed = failed.model_copy(update={"exhausted": True, "outcome": why})
            result = RecoveryResult(
                accepted=False, recovery_id=failed.recovery_id, attempt=0, not_before=None, reason=why
            )
        changes.rows.insert(0, (False, failed))
        changes.events.append(self._failure(failed, past))
        await self._commit(changes)
        return result

    async def _look_again(self, recovery: Recovery, now: float) -> None:
        """Find out what became of a worker that was being started when the service ended."""
        worker = self._monitor.get(*recovery.successor.key)
        since = recovery.started_at or 0.0
        if worker is not None:
            v = worker.vitals
            if v.incarnation_id != recovery.incarnation_id and v.incarnation_started >= since:
                there = Respawned(
                    agent_id=v.agent_id, session_id=v.session_id, incarnation_id=v.incarnation_id
                )
                await self._is_back(recovery, there, now)
                return
        await self._failed(recovery, "the service ended while the worker was being started", now)

    async def _is_back(self, recovery: Recovery, there: Respawned, now: float) -> None:
        back = recovery.model_copy(
            update={
                "state": RecoveryState.WATCHING,
                "watch_until": now + self._limits.watch_seconds,
                "new_agent_id": there.agent_id,
                "new_session_id": there.session_id,
                "new_incarnation_id": there.incarnation_id,
            }
        )
        changes = _Changes()
        changes.set(back)
        data = {
            "recovery_id": back.recovery_id,
            "task_id": back.task_id,
            "new_agent_id": there.agent_id,
            "new_session_id": there.session_id,
            "new_incarnation_id": there.incarnation_id,
            "attempt": back.attempt,
        }
        changes.events.append(self._event(EventType.RECOVERY_COMPLETED, back.target, data))
        await self._commit(changes)

    # -- starting a worker --------------------------------------------------------------------------

    def _start(self, recovery: Recovery) -> None:
        task = asyncio.create_task(self._try(recovery), name=f"recovery:{recovery.recovery_id}")
        self._starting[recovery.task_id] = task
        task.add_done_callback(lambda _: self._starting.pop(recovery.task_id, None))

    async def _try(self, recovery: Recovery) -> None:
        try:
            await self._bring_back(recovery)
        except StoreError as error:
            _log.error("recovery of task %s waits for its store: %s", recovery.task_id, error)
            live = self._live.get(recovery.task_id)
            if live is not None and live.state is RecoveryState.WAITING:
                later = self._clock() + _STORE_SECONDS
                self._live[recovery.task_id] = live.model_copy(update={"not_before": later})
        except Exception:
            _log.exception("recovery of task %s broke", recovery.task_id)

    async def _bring_back(self, recovery: Recovery) -> None:
        now, target = self._clock(), recovery.target
        needless = plan.not_needed(recovery, self._monitor.get(*target.key))
        if needless is not None:
            reason = needless
            await self._decide(lambda live: self._end(live, RecoveryState.DROPPED, reason, now), recovery)
            return
        respawner = self._respawner(target)
        if respawner is None:
            await self._decide(lambda live: self._failed(live, _NOBODY, now, final=True), recovery)
            return
        if plan.hour_is_full(self._begun, now=now, limits=self._limits):
            why = f"{self._limits.max_attempts_per_hour} recoveries were begun within the hour"
            await self._decide(lambda live: self._failed(live, why, now, final=True), recovery)
            return
        try:
            permit = self._admitted(target)
        except CallRefused as refusal:
            later = recovery.model_copy(update={"not_before": now + max(1.0, refusal.retry_in)})
            changes = _Changes()
            changes.set(later)
            await self._decide(lambda _: self._commit(changes), recovery)
            return
        try:
            there = await self._respawn(recovery, respawner)
        except (StoreError, asyncio.CancelledError):
            if permit is not None:
                permit.given_back()
            raise
        except Exception as error:
            if permit is not None:
                permit.failed(error)
            if not isinstance(error, QueenrightError | TimeoutError | OSError):
                _log.exception("the worker of task %s could not be started", recovery.task_id)
            await self._refused(recovery, error)
        else:
            if permit is not None:
                permit.succeeded()
            await self._decide(lambda live: self._is_back(live, there, self._clock()), recovery)

    async def _respawn(self, recovery: Recovery, respawner: Respawner) -> Respawned:
        """Take up the work from its newest valid checkpoint."""
        target = recovery.target
        worker = self._monitor.get(*target.key)
        if recovery.attempt > 1 and self._stop is not None and worker is not None and not worker.vitals.ended:
            await self._stop(target, recovery.reason)
        chain = await within(START_SECONDS, _awaited(respawner.chain(target)), self._sleep)
        checkpoint, skipped = plan.choose(chain)
        await self._decide(lambda live: self._begins(live, checkpoint, skipped), recovery)
        if checkpoint is None and self._tell_human is not None:
            await self._tell_human(target, _from_the_start(recovery, skipped))
        work = respawner.respawn(
            target,
            checkpoint,
            task_id=recovery.task_id,
            attempt=recovery.attempt,
            note=plan.note(recovery, checkpoint),
        )
        return await within(START_SECONDS, _awaited(work), self._sleep)

    async def _begins(
        self, recovery: Recovery, checkpoint: CheckpointRef | None, skipped: Sequence[CheckpointRef]
    ) -> None:
        """Write down that the worker is about to be started, and from where."""
        now = self._clock()
        begun = recovery.model_copy(
            update={
                "state": RecoveryState.STARTING,
                "started_at": now,
                "from_checkpoint": None if checkpoint is None else checkpoint.checkpoint_id,
                "skipped": tuple(link.checkpoint_id for link in skipped),
            }
        )
        changes = _Changes()
        changes.set(begun)
        data = {
            "recovery_id": begun.recovery_id,
            "task_id": begun.task_id,
            "from_checkpoint": begun.from_checkpoint,
            "attempt": begun.attempt,
            "skipped": list(begun.skipped),
            "by": begun.by,
        }
        if checkpoint is None:
            data["reason"] = _from_the_start(begun, skipped)
        changes.events.append(self._event(EventType.RECOVERY_INITIATED, begun.target, data))
        self._begun = [at for at in self._begun if at > now - plan.HOUR]
        self._begun.append(now)
        await self._commit(changes)

    async def _refused(self, recovery: Recovery, error: Exception) -> None:
        now = self._clock()
        if isinstance(error, RespawnRefused) and error.over:
            await self._decide(lambda live: self._end(live, RecoveryState.DROPPED, str(error), now), recovery)
            return
        final = isinstance(error, RespawnRefused) and error.final

        async def failed(live: Recovery) -> None:
            if live.started_at is None:  # it did not get so far, and counts all the same
                live = live.model_copy(update={"started_at": now})
                self._begun.append(now)
            await self._failed(live, redact(str(error)) or type(error).__name__, now, final=final)

        await self._decide(failed, recovery)

    async def _decide(self, what: Callable[[Recovery], Awaitable[object]], recovery: Recovery) -> None:
        """Do ``what`` to a try as it is by now, if it is still the one under way."""
        async with self._deciding:
            live = self._live.get(recovery.task_id)
            assert live is not None  # who is being started is ended by nobody else
            assert live.recovery_id == recovery.recovery_id
            await what(live)

    def _admitted(self, target: Target) -> Permit | None:
        if self._breakers is None:
            return None
        return self._breakers.get(BreakerKind.RECOVERY, target.agent_id).admit()

    # -- inside -------------------------------------------------------------------------------------

    def _respawner(self, target: Target) -> Respawner | None:
        return next((each for each in self._respawners if each.reaches(target)), None)

    def _task_of(self, target: Target) -> str:
        for recovery in self._live.values():
            if recovery.successor.key == target.key:
                return recovery.task_id
        worker = self._monitor.get(*target.key)
        said = getattr(worker.vitals, "task_id", "") if worker is not None else ""
        return said or target.session_id

    async def _target_of(self, task_id: str) -> Target:
        """Return the worker that is about a task: as it is, or as it was when it was last brought back."""
        known = [each for each in self._monitor.workers() if self._task_of(Target.of(each.vitals)) == task_id]
        if known:
            return Target.of(max(known, key=lambda each: each.vitals.last_event).vitals)
        past = await self._store.read(lambda conn: table.of_task(conn, task_id))
        if not past:
            raise TaskUnknown(task_id)
        return past[0].successor if past[0].new_incarnation_id else past[0].target

    def _failure(self, failed: Recovery, past: Sequence[Recovery]) -> AgentEvent:
        attempts = sum(each.started_at is not None for each in past)
        about = failed.successor if failed.new_incarnation_id else failed.target
        return self._event(EventType.RECOVERY_FAILED, about, _failure_data(failed, attempts))

    def _event(self, type_: EventType, about: Target, data: dict[str, Any]) -> AgentEvent:
        return AgentEvent(
            id=self._ids(),
            type=type_,
            time=self._clock(),
            agent_id=about.agent_id,
            session_id=about.session_id,
            incarnation_id=about.incarnation_id,
            data=data,
        )

    async def _commit(self, changes: _Changes) -> None:
        """Write down what changed with its events; then remember it, and tell."""
        if not changes.rows:
            return

        async def commit() -> None:
            await self._store.transact(changes.write)
            for _, recovery in changes.rows:
                if recovery.under_way:
                    self._live[recovery.task_id] = recovery
                else:
                    live = self._live.get(recovery.task_id)
                    if live is not None and live.recovery_id == recovery.recovery_id:
                        del self._live[recovery.task_id]
            if changes.events:
                self._publish(*changes.events)

        # Whoever is cancelled half-way must not leave untold what was committed.
        await asyncio.shield(self._own(commit()))

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)
        return task


def _has_failed(live: Recovery, target: Target) -> bool:
    """Return whether a request about ``target`` says that the worker which was brought back is lost again."""
    if live.state is not RecoveryState.WATCHING or live.successor.key != target.key:
        return False
    return target.incarnation_id != live.incarnation_id


def _accepted(recovery: Recovery, reason: str) -> RecoveryResult:
    return RecoveryResult(
        accepted=True,
        recovery_id=recovery.recovery_id,
        attempt=recovery.attempt,
        not_before=recovery.not_before,
        reason=reason,
    )


def _failure_data(recovery: Recovery, attempts: int) -> dict[str, Any]:
    return {
        "recovery_id": recovery.recovery_id,
        "task_id": recovery.task_id,
        "reason": recovery.outcome,
        "attempts": attempts,
        "exhausted": recovery.exhausted,
    }


def _from_the_start(recovery: Recovery, skipped: Sequence[CheckpointRef]) -> str:
    broken = f": {', '.join(link.checkpoint_id for link in skipped)} cannot be believed" if skipped else ""
    return f"task {recovery.task_id!r} has no valid checkpoint{broken}; it begins again from the start"


async def _awaited(work: Awaitable[T]) -> T:
    return await work
