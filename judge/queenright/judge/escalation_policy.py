"""
The rules for escalations, as pure functions: the table, and the floor that applies to every model.

``queenright/rules`` answers by the table (docs/judge.md). The floor ensures that no model terminates a worker
that the table would not terminate, and it limits extra time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind, find_worst
from queenright.health.interventions.escalation import OPTIONS, Decision
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.instrumentation.names import WaitingReason
from queenright.judge import ticket_policy, wording

MAX_EXTENSIONS: Final = 3
"""How often a worker without progress gets more time before it is handed off."""

MAX_EXTRA_MINUTES: Final = 60
"""The total extra time of a worker without progress, or the usual time if that is longer."""

_TROUBLE_STATES: Final = frozenset(state.value for state in HealthState if state.is_in_trouble)
_END_STATUSES: Final = frozenset(
    {
        WorkerStatus.COMPLETED.value,
        WorkerStatus.FAILED.value,
        WorkerStatus.CANCELLED.value,
        WorkerStatus.TERMINATED.value,
    }
)

# A restart does not help, because the worker would meet the same fault again.
_EXTERNAL_KINDS: Final = frozenset({FindingKind.PROVIDER_FAILURE, FindingKind.CIRCUIT_BREAKER_OPEN})
# The worker hangs, so only a restart from a checkpoint helps.
_SILENT_KINDS: Final = frozenset(
    {FindingKind.STALL, FindingKind.HEARTBEAT_MISSING, FindingKind.TOOL_TIMEOUT, FindingKind.NO_TOKENS}
)
# The worker loops and ignores nudges, because its own context keeps it in the loop.
_LOOPING_KINDS: Final = frozenset(
    {FindingKind.DOOM_LOOP, FindingKind.ZERO_PROGRESS, FindingKind.NO_TOOL_CALLS}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """
    A decision on an escalation, and its reason. ``overruled`` means that a model proposed another decision.
    """

    decision: Decision
    reason: str
    overruled: bool = False
    more_time_seconds: float | None = None
    """The seconds of ``more_time``; None for the default."""


def has_ended(summary: Mapping[str, Any] | None) -> bool:
    """Return whether the worker's session has ended."""
    return summary is not None and summary.get("status") in _END_STATUSES


def relief(escalation: Mapping[str, Any], summary: Mapping[str, Any]) -> str | None:
    """
    Return why an escalation needs no action any more, or None if it does.

    Args:
        escalation: The escalation, with ``asked_at`` in seconds since the epoch.
    """
    if has_ended(summary):
        return f"the session is over ({summary['status']})"
    incarnation_id = escalation.get("incarnation_id")
    if incarnation_id and summary.get("incarnation_id") not in ("", None, incarnation_id):
        return "the worker has restarted"
    if (waiting := summary.get("waiting_reason")) not in (None, "", WaitingReason.HELD):
        return f"it is waiting ({waiting})"
    asked_at, now = float(escalation.get("asked_at") or 0.0), summary.get("looked_at")
    worst_finding = find_worst(ticket_policy.parse_findings(summary))
    worst_kind = worst_finding.kind if worst_finding is not None else None
    if (progress := ticket_policy.progress_since(summary, asked_at, worst_kind)) is not None:
        asked_text, at = (wording.clock_time(time, now, seconds=True) for time in (asked_at, progress))
        return f"it has made progress at {at}, after the escalation at {asked_text}"
    if summary.get("state") not in _TROUBLE_STATES and ticket_policy.is_condition_gone(summary):
        return "its condition has cleared"
    return None


def answer(escalation: Mapping[str, Any], summary: Mapping[str, Any] | None) -> PolicyDecision:
    """
    Decide an escalation by the table.

    Args:
        summary: The worker's health summary; None if the worker is unknown.
    """
    if summary is None:
        return PolicyDecision(decision="hand_off", reason="The worker is unknown: a person must act.")
    if (explanation := relief(escalation, summary)) is not None:
        return PolicyDecision(decision="more_time", reason=f"No action is needed: {explanation}.")
    decision, explanation = _decide_by_table(escalation, summary)
    if decision == "more_time" and _is_exhausted(escalation):
        decision, explanation = (
            "hand_off",
            f"It has had {_describe_extra_time(escalation)}, and the fault persists.",
        )
    if decision not in (escalation.get("options") or OPTIONS):
        decision, explanation = "hand_off", f"{explanation} The option {decision!r} is not offered."
    return PolicyDecision(decision=decision, reason=f"{_describe_cause(summary)} {explanation}")


def apply_floor(
    escalation: Mapping[str, Any],
    summary: Mapping[str, Any] | None,
    proposal: Decision,
    reason: str,
    *,
    minutes: float | None = None,
) -> PolicyDecision:
    """
    Return the model's decision, or the decision that replaces it if the floor forbids it.

    Args:
        summary: The worker's health summary; None if the worker is unknown.
        minutes: The extra minutes that the model proposes, if any.
    """
    replacement: Decision | None = None
    if proposal == "terminate":
        table_answer = answer(escalation, summary)
        if table_answer.decision != "terminate":
            replacement, cause = table_answer.decision, table_answer.reason.rstrip(".")
    elif proposal == "more_time" and _is_exhausted(escalation) and not _has_relief(escalation, summary):
        replacement, cause = "hand_off", f"it has had {_describe_extra_time(escalation)} and made no progress"
    if replacement is None:
        result = PolicyDecision(decision=proposal, reason=reason)
    else:
        quote = wording.one_line(reason, 200)
        text = f"Not {proposal.replace('_', ' ')}, as was proposed ({quote!r}): {cause}."
        result, minutes = PolicyDecision(decision=replacement, reason=text, overruled=True), None
    if result.decision != "more_time":
        return result
    return replace(result, more_time_seconds=_limit_extra_seconds(escalation, minutes))


def _limit_extra_seconds(escalation: Mapping[str, Any], minutes: float | None) -> float | None:
    """Return the extra time in seconds, or None for the default."""
    minutes_left = _compute_max_minutes(escalation) - _get_minutes_given(escalation)
    if minutes_left <= 0:
        return None  # this happens only for a worker that needs no action; others get no more time
    minutes_more = _get_usual_minutes(escalation) if minutes is None else minutes
    if minutes is None and minutes_more <= minutes_left:
        return None
    return min(minutes_more, minutes_left) * 60


def _decide_by_table(escalation: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[Decision, str]:
    findings = ticket_policy.parse_findings(summary)
    if any(finding.kind in _EXTERNAL_KINDS for finding in findings):
        return "more_time", "The fault is external; the worker can continue once it is fixed."
    worst_finding = find_worst(findings)
    kind = worst_finding.kind if worst_finding is not None else None
    if kind in _SILENT_KINDS:
        return "terminate", "It hangs; it can continue from its last checkpoint."
    if kind in _LOOPING_KINDS:
        return "terminate", "It does not leave the loop on its own; a restart from a checkpoint may help."
    return "hand_off", "A restart would meet the same fault: a person must act."


def _describe_cause(summary: Mapping[str, Any]) -> str:
    findings = ticket_policy.parse_findings(summary)
    agent = str(summary.get("agent_id") or "The worker")
    finding = find_worst(f for f in findings if f.kind in _EXTERNAL_KINDS) or find_worst(findings)
    if finding is None:
        return (
            f"{agent} is {summary.get('state')}: {wording.one_line(str(summary.get('reason') or ''), 200)}."
        )
    return wording.cause(
        finding.kind,
        agent=agent,
        node=str(summary.get("node_id") or ""),
        evidence=finding.evidence,
        since=finding.since,
        now=summary.get("looked_at"),
    )


def _has_relief(escalation: Mapping[str, Any], summary: Mapping[str, Any] | None) -> bool:
    return summary is not None and relief(escalation, summary) is not None


def _is_exhausted(escalation: Mapping[str, Any]) -> bool:
    times = int(escalation.get("more_time_given") or 0)
    return times >= MAX_EXTENSIONS or _get_minutes_given(escalation) >= _compute_max_minutes(escalation)


def _describe_extra_time(escalation: Mapping[str, Any]) -> str:
    times = int(escalation.get("more_time_given") or 0)
    if times >= MAX_EXTENSIONS:
        return f"more time {times} times"
    return f"{_get_minutes_given(escalation):g} min more time"


def _get_minutes_given(escalation: Mapping[str, Any]) -> float:
    return float(escalation.get("more_minutes_given") or 0.0)


def _get_usual_minutes(escalation: Mapping[str, Any]) -> float:
    return float(escalation.get("usual_minutes") or 0.0)


def _compute_max_minutes(escalation: Mapping[str, Any]) -> float:
    return max(MAX_EXTRA_MINUTES, _get_usual_minutes(escalation))
