"""
Protocols of circuit breakers, as the runtime uses them.

The runtime asks for a permit before each call and reports the outcome. The caller of the runtime provides
the implementation, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

from queenright.instrumentation.errors import QueenrightError


class BreakerKind(StrEnum):
    """The kind of call that a breaker protects."""

    TOOL_EXECUTION = "tool_execution"
    CHECKPOINT_WRITE = "checkpoint_write"
    EXTERNAL_API = "external_api"
    RECOVERY = "recovery"


class CallRefusedError(QueenrightError):
    """
    Raised instead of a call while its circuit breaker is open.

    ``retry_in`` is the number of seconds after which a retry may succeed; never negative.
    """

    def __init__(self, message: str, *, retry_in: float) -> None:
        super().__init__(message)
        self.retry_in = max(0.0, retry_in)


class BreakerPermit(Protocol):
    """Permission for one call. The first outcome that is reported counts; later ones are ignored."""

    def record_success(self) -> None:
        """Report success of the callee."""
        ...

    def record_failure(self, error: BaseException | str) -> None:
        """Report failure of the callee."""
        ...

    def release(self) -> None:
        """Report no outcome: the call was cancelled, or the request was invalid."""
        ...


class CallBreaker(Protocol):
    """Circuit breaker for calls of one kind to one target."""

    def admit(self) -> BreakerPermit:
        """
        Return a permit for one call. Does not wait.

        Raises:
            CallRefusedError: The breaker is open; says why and until when.
        """
        ...


class Breakers(Protocol):
    """Provides circuit breakers by kind, worker and target."""

    def get(
        self, kind: str, agent: str = "", target: str = "", *, parents: Sequence[str] = ()
    ) -> CallBreaker:
        """
        Return the breaker for these arguments; equal arguments get the same breaker.

        Args:
            agent: The worker that makes the calls; empty if shared by all workers.
            parents: Names of shared breakers above this one; a call needs a permit from each.
        """
        ...


@contextmanager
def guarded_by(breaker: CallBreaker | None, *failures: type[Exception]) -> Iterator[None]:
    """
    Ask a breaker for a permit for a call, and report the outcome to it.

    Args:
        failures: Exceptions that are failures of the callee; others, such as a cancellation, do not count.

    Raises:
        CallRefusedError: The breaker is open.
    """
    if breaker is None:
        yield
        return
    permit = breaker.admit()
    try:
        yield
    except failures as error:
        permit.record_failure(error)
        raise
    except BaseException:
        permit.release()
        raise
    permit.record_success()


def get_model_breaker(breakers: Breakers, agent: str, model: str) -> CallBreaker:
    """
    Return the breaker of a model: one per worker and model, below one per provider.

    Args:
        agent: The calling worker; empty for the service's own graphs.
        model: The model's name; the part before the first slash is the provider.
    """
    provider = model.partition("/")[0]
    # Without an agent, a model name without a slash would be its own parent.
    parents = [f"{BreakerKind.EXTERNAL_API}::{provider}"] if agent or provider != model else []
    return breakers.get(BreakerKind.EXTERNAL_API, agent, model, parents=parents)
