"""What can be wrong with the settings of a coding agent."""

from __future__ import annotations

from queenright.instrumentation.errors import QueenrightError


class SettingsError(QueenrightError):
    """Raised when a settings file cannot be read, changed or written; it is as it was."""
