"""Errors of the command line itself."""

from __future__ import annotations

from queenright.instrumentation.errors import QueenrightError


class UsageError(QueenrightError):
    """Raised for a command line that makes no sense; the exit code is 2."""
