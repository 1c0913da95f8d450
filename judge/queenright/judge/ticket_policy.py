"""
The rules of judge and queen, as pure functions.

``queenright/rules`` follows them. They are the floor below every other model: a model may add to them and
never weaken them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from queenright.health.findings import Finding, FindingKind, Severity, worst
from queenright.health.ticket_rules import BY_RULES
from queenright.health.tickets import EVIDENCE_LIMIT, TEXT_LIMIT, TicketDraft
from queenright.judge import wording

DISMISS_LOW_BELOW: Final = 8
"""A ticket of low severity with fewer bad steps is dismissed."""
INTERVENE_STEPS: Final = 10
"""Bad steps from which on the operator is notified."""
INTERVENE_STALL_MINUTES: Final = 4.0

RECOVERED: Final = "recovered before triage"

_BINDING: Final = frozenset({Severity.HIGH, Severity.CRITICAL})

# Retrying fixes none of these: they need a person, regardless of the counts.
_UNRECOVERABLE: Final = frozenset(
    {
        FindingKind.CONTEXT_EXHAUSTED,
        FindingKind.PROVIDER_FAILURE,
        FindingKind.RECOVERY_FAILED,
        FindingKind.RUNS_FAILED,
        FindingKind.DOOM_LOOP,
        FindingKind.ERROR_STREAK,
        FindingKind.STALL,
        FindingKind.NO_TOOL_CALLS,
        FindingKind.HEARTBEAT_MISSING,
        FindingKind.CHECKPOINT_STALE,
        FindingKind.NO_TOKENS,
    }
)


def is_binding(severity: Severity) -> bool:
    """Return whether the rules overrule a model at this severity."""
    return severity in _BINDING


def findings_of(summary: Mapping[str, Any]) -> list[Finding]:
    """Return the findings in a health summary; invalid ones are skipped."""
    findings = []
    for row in summary.get("findings") or ():
        try:
            findings.append(
                Finding(
                    kind=FindingKind(row["kind"]),
                    severity=Severity(row["severity"]),
                    evidence=str(row.get("evidence") or ""),
                    since=float(row["since"]),
                    ticket=bool(row.get("ticket", True)),
                )
            )
        except (KeyError, TypeError, ValueError):
            continue
    return findings


def draft_ticket(summary: Mapping[str, Any]) -> TicketDraft | None:
    """
    Judge a health summary by the bands of bad steps and the kinds of findings.

    Returns:
        The draft of a ticket, or None if there is nothing to escalate.
    """
    finding = worst(f for f in findings_of(summary) if f.ticket)
    if finding is None:
        return None
    agent = str(summary.get("agent_id") or "the worker")
    session = str(summary.get("session_id") or "")
    bad_steps = int(summary.get("steps_since_last_accept") or 0)
    counted = wording.numbers(bad_steps=bad_steps, stall_minutes=summary.get("stall_minutes"))
    reasoning = f"{finding.kind.value.replace('_', ' ')}, {finding.severity.value} severity"
    cause = wording.cause(
        finding.kind,
        agent=agent,
        node=str(summary.get("node_id") or ""),
        evidence=finding.evidence,
        since=finding.since,
    )
    return TicketDraft(
        severity=finding.severity,
        cause=cause[:TEXT_LIMIT],
        judge_reasoning=f"{BY_RULES}{reasoning}" + (f", {counted}." if counted else "."),
        suggested_action=wording.advice(finding.kind, agent, session)[:TEXT_LIMIT],
        evidence_snippet=str(summary.get("evidence_snippet") or finding.evidence)[-EVIDENCE_LIMIT:],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision on a ticket; ``text`` is the reason of a dismissal or the analysis for the operator."""

    decision: Literal["dismiss", "intervene"]
    text: str
    urgency: str


def triage(ticket: Mapping[str, Any], summary: Mapping[str, Any] | None) -> Decision:
    """
    Decide on a ticket by the queen's criteria (docs/judge.md).

    Args:
        ticket: All its fields.
        summary: The worker's health now; None if the worker is not known.
    """
    severity = Severity(ticket["severity"])
    if summary is not None and is_condition_gone(summary):
        return _dismiss(severity, RECOVERED)
    if is_binding(severity):
        return Decision(decision="intervene", text=analysis(ticket), urgency=severity.value)
    # The worker's current numbers count, not those in the ticket.
    numbers = ticket if summary is None else {**ticket, **_numbers(summary)}
    bad_steps = int(numbers.get("steps_since_last_accept") or 0)
    if severity is Severity.LOW and bad_steps < DISMISS_LOW_BELOW:
        return _dismiss(severity, f"low severity and {bad_steps} bad steps, fewer than {DISMISS_LOW_BELOW}")
    verdicts = list(numbers.get("recent_verdicts") or ())
    unrecoverable = _kind(ticket) in _UNRECOVERABLE
    # An unrecoverable condition may have started after the accepted step.
    if verdicts and verdicts[-1] == "ACCEPT" and not unrecoverable:
        return _dismiss(severity, "the last step was accepted: real progress after the bad steps")
    stalled = float(numbers.get("stall_minutes") or 0.0) >= INTERVENE_STALL_MINUTES
    if bad_steps >= INTERVENE_STEPS or stalled or unrecoverable:
        return Decision(decision="intervene", text=analysis(ticket), urgency=severity.value)
    return _dismiss(
        severity,
        f"{severity.value} severity, {bad_steps} bad steps and no stall: it may recover on its own",
    )


def is_condition_gone(summary: Mapping[str, Any]) -> bool:
    """Return whether a worker's summary has no finding worth a ticket."""
    return not any(f.ticket for f in findings_of(summary))


def analysis(ticket: Mapping[str, Any]) -> str:
    """Return the analysis for the operator: the cause, why it matters, what to do."""
    kind = _kind(ticket)
    agent = str(ticket.get("agent_id") or "")
    cause = wording.one_line(str(ticket.get("cause") or ""), 400)
    if not cause:
        cause = wording.cause(kind, agent=agent, node=str(ticket.get("node_id") or ""))
    elif agent not in cause:
        cause = f"{agent}: {cause}"
    cause = wording.sentence(cause)
    # Omit numbers that the cause states.
    counted = wording.numbers(
        bad_steps=0 if kind is FindingKind.RETRY_STORM else int(ticket.get("steps_since_last_accept") or 0),
        stall_minutes=None if kind is FindingKind.STALL else ticket.get("stall_minutes"),
        occurrences=int(ticket.get("occurrences") or 1),
    )
    if counted:
        cause = f"{cause.rstrip('.')} ({counted})."
    session = str(ticket.get("session_id") or "")
    advice = ticket.get("suggested_action") or wording.advice(kind, agent, session)
    return f"{cause} {wording.impact(kind)} {advice}"


def _numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        k: summary[k] for k in ("steps_since_last_accept", "stall_minutes", "recent_verdicts") if k in summary
    }


def _dismiss(severity: Severity, reason: str) -> Decision:
    return Decision(decision="dismiss", text=reason, urgency=severity.value)


def _kind(ticket: Mapping[str, Any]) -> FindingKind:
    return FindingKind(ticket.get("words_kind") or ticket["kind"])
