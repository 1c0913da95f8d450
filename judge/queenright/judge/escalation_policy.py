"""
What the orchestrator's place demands of whoever sits in it, as pure functions: the table, and the floor.

The table is what ``queenright/rules`` answers an escalation with (docs/judge.md). The floor is below every
model: nobody is stopped whom the table would not stop, and nobody gets more time for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from queenright.health.findings import FindingKind, HealthState, worst
from queenright.health.interventions.record import OPTIONS, Decision
from queenright.health.vitals import SessionStatus
from queenright.judge import policy, wording

MORE_TIMES: Final = 3
"""So often a worker that gets no further is given more time; then a person or another agent has to look."""

MOST_MORE_MINUTES: Final = 60
"""So much more time in all has a worker that gets no further; or the usual time, where that is longer."""

_TROUBLE: Final = frozenset(state.value for state in HealthState if state.in_trouble)
_OVER: Final = frozenset(
    {
        SessionStatus.COMPLETED.value,
        SessionStatus.FAILED.value,
        SessionStatus.CANCELLED.value,
        SessionStatus.TERMINATED.value,
    }
)

# Stopping the worker mends neither, and it would meet the same again when it is back.
_NOT_ITS_FAULT: Final = frozenset({FindingKind.PROVIDER_FAILURE, FindingKind.CIRCUIT_BREAKER_OPEN})
# It hangs: a checkpoint is the only way on.
_SILENT: Final = frozenset(
    {FindingKind.STALL, FindingKind.HEARTBEAT_MISSING, FindingKind.TOOL_TIMEOUT, FindingKind.NO_TOKENS}
)
# It goes in circles and hears no reminder: what it has in its context is what keeps it there.
_CIRCLES: Final = frozenset({FindingKind.DOOM_LOOP, FindingKind.ZERO_PROGRESS, FindingKind.NO_TOOL_CALLS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A decision on an escalation, and why; ``overruled`` if it is not the one that was proposed."""

    decision: Decision
    reason: str
    overruled: bool = False
    more_time_seconds: float | None = None
    """Of ``more_time``: how much; None: the usual."""


def ended(summary: Mapping[str, Any] | None) -> bool:
    """Return whether the worker's session is over: nobody need decide anything about it."""
    return summary is not None and summary.get("status") in _OVER


def relieved(escalation: Mapping[str, Any], summary: Mapping[str, Any]) -> str | None:
    """
    Return why what was asked about holds no more; None while it holds.

    Args:
        escalation: The question; ``asked_at`` in seconds since the epoch.
        summary: The worker's health now.
    """
    if ended(summary):
        return f"the session is over ({summary['status']})"
    asked_about = escalation.get("incarnation_id")
    if asked_about and summary.get("incarnation_id") not in ("", None, asked_about):
        return "another process of the worker runs by now"
    if waits := summary.get("waiting_reason"):
        return f"it waits rightly ({waits})"
    progress = summary.get("last_progress")
    if progress is not None and progress > float(escalation.get("asked_at") or 0.0):
        return "it has got further since the question was asked"
    if summary.get("state") not in _TROUBLE and policy.condition_gone(summary):
        return "it shows nothing any more that it would have to be stopped for"
    return None


def answer(escalation: Mapping[str, Any], summary: Mapping[str, Any] | None) -> Answer:
    """
    Answer an escalation by the table.

    Args:
        escalation: The question, as it is quoted to a model.
        summary: The worker's health now; None if nothing is known of the worker (any more).
    """
    if summary is None:
        return Answer(decision="hand_off", reason="Nothing is known of the worker: somebody has to look.")
    if (relief := relieved(escalation, summary)) is not None:
        return Answer(decision="more_time", reason=f"Nothing is to be done: {relief}.")
    decision, why = _by_table(escalation, summary)
    if decision == "more_time" and _exhausted(escalation):
        decision, why = "hand_off", f"It has had {_had(escalation)}, and what it needs is not back."
    if decision not in _options(escalation):
        decision, why = "hand_off", f"{why} To {decision.replace('_', ' ')} is not offered."
    return Answer(decision=decision, reason=f"{_seen(summary)} {why}")


def held_to_the_floor(
    escalation: Mapping[str, Any],
    summary: Mapping[str, Any] | None,
    proposed: Decision,
    reason: str,
    *,
    minutes: float | None = None,
) -> Answer:
    """
    Return what a model proposed, or what stands in its place where the floor forbids that.

    Args:
        escalation: The question.
        summary: The worker's health now; None if nothing is known of it.
        proposed: What the model wants.
        reason: Why, in its words.
        minutes: How much more time it wants the worker to have, if it says.
    """
    instead: Decision | None = None
    if proposed == "terminate":
        table = answer(escalation, summary)
        if table.decision != "terminate":
            instead, because = table.decision, table.reason.rstrip(".")
    elif proposed == "more_time" and _exhausted(escalation) and not _back(escalation, summary):
        instead, because = "hand_off", f"it has had {_had(escalation)} and got no further"
    if instead is None:
        held = Answer(decision=proposed, reason=reason)
    else:
        said = wording.one_line(reason, 200)
        text = f"Not {proposed.replace('_', ' ')}, as was proposed ({said!r}): {because}."
        held, minutes = Answer(decision=instead, reason=text, overruled=True), None
    if held.decision != "more_time":
        return held
    return replace(held, more_time_seconds=_time(escalation, minutes))


def _time(escalation: Mapping[str, Any], minutes: float | None) -> float | None:
    """Return how much more time a worker gets, in seconds; None: the usual."""
    left = _most(escalation) - _minutes_given(escalation)
    if left <= 0:
        return None  # it is back, or nobody would give it any
    wanted = _usual(escalation) if minutes is None else minutes
    if minutes is None and wanted <= left:
        return None
    return min(wanted, left) * 60


def _by_table(escalation: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[Decision, str]:
    findings = policy.findings_of(summary)
    if any(finding.kind in _NOT_ITS_FAULT for finding in findings):
        return "more_time", "The fault is not its own, and it can go on where it is once that is mended."
    first = worst(findings)
    kind = first.kind if first is not None else None
    if kind in _SILENT:
        return "terminate", "It hangs; from its last checkpoint it can go on."
    if kind in _CIRCLES:
        return "terminate", "It does not come out of this by itself; a fresh start from a checkpoint may."
    return "hand_off", "A restart would meet the same again: somebody else has to look at it."


def _seen(summary: Mapping[str, Any]) -> str:
    findings = policy.findings_of(summary)
    agent = str(summary.get("worker_agent_id") or "The worker")
    blamed = worst(f for f in findings if f.kind in _NOT_ITS_FAULT) or worst(findings)
    if blamed is None:
        return (
            f"{agent} is {summary.get('state')}: {wording.one_line(str(summary.get('reason') or ''), 200)}."
        )
    return wording.cause(
        blamed.kind,
        agent=agent,
        node=str(summary.get("worker_node_id") or ""),
        evidence=blamed.evidence,
        since=blamed.since,
    )


def _back(escalation: Mapping[str, Any], summary: Mapping[str, Any] | None) -> bool:
    return summary is not None and relieved(escalation, summary) is not None


def _exhausted(escalation: Mapping[str, Any]) -> bool:
    times = int(escalation.get("more_time_given") or 0)
    return times >= MORE_TIMES or _minutes_given(escalation) >= _most(escalation)


def _had(escalation: Mapping[str, Any]) -> str:
    times = int(escalation.get("more_time_given") or 0)
    if times >= MORE_TIMES:
        return f"more time {times} times"
    return f"{_minutes_given(escalation):g} min more time"


def _minutes_given(escalation: Mapping[str, Any]) -> float:
    return float(escalation.get("more_minutes_given") or 0.0)


def _usual(escalation: Mapping[str, Any]) -> float:
    return float(escalation.get("usual_minutes") or 0.0)


def _most(escalation: Mapping[str, Any]) -> float:
    return max(MOST_MORE_MINUTES, _usual(escalation))


def _options(escalation: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(escalation.get("options") or OPTIONS)
