"""Every detector over every run, in one pass: counts by group, delays, and what people's labels say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from queenright.judge.evaluation import read_runs
from tests.detection.oracle import REPETITION, first_repeated_call, group_of
from tests.detection.peers import Detector, Verdicts

_HUMAN_LABELS: Final = "human_pairs"
"""The mark of runs that somebody labelled, pair of neighbours by pair."""

LONG: Final = ("repairagent", "openhands")
"""Agents whose runs are long, and labelled throughout."""

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "RepairAgent, three equivalent actions in a row": (
        "tar_study repairagent, three equivalent actions in a row",
    ),
    "RepairAgent, solved": ("tar_study repairagent, solved",),
    "mini-swe-agent with Gemini 3, solved": ("mini_gemini3 mini-swe-agent, solved",),
    "InterCode, no gain in 5 turns or more": (
        "intercode_bash, zero progress",
        "intercode_ctf, zero progress",
    ),
    "\N{EN DASH} of these capture the flag": ("intercode_ctf, zero progress",),
    "InterCode, solved": ("intercode_bash, solved", "intercode_ctf, solved"),
    "tau-bench airline with GPT-4o, solved": ("tau_airline_gpt4o tau tool-calling, solved",),
    "OpenHands, solved": ("tar_study openhands, solved",),
    "AutoCodeRover, solved": ("tar_study autocoderover, solved",),
    "RepairAgent, all others": ("tar_study repairagent, unsolved", "tar_study repairagent, outcome unknown"),
    "mini-swe-agent with Gemini 3, unsolved": ("mini_gemini3 mini-swe-agent, unsolved",),
    "InterCode, unsolved, with a gain later": ("intercode_bash, unsolved", "intercode_ctf, unsolved"),
    "tau-bench airline with GPT-4o, unsolved": ("tau_airline_gpt4o tau tool-calling, unsolved",),
    "OpenHands, unsolved": ("tar_study openhands, unsolved",),
    "AutoCodeRover, unsolved": ("tar_study autocoderover, unsolved",),
}
"""The groups of runs that are shown, by the names that the oracle gives them."""


@dataclass(slots=True)
class Counts:
    """Runs of one group, and how many got any alarm, a severe one, one about repeats or want of progress."""

    runs: int = 0
    any: int = 0
    severe: int = 0
    loops: int = 0

    def add(self, verdicts: Verdicts) -> None:
        """Count one run."""
        self.runs += 1
        self.any += bool(verdicts.alarms)
        self.severe += bool(verdicts.severe)
        self.loops += bool(verdicts.loops)


@dataclass(frozen=True, slots=True)
class Labelled:
    """One run that people labelled, a step: steps with an alarm, repetitions, and those that are both."""

    flagged: int
    repetitions: int
    both: int


@dataclass(slots=True)
class Measured:
    """What one detector came to."""

    detector: Detector
    groups: dict[str, Counts] = field(default_factory=lambda: {name: Counts() for name in GROUPS})
    delays: list[int] = field(default_factory=list)
    """Steps from the first repeated call to the first alarm about it, of runs that have both."""
    long_delays: list[int] = field(default_factory=list)
    """The same for the long runs of RepairAgent and OpenHands."""
    labelled: list[Labelled] = field(default_factory=list)


def recorded(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded runs of a folder."""
    return list(read_runs(sorted(folder.glob("*.jsonl*"))))


def measure(runs: Sequence[Mapping[str, Any]], detectors: Iterable[Detector]) -> list[Measured]:
    """Show every run to every detector, and return what came of it, a detector."""
    result: dict[str, list[str]] = {}
    for name, members in GROUPS.items():
        for member in members:
            result.setdefault(member, []).append(name)
    measured = [Measured(detector) for detector in detectors]
    for run in runs:
        groups = result.get(group_of(run), [])
        for one in measured:
            _add(one, run, groups)
    return measured


def _add(measured: Measured, run: Mapping[str, Any], groups: Iterable[str]) -> None:
    verdicts = measured.detector.watch(run)
    for group in groups:
        measured.groups[group].add(verdicts)
    first = first_repeated_call(run["steps"])
    if verdicts.loops and first is not None:
        measured.delays.append(verdicts.loops[0] - first)
        if run.get("agent") in LONG:
            measured.long_delays.append(verdicts.loops[0] - first)
    if run.get("agent") in LONG and _HUMAN_LABELS in (run.get("labels") or ()):
        flagged = set(verdicts.loops)
        repetitions = {i for i, step in enumerate(run["steps"]) if step.get("rel") == REPETITION}
        measured.labelled.append(Labelled(len(flagged), len(repetitions), len(flagged & repetitions)))


def precision(labelled: Sequence[Labelled]) -> float | None:
    """Return which share of the steps with an alarm people call repetitions; None without alarms."""
    flagged = sum(run.flagged for run in labelled)
    return sum(run.both for run in labelled) / flagged if flagged else None


def recall(labelled: Sequence[Labelled]) -> float | None:
    """Return which share of the repetitions had an alarm; None without repetitions."""
    repetitions = sum(run.repetitions for run in labelled)
    return sum(run.both for run in labelled) / repetitions if repetitions else None
