"""Targets for the detectors on the recorded runs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

from tests.detection.measure import Counts, Measurement
from tests.detection.rates import format_percent

MAX_MEDIAN_DELAY: Final = 5


class Aim(NamedTuple):
    """A limit on the share of a group's runs that get one kind of alarm."""

    group: str
    kind: str
    count: Callable[[Counts], int]
    limit: float
    at_least: bool = False

    def is_met(self, measured: Measurement) -> bool:
        """Return whether the measured share is within the limit."""
        counts = measured.groups[self.group]
        hits, limit = self.count(counts), self.limit * counts.runs
        return hits >= limit if self.at_least else hits <= limit

    def describe(self, measured: Measurement) -> str:
        """Return the measured value as text."""
        counts = measured.groups[self.group]
        return f"{self.group}, {self.kind}: {100 * self.count(counts) / max(1, counts.runs):.1f} %"

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {format_percent(self.limit)}"


def _count_any(counts: Counts) -> int:
    return counts.any


def _count_severe(counts: Counts) -> int:
    return counts.severe


def _count_loops(counts: Counts) -> int:
    return counts.loops


AIMS: Final = (
    Aim("RepairAgent, three equivalent actions in a row", "any", _count_any, 15 / 18, at_least=True),
    Aim("RepairAgent, solved", "any", _count_any, 0.0),
    Aim("mini-swe-agent with Gemini 3, solved", "any", _count_any, 0.01),
    Aim("mini-swe-agent with Gemini 3, solved", "severe", _count_severe, 0.003),
    Aim("InterCode, no gain in 5 turns or more", "loops", _count_loops, 0.75, at_least=True),
    Aim("InterCode, solved", "loops", _count_loops, 0.015),
    Aim("RepairAgent, three equivalent actions in a row", "severe", _count_severe, 10 / 18, at_least=True),
    Aim("RepairAgent, solved", "severe", _count_severe, 0.0),
    Aim("InterCode, no gain in 5 turns or more", "severe", _count_severe, 0.6, at_least=True),
    Aim("InterCode, solved", "severe", _count_severe, 0.01),
)


def list_missed_aims(measured: Measurement) -> list[str]:
    """Return a description of each unmet aim; that of the delay is last."""
    descriptions = [aim.describe(measured) for aim in AIMS if not aim.is_met(measured)]
    if measured.delays and median(measured.delays) > MAX_MEDIAN_DELAY:
        descriptions.append(f"median delay: {median(measured.delays):g} steps")
    return descriptions
