"""What the queen is shown about a ticket, besides the worker's health."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from queenright.health.interventions.record import Intervention
from queenright.health.tickets import EscalationTicket, WorkerFacts
from queenright.judge.wording import one_line

_MAX_INTERVENTIONS: Final = 10
_MAX_RELATED: Final = 6
_TEXT_LIMIT: Final = 200

# Of no use in an answer to a person, or repeated elsewhere in the case.
_OMITTED: Final = {
    "created_at",
    "fingerprint",
    "incarnation_id",
    "worker_trace_id",
    "worker_span_id",
    "trace_id",
    "span_id",
    "notified_severity",
}


def case_of(
    worker: EscalationTicket | WorkerFacts,
    interventions: Sequence[Intervention],
    others: Sequence[EscalationTicket],
) -> dict[str, Any]:
    """
    Return a ticket's case as JSON values.

    Args:
        worker: The ticket; without one, the worker that it would name.
        interventions: Interventions on the agent's workers, newest first.
        others: Other tickets, about the same agent or of the same kind.
    """
    fields = worker.model_dump(mode="json", exclude=_OMITTED)
    on_worker = [one for one in interventions if one.session_id == worker.worker_session_id]
    related = [one for one in others if one.ticket_id != fields.get("ticket_id")]
    return {
        "ticket": fields,
        "done_to_the_worker": [_intervention(one) for one in on_worker[:_MAX_INTERVENTIONS]],
        "related_tickets": [_related_ticket(one) for one in related[:_MAX_RELATED]],
    }


def _intervention(one: Intervention) -> dict[str, Any]:
    return {
        "at": one.created_at,
        "kind": one.kind.value,
        "outcome": one.outcome.value,
        "by": one.by,
        "reason": one_line(one.reason, _TEXT_LIMIT),
        "message": one_line(one.message, _TEXT_LIMIT),
        "detail": one_line(one.detail, _TEXT_LIMIT),
    }


def _related_ticket(one: EscalationTicket) -> dict[str, Any]:
    return {
        "ticket_id": one.ticket_id,
        "agent_id": one.worker_agent_id,
        "session_id": one.worker_session_id,
        "kind": one.kind.value,
        "severity": one.severity.value,
        "status": one.status.value,
        "first_seen": one.first_seen,
        "closed_at": one.closed_at,
        "closed_reason": one_line(one.closed_reason, _TEXT_LIMIT),
        "storm_id": one.storm_id,
    }
