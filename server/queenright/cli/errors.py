"""What a command was told makes no sense: exit code 2."""

from __future__ import annotations

from queenright.instrumentation.errors import QueenrightError


class UsageError(QueenrightError):
    """Raised when the command line asks for something that makes no sense."""
