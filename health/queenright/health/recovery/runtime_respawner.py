"""
The respawner of Queenright's runtime, which continues a stored session from a checkpoint or starts it over.
"""

from __future__ import annotations

from collections.abc import Sequence

from queenright.health.interventions.target import Target
from queenright.health.recovery.respawner import CheckpointRef, RespawnRefusedError
from queenright.instrumentation.identity import new_id
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.storage.checkpoint_store import (
    ChainLink,
    CheckpointNotFoundError,
    CorruptCheckpointError,
)
from queenright.runtime.storage.files import UnusableFileError
from queenright.runtime.storage.session_state import SessionStatus
from queenright.runtime.storage.session_store import SessionNotFoundError
from queenright.runtime.workers import InvalidWorkerError, StoppedWorker


class RuntimeRespawner:
    """The ``Respawner`` of one runtime. A recovered run keeps its session and has a new incarnation."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._workers = runtime.workers

    def can_reach(self, target: Target) -> bool:
        """Return whether the worker is a graph of this runtime that has the session on disk."""
        return self._workers.has_session(target.agent_id, target.session_id)

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """
        Return the checkpoints of the interrupted run, newest first. Each has been read and checked.

        Raises:
            RespawnRefusedError: There is no such run, or it has ended.
        """
        return [_make_checkpoint_ref(link) for link in (await self._find_stopped(target)).chain]

    async def respawn(
        self,
        target: Target,
        checkpoint: CheckpointRef | None,
        *,
        task_id: str,
        attempt: int,
        note: str,
        repeatable: bool,
        may_start_over: bool,
    ) -> Target:
        """
        Continue the run in its session. Its nodes read ``note`` first.

        From a checkpoint, the run continues as it was then. Without a checkpoint, the entry point runs again
        with the first input, and later messages are lost.

        Raises:
            RespawnRefusedError: The run did not start.
        """
        worker = await self._find_stopped(target)
        checkpoint_id = None if checkpoint is None else checkpoint.checkpoint_id
        try:
            execution = await self._workers.respawn(worker, checkpoint_id, note, new_id())
        except (CorruptCheckpointError, CheckpointNotFoundError) as error:
            raise RespawnRefusedError(str(error)) from error
        except InvalidWorkerError as refusal:
            raise RespawnRefusedError(str(refusal), final=refusal.final) from refusal
        return target._replace(incarnation_id=execution.incarnation_id)

    async def _find_stopped(self, target: Target) -> StoppedWorker:
        try:
            stopped_worker = await self._workers.find_interrupted(
                target.agent_id, target.session_id, target.incarnation_id
            )
        except InvalidWorkerError as refusal:
            raise RespawnRefusedError(str(refusal), final=refusal.final, over=refusal.over) from refusal
        except (SessionNotFoundError, UnusableFileError) as error:
            raise RespawnRefusedError(str(error), final=True) from error
        if stopped_worker.state.status is SessionStatus.PAUSED:
            raise RespawnRefusedError(
                f"session {target.session_id!r} was paused on purpose; resume it instead",
                final=True,
                over=True,
            )
        return stopped_worker


def _make_checkpoint_ref(link: ChainLink) -> CheckpointRef:
    checkpoint = link.checkpoint
    return CheckpointRef(
        checkpoint_id=link.checkpoint_id,
        created_at=0.0 if checkpoint is None else checkpoint.created_at,
        valid=checkpoint is not None,
        reason=link.reason,
    )
