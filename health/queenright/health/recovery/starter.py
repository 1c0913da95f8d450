"""Starting a worker again: the I/O of one try, and how it went, in a word."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from queenright.health.database import StoreError
from queenright.health.interventions.target import Target
from queenright.health.monitor import HealthMonitor
from queenright.health.recovery import plan
from queenright.health.recovery.attempt import Recovery
from queenright.health.recovery.respawner import (
    CheckpointRef,
    InvalidCheckpointError,
    Respawned,
    Respawner,
    RespawnRefusedError,
)
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.breakers import BreakerKind, Breakers, CallRefused, Permit
from queenright.runtime.deadline import Sleep, within

T = TypeVar("T")

START_SECONDS: Final = 60.0
"""So long a worker may take to be looked up or started."""

NOBODY: Final = (
    "nobody here can start its worker again: it runs in another process, or its graph is not loaded; "
    "start it where it ran, or say who does that: health_monitoring.recovery.webhook_url"
)

Begins = Callable[[CheckpointRef | None, Sequence[CheckpointRef]], Awaitable[None]]
"""Writes down that a worker is about to be started: from where, passing over what; again if that changes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """The try is not needed any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The worker did not start; ``final``: it never will."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class PutOff:
    """Not now: ask again in so many seconds."""

    seconds: float
    reason: str


Outcome = Dropped | NotStarted | PutOff | Respawned
Stop = Callable[[Target, str], Awaitable[object]]
"""Stops a worker, for a reason."""


class Starter:
    """
    Starts workers; see ``RecoveryService`` for the arguments.

    What it is told to bring back it looks at once more first: it may have come back, or ended, meanwhile.
    """

    def __init__(
        self,
        *,
        monitor: HealthMonitor,
        respawners: Iterable[Respawner],
        breakers: Breakers | None,
        sleep: Sleep,
    ) -> None:
        self._monitor = monitor
        self._respawners = respawners
        self._breakers = breakers
        self._stop: Stop | None = None
        self._sleep = sleep

    def connect(self, stop: Stop) -> None:
        """Use ``stop``; see ``RecoveryService.connect``."""
        self._stop = stop

    def respawner(self, target: Target) -> Respawner | None:
        """Return who can start a worker again, None if nobody can."""
        return next((each for each in self._respawners if each.reaches(target)), None)

    async def why_not_repeated(self, target: Target, task_id: str) -> str | None:
        """Return why a task is left to a person for want of a checkpoint; None if it may be brought back."""
        worker = self._monitor.get(*target.key)
        respawner = self.respawner(target)
        if respawner is None or (worker is not None and worker.vitals.repeatable):
            return None
        try:
            chain = await within(START_SECONDS, _awaited(respawner.chain(target)), self._sleep)
        except (RespawnRefusedError, StoreError, TimeoutError, OSError):
            return None  # what is wrong is said when it is tried
        checkpoint, skipped = plan.choose(chain)
        return None if checkpoint is not None else plan.not_repeatable(task_id, skipped)

    async def why_dropped(self, recovery: Recovery) -> str | None:
        """Return why a run that failed would be dropped when its time comes; None if it would be tried."""
        target = recovery.target
        worker, respawner = self._monitor.get(*target.key), self.respawner(target)
        if respawner is None or plan.is_repeatable(recovery, worker):
            return None
        if not plan.is_one_failed_run(recovery, worker):
            return None
        try:
            chain = await within(START_SECONDS, _awaited(respawner.chain(target)), self._sleep)
        except (RespawnRefusedError, StoreError, TimeoutError, OSError):
            return None
        return None if chain else plan.not_repeatable(recovery.task_id, ())

    async def bring_back(self, recovery: Recovery, begins: Begins) -> Outcome:
        """
        Start a worker again, and say how that went.

        Raises:
            StoreError: What ``begins`` was to write down could not be written.
        """
        target = recovery.target
        known = self._monitor.of_agent(target.agent_id)
        heirs = (each for each in known if plan.is_heir(recovery, each))
        needless = plan.not_needed(
            recovery, self._monitor.get(*target.key), heirs
        ) or plan.completed_elsewhere(recovery, known)
        if needless is not None:
            return Dropped(needless)
        respawner = self.respawner(target)
        if respawner is None:
            return NotStarted(NOBODY, final=True)
        try:
            permit = self._admitted(target)
        except CallRefused as refusal:
            return PutOff(max(1.0, refusal.retry_in), redact(str(refusal)))
        try:
            there = await self._respawn(recovery, respawner, begins)
        except (StoreError, asyncio.CancelledError):
            if permit is not None:
                permit.given_back()
            raise
        except Exception as error:
            if permit is not None:
                permit.failed(error)
            return self._refused(recovery, error)
        if permit is not None:
            if isinstance(there, Respawned):
                permit.succeeded()
            else:
                permit.given_back()  # nothing was tried, so nothing failed
        return there

    async def _respawn(
        self, recovery: Recovery, respawner: Respawner, begins: Begins
    ) -> Dropped | NotStarted | Respawned:
        """Take up the work from its newest valid checkpoint; without one, leave it to a person."""
        target = recovery.target
        worker = self._monitor.get(*target.key)
        if recovery.attempt > 1 and self._stop is not None and worker is not None and not worker.vitals.ended:
            await self._stop(target, recovery.reason)
        try:
            chain = await within(START_SECONDS, _awaited(respawner.chain(target)), self._sleep)
        except RespawnRefusedError as refusal:
            return self._refused(recovery, refusal)  # nobody tried to start it
        while True:
            checkpoint, skipped = plan.choose(chain)
            if checkpoint is None and not plan.is_repeatable(recovery, worker):
                reason = plan.not_repeatable(recovery.task_id, skipped)
                if not skipped and plan.is_one_failed_run(recovery, worker):
                    return Dropped(reason)
                return NotStarted(redact(reason), final=True)
            await begins(checkpoint, skipped)
            work = respawner.respawn(
                target,
                checkpoint,
                task_id=recovery.task_id,
                attempt=recovery.attempt,
                note=plan.note(recovery, checkpoint),
                repeatable=worker is not None and worker.vitals.repeatable,
                may_start_over=plan.is_repeatable(recovery, worker),
            )
            try:
                return await within(START_SECONDS, _awaited(work), self._sleep)
            except InvalidCheckpointError as refusal:
                if checkpoint is None:
                    raise
                chain = plan.without(chain, checkpoint, str(refusal))

    def _refused(self, recovery: Recovery, error: Exception) -> Dropped | NotStarted:
        if isinstance(error, RespawnRefusedError):
            return Dropped(str(error)) if error.over else NotStarted(redact(str(error)), final=error.final)
        if not isinstance(error, QueenrightError | TimeoutError | OSError):
            _log.error("the worker of task %s could not be started", recovery.task_id, exc_info=error)
        return NotStarted(redact(str(error)) or type(error).__name__)

    def _admitted(self, target: Target) -> Permit | None:
        if self._breakers is None:
            return None
        return self._breakers.get(BreakerKind.RECOVERY, target.agent_id).admit()


async def _awaited(work: Awaitable[T]) -> T:
    return await work
