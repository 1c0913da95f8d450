"""Respawners: the one interface through which a worker's work is taken up again, wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from queenright.health.interventions.target import Target
from queenright.instrumentation.errors import QueenrightError


class RespawnRefusedError(QueenrightError):
    """
    Raised when work cannot be taken up again; says why.

    ``final``: it never can, and no other attempt is worth making. ``over``: it is at its end, so that there
    is nothing to take up and nobody need be told.
    """

    def __init__(self, message: str, *, final: bool = False, over: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.over = over


class InvalidCheckpointError(RespawnRefusedError):
    """Raised when the checkpoint cannot be believed after all; the one before it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """One checkpoint of a chain; ``created_at`` is in seconds since the epoch, 0 if nobody can tell."""

    checkpoint_id: str
    created_at: float
    valid: bool
    reason: str = ""
    """What is wrong with one that is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Respawned:
    """Who goes on with the work. The incarnation is empty where it is not known yet."""

    agent_id: str
    session_id: str
    incarnation_id: str


class Respawner(Protocol):
    """Can take up the work of some workers, and not of others."""

    def reaches(self, target: Target) -> bool:
        """Return whether this worker's work could be taken up here. Quick."""
        ...

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """
        Return the checkpoints of the work, newest first, each of them looked into.

        Raises:
            RespawnRefusedError: There is nothing to take up.
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
    ) -> Respawned:
        """
        Take up the work, and return when it goes on.

        Args:
            target: Whose work; this life of it is over.
            checkpoint: From where; None is from the start of the task.
            task_id: What the work is about.
            attempt: Which try this is, from 1.
            note: What the new worker is told of what happened.
            repeatable: The task says that it may be done again from its start; its new life must say so, too.
            may_start_over: The task or a person says so: without a checkpoint it may begin again.

        Raises:
            InvalidCheckpointError: The checkpoint is broken; it is called again with the next one.
            RespawnRefusedError: It did not go on.
        """
        ...
