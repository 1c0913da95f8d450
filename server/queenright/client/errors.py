"""Errors of the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from queenright.instrumentation.errors import QueenrightError


class RequestRejectedError(QueenrightError):
    """
    Raised when the service answers with an error.

    Attributes:
        status: HTTP status.
        reason: The ``reason`` of the problem document; empty if it has none.
        problem: The problem document (``application/problem+json``); empty if there was none.
    """

    def __init__(self, message: str, *, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.reason = str(problem.get("reason", ""))
        self.problem = dict(problem)


class UnreachableError(QueenrightError):
    """Raised when nothing answers, or the server is not Queenright. The request may have had an effect."""


class InvalidAddressError(QueenrightError):
    """Raised for an invalid URL or token; nothing was sent. The message never contains a token."""
