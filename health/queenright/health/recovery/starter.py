"""The I/O of a recovery: start a worker again, and return the outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.recovery import decisions
from queenright.health.recovery.recovery import Recovery
from queenright.health.recovery.respawner import (
    CheckpointRef,
    InvalidCheckpointError,
    Respawner,
    RespawnRefusedError,
)
from queenright.health.store.database import StoreError
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.breaker_protocols import BreakerKind, BreakerPermit, Breakers, CallRefusedError
from queenright.runtime.deadline import Sleep, within

START_SECONDS: Final = 60.0
"""The time limit for looking up or starting a worker."""

NO_RESPAWNER: Final = (
    "nothing here can start its worker: it runs in another process, or its graph is not loaded; start it "
    "where it ran, or set a webhook that does: health_monitoring.recovery.webhook_url"
)

RecordStart = Callable[[CheckpointRef | None, Sequence[CheckpointRef]], Awaitable[None]]
"""
Records that a worker is about to be started, with the checkpoint and the skipped ones. May be called again.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartDropped:
    """The outcome that the recovery is no longer needed."""

    reason: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The outcome that the worker did not start. ``final`` means that it never can."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class StartPostponed:
    """The outcome that the start is retried after ``seconds``."""

    seconds: float
    reason: str


StartResult = StartDropped | StartFailed | StartPostponed | Target
Stop = Callable[[Target, str], Awaitable[object]]
"""Stops a worker, for the given reason."""


class Starter:
    """
    Starts workers; see ``RecoveryService`` for the arguments.

    Each worker is checked again first, because it may have continued or ended in the meantime.
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
        self._sleep = sleep

    def respawner(self, target: Target) -> Respawner | None:
        """Return the first respawner that reaches a worker, or None."""
        return next((respawner for respawner in self._respawners if respawner.can_reach(target)), None)

    async def find_repeat_objection(self, target: Target, task_id: str) -> str | None:
        """Return why a task without a checkpoint is left to a person, or None if it may be recovered."""
        worker = self._monitor.find(*target.key)
        respawner = self.respawner(target)
        if respawner is None or (worker is not None and worker.vitals.repeatable):
            return None
        chain = await self._look_up_chain(respawner, target)
        checkpoint, unusable = decisions.choose_checkpoint(chain or ())
        return None if chain is None or checkpoint else decisions.not_repeatable(task_id, unusable)

    async def find_drop_reason(self, recovery: Recovery) -> str | None:
        """Return why the recovery of a failed run would be dropped, or None if it is attempted."""
        target = recovery.target
        worker, respawner = self._monitor.find(*target.key), self.respawner(target)
        if respawner is None or decisions.is_repeatable(recovery, worker):
            return None
        if not decisions.is_one_failed_run(recovery, worker):
            return None
        chain = await self._look_up_chain(respawner, target)
        return None if chain is None or chain else decisions.not_repeatable(recovery.task_id, ())

    async def _look_up_chain(self, respawner: Respawner, target: Target) -> Sequence[CheckpointRef] | None:
        """
        Return the checkpoints of a task, or None if they cannot be read. The attempt then reports the error.
        """
        try:
            return await within(START_SECONDS, respawner.chain(target), self._sleep)
        except (RespawnRefusedError, StoreError, TimeoutError, OSError):
            return None

    async def start(self, recovery: Recovery, stop: Stop, record_start: RecordStart) -> StartResult:
        """
        Start a worker again, and return the outcome.

        Args:
            stop: Called before a worker that has not ended is started again.

        Raises:
            StoreError: The start could not be recorded.
        """
        target = recovery.target
        workers = self._monitor.of_agent(target.agent_id)
        heirs = (each for each in workers if decisions.is_heir(recovery, each))
        obstacle = decisions.recovery_obstacle(
            recovery, self._monitor.find(*target.key), heirs
        ) or decisions.completed_elsewhere(recovery, workers)
        if obstacle is not None:
            return StartDropped(obstacle)
        respawner = self.respawner(target)
        if respawner is None:
            return StartFailed(NO_RESPAWNER, final=True)
        try:
            permit = self._admit(target)
        except CallRefusedError as refusal:
            return StartPostponed(max(1.0, refusal.retry_in), redact(str(refusal)))
        try:
            outcome = await self._respawn(recovery, respawner, stop, record_start)
        except (StoreError, asyncio.CancelledError):
            if permit is not None:
                permit.release()
            raise
        except Exception as error:
            if permit is not None:
                permit.record_failure(error)
            return self._make_failure(recovery, error)
        if permit is not None:
            if isinstance(outcome, Target):
                permit.record_success()
            else:
                permit.release()  # no start was attempted, so none failed
        return outcome

    async def _respawn(
        self, recovery: Recovery, respawner: Respawner, stop: Stop, record_start: RecordStart
    ) -> StartDropped | StartFailed | Target:
        """
        Start from the newest valid checkpoint. If there is none, start over if that is allowed, or leave the
        task to a person.
        """
        target = recovery.target
        worker = self._monitor.find(*target.key)
        if recovery.attempt > 1 and worker is not None and not worker.vitals.has_ended:
            await stop(target, recovery.reason)
        try:
            chain = await within(START_SECONDS, respawner.chain(target), self._sleep)
        except RespawnRefusedError as refusal:
            return self._make_failure(recovery, refusal)  # no start was attempted
        while True:
            checkpoint, unusable = decisions.choose_checkpoint(chain)
            if checkpoint is None and not decisions.is_repeatable(recovery, worker):
                reason = decisions.not_repeatable(recovery.task_id, unusable)
                if not unusable and decisions.is_one_failed_run(recovery, worker):
                    return StartDropped(reason)
                return StartFailed(redact(reason), final=True)
            await record_start(checkpoint, unusable)
            work = respawner.respawn(
                target,
                checkpoint,
                task_id=recovery.task_id,
                attempt=recovery.attempt,
                note=decisions.note(recovery, checkpoint),
                repeatable=worker is not None and worker.vitals.repeatable,
                may_start_over=decisions.is_repeatable(recovery, worker),
            )
            try:
                return await within(START_SECONDS, work, self._sleep)
            except InvalidCheckpointError as refusal:
                if checkpoint is None:
                    raise
                chain = decisions.mark_invalid(chain, checkpoint, str(refusal))

    def _make_failure(self, recovery: Recovery, error: Exception) -> StartDropped | StartFailed:
        if isinstance(error, RespawnRefusedError):
            return (
                StartDropped(str(error)) if error.over else StartFailed(redact(str(error)), final=error.final)
            )
        if not isinstance(error, QueenrightError | TimeoutError | OSError):
            _log.error("the worker of task %s could not be started", recovery.task_id, exc_info=error)
        return StartFailed(redact(str(error)) or type(error).__name__)

    def _admit(self, target: Target) -> BreakerPermit | None:
        if self._breakers is None:
            return None
        return self._breakers.get(BreakerKind.RECOVERY, target.agent_id).admit()
