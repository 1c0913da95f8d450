"""Attention items: requests, questions, decisions, tickets and incidents that need a person now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from queenright import api
from queenright.alerting.notification_text import current_analysis
from queenright.health.findings import Severity, WorkerKey
from queenright.health.interventions.approval import Approval, describe_requester
from queenright.health.interventions.escalation import Escalation
from queenright.health.interventions.permissions import ANSWERS, PermissionRequest
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.tickets.incidents import Incident, incidents_of
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_lifecycle import can_be_acknowledged
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.agent_runtime import WaitingNode
from queenright.server.service import Service
from queenright.server.views.attention_parts import (
    MAX_LISTED_ITEMS,
    AttentionIncident,
    AttentionPart,
    get_urgency_key,
    make_attention_item,
    merge_attention,
)
from queenright.server.views.possible_actions import list_ticket_actions
from queenright.server.views.worker_rows import describe_reason


def list_attention_items(
    service: Service, *, agent_id: str | None = None, session_id: str | None = None
) -> api.AttentionList:
    """Return the items that need a person now, most urgent first. By default, these are of all workers."""
    return merge_attention([list_attention_part(service, agent_id=agent_id, session_id=session_id)])


def list_attention_part(
    service: Service, *, agent_id: str | None = None, session_id: str | None = None
) -> AttentionPart:
    """Return the attention items of this service, which may be one partition of a cluster."""

    def is_wanted(item: api.AttentionItem) -> bool:
        return agent_id in (None, item.agent_id) and session_id in (None, item.session_id)

    recent_tickets = {ticket.ticket_id: ticket for ticket in service.tickets.recent_tickets()}
    incidents = find_incidents(service, recent_tickets.values(), least_workers=1)
    worker_counts = {
        ticket_id: incident.workers
        for incident in incidents
        if incident.closed_at is None
        for ticket_id in incident.ticket_ids
    }
    decisions = list(_iter_decisions(service))
    listed_ids = {item.ticket_id for item in decisions}
    items = [*_iter_questions(service), *decisions]
    tickets = list[api.AttentionItem]()
    for ticket in service.tickets.open_tickets():
        is_grave = ticket.severity.rank >= Severity.HIGH.rank
        if ticket.status is TicketStatus.INTERVENING and is_grave and ticket.ticket_id not in listed_ids:
            count = worker_counts.get(ticket.ticket_id, 0)
            if count == 0:
                items.append(_make_ticket_item(service, ticket))
            elif count == 1:
                tickets.append(_make_ticket_item(service, ticket))
    wanted_items = sorted((item for item in items if is_wanted(item)), key=get_urgency_key)
    return AttentionPart(
        items=wanted_items[:MAX_LISTED_ITEMS],
        total=len(wanted_items),
        tickets=[ticket for ticket in tickets if is_wanted(ticket)],
        incidents=[
            _make_incident_part(
                incident, [recent_tickets[ticket_id] for ticket_id in incident.ticket_ids], service.clock()
            )
            for incident in incidents
        ],
        has_incident_items=not (agent_id or session_id),
    )


def _iter_questions(service: Service) -> Iterator[api.AttentionItem]:
    """Yield items for permission requests and questions of workers."""
    asking_keys: set[WorkerKey] = set()
    for request in service.permissions.open_requests():
        asking_keys.add(request.target.key)
        yield _make_permission_item(request)
    for worker in service.monitor.workers():
        vitals = worker.vitals
        if (
            vitals.waiting is WaitingReason.USER_INPUT
            and vitals.question
            and vitals.ended_at is None
            and worker.key not in asking_keys
        ):
            yield _make_question_item(worker, _find_waiting_node(service, worker))


def _iter_decisions(service: Service) -> Iterator[api.AttentionItem]:
    """Yield items for decisions. Their tickets are not listed separately."""
    for approval in service.approvals.pending():
        text = _describe_current_reason(service, approval.target, approval.reason)
        yield _make_approval_item(approval, service.tickets.get(approval.ticket_id), text)
    if service.settings.health_monitoring.intervention.escalation.orchestrator == "none":
        for escalation in service.interventions.ledger.pending.values():
            text = _describe_current_reason(service, escalation.target, escalation.reason)
            yield _make_escalation_item(escalation, service.tickets.open_for(*escalation.target.key), text)


def _describe_current_reason(service: Service, target: Target, reason: str) -> str:
    """Return the reason for a decision, followed by the worker's current reason if it differs."""
    worker = service.monitor.get(*target.key)
    if worker is None or worker.vitals.incarnation_id != target.incarnation_id:
        return reason
    current_reason = describe_reason(worker)
    return reason if current_reason in reason else f"{reason}\nNow: {current_reason}"


def find_incidents(
    service: Service, tickets: Iterable[EscalationTicket], *, least_workers: int = 2
) -> list[Incident]:
    """Return the incidents of these tickets, newest first; see `incidents_of`."""
    return incidents_of(tickets, now=service.clock(), least_workers=least_workers)


def _make_permission_item(request: PermissionRequest) -> api.AttentionItem:
    return make_attention_item(
        request.target,
        request.request_id,
        "permission",
        request.question,
        request.asked_at,
        deadline=request.expires_at,
        tool=request.tool,
        options=list(ANSWERS),
    )


def _make_question_item(worker: WorkerHealth, node: WaitingNode | None) -> api.AttentionItem:
    vitals = worker.vitals
    return make_attention_item(
        Target.of(vitals),
        "/".join(worker.key),
        "question",
        vitals.question,
        vitals.waiting_since or vitals.last_activity,
        can_answer=node is not None,
        node_id="" if node is None else node.node_id,
        question_id="" if node is None else node.question_id,
    )


def _find_waiting_node(service: Service, worker: WorkerHealth) -> WaitingNode | None:
    """Return the waiting node of a loaded agent; None if the worker does not run here."""
    slot = service.agents.slots.get(worker.vitals.agent_id)
    nodes = () if slot is None else slot.runtime.list_waiting_nodes()
    return next((node for node in nodes if node.session_id == worker.vitals.session_id), None)


def _make_approval_item(approval: Approval, ticket: EscalationTicket | None, text: str) -> api.AttentionItem:
    requester = describe_requester(approval.asked_by, approval.ordered_by)
    return make_attention_item(
        approval.target,
        approval.approval_id,
        "approval",
        f"The {requester} asks to terminate it",
        approval.created_at,
        severity=ticket and ticket.severity,
        text=text,
        deadline=approval.expires_at,
        ticket_id=approval.ticket_id,
        options=["approve", "deny"],
    )


def _make_escalation_item(
    escalation: Escalation, ticket: EscalationTicket | None, text: str
) -> api.AttentionItem:
    return make_attention_item(
        escalation.target,
        escalation.escalation_id,
        "escalation",
        "Decide how to go on with it",
        escalation.created_at,
        severity=ticket and ticket.severity,
        text=text,
        deadline=escalation.deadline,
        ticket_id=ticket.ticket_id if ticket is not None else "",
        options=list(escalation.options),
    )


def _make_ticket_item(service: Service, ticket: EscalationTicket) -> api.AttentionItem:
    # If the worker was restarted, actions apply to the current process.
    worker = service.monitor.get(ticket.agent_id, ticket.session_id)
    current_incarnation = ticket.incarnation_id if worker is None else worker.vitals.incarnation_id
    actions = list_ticket_actions(service, ticket.model_copy(update={"incarnation_id": current_incarnation}))
    return make_attention_item(
        Target(agent_id=ticket.agent_id, session_id=ticket.session_id, incarnation_id=current_incarnation),
        ticket.ticket_id,
        "ticket",
        ticket.cause,
        ticket.first_seen,
        severity=ticket.severity,
        text=current_analysis(ticket),
        ticket_id=ticket.ticket_id,
        options=[action for action in actions if action in ("acknowledge", "terminate")],
    )


def _make_incident_part(
    incident: Incident, tickets: Sequence[EscalationTicket], now: float
) -> AttentionIncident:
    """Return the part of an incident of these tickets, with the text of its first open ticket."""
    unacknowledged_tickets = (
        ticket for ticket in tickets if ticket.is_open and ticket.acknowledged_at is None
    )
    first_ticket = next(unacknowledged_tickets, None)
    agents: dict[str, float] = {}
    for ticket in tickets:
        agents.setdefault(ticket.agent_id, ticket.first_seen)
    is_handled = any(ticket.is_open or ticket.acknowledged_at for ticket in tickets)
    return AttentionIncident.of(
        incident,
        agents=agents,
        text="" if first_ticket is None else first_ticket.cause,
        text_at=None if first_ticket is None else first_ticket.first_seen,
        is_handled=is_handled,
        # All sessions have ended, but nobody has acknowledged the cause, which still holds.
        can_acknowledge=not is_handled and any(can_be_acknowledged(ticket, now=now) for ticket in tickets),
    )
