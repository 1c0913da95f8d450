"""The base classes of all Queenright exceptions."""

from __future__ import annotations


class QueenrightError(Exception):
    """Base class of all Queenright exceptions."""


class NotFoundError(QueenrightError):
    """Base class of errors about a name or an id that does not exist."""


class ConflictError(QueenrightError):
    """Base class of errors about an action that is not possible in the current state."""


class InvalidValueError(QueenrightError):
    """Base class of errors about a value that is not allowed."""


def error_text(error: BaseException) -> str:
    """Return an error's message, or a note if its own ``__str__`` fails."""
    try:
        return str(error)
    except BaseException as fault:
        return f"(its message is not available: {type(fault).__name__})"
