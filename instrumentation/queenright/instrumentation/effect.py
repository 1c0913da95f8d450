"""The effect of a tool call, as loop detectors compare calls by it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Effect(StrEnum):
    """The effect of a tool call."""

    READS = "reads"
    """Reads without side effects."""
    SEARCHES = "searches"
    """Reads, and may find nothing: that is an answer, not a failure."""
    POLLS = "polls"
    """Reads the state of something that changes by itself; repeated after a pause it is not a repeat."""
    CHANGES = "changes"
    """Changes state that later calls may see."""
    EDITS = "edits"
    """Writes its arguments, so that a repeated call has no new effect."""
    WAITS = "waits"
    """Waits, or polls for completion."""
    RUNS = "runs"
    """Runs a script or a build: it may change something, or tell what changed."""
    CHECKS = "checks"
    """Runs a test or a linter on what was done before: that it fails is an answer."""
    SUBMITS = "submits"
    """Submits a result, or reports that the task is done."""


READING: Final = frozenset({Effect.READS, Effect.SEARCHES, Effect.POLLS})
CHANGING: Final = frozenset({Effect.CHANGES, Effect.EDITS})
