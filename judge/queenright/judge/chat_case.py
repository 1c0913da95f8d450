"""The case of a ticket, for the queen: the ticket, interventions and related tickets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from queenright.health.interventions.intervention import Intervention
from queenright.health.tickets.ticket import EscalationTicket, WorkerFacts
from queenright.judge.wording import one_line

_MAX_INTERVENTIONS: Final = 10
_MAX_RELATED: Final = 6
_TEXT_LIMIT: Final = 200

# Fields that are not useful in an answer to a person, or that are repeated elsewhere in the case.
_EXCLUDED_FIELDS: Final = {
    "created_at",
    "fingerprint",
    "incarnation_id",
    "worker_trace_id",
    "worker_span_id",
    "trace_id",
    "span_id",
    "notified_severity",
}
_RELATED_FIELDS: Final = {
    "ticket_id",
    "agent_id",
    "session_id",
    "storm_id",
    "kind",
    "severity",
    "status",
    "first_seen",
    "closed_at",
}


def build_case(
    worker: EscalationTicket | WorkerFacts,
    interventions: Sequence[Intervention],
    others: Sequence[EscalationTicket],
) -> dict[str, Any]:
    """
    Return a ticket's case as JSON values.

    Args:
        worker: The ticket; without a ticket, the facts about the worker.
        interventions: Interventions on the agent's workers, newest first.
        others: Other tickets about the same agent or of the same kind.
    """
    fields = worker.model_dump(mode="json", exclude=_EXCLUDED_FIELDS)
    on_worker = [action for action in interventions if action.session_id == worker.session_id]
    related_tickets = [other for other in others if other.ticket_id != fields.get("ticket_id")]
    return {
        "ticket": fields,
        "done_to_the_worker": [
            _build_intervention(intervention) for intervention in on_worker[:_MAX_INTERVENTIONS]
        ],
        "related_tickets": [_build_related_ticket(ticket) for ticket in related_tickets[:_MAX_RELATED]],
    }


def _build_intervention(intervention: Intervention) -> dict[str, Any]:
    return {
        "at": intervention.created_at,
        "kind": intervention.kind.value,
        "outcome": intervention.outcome.value,
        "by": intervention.by,
        "reason": one_line(intervention.reason, _TEXT_LIMIT),
        "message": one_line(intervention.message, _TEXT_LIMIT),
        "detail": one_line(intervention.detail, _TEXT_LIMIT),
    }


def _build_related_ticket(ticket: EscalationTicket) -> dict[str, Any]:
    reason = one_line(ticket.closed_reason, _TEXT_LIMIT)
    return ticket.model_dump(mode="json", include=_RELATED_FIELDS) | {"closed_reason": reason}
