"""Durations of an agent's turns, drawn from recorded runs or from a table of their quantiles."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

RUNS_FILE: Final = "mini_gemini3.jsonl.gz"

# Quantiles of the seconds between the beginnings of two turns: 9,427 gaps in 239 runs of mini-swe-agent with
# Gemini 3 Pro on SWE-bench Verified (github gruckion/mini-swe-agent, MIT). (share, seconds), linear between.
_QUANTILES: Final = (
    (0.0, 1.0),
    (0.005, 2.0),
    (0.11, 2.0),
    (0.25, 3.0),
    (0.5, 4.0),
    (0.55, 5.0),
    (0.65, 6.0),
    (0.75, 7.0),
    (0.82, 9.0),
    (0.85, 10.0),
    (0.9, 13.0),
    (0.925, 15.0),
    (0.95, 19.0),
    (0.96, 21.0),
    (0.97, 25.0),
    (0.98, 32.0),
    (0.99, 44.0),
    (0.995, 59.0),
    (0.999, 89.0),
    (1.0, 204.0),
)


class Gaps:
    """Draws gaps, in seconds. ``origin`` names their source."""

    def __init__(self, recorded: list[float]) -> None:
        self._gaps = recorded
        self._shares = [share for share, _ in _QUANTILES]
        self.origin = f"{len(recorded):,} recorded gaps" if recorded else "the table of quantiles"

    @classmethod
    def of(cls, traces: Path | None) -> Gaps:
        """Return the gaps of the runs in a folder; without a folder or runs, those of the table."""
        file = traces / RUNS_FILE if traces is not None else None
        return cls(_read_gaps(file) if file is not None and file.is_file() else [])

    def draw(self, random: Random) -> float:
        """Return the length of one turn."""
        if self._gaps:
            # Recorded in whole seconds; a random fraction is added.
            return self._gaps[int(random.random() * len(self._gaps))] + random.random() - 0.5
        share = random.random()
        (low, minimum), (high, maximum) = (
            _QUANTILES[(at := bisect_right(self._shares, share)) - 1],
            _QUANTILES[at],
        )
        return minimum + (maximum - minimum) * (share - low) / (high - low)


def _read_gaps(file: Path) -> list[float]:
    gaps: list[float] = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            turns: dict[int, float] = {}
            for step in json.loads(line)["steps"]:
                if step["t"] is not None:
                    turns.setdefault(step["turn"], step["t"])
            start_times = list(turns.values())
            gaps += [float(max(1.0, after - before)) for before, after in pairwise(start_times)]
    return gaps
