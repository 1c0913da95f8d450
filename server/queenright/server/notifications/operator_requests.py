"""Requests to the operator for decisions and actions. Each is sent once, in the ticket's notification."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from queenright.alerting.alert import OperatorRequest
from queenright.alerting.model_text import sanitize_line
from queenright.health.action_kind import ActionKind
from queenright.health.findings import Severity, WorkerKey
from queenright.health.interventions.approval import (
    Approval,
    approval_table,
    call_to_action,
    latest_about,
)
from queenright.health.interventions.escalation import Escalation, EscalationStatus, escalation_table
from queenright.health.interventions.intervention import (
    Intervention,
    InterventionOutcome,
    find_ladder,
    intervention_table,
)
from queenright.health.interventions.ladder import Ladder, Level
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import InterventionSettings
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import (
    EVIDENCE_LIMIT,
    EscalationTicket,
    TicketDraft,
    TicketRejectedError,
    TicketStatus,
)
from queenright.health.tickets.ticket_rules import reasons
from queenright.instrumentation.redaction import redact
from queenright.judge import wording
from queenright.runtime.events import AgentEvent, EventType

_log = logging.getLogger(__name__)

REQUEST_EVENTS: Final = frozenset(
    {
        EventType.ESCALATION_TRIGGERED,
        EventType.ESCALATION_DECIDED,
        EventType.INTERVENTION_RECORDED,
        EventType.TERMINATION_REQUESTED,
    }
)
"""Events that may cause a request to the operator."""

_MAX_REQUESTS: Final = 1_000

_FAILURE_TEXTS: Final = {
    InterventionOutcome.UNREACHABLE: "it could not be reached",
    InterventionOutcome.UNCONFIRMED: "it was not confirmed that it has stopped",
    InterventionOutcome.FAILED: "the attempt failed",
    InterventionOutcome.EXPIRED: "it did not fetch the instruction in time",
}


def find_requests(
    conn: Connection, ticket: EscalationTicket, settings: InterventionSettings
) -> list[OperatorRequest]:
    """Return the requests to the operator in a ticket's notification."""
    worker_key = (ticket.agent_id, ticket.session_id)
    approval = latest_about(conn, *worker_key)
    requests = [find_request(conn, *worker_key, settings, approval)]
    if approval is not None and approval.is_pending and approval.ticket_id == ticket.ticket_id:
        requests.append(_describe_approval(approval))
    return [request for request in requests if request is not None]


def find_request(
    conn: Connection,
    agent_id: str,
    session_id: str,
    settings: InterventionSettings,
    approval: Approval | None,
) -> OperatorRequest | None:
    """
    Return the decision or action that a session needs from a person; None if it needs none.

    ``approval`` is the latest approval request for the session.
    """
    ladder = find_ladder(conn, (agent_id, session_id))
    if ladder is not None and ladder.level is Level.ESCALATED and settings.escalation.orchestrator == "none":
        question = escalation_table.find(conn, ladder.escalation_id)
        if question is not None and question.status is EscalationStatus.PENDING:
            return _describe_decision(question, settings)
    is_left_to_operator = ladder is not None and ladder.level is Level.HUMAN
    if not is_left_to_operator and approval is None:
        return None
    last_termination = next(iter(_list_terminations(conn, agent_id, session_id)), None)
    is_approved = (
        approval is not None
        and last_termination is not None
        and approval.intervention_id == last_termination.intervention_id
    )
    if (
        last_termination is not None
        and last_termination.outcome in _FAILURE_TEXTS
        and (is_approved or is_left_to_operator)
    ):
        return _describe_failed_termination(last_termination)
    if (
        ladder is not None
        and is_left_to_operator
        and not settings.termination.automatic
        and last_termination is None
    ):
        return _describe_missed_decision(ladder)
    return None


def _list_terminations(conn: Connection, agent_id: str, session_id: str) -> list[Intervention]:
    terminations = intervention_table.newest(conn, 20, agent_id=agent_id, kind=ActionKind.TERMINATE)
    return [
        request
        for request in terminations
        if request.session_id == session_id and request.outcome is not InterventionOutcome.REFUSED
    ]


def _describe_approval(approval: Approval) -> OperatorRequest:
    # A model may have written the reason; the command next to it is from Queenright.
    approval = approval.model_copy(update={"reason": sanitize_line(approval.reason, 500)})
    return OperatorRequest(
        title=f"Approve or deny its termination until {wording.clock_time(approval.expires_at)}.",
        text=call_to_action(approval),
        since=approval.created_at,
    )


def _describe_decision(question: Escalation, settings: InterventionSettings) -> OperatorRequest:
    deadline = wording.clock_time(question.deadline)
    consequence = (
        "the worker is terminated" if settings.termination.automatic else "nothing happens to the worker"
    )
    return OperatorRequest(
        title=f"Decide until {deadline}: more time, hand off or terminate.",
        text=f"Decide until {deadline} how to continue with this worker: "
        f"queenright escalations decide {question.escalation_id} more_time (or hand_off, or terminate). "
        f"Without an answer, {consequence}.",
        since=question.created_at,
    )


def _describe_failed_termination(intervention: Intervention) -> OperatorRequest:
    detail = sanitize_line(intervention.detail, 300)
    reason = (
        f"{_FAILURE_TEXTS[intervention.outcome]} ({detail})"
        if detail
        else _FAILURE_TEXTS[intervention.outcome]
    )
    return OperatorRequest(
        title="It could not be terminated: end its process yourself.",
        text=f"Terminating this worker failed: {reason}. It may still be running: end its process yourself. "
        f"To continue its work afterwards: queenright recover {shlex.quote(intervention.session_id)}",
        since=intervention.finished_at or intervention.created_at,
    )


def _describe_missed_decision(ladder: Ladder) -> OperatorRequest:
    worker_arguments = shlex.join([ladder.agent_id, "--session", ladder.session_id])
    return OperatorRequest(
        title="No decision was made in time: terminate it yourself, or leave it.",
        text="No decision about this worker was made in time, and it is not terminated automatically: "
        f'queenright terminate {worker_arguments} --reason "..."',
        since=ladder.until or 0.0,
    )


@dataclass(kw_only=True, eq=False)
class OperatorRequests:
    """Adds requests to the operator to tickets. An instance belongs to one event loop."""

    store: Store
    tickets: TicketService
    monitor: HealthMonitor
    ledger: InterventionLedger
    settings: InterventionSettings

    async def load(self) -> None:
        """Send the requests that a restart interrupted. Those that were already sent are not repeated."""
        for key, ladder in list(self.ledger.ladders.items()):
            if ladder.level in (Level.ESCALATED, Level.HUMAN):
                await self._send(key)
        pending_approvals = await self.store.read(
            lambda conn: approval_table.newest(conn, _MAX_REQUESTS, is_open=True)
        )
        for approval in pending_approvals:
            if approval.is_pending:
                await self.tickets.request_attention(approval.ticket_id, since=approval.created_at)

    async def note_change(self, event: AgentEvent) -> None:
        """Send the request that an event requires, if any."""
        if event.type is EventType.TERMINATION_REQUESTED:
            await self.tickets.request_attention(str(event.data["ticket_id"]), since=event.time)
            return
        kind = event.data.get("kind", ActionKind.TERMINATE.value)
        if kind != ActionKind.TERMINATE.value:
            return
        await self._send((event.agent_id, event.session_id))

    async def _send(self, key: WorkerKey) -> None:
        request = await self.store.read(
            lambda conn: find_request(conn, *key, self.settings, latest_about(conn, *key))
        )
        worker = self.monitor.get(*key)
        if request is None or worker is None or worker.vitals.has_ended:
            return
        try:
            await self._ensure_paging_ticket(worker)
        except TicketRejectedError as error:
            ticket = self.tickets.open_for(*key)
            if ticket is None:
                _log.warning("%r: %s (no ticket can carry this request: %s)", key[0], request.text, error)
                return
        ticket = self.tickets.open_for(*key)
        if ticket is None:
            return
        if ticket.status is TicketStatus.OPEN:
            await self.tickets.intervene(ticket.ticket_id, request.text, "high", by="ladder")
        else:
            await self.tickets.request_attention(ticket.ticket_id, since=request.since)

    async def _ensure_paging_ticket(self, worker: WorkerHealth) -> None:
        """Ensure that the worker has a ticket of severity high or critical, because a person must act."""
        ticket = self.tickets.open_for(*worker.key)
        if ticket is not None and ticket.severity.rank >= Severity.HIGH.rank:
            return
        signals = reasons(worker)
        evidence = signals[0].evidence if signals else worker.reason
        draft = TicketDraft(
            severity=Severity.HIGH,
            cause=redact(evidence, 1000) or "it makes no progress",
            judge_reasoning="Automatic interventions did not help: a person has to decide.",
            suggested_action=wording.advice(signals[0].kind, *worker.key)
            if signals
            else "Check the worker, and decide.",
            evidence_snippet=redact(worker.vitals.evidence, EVIDENCE_LIMIT),
        )
        await self.tickets.raise_ticket(worker, draft)
