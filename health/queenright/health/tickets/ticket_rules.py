"""
The rules of how a worker's findings affect its tickets, as pure functions.

A model can add to the decisions of the rules, but cannot overrule them.
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
"""The prefix of a reasoning that the rules write."""


def reasons(health: WorkerHealth) -> list[Finding]:
    """
    Return the findings that justify a ticket, worst first.

    After a worker has ended, only a failed recovery or failed runs justify a ticket.
    """
    has_ended = health.vitals.has_ended
    remaining = [
        finding
        for finding in health.findings
        if finding.ticket and (not has_ended or finding.kind in KINDS_AFTER_END)
    ]
    sorted_findings = []
    while (worst_finding := find_worst(remaining)) is not None:
        sorted_findings.append(worst_finding)
        remaining.remove(worst_finding)
    return sorted_findings


def objections(health: WorkerHealth, findings: Sequence[Finding]) -> list[str]:
    """Return the reasons to refuse a ticket about this worker, or an empty list if it may be opened."""
    vitals = health.vitals
    worker = f"worker {vitals.agent_id!r}, session {vitals.session_id!r}"
    if vitals.has_ended and not findings:
        return [f"session_id: {worker} has ended; there is nothing to escalate"]
    if vitals.may_be_idle:
        return [f"session_id: {worker} is waiting ({vitals.waiting}) and may be idle; check again later"]
    if not findings and health.findings:
        return [f"session_id: {worker} has no finding that justifies a ticket yet; check again later"]
    if not findings:
        return [f"session_id: {worker} has no findings (any more); read its summary again"]
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
    matches = findings if ticket is None else own_findings(ticket, findings)
    if not matches:
        return {}
    return {
        "finding_kind": matches[0].kind,
        "finding_evidence": redact(matches[0].evidence),
        "finding_since": matches[0].since,
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
    Return the live ticket that a report belongs to (None if it opens a new ticket), its finding and its
    severity.

    An open ticket takes every finding of its worker, except failed runs. These have their own ticket, because
    other tickets end with the incarnation. If no ticket is open, the worst finding that was not dismissed
    counts. If all were dismissed, the worst counts on its dismissed ticket.
    """
    for ticket in live:
        if ticket.is_open and (matches := own_findings(ticket, findings)):
            return ticket, matches[0], higher_severity(draft_severity, minimum_severity(matches))
    dismissals = {ticket.fingerprint: ticket for ticket in live}
    dismissed_match: tuple[EscalationTicket, Finding, Severity] | None = None
    for finding in findings:
        severity = higher_severity(draft_severity, finding.severity)
        dismissed_ticket = dismissals.get(_make_fingerprint(facts, finding.kind))
        if dismissed_ticket is None:
            return None, finding, severity
        if lifecycle.report(dismissed_ticket, severity=severity, kinds=[finding.kind], now=0.0)[0].is_open:
            return dismissed_ticket, finding, severity
        dismissed_match = dismissed_match or (dismissed_ticket, finding, severity)
    assert dismissed_match is not None, "a report has at least one finding"
    return dismissed_match


def count_report(
    ticket: EscalationTicket, findings: Sequence[Finding], severity: Severity, now: float
) -> tuple[EscalationTicket, TicketChange]:
    """Count a report on the ticket that ``match_ticket`` chose."""
    kinds = kinds_of(own_findings(ticket, findings))
    return lifecycle.report(ticket, severity=severity, kinds=kinds, now=now)


def has_new_trouble(before: EscalationTicket, after: EscalationTicket) -> bool:
    """Return whether the session of a ticket about failed runs has other trouble for the first time."""
    is_about_runs = before.kind is FindingKind.RUNS_FAILED
    return is_about_runs and not before.related_kinds and bool(after.related_kinds)


def own_findings(ticket: EscalationTicket, findings: Sequence[Finding]) -> list[Finding]:
    """
    Return the findings that keep a ticket open. A dismissed ticket covers only its own condition.

    While a worker's provider fails, that causes most of its other findings. A ticket about a shared provider
    therefore covers them, except trouble that no provider causes.
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
    """
    Return whether a worker with a ticket about its provider also has a paging finding that the provider does
    not cause.
    """
    is_shared = ticket.shares_cause and ticket.kind is FindingKind.PROVIDER_FAILURE
    return is_shared and any(map(pages_despite_provider_failure, findings))


def has_current_text(ticket: EscalationTicket, findings: Sequence[Finding]) -> bool:
    """
    Return whether the judge's text of an open ticket still applies: it covers the findings and their
    severity.
    """
    matches = own_findings(ticket, findings)
    if not matches:
        return not has_separate_trouble(ticket, findings)
    kind = ticket.words_kind or ticket.finding_kind or ticket.kind
    severity = ticket.words_severity or ticket.severity
    return kind in kinds_of(matches) and minimum_severity(matches).rank <= severity.rank


def updated_text(ticket: EscalationTicket, finding: Finding, texts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the new text of an open ticket about ``finding`` if the rules wrote both the old and the new text.
    """
    advice = (ticket.judge_reasoning, str(texts["judge_reasoning"]))
    if not ticket.is_open or ticket.words_kind is not finding.kind or not all(map(_is_by_rules, advice)):
        return {}
    return {name: value for name, value in texts.items() if name in _FINDING_TEXT_FIELDS}


_FINDING_TEXT_FIELDS: Final = frozenset(
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
    """Return the ticket that a first report opens. ``storm_id`` is the storm or cause that it shares."""
    is_about_runs = finding.kind is FindingKind.RUNS_FAILED
    kinds = kinds_of(
        [finding for finding in findings if (finding.kind is FindingKind.RUNS_FAILED) is is_about_runs]
    )
    return EscalationTicket.model_validate(
        {
            **dict(facts),
            **texts,
            "ticket_id": ticket_id,
            "severity": severity,
            "kind": finding.kind,
            "fingerprint": _make_fingerprint(facts, finding.kind),
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
    """Return the ticket with the worker's current facts and ``texts``. Its node and graph stay."""
    location = {"graph_id": ticket.graph_id, "node_id": ticket.node_id}
    return ticket.model_copy(update={**dict(facts), **location, **texts})


def apply_findings(
    ticket: EscalationTicket, findings: Sequence[Finding], now: float, *, is_other_open: bool
) -> tuple[EscalationTicket, TicketChange]:
    """
    Apply a worker's findings to one of its live tickets, without the judge.

    A finding that is new, worse or has returned counts as a report. When no finding is left, the hold begins.

    Args:
        findings: Findings that justify a ticket, worst first.
        is_other_open: Whether another ticket of the session is open. It takes the reports, and this dismissed
            ticket only records whether its condition holds.
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
    """Return whether a dismissed ticket is about an earlier incarnation, so that it covers no finding now."""
    incarnation_id = health.vitals.incarnation_id
    return not ticket.is_open and ticket.incarnation_id not in ("", incarnation_id) and bool(incarnation_id)


def _make_fingerprint(facts: WorkerFacts, kind: FindingKind) -> str:
    return fingerprint(facts.agent_id, facts.session_id, facts.node_id, kind)


def minimum_severity(findings: Sequence[Finding]) -> Severity:
    """Return the worst severity of ``findings``, which is the minimum severity of a ticket about them."""
    return max((finding.severity for finding in findings), key=lambda severity: severity.rank)


def higher_severity(first: Severity, second: Severity) -> Severity:
    """Return the worse of two severities."""
    return first if first.rank >= second.rank else second
