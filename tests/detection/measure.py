"""Measurements of every detector on every run: counts by group, delays, and agreement with human labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from queenright.judge.evaluation import read_runs
from tests.detection.oracle import REPETITION, find_first_repeated_call, name_group
from tests.detection.peers import Detector, Verdicts

_HUMAN_LABELS: Final = "human_pairs"
"""The label of runs in which people labelled each pair of consecutive steps."""

AGENTS_WITH_LONG_RUNS: Final = ("repairagent", "openhands")
"""Agents whose runs are long, and have labels for all steps."""

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
"""The groups of runs in the tables, and the names of their members in ``name_group``."""


@dataclass(slots=True)
class Counts:
    """
    The number of runs of a group, and how many got any alarm, a severe alarm, or a loop alarm.
    """

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
class LabelledRun:
    """
    The counts of one labelled run: steps with an alarm, steps labelled as repetitions, and steps that are
    both.
    """

    flagged: int
    repetitions: int
    both: int


@dataclass(slots=True)
class Measurement:
    """The measurements of one detector."""

    detector: Detector
    groups: dict[str, Counts] = field(default_factory=lambda: {name: Counts() for name in GROUPS})
    delays: list[int] = field(default_factory=list)
    """Steps from the first repeated call to the first alarm about a loop, for runs that have both."""
    long_delays: list[int] = field(default_factory=list)
    """The same for the long runs of RepairAgent and OpenHands."""
    labelled_runs: list[LabelledRun] = field(default_factory=list)


def read_recorded_runs(folder: Path) -> list[dict[str, Any]]:
    """Read the recorded runs in a folder."""
    return list(read_runs(sorted(folder.glob("*.jsonl*"))))


def measure_detectors(runs: Sequence[Mapping[str, Any]], detectors: Iterable[Detector]) -> list[Measurement]:
    """Run every detector on every run, and return the measurements of each detector."""
    names_by_member: dict[str, list[str]] = {}
    for name, members in GROUPS.items():
        for member in members:
            names_by_member.setdefault(member, []).append(name)
    measurements = [Measurement(detector) for detector in detectors]
    for run in runs:
        groups = names_by_member.get(name_group(run), [])
        for measurement in measurements:
            _add(measurement, run, groups)
    return measurements


def _add(measurement: Measurement, run: Mapping[str, Any], groups: Iterable[str]) -> None:
    verdicts = measurement.detector.watch(run)
    for group in groups:
        measurement.groups[group].add(verdicts)
    first_repeat = find_first_repeated_call(run["steps"])
    if verdicts.loops and first_repeat is not None:
        measurement.delays.append(verdicts.loops[0] - first_repeat)
        if run.get("agent") in AGENTS_WITH_LONG_RUNS:
            measurement.long_delays.append(verdicts.loops[0] - first_repeat)
    if run.get("agent") in AGENTS_WITH_LONG_RUNS and _HUMAN_LABELS in (run.get("labels") or ()):
        alarm_steps = set(verdicts.loops)
        repetitions = {i for i, step in enumerate(run["steps"]) if step.get("rel") == REPETITION}
        measurement.labelled_runs.append(
            LabelledRun(len(alarm_steps), len(repetitions), len(alarm_steps & repetitions))
        )


def compute_precision(labelled_runs: Sequence[LabelledRun]) -> float | None:
    """Return the share of steps with an alarm that are labelled as repetitions, or None without alarms."""
    alarm_count = sum(run.flagged for run in labelled_runs)
    return sum(run.both for run in labelled_runs) / alarm_count if alarm_count else None


def compute_recall(labelled_runs: Sequence[LabelledRun]) -> float | None:
    """Return the share of repetitions with an alarm, or None without repetitions."""
    repetitions = sum(run.repetitions for run in labelled_runs)
    return sum(run.both for run in labelled_runs) / repetitions if repetitions else None
