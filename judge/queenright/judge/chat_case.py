"""What the queen is told when the operator asks about a ticket: all that is known of it, and the question."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from queenright.health.interventions.record import Intervention
from queenright.health.summary import no_active_session
from queenright.health.tickets import EscalationTicket
from queenright.judge.quoting import quote, unquote
from queenright.judge.wording import one_line

_DONE: Final = 10
_RELATED: Final = 6
_LINE: Final = 200

# Of no use to who answers a person, or said elsewhere in the case.
_LEFT_OUT: Final = {
    "created_at",
    "fingerprint",
    "incarnation_id",
    "worker_trace_id",
    "worker_span_id",
    "trace_id",
    "span_id",
    "notified_severity",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What somebody asked, as it was written down."""

    id: str
    ticket_id: str
    at: float
    by: str
    text: str
    act: bool = False
    """Whether whoever asked said that it is an order, in whatever words."""


def case_of(
    ticket: EscalationTicket, done: Sequence[Intervention], others: Sequence[EscalationTicket]
) -> dict[str, Any]:
    """
    Return as JSON values what is known beside the worker's own health.

    Args:
        ticket: All about it, and what was decided.
        done: What was done to workers of this name, newest first.
        others: Other tickets, of this worker or of its kind.
    """
    whole = ticket.model_dump(mode="json")
    mine = [one for one in done if one.session_id == ticket.worker_session_id]
    return {
        "ticket": {key: value for key, value in whole.items() if key not in _LEFT_OUT},
        "done_to_the_worker": [_done(one) for one in mine[:_DONE]],
        "related_tickets": [_related(one) for one in others if one.ticket_id != ticket.ticket_id][:_RELATED],
    }


def question_message(
    question: Question,
    case: Mapping[str, Any],
    summary: Mapping[str, Any] | None,
    *,
    may: Iterable[str] = (),
) -> str:
    """
    Return the queen's message.

    Args:
        question: What is asked.
        case: What is known beside the worker's health.
        summary: The worker now; None if it is not known.
        may: The tools that the question orders her to use.
    """
    when = datetime.fromtimestamp(question.at, UTC).isoformat(timespec="seconds")
    asked = {
        "question_id": question.id,
        "ticket_id": question.ticket_id,
        "by": question.by,
        "at": question.at,
        "message": question.text,
        "may": list(may),
    }
    return "\n".join(
        [
            f"The operator asks about a ticket, at {when}.",
            quote("case", case),
            quote("worker", no_active_session() if summary is None else summary),
            quote("question", asked),
        ]
    )


def question_id_in(message: object) -> str:
    """Return the id of the question that a message holds; empty if it holds none."""
    asked = unquote("question", message) if isinstance(message, str) else None
    return "" if asked is None else str(asked.get("question_id") or "")


def _done(one: Intervention) -> dict[str, Any]:
    return {
        "at": one.created_at,
        "kind": one.kind.value,
        "outcome": one.outcome.value,
        "by": one.by,
        "reason": one_line(one.reason, _LINE),
        "message": one_line(one.message, _LINE),
        "detail": one_line(one.detail, _LINE),
    }


def _related(one: EscalationTicket) -> dict[str, Any]:
    return {
        "ticket_id": one.ticket_id,
        "agent_id": one.worker_agent_id,
        "session_id": one.worker_session_id,
        "kind": one.kind.value,
        "severity": one.severity.value,
        "status": one.status.value,
        "first_seen": one.first_seen,
        "closed_at": one.closed_at,
        "closed_reason": one_line(one.closed_reason, _LINE),
        "storm_id": one.storm_id,
    }
