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

    def is_met(self, measurement: Measurement) -> bool:
        """Return whether the measured share is within the limit."""
        counts = measurement.groups[self.group]
        alarm_count, limit = self.count(counts), self.limit * counts.runs
        return alarm_count >= limit if self.at_least else alarm_count <= limit

    def describe(self, measurement: Measurement) -> str:
        """Return the measured value as text."""
        counts = measurement.groups[self.group]
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


def list_missed_aims(measurement: Measurement) -> list[str]:
    """Return a description of each aim that is not met, with the delay last."""
    descriptions = [aim.describe(measurement) for aim in AIMS if not aim.is_met(measurement)]
    if measurement.delays and median(measurement.delays) > MAX_MEDIAN_DELAY:
        descriptions.append(f"median delay: {median(measurement.delays):g} steps")
    return descriptions
