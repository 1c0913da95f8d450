"""
Circuit breakers as the runtime sees them: before a call somebody is asked, and afterwards told how it went.

What a breaker is, the runtime does not know. Whoever makes a runtime gives it some, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from queenright.instrumentation.errors import QueenrightError


class BreakerKind(StrEnum):
    """What a breaker stands before."""

    TOOL_EXECUTION = "tool_execution"
    CHECKPOINT_WRITE = "checkpoint_write"
    EXTERNAL_API = "external_api"
    RECOVERY = "recovery"


class CallRefused(QueenrightError):
    """
    Raised in place of a call: what it would go to has failed too often lately.

    ``retry_in`` is in how many seconds it is worth asking again; never negative.
    """

    def __init__(self, message: str, *, retry_in: float) -> None:
        super().__init__(message)
        self.retry_in = max(0.0, retry_in)


class Permit(Protocol):
    """Leave for one call. Whoever has it says once how the call went; what is said later is not heard."""

    def succeeded(self) -> None:
        """The other side did what it should."""
        ...

    def failed(self, error: BaseException | str) -> None:
        """The other side failed."""
        ...

    def given_back(self) -> None:
        """The call says nothing about the other side: it was cancelled, or its own words were wrong."""
        ...


class CallBreaker(Protocol):
    """Stands before calls of one kind to one place."""

    def admit(self) -> Permit:
        """
        Return leave for one call, at once.

        Raises:
            CallRefused: Not now; says why and until when.
        """
        ...


class Breakers(Protocol):
    """Gives breakers by what they stand before."""

    def get(
        self, kind: str, agent: str = "", target: str = "", *, parents: Sequence[str] = ()
    ) -> CallBreaker:
        """
        Return a breaker; the same one for the same words.

        Args:
            kind: One of ``BreakerKind``.
            agent: The worker whose calls these are; empty where that makes no difference.
            target: The tool, the model, the host.
            parents: Names of breakers that this one shares with others: a call needs leave of all of them.
        """
        ...


def model_breaker(breakers: Breakers, agent: str, model: str) -> CallBreaker:
    """
    Return the breaker before a model: one for each worker and model, below one for each provider.

    Args:
        breakers: Where breakers come from.
        agent: The worker that asks; empty for the service's own graphs.
        model: What the model is called; the provider is what stands before the first slash.
    """
    provider = model.partition("/")[0]
    # A model without an agent that is its own provider would be its own parent.
    parents = [f"{BreakerKind.EXTERNAL_API}::{provider}"] if agent or provider != model else []
    return breakers.get(BreakerKind.EXTERNAL_API, agent, model, parents=parents)
