"""
Recorded agent runs through the same detectors as live ones.

A run (one JSON object a line, plain or gzipped) becomes the events that its agent would
have sent; vital signs and detectors then see what they would have seen. What an oracle
says of a run (``success``, ``reward``, human labels) is never shown to them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO, cast

from queenright.health.detectors import detect
from queenright.health.findings import Finding, FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.vitals import VitalSigns
from queenright.runtime.events import AgentEvent, EventType

_NO_CLOCK_STEP: Final = 1.0
"""Seconds between the steps of a run that has no times: too short to look like silence."""


class RunRefused(ValueError):
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
            v = VitalSigns(str(run.get("agent") or "agent"), str(run.get("run_id")), at, settings.loops)
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
        if finding.severity.rank <= worst.get(finding.kind, -1):
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
