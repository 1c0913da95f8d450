"""What a person can do now with a worker or a ticket, by the rules that carry it out."""

from __future__ import annotations

from typing import Final

from queenright.health import ticket_lifecycle
from queenright.health.interventions.permit import ActionRefusedError, permit
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.monitor import WorkerHealth
from queenright.health.tickets import EscalationTicket, TicketStatus
from queenright.server.service import Service

_ON_WORKERS: Final = (ActionKind.NUDGE, ActionKind.ESCALATE, ActionKind.TERMINATE, ActionKind.RECOVER)


def worker_actions(worker: WorkerHealth, target: Target | None = None) -> list[str]:
    """Return what can be done with a worker, or with its incarnation ``target``; see ``permit``."""
    target = target or Target.of(worker.vitals)
    return [kind.value for kind in _ON_WORKERS if _is_permitted(kind, target, worker)]


def ticket_actions(service: Service, ticket: EscalationTicket) -> list[str]:
    """Return what can be done with a ticket, and whether its worker can be terminated."""
    if not ticket.live:
        return []
    found = []
    if ticket_lifecycle.can_be_acknowledged(ticket):
        found.append("acknowledge")
    if ticket.status is TicketStatus.ACKNOWLEDGED:
        found.append("unacknowledge")
    if service.tickets.can_be_resolved(ticket):
        found.append("resolve")
    if ticket_lifecycle.can_be_dismissed(ticket):
        found.append("dismiss")
    worker = service.monitor.get(ticket.agent_id, ticket.session_id)
    target = Target(
        agent_id=ticket.agent_id,
        session_id=ticket.session_id,
        incarnation_id=ticket.incarnation_id,
    )
    if worker is not None and service.remediation.stop_switch.reason is None:
        found += [kind for kind in worker_actions(worker, target) if kind == ActionKind.TERMINATE]
    return found


def _is_permitted(kind: ActionKind, target: Target, worker: WorkerHealth) -> bool:
    try:
        permit(kind, target, worker, stop_reason=None)
    except ActionRefusedError:
        return False
    return True
