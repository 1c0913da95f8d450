"""The interface to start a worker again, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from queenright.health.interventions.target import Target
from queenright.instrumentation.errors import QueenrightError


class RespawnRefusedError(QueenrightError):
    """
    Raised when a worker cannot be started again. The message states why.

    ``final`` means that it can never be started, so no further attempt is made. ``over`` means that its task
    has ended, so there is nothing to recover and no one is notified.
    """

    def __init__(self, message: str, *, final: bool = False, over: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.over = over


class InvalidCheckpointError(RespawnRefusedError):
    """Raised when a checkpoint turns out to be invalid. An earlier checkpoint may be valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """A checkpoint of a task. ``created_at`` is in seconds since the epoch, or 0 if unknown."""

    checkpoint_id: str
    created_at: float
    valid: bool
    reason: str = ""
    """Why the checkpoint is invalid; empty if it is valid."""


class Respawner(Protocol):
    """Restarts the workers that it can reach."""

    def can_reach(self, target: Target) -> bool:
        """Return whether this worker can be restarted here. It must not block."""
        ...

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """
        Return the checkpoints of the task, newest first. Each has been checked.

        Raises:
            RespawnRefusedError: There is nothing to recover.
        """
        ...

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
        Start the worker again. Return the worker that continues; its incarnation is empty if unknown.

        Args:
            target: The worker's incarnation that has ended.
            checkpoint: The checkpoint to start from; None to start over.
            attempt: The number of the attempt, from 1.
            repeatable: Whether the task was declared repeatable. The new incarnation must declare this as
                well.
            may_start_over: Whether the task's declaration or a person allows it to start over without a
                checkpoint.

        Raises:
            InvalidCheckpointError: The checkpoint is invalid. The caller retries with an earlier one.
            RespawnRefusedError: The worker did not start.
        """
        ...
