"""Errors of the command line itself."""

from __future__ import annotations

from typing import Final

from queenright.instrumentation.errors import QueenrightError

_MAX_LINE_LENGTH: Final = 600
_HEAD_LENGTH, _TAIL_LENGTH = 400, 150


class UsageError(QueenrightError):
    """Raised for an invalid command line; the exit code is 2."""


def shorten_lines(message: str) -> str:
    """Return a message without the middle of long lines, which repeat an argument and end with the fix."""
    return "\n".join(
        f"{line[:_HEAD_LENGTH]} … {line[-_TAIL_LENGTH:]}" if len(line) > _MAX_LINE_LENGTH else line
        for line in message.split("\n")
    )
