"""
Recorded agent runs through the same detectors as live ones.

A run (one JSON object a line, plain or gzipped) becomes the events that its agent would
have sent; vital signs and detectors then see what they would have seen. What an oracle
says of a run (``success``, ``reward``, human labels) is never shown to them.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, TextIO, cast

from queenright.health.detectors import detect
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.events import AgentEvent, EventType

_NO_ALARM: Final = frozenset({FindingKind.ERROR_RATE})
"""Not listed: a sign of how the work goes, which agents that try things out show and get over; no alarm."""

_NO_CLOCK_STEP: Final = 1.0
"""Seconds between the steps of a run that has no times: too short to look like silence."""


class RunRefused(QueenrightError, ValueError):
    """Raised for a line that is no recorded run; says where and why."""


def evaluate_run(run: Mapping[str, Any], settings: HealthSettings) -> dict[str, Any]:
    """
    Return what the detectors find in one run.

    A finding is listed when it is first seen and again when it gets worse; ``step`` is
    the 0-based index of the step after which it was known.

    Raises:
        RunRefused: if ``run`` has no list of steps, or a step is no object.
    """
    steps = run.get("steps")
    if not isinstance(steps, list):
        raise RunRefused(f"run {run.get('run_id')!r} has no list of steps; see the format of recorded runs")
    found: list[dict[str, Any]] = []
    worst: dict[FindingKind, int] = {}
    v: VitalSigns | None = None
    clock = 0.0
    for index, step in enumerate(steps):
        if not isinstance(step, Mapping):
            raise RunRefused(f"run {run.get('run_id')!r}: step {index} is no object but {step!r:.80}")
        at = _time(step, clock)
        if v is None:
            v = VitalSigns(
                str(run.get("agent") or "agent"), str(run.get("run_id")), at, settings.loops, settings
            )
        elif at > clock:
            # The silence before this step was there to be seen before it ended.
            _note(detect(v, settings, at), index - 1, worst, found)
        clock = at
        v.apply(_event(step, at), at)
        _note(detect(v, settings, at), index, worst, found)
    return {"dataset": run.get("dataset"), "run_id": run.get("run_id"), "findings": found}


def evaluate_files(paths: Iterable[Path], settings: HealthSettings) -> Iterator[dict[str, Any]]:
    """
    Yield what is found in every run of the files, in their order.

    Raises:
        RunRefused: at a line that is no recorded run.
        OSError: for a file that cannot be read.
    """
    for run in read_runs(paths):
        yield evaluate_run(run, settings)


def read_runs(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the recorded runs of the files; see `evaluate_files` for what is raised."""
    for path in paths:
        try:
            with _open(path) as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _parse(line, path, number)
        except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as error:
            raise RunRefused(f"{path} cannot be read as lines of text: {error}") from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast("TextIO", gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        run = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunRefused(f"{path}:{number} is no JSON: {error}") from error
    if not isinstance(run, dict) or not isinstance(run.get("steps"), list):
        raise RunRefused(f"{path}:{number} is no recorded run: an object with a list 'steps' is needed")
    return run


def _time(step: Mapping[str, Any], clock: float) -> float:
    t = step.get("t")
    if isinstance(t, int | float) and not isinstance(t, bool):
        return max(clock, float(t))
    return clock + _NO_CLOCK_STEP


def _event(step: Mapping[str, Any], at: float) -> AgentEvent:
    failed = bool(step.get("is_error"))
    excerpt = str(step.get("result_excerpt") or "")[-500:]
    if step.get("kind") == "llm":
        tokens = step.get("tokens")
        counted = tokens if isinstance(tokens, Mapping) else {}
        data: dict[str, Any] = {
            "model": step.get("name"),
            "input_tokens": counted.get("in"),
            "output_tokens": counted.get("out"),
        }
        type_ = EventType.LLM_CALL_COMPLETED
    else:
        data = {
            "tool": step.get("name"),
            "turn": step.get("turn"),
            "args_hash": step.get("args_hash"),
            "result_hash": step.get("result_hash"),
            "outcome": "error" if failed else "ok",
        }
        type_ = EventType.TOOL_CALL_COMPLETED
    if failed:
        data["error_type"] = str(step.get("err_sig") or "error")
        data["error"] = excerpt
    return AgentEvent(type=type_, time=at, data=data, id="")


def _note(
    findings: Iterable[Finding], index: int, worst: dict[FindingKind, int], found: list[dict[str, Any]]
) -> None:
    for finding in findings:
        if finding.kind in _NO_ALARM or finding.severity.rank <= worst.get(finding.kind, -1):
            continue
        worst[finding.kind] = finding.severity.rank
        found.append(
            {
                "kind": finding.kind.value,
                "severity": finding.severity.value,
                "step": index,
                "evidence": finding.evidence,
            }
        )


@dataclass(frozen=True, slots=True)
class Score:
    """How many runs of one kind got any finding, a loop or zero progress, and a high or critical one."""

    group: str
    runs: int
    any: int
    loops: int
    severe: int


_LOOPING: Final = frozenset({FindingKind.DOOM_LOOP.value, FindingKind.ZERO_PROGRESS.value})
_SEVERE: Final = frozenset({Severity.HIGH.value, Severity.CRITICAL.value})
_TURNS_WITHOUT_GAIN: Final = 5


def score(paths: Iterable[Path], settings: HealthSettings) -> list[Score]:
    """
    Hold the findings in recorded runs against what an oracle says of the runs.

    Runs are grouped by data set and outcome; of InterCode, unsolved runs with five turns or
    more without a gain are a group, and so are RepairAgent's with three equivalent actions in a row.
    """
    groups: dict[str, list[int]] = {}
    for run in read_runs(paths):
        found = evaluate_run(run, settings)["findings"]
        counts = groups.setdefault(_group(run), [0, 0, 0, 0])
        counts[0] += 1
        counts[1] += bool(found)
        counts[2] += any(finding["kind"] in _LOOPING for finding in found)
        counts[3] += any(finding["severity"] in _SEVERE for finding in found)
    return [Score(group, *counts) for group, counts in sorted(groups.items())]


def delays(paths: Iterable[Path], settings: HealthSettings) -> list[int]:
    """Return the steps from the first repeated call to a loop or zero progress, a run that has both."""
    result = []
    for run in read_runs(paths):
        seen: set[tuple[Any, ...]] = set()
        first = None
        for index, step in enumerate(run["steps"]):
            call = (step.get("name"), step.get("args_hash"), step.get("result_hash"))
            if step.get("kind") == "tool" and call in seen:
                first = index
                break
            seen.add(call)
        found = [f["step"] for f in evaluate_run(run, settings)["findings"] if f["kind"] in _LOOPING]
        if found and first is not None:
            result.append(found[0] - first)
    return result


def _group(run: Mapping[str, Any]) -> str:
    success = {True: "solved", False: "unsolved"}.get(cast("bool", run.get("success")), "outcome unknown")
    dataset = str(run.get("dataset"))
    if dataset.startswith("intercode"):
        stuck = success == "unsolved" and _without_gain(run["steps"]) >= _TURNS_WITHOUT_GAIN
        return f"{dataset}, {'zero progress' if stuck else success}"
    if run.get("agent") == "repairagent" and _equivalent_in_a_row(run["steps"]) >= 3:
        return f"{dataset} repairagent, three equivalent actions in a row"
    return f"{dataset} {run.get('agent')}, {success}"


def _without_gain(steps: Iterable[Mapping[str, Any]]) -> int:
    """Return the most turns in a row in which the oracle's reward did not rise."""
    best, without, most = float("-inf"), 0, 0
    for step in steps:
        reward = float(step.get("reward") or 0)
        without = 0 if reward > best else without + 1
        best, most = max(best, reward), max(most, without)
    return most


def _equivalent_in_a_row(steps: Iterable[Mapping[str, Any]]) -> int:
    """Return the most actions in a row that people called repetitions of one another."""
    row, most = 1, 1
    for step in steps:
        row = row + 1 if step.get("rel") == "repetition" else 1
        most = max(most, row)
    return most


def main(arguments: list[str]) -> int:
    """Print how the detectors do on the recorded runs of a folder: ``--score DIR``."""
    if len(arguments) != 2 or arguments[0] != "--score":
        print("usage: python -m queenright.judge.evaluation --score DIR", file=sys.stderr)
        return 2
    paths = sorted(Path(arguments[1]).glob("*.jsonl*"))
    if not paths:
        print(f"no recorded runs (*.jsonl, *.jsonl.gz) in {arguments[1]}", file=sys.stderr)
        return 1
    settings = HealthSettings()
    print(f"{'runs':70}{'n':>6}{'any':>6}{'loop':>6}{'severe':>8}")
    for line in score(paths, settings):
        print(f"{line.group:70}{line.runs:6}{line.any:6}{line.loops:6}{line.severe:8}")
    waited = delays(paths, settings)
    if waited:
        print(f"median delay after the first repeated call: {median(waited):.0f} steps ({len(waited)} runs)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
