"""
Queenright's detectors, those of other projects, and the naive rule, each with its default settings.

All get the same input: the tool calls in order, with their recorded arguments and results, and never the
labels or rewards. None is tuned to these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

from queenright.health.detection.session_replay import TimedEvent, replay
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import events_of
from queenright.judge.evaluation.run_replay import NO_ALARM
from tests.detection import edit_distance

_LOOPING: Final = (FindingKind.DOOM_LOOP, FindingKind.ZERO_PROGRESS)


@dataclass(slots=True)
class Verdicts:
    """
    The alarms of a detector on one run: the 0-based steps after which there was an alarm, in ascending order.
    """

    alarms: list[int] = field(default_factory=list)
    severe: list[int] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)
    """The steps in ``alarms`` whose alarm is about repeats or zero progress."""


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector and its name."""

    name: str
    watch: Callable[[Mapping[str, Any]], Verdicts]


def _list_calls(run: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for index, step in enumerate(run["steps"]):
        if step.get("kind") == "tool":
            yield index, step


# -- Queenright -------------------------------------------------------------------------------------------


def make_queenright_detector(settings: HealthSettings | None = None) -> Detector:
    """Return Queenright's detectors, with default settings unless ``settings`` is given."""
    effective_settings = settings or HealthSettings()

    def watch(run: Mapping[str, Any]) -> Verdicts:
        return replay_verdicts(events_of(run), effective_settings)

    return Detector("Queenright", watch)


def replay_verdicts(events: Sequence[TimedEvent], settings: HealthSettings) -> Verdicts:
    """Return the verdicts of Queenright's detectors on the events of a run."""
    verdicts = Verdicts()
    for step, _, findings, _ in replay(events, settings):
        alarm_findings = [
            finding for finding in findings if finding.kind not in NO_ALARM and not finding.shadow
        ]
        if alarm_findings:
            _add_step(verdicts.alarms, step)
            if any(finding.severity.rank >= Severity.HIGH.rank for finding in alarm_findings):
                _add_step(verdicts.severe, step)
            if any(finding.kind in _LOOPING for finding in alarm_findings):
                _add_step(verdicts.loops, step)
    return verdicts


def _add_step(steps: list[int], step: int) -> None:
    if not steps or step > steps[-1]:
        steps.append(step)


# -- N identical calls in a row ---------------------------------------------------------------------------


def make_naive_detector(limit: int) -> Detector:
    """Return the naive rule: ``limit`` consecutive calls with the same tool and arguments."""

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts = Verdicts()
        last, row = None, 0
        for index, step in _list_calls(run):
            call = (step.get("name"), step.get("args_hash"))
            row = row + 1 if call == last else 1
            last = call
            if row >= limit:
                verdicts.alarms.append(index)
        verdicts.loops = verdicts.alarms
        return verdicts

    return Detector(f"naive N = {limit}", watch)


# -- agent-loop-guard ---------------------------------------------------------------------------------


def make_loop_guard_detector() -> Detector:
    """Return agent-loop-guard. A warning is an alarm, and a stop is a severe alarm."""
    from loop_guard import LoopGuard

    edit_distance.install()

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts, guard = Verdicts(), LoopGuard()
        for index, step in _list_calls(run):
            decision = guard.check(
                tool=_get_text(step, "name"), args=_get_text(step, "args"), output=_get_result(step)
            )
            if decision.should_warn or decision.is_loop:
                verdicts.alarms.append(index)
            if decision.is_loop:
                verdicts.severe.append(index)
        verdicts.loops = verdicts.alarms
        return verdicts

    return Detector(_add_version("agent-loop-guard"), watch)


# -- agent-patrol -------------------------------------------------------------------------------------


def make_patrol_detector() -> Detector:
    """Return agent-patrol. It does not check for drift, because the records contain no task description."""
    from agent_patrol import PatrolMonitor  # type: ignore[import-untyped]
    from agent_patrol import Severity as PatrolSeverity

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts, monitor = Verdicts(), PatrolMonitor()
        for index, step in _list_calls(run):
            action = f"{_get_text(step, 'name')} {_get_text(step, 'args')}"
            report = monitor.observe(action, _get_result(step) or "")
            if not report.is_healthy:
                verdicts.alarms.append(index)
                if report.severity is PatrolSeverity.CRITICAL:
                    verdicts.severe.append(index)
        verdicts.loops = verdicts.alarms
        return verdicts

    return Detector(_add_version("agent-patrol"), watch)


# -- agent-vitals -------------------------------------------------------------------------------------

_CHARACTERS_PER_TOKEN: Final = 4
"""Used to estimate missing token counts: agent-vitals considers a run without tokens dead."""


def make_vitals_detector(workflow: str) -> Detector:
    """
    Return agent-vitals for a type of workflow. For ``build``, it does not check whether the run is stuck.

    Its other inputs are computed from the calls. Of 64 ways to do this (definition of coverage, errors or
    none, texts, workflow type), this was the best on a sample of the runs: with texts, it alarms on nearly
    every long run, and with errors, it does not look for loops after the first error.
    """
    from agent_vitals import AgentVitals  # type: ignore[import-untyped]

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts = Verdicts()
        monitor = AgentVitals(workflow_type=workflow)
        results: set[object] = set()
        tokens = calls = 0
        for index, step in enumerate(run["steps"]):
            tokens += _estimate_tokens(step)
            if step.get("kind") != "tool":
                continue
            calls += 1
            results.add(step.get("result_hash"))
            snapshot = monitor.step(
                findings_count=len(results),
                coverage_score=len(results) / calls,
                total_tokens=tokens,
                error_count=0,
                query_count=calls,
                api_calls=calls,
            )
            if snapshot.any_failure:
                verdicts.alarms.append(index)
        verdicts.loops = verdicts.alarms
        return verdicts

    return Detector(f"{_add_version('agent-vitals')}, {workflow}", watch)


def _estimate_tokens(step: Mapping[str, Any]) -> int:
    recorded_tokens = step.get("tokens")
    if isinstance(recorded_tokens, Mapping):
        return int(recorded_tokens.get("in") or 0) + int(recorded_tokens.get("out") or 0)
    return (len(_get_text(step, "args")) + len(_get_result(step) or "")) // _CHARACTERS_PER_TOKEN + 1


def _get_text(step: Mapping[str, Any], key: str) -> str:
    return str(step.get(key) or "")


def _get_result(step: Mapping[str, Any]) -> str | None:
    return None if step.get("result_hash") is None else _get_text(step, "result_excerpt")


def _add_version(package: str) -> str:
    return f"{package} {version(package)}"


def make_all_detectors() -> list[Detector]:
    """Return all compared detectors, Queenright's first."""
    return [
        make_queenright_detector(),
        make_vitals_detector("unknown"),
        make_vitals_detector("build"),
        make_patrol_detector(),
        make_loop_guard_detector(),
        make_naive_detector(3),
        make_naive_detector(5),
    ]
