"""A worker's health as JSON, for the judge, the API and the console."""

from __future__ import annotations

from typing import Any

from queenright.health.detection.assessment import SignalStatus, assess
from queenright.health.detection.stall_clock import find_silence_start, may_be_silent
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import EVIDENCE_LIMIT, VitalSigns
from queenright.instrumentation.names import WaitingReason
from queenright.instrumentation.redaction import redact

NO_ACTIVE_SESSION = "no_active_session"


def no_active_session() -> dict[str, Any]:
    """Return the summary of an agent without an active session."""
    return {"status": NO_ACTIVE_SESSION}


def session_status(v: VitalSigns) -> WorkerStatus:
    """Return the status of a session, or unknown if it has only sent heartbeats."""
    if v.status is not WorkerStatus.ACTIVE:
        return v.status
    if v.waiting is WaitingReason.PAUSED:
        return WorkerStatus.PAUSED
    return WorkerStatus.UNKNOWN if v.only_heartbeats else WorkerStatus.ACTIVE


def summarise(health: WorkerHealth, now: float, last_n_steps: int = 20) -> dict[str, Any]:
    """
    Return a worker's health, vital signs and evidence as JSON values.

    ``stall_minutes`` is the length of the current silence, or None while silence is normal (the worker waits
    or has ended). Times are seconds since the epoch; ``looked_at`` is ``now``. The evidence has at most 500
    characters, with secrets masked. ``signals`` omits signals that the worker does not report. ``tools`` has
    the calls and errors of the first 16 tools by name, and those of all other tools as ``other``.
    ``shadow_findings`` have no effect.

    Args:
        last_n_steps: The maximum number of verdicts, newest last. At most 20 are known.
    """
    v = health.vitals
    silence_seconds = None if may_be_silent(v) else max(0.0, now - find_silence_start(v))
    signals = assess(v, v.settings, now).values()
    return {
        "status": session_status(v).value,
        "looked_at": now,
        "agent_id": v.agent_id,
        "node_id": v.node_id,
        "graph_id": v.graph_id,
        "session_id": v.session_id,
        "task_id": v.task_id,
        "incarnation_id": v.incarnation_id,
        "framework": v.framework,
        "state": health.state.value,
        "state_since": health.state_since,
        "reason": health.reason,
        "phase": v.phase.value,
        "tool": v.tool,
        "waiting_reason": v.waiting.value if v.waiting else None,
        "waiting_since": v.waiting_since,
        "question": v.question or None,
        "total_steps": v.steps_total,
        "recent_verdicts": v.recent_verdicts[-last_n_steps:] if last_n_steps > 0 else [],
        "steps_since_last_accept": v.steps_since_last_accept,
        "stall_minutes": None if silence_seconds is None else round(silence_seconds / 60, 2),
        "tool_calls_total": v.tool_calls_total,
        "tools": {} if v.tools is None else v.tools.to_dict(),
        "error_count": v.all_errors,
        "error_share": round(v.error_share, 3),
        "consecutive_failures": v.consecutive_failures,
        "tokens": v.token_count,
        "open_breakers": list(v.open_breakers),
        "recovery_failed": redact(v.recovery_failed) if v.recovery_failed else None,
        "recovered_at": v.recovered_at,
        "started_at": v.started_at,
        "last_activity": v.last_activity,
        "last_progress": v.last_progress,
        "last_heartbeat": v.last_heartbeat,
        "last_checkpoint": v.last_checkpoint,
        "evidence_snippet": redact(v.evidence, EVIDENCE_LIMIT),
        "signals": [signal.to_dict() for signal in signals if signal.verdict is not SignalStatus.UNKNOWN],
        "findings": [finding.to_dict() for finding in health.findings],
        "shadow_findings": [finding.to_dict() for finding in health.shadow],
        "trace_id": v.last_trace_id,
        "span_id": v.last_span_id,
    } | dict.fromkeys(health.unknown_fields)
