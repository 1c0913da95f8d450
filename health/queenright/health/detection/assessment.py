"""
Assess a worker's health signals. Each signal has a status and evidence.

The detectors decide. A signal explains what they checked and found. Unlike a finding, a signal also states
that nothing is wrong, or that the worker reported nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from queenright.health.detection.detectors import detect
from queenright.health.detection.health_state import (
    describe_failed_runs,
    describe_failures,
    has_too_many_failures,
    is_stuck,
)
from queenright.health.detection.stall_clock import find_silence_start, may_be_silent
from queenright.health.detection.stall_detectors import format_span
from queenright.health.findings import Finding, FindingKind, Severity, find_worst
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.redaction import redact

_EVIDENCE_LIMIT: Final = 300


class SignalStatus(StrEnum):
    """The status of a signal, best first. ``unknown`` means that the worker reported nothing."""

    OK = "ok"
    WARNING = "warning"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A health signal. ``evidence`` contains the numbers, in at most 300 characters."""

    name: str
    verdict: SignalStatus
    evidence: str

    def to_dict(self) -> dict[str, Any]:
        """Return the signal as JSON values."""
        return {"name": self.name, "verdict": self.verdict.value, "evidence": self.evidence}


SIGNAL_BY_KIND: Final = {
    FindingKind.STALL: "activity",
    FindingKind.TOOL_TIMEOUT: "activity",
    FindingKind.HEARTBEAT_MISSING: "heartbeat",
    FindingKind.CHECKPOINT_STALE: "checkpoint",
    FindingKind.DOOM_LOOP: "tool_calls",
    FindingKind.ZERO_PROGRESS: "tool_calls",
    FindingKind.NO_TOOL_CALLS: "tool_calls",
    FindingKind.MCP_SERVER_MISSING: "tool_calls",
    FindingKind.RETRY_STORM: "steps",
    FindingKind.CONTEXT_EXHAUSTED: "tokens",
    FindingKind.NO_TOKENS: "tokens",
    FindingKind.TOKEN_SPIKE: "tokens",
    FindingKind.TOKEN_BURN: "tokens",
    FindingKind.GRINDING: "tool_calls",
    FindingKind.ERROR_RATE: "errors",
    FindingKind.ERROR_STREAK: "errors",
    FindingKind.PROVIDER_FAILURE: "errors",
    FindingKind.OUTPUT_UNCHANGED: "output",
    FindingKind.RESOURCE_LIMIT: "resources",
    FindingKind.SPENDING: "tokens",
    FindingKind.CIRCUIT_BREAKER_OPEN: "breakers",
    FindingKind.RECOVERY_FAILED: "recovery",
    FindingKind.RUNS_FAILED: "errors",
}
"""The name of the signal that shows each kind of finding."""


def assess(v: VitalSigns, settings: HealthSettings, now: float) -> dict[str, Signal]:
    """Return every signal of a worker at ``now``, by name, in a fixed order."""
    by_signal: dict[str, list[Finding]] = {}
    for finding in detect(v, settings, now):
        by_signal.setdefault(SIGNAL_BY_KIND[finding.kind], []).append(finding)
    signals: dict[str, Signal] = {}
    for name, describe in _DESCRIPTIONS.items():
        matching = by_signal.get(name, [])
        severe_condition = _describe_severe_condition(name, v, settings)
        if worst_finding := find_worst(matching):
            is_bad = severe_condition or any(is_stuck(f) or _is_failing(f) for f in matching)
            evidence = (
                worst_finding.evidence
                if worst_finding.kind in _NUMERIC_EVIDENCE
                else _mask(worst_finding.evidence)
            )
            signals[name] = _make_signal(name, SignalStatus.BAD if is_bad else SignalStatus.WARNING, evidence)
        elif severe_condition:
            signals[name] = _make_signal(name, SignalStatus.BAD, severe_condition)
        elif name == "errors" and v.status is WorkerStatus.FAILED:
            signals[name] = _make_signal(name, SignalStatus.WARNING, describe_failure(v))
        else:
            evidence_text = describe(v, now)
            status = SignalStatus.OK if evidence_text else SignalStatus.UNKNOWN
            signals[name] = _make_signal(name, status, evidence_text or "not reported")
    return signals


_FAILING_KINDS: Final = frozenset({FindingKind.CIRCUIT_BREAKER_OPEN, FindingKind.RECOVERY_FAILED})


def _is_failing(finding: Finding) -> bool:
    # The severity of a half-open breaker is low.
    return finding.kind in _FAILING_KINDS and finding.severity is not Severity.LOW


# Evidence of these kinds contains only numbers that Queenright computed. Masking is expensive, so it is
# limited to untrusted text.
_NUMERIC_EVIDENCE: Final = frozenset(
    {
        FindingKind.CONTEXT_EXHAUSTED,
        FindingKind.SPENDING,
        FindingKind.RETRY_STORM,
        FindingKind.ZERO_PROGRESS,
        FindingKind.NO_TOOL_CALLS,
        FindingKind.CHECKPOINT_STALE,
        FindingKind.NO_TOKENS,
        FindingKind.HEARTBEAT_MISSING,
        FindingKind.ERROR_RATE,
        FindingKind.OUTPUT_UNCHANGED,
        FindingKind.TOKEN_SPIKE,
    }
)


def _make_signal(name: str, verdict: SignalStatus, evidence: str) -> Signal:
    return Signal(name=name, verdict=verdict, evidence=evidence[-_EVIDENCE_LIMIT:])


def describe_failure(v: VitalSigns) -> str:
    """Return why a failed session failed, with secrets masked."""
    return f"the session has failed: {_mask(v.evidence)}" if v.evidence else "the session has failed"


def _mask(text: str) -> str:
    """Return untrusted text with secrets masked."""
    return redact(text, _EVIDENCE_LIMIT) if text else ""


def _describe_severe_condition(name: str, v: VitalSigns, settings: HealthSettings) -> str:
    """Return why a worker is failing or terminated even if it has no finding, or an empty string."""
    if name == "errors" and v.failed_runs > settings.health_check.consecutive_failures:
        failures = describe_failed_runs(v)
        return f"{failures}: {_mask(v.evidence)}" if v.evidence else failures
    if name == "errors" and v.ended_at is None and has_too_many_failures(v, settings):
        return describe_failures(v)
    if name == "activity" and v.status is WorkerStatus.TERMINATED:
        return "the worker was terminated"
    return ""


# -- descriptions of healthy signals; empty if the worker reported nothing -----------------------------------


def _describe_activity(v: VitalSigns, now: float) -> str:
    if v.ended_at is not None:
        return f"the session is over ({v.status.value})"
    if v.held_by:
        return f"held by its guard ({v.held_by}) for {format_span(now - (v.waiting_since or now))}"
    if v.waiting is not None:
        return f"waits ({v.waiting.value}) for {format_span(now - (v.waiting_since or now))}"
    if may_be_silent(v) or v.only_heartbeats:
        return ""
    tool = _mask(v.tool)
    activity = f" in {tool}" if tool else ""
    return f"active {format_span(max(0.0, now - find_silence_start(v)))} ago{activity}"


def _describe_steps(v: VitalSigns, now: float) -> str:
    if not v.steps_total:
        return ""
    return f"{format_count(v.steps_total, 'step')}, {v.steps_since_last_accept:,} bad since the last ACCEPT"


def _describe_heartbeat(v: VitalSigns, now: float) -> str:
    if v.last_heartbeat is None:
        return ""
    reports = (v.beat.phase, v.beat.progress_indicator) if v.beat is not None else ()
    note = _mask("".join(f", {report_text}" for report_text in reports if report_text))
    return f"the last {format_span(max(0.0, now - v.last_heartbeat))} ago{note}"


def _describe_checkpoint(v: VitalSigns, now: float) -> str:
    return (
        "" if v.last_checkpoint is None else f"the last {format_span(max(0.0, now - v.last_checkpoint))} ago"
    )


def _describe_tool_calls(v: VitalSigns, now: float) -> str:
    if v.last_tool_call is None:
        return ""
    calls = format_count(v.tool_calls_total, "call")
    return f"{calls}, the last {format_span(max(0.0, now - v.last_tool_call))} ago"


def _describe_tokens(v: VitalSigns, now: float) -> str:
    if v.tokens_at is None:
        return ""
    return f"{format_count(v.token_count, 'token')}, used last {format_span(max(0.0, now - v.tokens_at))} ago"


def _describe_errors(v: VitalSigns, now: float) -> str:
    if not v.outcomes:
        return ""
    errors = format_count(v.all_errors, "error")
    return f"{v.error_share:.0%} of the last {v.outcomes:,} calls and steps failed, {errors} in all"


def _describe_output(v: VitalSigns, now: float) -> str:
    return "" if v.output is None else f"{v.output}, for {format_span(max(0.0, now - v.output.since))}"


def _describe_breakers(v: VitalSigns, now: float) -> str:
    return "no open breaker"


def _describe_resources(v: VitalSigns, now: float) -> str:
    return ", ".join(str(resource) for resource in v.resources[:3])


def _describe_recovery(v: VitalSigns, now: float) -> str:
    if v.recovered_at is None:
        return "no recovery needed"
    return f"recovered {format_span(max(0.0, now - v.recovered_at))} ago"


_DESCRIPTIONS: Final[dict[str, Callable[[VitalSigns, float], str]]] = {
    "activity": _describe_activity,
    "steps": _describe_steps,
    "heartbeat": _describe_heartbeat,
    "checkpoint": _describe_checkpoint,
    "tool_calls": _describe_tool_calls,
    "tokens": _describe_tokens,
    "errors": _describe_errors,
    "output": _describe_output,
    "breakers": _describe_breakers,
    "resources": _describe_resources,
    "recovery": _describe_recovery,
}
