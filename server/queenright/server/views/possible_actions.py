"""List the actions that a person can take now on a worker or a ticket. Execution checks the same rules."""

from __future__ import annotations

from typing import Final

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.permit import find_objection
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.recovery.decisions import is_lost
from queenright.health.recovery.starter import NO_RESPAWNER
from queenright.health.tickets import ticket_lifecycle
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.server.service import Service

_WORKER_ACTIONS: Final = (ActionKind.NUDGE, ActionKind.ESCALATE, ActionKind.TERMINATE, ActionKind.RECOVER)


def list_worker_actions(service: Service, worker: WorkerHealth) -> list[str]:
    """Return the actions that are possible on a worker, as values of ``ActionKind``."""
    return [kind.value for kind in _WORKER_ACTIONS if not explain_objection(service, kind, worker)]


def explain_objection(
    service: Service, kind: ActionKind, worker: WorkerHealth, incarnation_id: str | None = None
) -> str:
    """
    Return the reason why an action on a worker is not possible, or "".

    Args:
        incarnation_id: The incarnation to act on; by default the current one.
    """
    if incarnation_id is None:
        incarnation_id = worker.vitals.incarnation_id
    stop_reason = service.remediation.stop_switch.reason
    reason = find_objection(kind, incarnation_id, worker, stop_reason=stop_reason)
    is_recovery = kind is ActionKind.RECOVER
    if reason is not None and not (is_recovery and stop_reason is None and is_lost(worker)):
        return reason
    if is_recovery and not service.remediation.recovery.can_reach(Target.of(worker.vitals)):
        return NO_RESPAWNER
    if kind is ActionKind.ESCALATE:
        return service.interventions.pending_escalation(worker)
    return ""


def list_ticket_actions(service: Service, ticket: EscalationTicket) -> list[str]:
    """Return the actions that are possible on a ticket, including ``terminate`` of its worker."""
    actions = ["acknowledge"] if ticket_lifecycle.can_be_acknowledged(ticket, now=service.clock()) else []
    if not ticket.is_live:
        return actions
    if ticket.status is TicketStatus.ACKNOWLEDGED:
        actions.append("unacknowledge")
    if service.tickets.can_be_resolved(ticket):
        actions.append("resolve")
    if ticket_lifecycle.can_be_dismissed(ticket):
        actions.append("dismiss")
    worker = service.monitor.get(ticket.agent_id, ticket.session_id)
    if worker is not None and not explain_objection(
        service, ActionKind.TERMINATE, worker, ticket.incarnation_id
    ):
        actions.append(ActionKind.TERMINATE)
    return actions
