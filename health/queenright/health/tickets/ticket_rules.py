"""
How a worker's findings affect its tickets: pure rules behind the ticket service.

A model can add to the decisions of the rules, but not remove from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from queenright.health.findings import (
    KINDS_AFTER_END,
    Finding,
    FindingKind,
    Severity,
    find_worst,
    pages_despite_provider_failure,
)
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.tickets import ticket_lifecycle as lifecycle
from queenright.health.tickets.ticket import EVIDENCE_LIMIT, EscalationTicket, WorkerFacts, fingerprint
from queenright.health.tickets.ticket_lifecycle import TicketChange
from queenright.instrumentation.redaction import redact

BY_RULES: Final = "Found by the rules: "
"""Start of the reasoning that the rules write."""


def reasons(health: WorkerHealth) -> list[Finding]:
    """
    Return the findings that justify a ticket, worst first.

    After a worker has ended, only a failed recovery or failed runs do.
    """
    has_ended = health.vitals.has_ended
    remaining = [
        finding
        for finding in health.findings
        if finding.ticket and (not has_ended or finding.kind in KINDS_AFTER_END)
    ]
    order = []
    while (first := find_worst(remaining)) is not None:
        order.append(first)
        remaining.remove(first)
    return order


def objections(health: WorkerHealth, findings: Sequence[Finding]) -> list[str]:
    """Return the reasons to refuse a ticket about this worker. Empty if it may be raised."""
    vitals = health.vitals
    who = f"worker {vitals.agent_id!r}, session {vitals.session_id!r}"
    if vitals.has_ended and not findings:
        return [f"session_id: {who} has ended; there is nothing to escalate"]
    if vitals.may_be_idle:
        return [f"session_id: {who} is waiting ({vitals.waiting}) and may be idle; check again later"]
    if not findings and health.findings:
        return [f"session_id: {who} has no finding that justifies a ticket yet; check again later"]
    if not findings:
        return [f"session_id: {who} has no findings (any more); read its summary again"]
    return []


def worker_facts(health: WorkerHealth, now: float) -> WorkerFacts:
    """Return the facts about a worker that its ticket records."""
    vitals = health.vitals
    return WorkerFacts(
        agent_id=vitals.agent_id,
        session_id=vitals.session_id,
        node_id=vitals.node_id,
        graph_id=vitals.graph_id,
        incarnation_id=vitals.incarnation_id,
        recent_verdicts=tuple(vitals.recent_verdicts),
        total_steps_checked=vitals.steps_total,
        steps_since_last_accept=vitals.steps_since_last_accept,
        stall_minutes=summarise(health, now)["stall_minutes"],
        worker_trace_id=vitals.last_trace_id,
        worker_span_id=vitals.last_span_id,
    )


def finding_fields(
    health: WorkerHealth, ticket: EscalationTicket | None, findings: Sequence[Finding]
) -> dict[str, Any]:
    """
    Return the fields of a ticket about its worst finding and the worker's own text.

    Args:
        ticket: The ticket; None for a new one.
        findings: Findings that justify a ticket, worst first.
    """
    own_findings_ = findings if ticket is None else own_findings(ticket, findings)
    if not own_findings_:
        return {}
    return {
        "finding_kind": own_findings_[0].kind,
        "finding_evidence": redact(own_findings_[0].evidence),
        "finding_since": own_findings_[0].since,
        "worker_excerpt": redact(health.vitals.evidence, EVIDENCE_LIMIT),
    }


def kinds_of(findings: Sequence[Finding]) -> tuple[FindingKind, ...]:
    """Return the kinds of ``findings``, in their order."""
    return tuple(dict.fromkeys(finding.kind for finding in findings))


def match_ticket(
    live: Sequence[EscalationTicket],
    findings: Sequence[Finding],
    draft_severity: Severity,
    facts: WorkerFacts,
) -> tuple[EscalationTicket | None, Finding, Severity]:
    """
    Find the live ticket that a report belongs to (None for a new one), its finding and its severity.

    An open ticket takes every finding of its worker, except that failed runs have their own ticket: other
    tickets end with the incarnation. Otherwise the worst finding without a dismissal counts; if all are
    dismissed, the worst is counted on its dismissed ticket.
    """
    for ticket in live:
        if ticket.is_open and (matches := own_findings(ticket, findings)):
            return ticket, matches[0], higher_severity(draft_severity, minimum_severity(matches))
    dismissals = {ticket.fingerprint: ticket for ticket in live}
    cover: tuple[EscalationTicket, Finding, Severity] | None = None
    for finding in findings:
        severity = higher_severity(draft_severity, finding.severity)
        dismissed_ticket = dismissals.get(_fingerprint(facts, finding.kind))
        if dismissed_ticket is None:
            return None, finding, severity
        if lifecycle.report(dismissed_ticket, severity=severity, kinds=[finding.kind], now=0.0)[0].is_open:
            return dismissed_ticket, finding, severity
        cover = cover or (dismissed_ticket, finding, severity)
    assert cover is not None, "a report has at least one finding"
    return cover


def count_report(
    ticket: EscalationTicket, findings: Sequence[Finding], severity: Severity, now: float
) -> tuple[EscalationTicket, TicketChange]:
    """Count a report on the ticket that ``match_ticket`` chose."""
    kinds = kinds_of(own_findings(ticket, findings))
    return lifecycle.report(ticket, severity=severity, kinds=kinds, now=now)


def has_new_trouble(before: EscalationTicket, after: EscalationTicket) -> bool:
    """Return whether a session with a ticket about failed runs has other trouble for the first time."""
    is_of_runs = before.kind is FindingKind.RUNS_FAILED
    return is_of_runs and not before.related_kinds and bool(after.related_kinds)


def own_findings(ticket: EscalationTicket, findings: Sequence[Finding]) -> list[Finding]:
    """
    Return the findings that keep a ticket open. A dismissed one covers its own condition only.

    Most of what a worker shows while its provider fails comes from that and ends with it. A ticket with a
    shared cause does not cover trouble that no provider causes.
    """
    if not ticket.is_open:
        return [finding for finding in findings if finding.kind is ticket.kind]
    if ticket.kind is FindingKind.RUNS_FAILED:
        return list(findings)
    if ticket.shares_cause and ticket.kind not in kinds_of(findings):
        return []  # the shared cause has ended, so other findings get their own ticket
    if has_separate_trouble(ticket, findings):
        return []
    return [finding for finding in findings if finding.kind is not FindingKind.RUNS_FAILED]


def has_separate_trouble(ticket: EscalationTicket, findings: Sequence[Finding]) -> bool:
    """Return whether a worker with a ticket about its provider also has its own finding that pages."""
    is_shared = ticket.shares_cause and ticket.kind is FindingKind.PROVIDER_FAILURE
    return is_shared and any(map(pages_despite_provider_failure, findings))


def has_current_text(ticket: EscalationTicket, findings: Sequence[Finding]) -> bool:
    """Return whether the judge's text of an open ticket still applies, and no finding is worse."""
    matches = own_findings(ticket, findings)
    if not matches:
        return not has_separate_trouble(ticket, findings)
    kind = ticket.words_kind or ticket.finding_kind or ticket.kind
    severity = ticket.words_severity or ticket.severity
    return kind in kinds_of(matches) and minimum_severity(matches).rank <= severity.rank


def updated_text(ticket: EscalationTicket, finding: Finding, texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new text of an open ticket about ``finding``, if the rules wrote the old and the new one."""
    advice = (ticket.judge_reasoning, str(texts["judge_reasoning"]))
    if not ticket.is_open or ticket.words_kind is not finding.kind or not all(map(_is_by_rules, advice)):
        return {}
    return {name: value for name, value in texts.items() if name in _TEXT_OF_FINDING}


_TEXT_OF_FINDING: Final = frozenset(
    {
        "cause",
        "suggested_action",
        "evidence_snippet",
        "finding_kind",
        "finding_evidence",
        "finding_since",
        "worker_excerpt",
    }
)


def _is_by_rules(reasoning: str) -> bool:
    return reasoning.startswith(BY_RULES)


def new_ticket(
    ticket_id: str,
    facts: WorkerFacts,
    finding: Finding,
    findings: Sequence[Finding],
    severity: Severity,
    texts: Mapping[str, Any],
    now: float,
    *,
    storm_id: str = "",
) -> EscalationTicket:
    """Return the ticket that a first report opens; ``storm_id`` names the storm or cause it shares."""
    of_runs = finding.kind is FindingKind.RUNS_FAILED
    kinds = kinds_of(
        [finding for finding in findings if (finding.kind is FindingKind.RUNS_FAILED) is of_runs]
    )
    return EscalationTicket.model_validate(
        {
            **dict(facts),
            **texts,
            "ticket_id": ticket_id,
            "severity": severity,
            "kind": finding.kind,
            "fingerprint": _fingerprint(facts, finding.kind),
            "related_kinds": tuple(kind for kind in kinds if kind is not finding.kind),
            "active_kinds": kinds,
            "trouble_since": finding.since,
            "first_seen": now,
            "last_seen": now,
            "updated_at": now,
            "storm_id": storm_id,
        }
    )


def with_current_facts(
    ticket: EscalationTicket, facts: WorkerFacts, texts: Mapping[str, Any]
) -> EscalationTicket:
    """Return the ticket with the worker's current facts and ``texts``; its node and graph stay."""
    where = {"graph_id": ticket.graph_id, "node_id": ticket.node_id}
    return ticket.model_copy(update={**dict(facts), **where, **texts})


def apply_findings(
    ticket: EscalationTicket, findings: Sequence[Finding], now: float, *, is_other_open: bool
) -> tuple[EscalationTicket, TicketChange]:
    """
    Apply a worker's findings to one of its live tickets, without the judge.

    A finding that is new, worse or back is a report. With none left, the hold begins.

    Args:
        findings: Findings that justify a ticket, worst first.
        is_other_open: Another ticket of the session is open and takes the reports; this dismissed one only
            records whether its condition holds.
    """
    findings = own_findings(ticket, findings)
    if not findings:
        return lifecycle.clear(ticket, now=now), "counted"
    kinds = kinds_of(findings)
    has_relapsed = ticket.condition_cleared_at is not None
    is_worse = minimum_severity(findings).rank > ticket.severity.rank
    has_more_failed_runs = any(
        finding.kind is FindingKind.RUNS_FAILED is ticket.finding_kind
        and finding.evidence != ticket.finding_evidence
        for finding in findings
    )
    if is_other_open or not (
        has_relapsed or is_worse or has_more_failed_runs or set(kinds) - set(ticket.active_kinds)
    ):
        if kinds == ticket.active_kinds and not has_relapsed:
            return ticket, "counted"
        update = {"active_kinds": kinds, "condition_cleared_at": None, "updated_at": now}
        return ticket.model_copy(update=update), "counted"
    return count_report(ticket, findings, minimum_severity(findings), now)


def is_about_earlier_incarnation(ticket: EscalationTicket, health: WorkerHealth) -> bool:
    """Return whether a dismissed ticket is about another incarnation, and so covers nothing now."""
    now = health.vitals.incarnation_id
    return not ticket.is_open and ticket.incarnation_id not in ("", now) and bool(now)


def _fingerprint(facts: WorkerFacts, kind: FindingKind) -> str:
    return fingerprint(facts.agent_id, facts.session_id, facts.node_id, kind)


def minimum_severity(findings: Sequence[Finding]) -> Severity:
    """Return the worst severity of ``findings``: the minimum for a ticket about them."""
    return max((finding.severity for finding in findings), key=lambda severity: severity.rank)


def higher_severity(first: Severity, second: Severity) -> Severity:
    """Return the worse of two severities."""
    return first if first.rank >= second.rank else second
