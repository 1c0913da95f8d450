"""Control of a worker: the one interface through which it is spoken to and stopped, wherever it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from queenright.health.interventions.target import Target
from queenright.instrumentation.errors import QueenrightError


class WorkerUnreachableError(QueenrightError):
    """Raised when nobody can reach a worker; says why, and the way out."""


class Delivery(StrEnum):
    """How far a nudge has got."""

    INJECTED = "injected"
    """It is in the worker's context: its next turn sees it."""
    QUEUED = "queued"
    """The worker fetches it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What became of a request to stop."""

    confirmed: bool
    """Whether it is certain that the worker has stopped."""
    checkpoint_id: str | None = None
    """Where its partial state is, if it was saved."""
    detail: str = ""
    lingers: bool = False
    """Whether a function of it goes on all the same, in a thread, which nothing can stop."""


class WorkerControl(Protocol):
    """Reaches some workers, and not others."""

    def reaches(self, target: Target) -> bool:
        """Return whether this very incarnation can be reached now. Quick, no I/O."""
        ...

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> Delivery:
        """
        Put a message into the worker's context; it is durable on return.

        Args:
            target: Whom it is for; another incarnation never sees it.
            message: What it is told.
            instruction_id: The same id is delivered once at most.
            expires_at: After this moment, in seconds since the epoch, it is thrown away.

        Raises:
            WorkerUnreachableError: The worker is not there (any more).
        """
        ...

    async def terminate(self, target: Target, reason: str, *, instruction_id: str, within: float) -> Stopped:
        """
        Stop the worker: save what it has, free what it holds. Takes ``within`` seconds at most.

        Raises:
            WorkerUnreachableError: The worker is not there (any more).
        """
        ...
