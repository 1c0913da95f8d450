"""Requests to the operator: decisions and actions that need a person. Each is sent once, on the ticket."""

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

_NOT_STOPPED: Final = {
    InterventionOutcome.UNREACHABLE: "it could not be reached",
    InterventionOutcome.UNCONFIRMED: "it was not confirmed that it has stopped",
    InterventionOutcome.FAILED: "that failed",
    InterventionOutcome.EXPIRED: "it did not fetch the instruction in time",
}


def find_requests(
    conn: Connection, ticket: EscalationTicket, settings: InterventionSettings
) -> list[OperatorRequest]:
    """Return the requests to the operator in a ticket's notification."""
    who = (ticket.agent_id, ticket.session_id)
    approval = latest_about(conn, *who)
    requests = [find_request(conn, *who, settings, approval)]
    if approval is not None and approval.is_pending and approval.ticket_id == ticket.ticket_id:
        requests.append(_approval(approval))
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
            return _decision(question, settings)
    is_left = ladder is not None and ladder.level is Level.HUMAN
    if not is_left and approval is None:
        return None
    last = next(iter(_terminations(conn, agent_id, session_id)), None)
    is_approved = (
        approval is not None and last is not None and approval.intervention_id == last.intervention_id
    )
    if last is not None and last.outcome in _NOT_STOPPED and (is_approved or is_left):
        return _not_stopped(last)
    if ladder is not None and is_left and not settings.termination.automatic and last is None:
        return _undecided_request(ladder)
    return None


def _terminations(conn: Connection, agent_id: str, session_id: str) -> list[Intervention]:
    terminations = intervention_table.newest(conn, 20, agent_id=agent_id, kind=ActionKind.TERMINATE)
    return [
        request
        for request in terminations
        if request.session_id == session_id and request.outcome is not InterventionOutcome.REFUSED
    ]


def _approval(approval: Approval) -> OperatorRequest:
    # A model may have written the reason; the command next to it is from Queenright.
    approval = approval.model_copy(update={"reason": sanitize_line(approval.reason, 500)})
    return OperatorRequest(
        title=f"Approve or deny its termination until {wording.clock_time(approval.expires_at)}.",
        text=call_to_action(approval),
        since=approval.created_at,
    )


def _decision(question: Escalation, settings: InterventionSettings) -> OperatorRequest:
    until = wording.clock_time(question.deadline)
    after = "the worker is terminated" if settings.termination.automatic else "nothing happens to the worker"
    return OperatorRequest(
        title=f"Decide until {until}: more time, hand off or terminate.",
        text=f"Decide until {until} how to continue with this worker: "
        f"queenright escalations decide {question.escalation_id} more_time (or hand_off, or terminate). "
        f"Without an answer, {after}.",
        since=question.created_at,
    )


def _not_stopped(intervention: Intervention) -> OperatorRequest:
    detail = sanitize_line(intervention.detail, 300)
    why = f"{_NOT_STOPPED[intervention.outcome]} ({detail})" if detail else _NOT_STOPPED[intervention.outcome]
    return OperatorRequest(
        title="It could not be terminated: end its process yourself.",
        text=f"Terminating this worker failed: {why}. It may still be running: end its process yourself. "
        f"To continue its work afterwards: queenright recover {shlex.quote(intervention.session_id)}",
        since=intervention.finished_at or intervention.created_at,
    )


def _undecided_request(ladder: Ladder) -> OperatorRequest:
    who = shlex.join([ladder.agent_id, "--session", ladder.session_id])
    return OperatorRequest(
        title="No decision was made in time: terminate it yourself, or leave it.",
        text="No decision about this worker was made in time, and it is not terminated automatically: "
        f'queenright terminate {who} --reason "..."',
        since=ladder.until or 0.0,
    )


@dataclass(kw_only=True, eq=False)
class OperatorRequests:
    """Adds requests to the operator to tickets. Belongs to one event loop."""

    store: Store
    tickets: TicketService
    monitor: HealthMonitor
    ledger: InterventionLedger
    settings: InterventionSettings

    async def load(self) -> None:
        """Send the requests that a restart interrupted. Requests that were sent are not sent again."""
        for key, ladder in list(self.ledger.ladders.items()):
            if ladder.level in (Level.ESCALATED, Level.HUMAN):
                await self._send(key)
        pending = await self.store.read(lambda conn: approval_table.newest(conn, _MAX_REQUESTS, is_open=True))
        for approval in pending:
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
        """Ensure that the worker has a ticket that pages, because only a person can act now."""
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
