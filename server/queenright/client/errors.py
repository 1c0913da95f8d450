"""What a client raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queenright.instrumentation.errors import QueenrightError


class RequestRefusedError(QueenrightError):
    """
    Raised when the service says no.

    Attributes:
        status: HTTP's status.
        reason: What the service gives as its reason; an empty string if its words say all.
        problem: The whole answer, ``application/problem+json``; empty if it was none.
    """

    def __init__(self, words: str, *, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(words)
        self.status = status
        self.reason = str(problem.get("reason", ""))
        self.problem = dict(problem)


class UnreachableError(QueenrightError):
    """Raised when nothing answers, or what does is no Queenright; what was asked may have been done."""


class InvalidAddressError(QueenrightError):
    """Raised for a URL or token that cannot be one; nothing was asked. It does not repeat a token."""
