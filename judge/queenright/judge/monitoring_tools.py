"""
The monitoring tools of the judge and the queen. They read a worker's health, open a ticket, or notify the
operator.

The judge and the queen add their own checks. The ticket service validates the tickets and decisions of every
caller.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from queenright.health.findings import Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_transaction import TicketReportResult
from queenright.judge.messages import quote_worker
from queenright.judge.rules_model import EMIT, NOTIFY, SUMMARY
from queenright.runtime.tooling.tools import Tool, ToolError


def _reject_path(session_id: str) -> str:
    # The session id is also the name of the folder with the session's step logs.
    if session_id == ".." or any(separator in session_id for separator in "/\\\x00"):
        raise ValueError("a session id must not contain a path separator or '..'")
    return session_id


SessionId = Annotated[str, Field(max_length=200), AfterValidator(_reject_path)]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SummaryArguments(_Arguments):
    """The worker to show."""

    agent_id: str = Field(default="", description="The worker; the one in question if left out.")
    session_id: SessionId = Field(default="auto", description="Its session; `auto` is the latest.")
    last_n_steps: int = Field(default=20, ge=1, le=200, description="How many recent verdicts to show.")


_TICKET_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "The ticket; what else it holds is filled in for you.",
    "properties": {
        "severity": {"type": "string", "enum": [severity.value for severity in Severity]},
        "cause": {
            "type": "string",
            "description": "One sentence: which worker, what, how often, since when.",
        },
        "judge_reasoning": {"type": "string", "description": "Why you escalate, with the numbers."},
        "suggested_action": {"type": "string", "description": "One thing to do first."},
        "evidence_snippet": {"type": "string", "description": "At most 500 characters, from the summary."},
    },
    "required": ["severity", "cause", "judge_reasoning", "suggested_action", "evidence_snippet"],
    "additionalProperties": False,
}


class EmitArguments(_Arguments):
    """The ticket, as a JSON object or as its text."""

    ticket_json: Annotated[Any, WithJsonSchema(_TICKET_SCHEMA)]


class NotifyArguments(_Arguments):
    """The notification of the operator."""

    ticket_id: str
    analysis: str = Field(
        min_length=10, max_length=2000, description="Two or three sentences for the operator."
    )
    urgency: Severity


def summary_tool(run: Callable[..., Awaitable[str]], context: tuple[str, ...] = ()) -> Tool:
    """Return ``get_worker_health_summary``."""
    return Tool(
        SUMMARY,
        "How a worker is now: verdicts, bad steps since the last ACCEPT, stall, findings, evidence.",
        SummaryArguments,
        run,
        context=context,
    )


def emit_tool(run: Callable[[EmitArguments], Awaitable[str]]) -> Tool:
    """Return ``emit_escalation_ticket``."""
    return Tool(EMIT, "Write an escalation ticket about the worker in question.", EmitArguments, run)


def notify_tool(run: Callable[[NotifyArguments], Awaitable[str]]) -> Tool:
    """Return ``notify_operator``."""
    return Tool(NOTIFY, "Tell the operator about the ticket.", NotifyArguments, run)


def show_summary(health: WorkerHealth | None, now: float, last_n_steps: int) -> str:
    """Return a worker's summary as text for a model."""
    return quote_worker(None if health is None else summarise(health, now, last_n_steps))


def show_report_result(result: TicketReportResult) -> str:
    """Return the result of raising a ticket as text for a model."""
    ticket = result.ticket
    return json.dumps(
        {"ticket_id": ticket.ticket_id, "change": result.change, "severity": ticket.severity.value}
    )


def open_ticket(tickets: TicketService, ticket_id: str, *, about: str) -> EscalationTicket:
    """
    Return a ticket that may be decided.

    Args:
        ticket_id: The id that a model passed.
        about: The id of the only ticket that may be decided now; empty if there is none.

    Raises:
        ToolError: There is no such ticket, it must not be decided now, or it is already decided.
    """
    ticket = tickets.get(ticket_id)
    if ticket is None:
        raise ToolError(f"there is no ticket {ticket_id[:64]!r}")
    if ticket_id != about:
        raise ToolError(
            f"this triage is not about ticket {ticket_id!r}; decide on the one in the last message"
        )
    if ticket.status is not TicketStatus.OPEN:
        raise ToolError(f"ticket {ticket_id!r} is {ticket.status.value} already; end with set_output")
    return ticket


def raise_to_severity(draft: Severity, ticket: EscalationTicket) -> Severity:
    """Return the urgency of a notification, which is at least the ticket's severity."""
    return max(draft, ticket.severity, key=lambda severity: severity.rank)
