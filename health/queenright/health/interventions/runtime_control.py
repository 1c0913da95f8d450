"""Control of workers on Queenright's runtime. A nudge joins the conversation. A stop saves the state."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, StopResult, WorkerUnreachableError
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.nodes.inbox import Note
from queenright.runtime.storage.files import UnusableFileError
from queenright.runtime.storage.session_state import SessionStatus
from queenright.runtime.workers import InvalidWorkerError, RunningWorker

_GRACE_SECONDS: Final = 0.1
"""The extra seconds for a run that is about to end at its deadline."""


class RuntimeControl:
    """The ``WorkerControl`` of one runtime."""

    def __init__(self, runtime: AgentRuntime, *, sleep: Sleep = asyncio.sleep) -> None:
        self._workers = runtime.workers
        self._sleep = sleep

    def can_reach(self, target: Target) -> bool:
        """
        Return whether this incarnation of the worker is running here, or was killed and left its session
        here.

        A killed incarnation cannot be nudged. Its termination ensures that no process runs it.
        """
        run = self._workers.find_running(target.agent_id, target.session_id)
        if run is not None:
            return run.incarnation_id == target.incarnation_id
        return self._workers.has_session(target.agent_id, target.session_id)

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        """
        Add a note to the nodes that call a model. They read it before their next turn.

        The note is durable on return. It is discarded if it is read too late or by another incarnation.

        Raises:
            WorkerUnreachableError: This incarnation is not running, is between nodes, or waits for its user.
        """
        note = Note(
            note_id=instruction_id,
            content=message,
            incarnation_id=target.incarnation_id,
            expires_at=expires_at,
        )
        try:
            await self._workers.send_note(self._require_running(target), note)
        except (InvalidWorkerError, OSError) as error:
            raise WorkerUnreachableError(f"worker {target} cannot be nudged: {error}") from error
        return NudgeDelivery.INJECTED

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        """
        Stop the run, save its state as a checkpoint, and free its session.

        A function in a thread cannot be stopped. It continues, the session stays locked until it ends, and
        the stop is not confirmed. For a killed incarnation, ensure that no process runs it.

        Raises:
            WorkerUnreachableError: Another incarnation is running here, or another process runs the worker.
        """
        if self._workers.find_running(target.agent_id, target.session_id) is None:
            return await self._terminate_killed(target)
        run = self._require_running(target)
        try:
            result = await _run_within(within, self._workers.terminate(run, reason), self._sleep)
        except TimeoutError:
            return StopResult(
                is_confirmed=False, detail=f"it is stopping, but did not stop within {within:g} s"
            )
        return self._confirm_stop(run, result)

    def _confirm_stop(self, run: RunningWorker, result: ExecutionResult) -> StopResult:
        if result.status is not SessionStatus.TERMINATED:
            return StopResult(
                is_confirmed=True,
                checkpoint_id=result.checkpoint_id,
                detail=f"it was {result.status.value} before it could be stopped",
            )
        if self._workers.has_running_function(run):
            return StopResult(
                is_confirmed=False,
                checkpoint_id=result.checkpoint_id,
                detail="the run has stopped, but one of its functions is still running in a thread; its "
                "session stays locked until that ends, and only a restart of its process can end it",
                lingers=True,
            )
        detail = (
            f"its state is in checkpoint {result.checkpoint_id}"
            if result.checkpoint_id
            else "no state was saved"
        )
        return StopResult(is_confirmed=True, checkpoint_id=result.checkpoint_id, detail=detail)

    async def _terminate_killed(self, target: Target) -> StopResult:
        """Ensure that no process runs a session whose run was killed."""
        try:
            abandoned_session = await self._workers.find_abandoned(
                target.agent_id, target.session_id, target.incarnation_id
            )
        except (InvalidWorkerError, UnusableFileError, OSError) as error:
            raise WorkerUnreachableError(f"worker {target} cannot be terminated: {error}") from error
        checkpoint_id = next(
            (link.checkpoint_id for link in abandoned_session.chain if link.checkpoint is not None), None
        )
        return StopResult(is_confirmed=True, checkpoint_id=checkpoint_id, detail="it was not running")

    def _require_running(self, target: Target) -> RunningWorker:
        run = self._workers.find_running(target.agent_id, target.session_id)
        if run is None:
            raise WorkerUnreachableError(
                f"worker {target} is not running here; recover it, or check where it ran"
            )
        if run.incarnation_id != target.incarnation_id:
            raise WorkerUnreachableError(
                f"worker {target} is gone: incarnation {run.incarnation_id!r} runs in its session now; "
                "check it again"
            )
        return run


async def _run_within(
    seconds: float, work: Coroutine[Any, Any, ExecutionResult], sleep: Sleep
) -> ExecutionResult:
    return await within(seconds, work, sleep, grace=_GRACE_SECONDS)
