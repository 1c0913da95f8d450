"""
Detectors of others, and the naive rule, on recorded runs: each with its defaults and the best honest input.

All are shown the same: tool calls in their order, with what the record has of arguments and
results, and never what an oracle says. None is tuned to these runs, none is hindered.
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
    """What a detector says of one run: the 0-based steps after which an alarm stood, in ascending order."""

    alarms: list[int] = field(default_factory=list)
    severe: list[int] = field(default_factory=list)
    loops: list[int] = field(default_factory=list)
    """Those of ``alarms`` that are about repeats or want of progress."""


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector by name."""

    name: str
    watch: Callable[[Mapping[str, Any]], Verdicts]


def _calls(run: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for index, step in enumerate(run["steps"]):
        if step.get("kind") == "tool":
            yield index, step


# -- ours -------------------------------------------------------------------------------------------


def ours(settings: HealthSettings | None = None) -> Detector:
    """Return our own detectors, with the settings given or the defaults."""
    used = settings or HealthSettings()

    def watch(run: Mapping[str, Any]) -> Verdicts:
        return verdicts_of(events_of(run), used)

    return Detector("Queenright", watch)


def verdicts_of(events: Sequence[TimedEvent], settings: HealthSettings) -> Verdicts:
    """Return what our detectors say of a run that is ready to be replayed."""
    verdicts = Verdicts()
    for step, _, findings, _ in replay(events, settings):
        listed = [finding for finding in findings if finding.kind not in NO_ALARM and not finding.shadow]
        if listed:
            _note(verdicts.alarms, step)
            if any(finding.severity.rank >= Severity.HIGH.rank for finding in listed):
                _note(verdicts.severe, step)
            if any(finding.kind in _LOOPING for finding in listed):
                _note(verdicts.loops, step)
    return verdicts


def _note(steps: list[int], step: int) -> None:
    if not steps or step > steps[-1]:
        steps.append(step)


# -- N equal calls in a row ---------------------------------------------------------------------------


def naive(limit: int) -> Detector:
    """Return the naive rule: so many calls in a row with the same tool and arguments."""

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts = Verdicts()
        last, row = None, 0
        for index, step in _calls(run):
            call = (step.get("name"), step.get("args_hash"))
            row = row + 1 if call == last else 1
            last = call
            if row >= limit:
                verdicts.alarms.append(index)
        verdicts.loops = verdicts.alarms
        return verdicts

    return Detector(f"naive N = {limit}", watch)


# -- agent-loop-guard ---------------------------------------------------------------------------------


def loop_guard() -> Detector:
    """Return agent-loop-guard: a warning is an alarm, a stop (or worse) a severe one."""
    from loop_guard import LoopGuard

    edit_distance.install()

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts, guard = Verdicts(), LoopGuard()
        for index, step in _calls(run):
            decision = guard.check(tool=_text(step, "name"), args=_text(step, "args"), output=_result(step))
            if decision.should_warn or decision.is_loop:
                verdicts.alarms.append(index)
            if decision.is_loop:
                verdicts.severe.append(index)
        verdicts.loops = verdicts.alarms
        return verdicts

    return Detector(_versioned("agent-loop-guard"), watch)


# -- agent-patrol -------------------------------------------------------------------------------------


def patrol() -> Detector:
    """Return agent-patrol; without a task in words, which the records do not have, it looks for no drift."""
    from agent_patrol import PatrolMonitor  # type: ignore[import-untyped]
    from agent_patrol import Severity as PatrolSeverity

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts, monitor = Verdicts(), PatrolMonitor()
        for index, step in _calls(run):
            action = f"{_text(step, 'name')} {_text(step, 'args')}"
            report = monitor.observe(action, _result(step) or "")
            if not report.is_healthy:
                verdicts.alarms.append(index)
                if report.severity is PatrolSeverity.CRITICAL:
                    verdicts.severe.append(index)
        verdicts.loops = verdicts.alarms
        return verdicts

    return Detector(_versioned("agent-patrol"), watch)


# -- agent-vitals -------------------------------------------------------------------------------------

_LETTERS_A_TOKEN: Final = 4
"""Where a record has no tokens they are estimated: with none at all, agent-vitals takes a run for dead."""


def vitals(workflow: str) -> Detector:
    """
    Return agent-vitals, told of a kind of work; of ``build`` it does not ask whether it is stuck.

    What it needs beyond the calls is made of them. Of 64 ways to do so (what coverage is, whether errors
    are told, which text is shown, the kind of work) these were the best on a sample of the runs: with a text
    shown it alarms on nearly every long run, with errors told it looks for no loop after the first.
    """
    from agent_vitals import AgentVitals  # type: ignore[import-untyped]

    def watch(run: Mapping[str, Any]) -> Verdicts:
        verdicts = Verdicts()
        monitor = AgentVitals(workflow_type=workflow)
        results: set[object] = set()
        tokens = calls = 0
        for index, step in enumerate(run["steps"]):
            tokens += _tokens(step)
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

    return Detector(f"{_versioned('agent-vitals')}, {workflow}", watch)


def _tokens(step: Mapping[str, Any]) -> int:
    result = step.get("tokens")
    if isinstance(result, Mapping):
        return int(result.get("in") or 0) + int(result.get("out") or 0)
    return (len(_text(step, "args")) + len(_result(step) or "")) // _LETTERS_A_TOKEN + 1


def _text(step: Mapping[str, Any], key: str) -> str:
    return str(step.get(key) or "")


def _result(step: Mapping[str, Any]) -> str | None:
    return None if step.get("result_hash") is None else _text(step, "result_excerpt")


def _versioned(package: str) -> str:
    return f"{package} {version(package)}"


def detectors() -> list[Detector]:
    """Return all that are compared, ours first."""
    return [ours(), vitals("unknown"), vitals("build"), patrol(), loop_guard(), naive(3), naive(5)]
