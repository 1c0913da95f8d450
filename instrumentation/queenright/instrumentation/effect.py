"""The effect of a tool call, by which loop detectors compare calls."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Effect(StrEnum):
    """The effect of a tool call."""

    READS = "reads"
    """Reads without side effects."""
    SEARCHES = "searches"
    """Searches; an empty result is a valid result, not a failure."""
    POLLS = "polls"
    """Reads a state that changes by itself; the same call after a pause is not a repeat."""
    CHANGES = "changes"
    """Changes state that later calls may see."""
    EDITS = "edits"
    """Writes its arguments, so that a repeated call has no new effect."""
    WAITS = "waits"
    """Waits, or polls for completion."""
    RUNS = "runs"
    """Runs a script or a build, which may change something or show the effect of a change."""
    CHECKS = "checks"
    """Runs a test or a linter on earlier work; a failing check is a valid result."""
    SUBMITS = "submits"
    """Submits a result, or reports that the task is done."""


READING: Final = frozenset({Effect.READS, Effect.SEARCHES, Effect.POLLS})
CHANGING: Final = frozenset({Effect.CHANGES, Effect.EDITS})
