"""
The interface to nudge or stop a worker, wherever it runs.

`actions` calls it. `runtime_control` implements it for agents in this process, and `instructions` for agents
in other processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from queenright.health.interventions.target import Target
from queenright.instrumentation.errors import QueenrightError


class WorkerUnreachableError(QueenrightError):
    """Raised when a worker cannot be reached. The message states why, and what to do."""


class NudgeDelivery(StrEnum):
    """The delivery status of a nudge."""

    INJECTED = "injected"
    """The message is in the worker's context for its next turn."""
    QUEUED = "queued"
    """The message waits until the worker fetches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """The result of a request to stop."""

    is_confirmed: bool
    """Whether the worker has certainly stopped."""
    checkpoint_id: str | None = None
    """The checkpoint with the worker's partial state, or None if it was not saved."""
    detail: str = ""
    lingers: bool = False
    """Whether one of the worker's functions is still running in a thread, which cannot be stopped."""


class WorkerControl(Protocol):
    """Controls the workers that it reaches."""

    def can_reach(self, target: Target) -> bool:
        """Return whether this incarnation can be reached now, without I/O."""
        ...

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        """
        Put a message into the worker's context. It is durable on return.

        Args:
            target: The worker. Another incarnation never gets the message.
            instruction_id: A message with the same id is delivered at most once.
            expires_at: When the message is discarded, in seconds since the epoch.

        Raises:
            WorkerUnreachableError: The worker is not running.
        """
        ...

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        """
        Stop the worker within ``within`` seconds. Save its state, and free its resources.

        Raises:
            WorkerUnreachableError: The worker is not running.
        """
        ...
