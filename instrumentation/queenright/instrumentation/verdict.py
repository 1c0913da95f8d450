"""The verdict that ends a step. `queenright.health.vitals.step_verdicts` defines its effects."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of an agent's own judge on a step."""

    ACCEPT = "ACCEPT"
    """The result is good: progress."""
    RETRY = "RETRY"
    """Not good enough: a bad step."""
    CONTINUE = "CONTINUE"
    """Not finished, nothing wrong: neither progress nor a bad step."""
    ESCALATE = "ESCALATE"
    """Cannot be done at this level: a bad step."""
