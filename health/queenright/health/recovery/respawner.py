"""Interface to start a worker again, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from queenright.health.interventions.target import Target
from queenright.instrumentation.errors import QueenrightError


class RespawnRefusedError(QueenrightError):
    """
    Raised when a worker cannot be started again. The message states why.

    ``final``: it never can be, so no further attempt is made. ``over``: its task has ended, so there is
    nothing to recover and no one to notify.
    """

    def __init__(self, message: str, *, final: bool = False, over: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.over = over


class InvalidCheckpointError(RespawnRefusedError):
    """Raised when a checkpoint turns out to be invalid; an earlier one may be valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """A checkpoint of a chain. ``created_at`` is in seconds since the epoch, or 0 if unknown."""

    checkpoint_id: str
    created_at: float
    valid: bool
    reason: str = ""
    """Why it is invalid; empty if it is valid."""


class Respawner(Protocol):
    """Restarts the workers that it can reach."""

    def can_reach(self, target: Target) -> bool:
        """Return whether this worker could be restarted here. Must not block."""
        ...

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """
        Return the checkpoints of the task, newest first, each checked.

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
        Start the worker again, and return the worker that continues, without an incarnation if that is
        unknown.

        Args:
            target: The incarnation of the worker that is over.
            checkpoint: Where to start; None starts from the beginning.
            attempt: The number of the attempt, from 1.
            repeatable: The task is declared repeatable; its new incarnation must declare that too.
            may_start_over: The task or a person allows it to start over without a checkpoint.

        Raises:
            InvalidCheckpointError: The checkpoint is invalid; the caller retries with the next one.
            RespawnRefusedError: The worker did not start.
        """
        ...
