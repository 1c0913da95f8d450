"""
The rules of the judge and the queen, as pure functions.

``queenright/rules`` follows them. For every other model they are the floor: a model may add to them, but not
weaken them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from queenright.health.findings import Finding, FindingKind, Severity, find_worst
from queenright.health.tickets.ticket import EVIDENCE_LIMIT, TEXT_LIMIT, TicketDraft
from queenright.health.tickets.ticket_rules import BY_RULES
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.sentences import sentence
from queenright.judge import wording

DISMISS_LOW_BELOW: Final = 8
"""The limit in the model's prompt: a low ticket with fewer bad steps may be dismissed."""
INTERVENE_STEPS: Final = 10
"""The number of bad steps at which the operator is notified."""
INTERVENE_STALL_MINUTES: Final = 4.0
"""The minutes without activity at which the operator is notified."""

RECOVERED: Final = "recovered before triage"

_SILENT_KINDS: Final = frozenset({FindingKind.STALL, FindingKind.HEARTBEAT_MISSING})
"""The kinds whose evidence states the time since the last activity."""

_BINDING_SEVERITIES: Final = frozenset({Severity.HIGH, Severity.CRITICAL})


def is_binding(severity: Severity) -> bool:
    """Return whether the rules overrule a model at this severity."""
    return severity in _BINDING_SEVERITIES


def parse_findings(summary: Mapping[str, Any]) -> list[Finding]:
    """Return the findings in a health summary. Invalid findings are skipped."""
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


def progress_since(summary: Mapping[str, Any], since: float, kind: str | None) -> float | None:
    """
    Return the time of a worker's last progress, or None if it made none after ``since``.

    Args:
        summary: The worker's health summary.
        since: The onset of a finding, or another time to compare with.
        kind: The finding in question. For a stale checkpoint, only a checkpoint is progress.
    """
    at = summary.get("last_checkpoint" if kind == FindingKind.CHECKPOINT_STALE else "last_progress")
    return float(at) if at is not None and at > since else None


def draft_ticket(summary: Mapping[str, Any]) -> TicketDraft | None:
    """
    Draft a ticket about the worst finding in a health summary that needs a ticket.

    Returns:
        The draft of a ticket, or None if there is nothing to escalate.
    """
    finding = find_worst(f for f in parse_findings(summary) if f.ticket)
    if finding is None:
        return None
    agent = str(summary.get("agent_id") or "the worker")
    session = str(summary.get("session_id") or "")
    now = summary.get("looked_at")
    cause = wording.cause(
        finding.kind,
        agent=agent,
        node=str(summary.get("node_id") or ""),
        evidence=finding.evidence,
        since=finding.since,
        now=now,
    )
    return TicketDraft(
        severity=finding.severity,
        cause=cause[:TEXT_LIMIT],
        judge_reasoning=BY_RULES + _build_reasoning(summary, finding, now),
        suggested_action=wording.advice(finding.kind, agent, session)[:TEXT_LIMIT],
        evidence_snippet=str(summary.get("evidence_snippet") or finding.evidence)[-EVIDENCE_LIMIT:],
    )


def _build_reasoning(summary: Mapping[str, Any], finding: Finding, now: float | None) -> str:
    """
    Return the numbers and times behind a ticket as text. It states when they were read, because it is not
    updated.
    """
    description = f"{finding.kind.value.replace('_', ' ')}, {finding.severity.value} severity"
    if evidence := wording.one_line(finding.evidence).rstrip("."):
        description = f"{description}: {evidence}"
    at = "" if now is None else f"At {wording.clock_time(now, seconds=True)}: "
    facts = [_describe_progress(summary, finding, now), _describe_numbers(summary, finding.kind)]
    return f"{description}. {at}{', '.join(filter(None, facts))}."


def _describe_progress(summary: Mapping[str, Any], finding: Finding, now: float | None) -> str:
    """Return a text that compares the last progress with the onset of a finding."""
    name = "checkpoint" if finding.kind is FindingKind.CHECKPOINT_STALE else "progress"
    onset, last = wording.clock_time(finding.since, now, seconds=True), summary.get(f"last_{name}")
    if (progress := progress_since(summary, finding.since, finding.kind)) is not None:
        return f"last {name} at {wording.clock_time(progress, now, seconds=True)}, after the onset at {onset}"
    earlier_progress = (
        f" (the last at {wording.clock_time(last, now, seconds=True)})" if last is not None else ""
    )
    return f"no {name} since the onset at {onset}{earlier_progress}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageDecision:
    """A decision on a ticket. ``text`` is the reason of a dismissal, or the analysis for the operator."""

    decision: Literal["dismiss", "intervene"]
    text: str
    urgency: str


def triage(ticket: Mapping[str, Any], summary: Mapping[str, Any] | None) -> TriageDecision:
    """
    Decide on a ticket by the queen's criteria (docs/judge.md).

    The operator is notified of every condition that still holds, except a short series of bad steps. An
    accepted step does not justify a dismissal. It came before the finding or has nothing to do with it,
    because otherwise the detector would have cleared the finding.

    Args:
        ticket: All fields of the ticket.
        summary: The worker's health; None if the worker is unknown.
    """
    severity = Severity(ticket["severity"])
    if summary is not None and is_condition_gone(summary):
        return _make_dismissal(severity, dismissal_reason(summary))
    # The worker's current numbers count, not those in the ticket.
    numbers = ticket if summary is None else {**ticket, **_select_numbers(summary)}
    bad_steps = int(numbers.get("steps_since_last_accept") or 0)
    silent_minutes = float(numbers.get("stall_minutes") or 0.0)
    is_short = bad_steps < INTERVENE_STEPS and silent_minutes < INTERVENE_STALL_MINUTES
    if (
        is_binding(severity)
        or not is_short
        or _find_current_kinds(ticket, summary) != {FindingKind.RETRY_STORM}
    ):
        return TriageDecision(decision="intervene", text=analysis(ticket), urgency=severity.value)
    return _make_dismissal(
        severity,
        f"only {format_count(bad_steps, 'bad step')} since the last ACCEPT (fewer than {INTERVENE_STEPS}), "
        f"and active {format_duration(silent_minutes * 60)} ago (less than {INTERVENE_STALL_MINUTES:g} min): "
        "it may recover on its own",
    )


def dismissal_reason(summary: Mapping[str, Any]) -> str:
    """Return the reason to dismiss a cleared ticket, with the times of the check and of the last progress."""
    now, progress = summary.get("looked_at"), summary.get("last_progress")
    if now is None:
        return RECOVERED
    last = (
        f", last progress at {wording.clock_time(progress, now, seconds=True)}"
        if progress is not None
        else ""
    )
    return f"{RECOVERED}: no finding needs a ticket at {wording.clock_time(now, seconds=True)}{last}"


def is_condition_gone(summary: Mapping[str, Any]) -> bool:
    """Return whether a worker's summary has no finding that needs a ticket."""
    return not any(f.ticket for f in parse_findings(summary))


def _find_current_kinds(ticket: Mapping[str, Any], summary: Mapping[str, Any] | None) -> set[FindingKind]:
    """
    Return the kinds of the findings that need a ticket, or those of the ticket if the worker is unknown.
    """
    if summary is None:
        return {FindingKind(kind) for kind in ticket.get("active_kinds") or (ticket["kind"],)}
    return {finding.kind for finding in parse_findings(summary) if finding.ticket}


def analysis(ticket: Mapping[str, Any]) -> str:
    """Return the analysis for the operator: the cause, the impact, and the advice."""
    kind = _get_kind(ticket)
    agent = str(ticket.get("agent_id") or "")
    cause = wording.one_line(str(ticket.get("cause") or ""), 400)
    if not cause:
        cause = wording.cause(kind, agent=agent, node=str(ticket.get("node_id") or ""))
    elif agent not in cause:
        cause = f"{agent}: {cause}"
    cause = sentence(cause)
    numbers = _describe_numbers(ticket, kind, int(ticket.get("occurrences") or 1))
    if numbers:
        cause = f"{cause.rstrip('.')} ({numbers})."
    session = str(ticket.get("session_id") or "")
    advice = ticket.get("suggested_action") or wording.advice(kind, agent, session)
    return f"{cause} {wording.impact(kind)} {advice}"


def _describe_numbers(numbers: Mapping[str, Any], kind: FindingKind, occurrences: int = 1) -> str:
    """Return the worker's numbers as text, without those in the finding's evidence."""
    return wording.numbers(
        bad_steps=0 if kind is FindingKind.RETRY_STORM else int(numbers.get("steps_since_last_accept") or 0),
        stall_minutes=None if kind in _SILENT_KINDS else numbers.get("stall_minutes"),
        occurrences=occurrences,
    )


def _select_numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {k: summary[k] for k in ("steps_since_last_accept", "stall_minutes") if k in summary}


def _make_dismissal(severity: Severity, reason: str) -> TriageDecision:
    return TriageDecision(decision="dismiss", text=reason, urgency=severity.value)


def _get_kind(ticket: Mapping[str, Any]) -> FindingKind:
    return FindingKind(ticket.get("words_kind") or ticket["kind"])
