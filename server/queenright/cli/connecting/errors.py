"""Errors with the settings of a coding agent."""

from __future__ import annotations

from queenright.instrumentation.errors import QueenrightError


class AgentSettingsError(QueenrightError):
    """Raised when a settings file cannot be read, changed or written. The file is unchanged."""
