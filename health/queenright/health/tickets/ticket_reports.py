"""
Reports of the judge. Each is checked against its worker, and then changes the worker's ticket.

A report is prepared on the event loop, which owns the workers, and written in the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.tickets import ticket_lifecycle as lifecycle
from queenright.health.tickets import ticket_rules as rules
from queenright.health.tickets import ticket_table as table
from queenright.health.tickets.shared_cause import possible_cause
from queenright.health.tickets.ticket import (
    EscalationTicket,
    TicketDraft,
    TicketRejectedError,
    WorkerFacts,
    mismatches,
)
from queenright.health.tickets.ticket_transaction import TicketReportResult, TicketTransaction
from queenright.instrumentation.redaction import redact

FindGroup = Callable[[WorkerHealth, Finding], str]
"""
Returns the cause that a worker's finding shares with other workers, or the id of a storm, or an empty string.
"""

_TEXT_LIMIT: Final = 1_000
_REASONING_LIMIT: Final = 4_000


@dataclass(frozen=True, slots=True)
class Report:
    """A report of the judge about a worker. ``model`` wrote the draft in ``trace_id`` and ``span_id``."""

    health: WorkerHealth
    draft: TicketDraft
    trace_id: str = ""
    span_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class PreparedReport:
    """A report that has been checked against its worker and can be written."""

    health: WorkerHealth
    severity: Severity
    """The severity of the draft, which the findings may raise."""
    facts: WorkerFacts
    findings: Sequence[Finding]
    groups: Mapping[FindingKind, str]
    """The storm or cause that each finding shares with other workers; empty if none."""
    texts: Mapping[str, Any]
    at: float

    @property
    def shared_causes(self) -> set[str]:
        """The causes that the worker shares with other workers, without storms."""
        return {group for group in self.groups.values() if ":" in group}

    def write(self, tx: TicketTransaction) -> TicketReportResult:
        """Open a ticket about the worker, or count the report on its open ticket."""
        live_tickets = table.live_tickets_of_worker(tx.conn, self.facts.agent_id, self.facts.session_id)
        ticket, finding, severity = rules.match_ticket(live_tickets, self.findings, self.severity, self.facts)
        texts = {**self.texts, "words_kind": finding.kind, "words_severity": severity}
        if ticket is None:
            self._close_shared(tx, live_tickets)
            texts.update(rules.finding_fields(self.health, None, [finding]))
            ticket = rules.new_ticket(
                tx.ids(),
                self.facts,
                finding,
                self.findings,
                severity,
                texts,
                self.at,
                storm_id=self.groups[finding.kind],
            )
            return tx.write_report(ticket, "opened")
        updated_ticket, change = rules.count_report(ticket, self.findings, severity, self.at)
        texts.update(rules.finding_fields(self.health, updated_ticket, self.findings))
        # A count updates only numbers. It also updates a text that the rules wrote, because that contains
        # numbers.
        if change == "counted" and ticket.is_open and not rules.has_current_text(ticket, self.findings):
            change = "renewed"
        current_texts = rules.updated_text(ticket, self.findings[0], texts) if change == "counted" else texts
        result = tx.write_report(rules.with_current_facts(updated_ticket, self.facts, current_texts), change)
        tx.notify_new_trouble(ticket, result.ticket, self.at)
        return result

    def _close_shared(self, tx: TicketTransaction, live_tickets: Iterable[EscalationTicket]) -> None:
        """
        Close the open ticket about a shared cause that has ended, because a session has only one open ticket.
        """
        for other in live_tickets:
            if other.is_open and not rules.own_findings(other, self.findings):
                closed_ticket = lifecycle.settle(lifecycle.clear(other, now=self.at), now=self.at, hold=0.0)
                tx.close(closed_ticket.model_copy(update={"closed_reason": "the shared cause is over"}))


def prepare_report(report: Report, find_group: FindGroup, now: float) -> PreparedReport:
    """
    Check a report against its worker.

    Raises:
        TicketRejectedError: The worker has no finding that justifies a ticket, or the draft is about
            another worker.
    """
    health, draft = report.health, report.draft
    facts = rules.worker_facts(health, now)
    findings = rules.reasons(health)
    if errors := rules.objections(health, findings) or mismatches(draft, facts):
        raise TicketRejectedError(*errors)
    return PreparedReport(
        health=health,
        severity=draft.severity,
        facts=facts,
        findings=findings,
        groups={finding.kind: find_group(health, finding) for finding in findings},
        texts={
            "cause": redact(draft.cause, _TEXT_LIMIT),
            "judge_reasoning": redact(draft.judge_reasoning, _REASONING_LIMIT),
            "suggested_action": redact(draft.suggested_action, _TEXT_LIMIT),
            "evidence_snippet": redact(draft.evidence_snippet or findings[0].evidence),
            "trace_id": report.trace_id,
            "span_id": report.span_id,
            "judge_model": report.model,
        },
        at=now,
    )


def find_joining(
    tickets: Iterable[EscalationTicket],
    causes: Collection[str],
    find_worker: Callable[[str, str], WorkerHealth | None],
    find_group: FindGroup,
) -> dict[str, str]:
    """
    Return the cause, by ticket id, of the open tickets without a group whose worker now shares one of
    ``causes``.
    """
    joining = {}
    for ticket in tickets if causes else ():
        if not ticket.is_open or ticket.storm_id:
            continue
        health = find_worker(ticket.agent_id, ticket.session_id)
        findings = () if health is None else health.findings
        finding = next((finding for finding in findings if finding.kind is ticket.kind), None)
        # This condition comes first because it is cheap: it does not read the fleet.
        if health is None or finding is None or (cause := possible_cause(health, finding)) not in causes:
            continue
        reasons = rules.reasons(health)
        member = ticket.model_copy(update={"storm_id": cause})
        if (
            finding in reasons
            and find_group(health, finding) == cause
            and not rules.has_separate_trouble(member, reasons)
        ):
            joining[ticket.ticket_id] = cause
    return joining


def join_groups(tx: TicketTransaction, joining: Mapping[str, str], now: float) -> None:
    """
    Let tickets join a cause that ``find_joining`` returned, or a storm: ``joining`` has the group by ticket
    id.
    """
    for ticket_id, group in joining.items():
        ticket = tx.find(ticket_id)
        if ticket is None or not ticket.is_open or ticket.storm_id:
            continue
        member = ticket.model_copy(update={"storm_id": group, "updated_at": now})
        tx.update(member)
        tx.notify(member)
