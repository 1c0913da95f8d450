"""What the detectors must reach on the recorded runs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

from tests.detection.measure import Counts, Measured
from tests.detection.rates import percent

MOST_DELAY: Final = 5


class Aim(NamedTuple):
    """A share of the runs of one group that must, or must not, get one kind of alarm."""

    group: str
    what: str
    counted: Callable[[Counts], int]
    limit: float
    at_least: bool = False

    def met(self, measured: Measured) -> bool:
        """Return whether it is so."""
        counts = measured.groups[self.group]
        hits, most = self.counted(counts), self.limit * counts.runs
        return hits >= most if self.at_least else hits <= most

    def describe(self, measured: Measured) -> str:
        """Return the measured value as text."""
        counts = measured.groups[self.group]
        return f"{self.group}, {self.what}: {100 * self.counted(counts) / max(1, counts.runs):.1f} %"

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {percent(self.limit)}"


def _any(counts: Counts) -> int:
    return counts.any


def _severe(counts: Counts) -> int:
    return counts.severe


def _loops(counts: Counts) -> int:
    return counts.loops


AIMS: Final = (
    Aim("RepairAgent, three equivalent actions in a row", "any", _any, 15 / 18, at_least=True),
    Aim("RepairAgent, solved", "any", _any, 0.0),
    Aim("mini-swe-agent with Gemini 3, solved", "any", _any, 0.01),
    Aim("mini-swe-agent with Gemini 3, solved", "severe", _severe, 0.003),
    Aim("InterCode, no gain in 5 turns or more", "loops", _loops, 0.75, at_least=True),
    Aim("InterCode, solved", "loops", _loops, 0.015),
    Aim("RepairAgent, three equivalent actions in a row", "severe", _severe, 10 / 18, at_least=True),
    Aim("RepairAgent, solved", "severe", _severe, 0.0),
    Aim("InterCode, no gain in 5 turns or more", "severe", _severe, 0.6, at_least=True),
    Aim("InterCode, solved", "severe", _severe, 0.01),
)


def missed(measured: Measured) -> list[str]:
    """Return a sentence for each unmet aim; the delay is the last."""
    words = [aim.describe(measured) for aim in AIMS if not aim.met(measured)]
    if measured.delays and median(measured.delays) > MOST_DELAY:
        words.append(f"median delay: {median(measured.delays):g} steps")
    return words
