"""
The monitoring tools: a worker's health, a ticket about it, a notification of the operator.

Judge and queen add their own rules; ``register_worker_monitoring_tools`` adds the plain tools to any graph.
The ticket service validates tickets and decisions of every caller.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from queenright.health.findings import Severity, WorkerKey
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.ticket_service import TicketService
from queenright.health.ticket_transaction import Raised
from queenright.health.tickets import EscalationTicket, TicketError, TicketStatus, parse_draft
from queenright.health.worker_summary import summarise
from queenright.judge.messages import quote_worker
from queenright.judge.rules_model import EMIT, NOTIFY, SUMMARY
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool, ToolError, ToolRegistry

NO_WORKER: WorkerKey = ("", "")


def _reject_path(session_id: str) -> str:
    # The step logs of a session are in a folder of that name.
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
    """The ticket: the object itself, or its JSON as text."""

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


class Workers(Protocol):
    """A source of workers' health."""

    async def find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        """
        Return a worker's health, or None if there is no such worker.

        Without a session, the agent's running session with the newest event; without an agent, that of any.
        """
        ...


class LiveWorkers:
    """The workers of a monitor, from their events."""

    def __init__(self, monitor: HealthMonitor) -> None:
        self._monitor = monitor

    async def find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        """See ``Workers``."""
        if agent_id:
            return self._monitor.get(agent_id, session_id or None)
        workers = [h for h in self._monitor.workers() if session_id in ("", h.vitals.session_id)]
        return max(workers, key=lambda h: (not h.vitals.ended, h.vitals.last_event), default=None)


class Lookup:
    """Shows workers to a model."""

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self.key = NO_WORKER
        """The worker that is shown if the model names none."""

    async def find(self, agent_id: str = "", session_id: str = "") -> WorkerHealth | None:
        """Return the named worker, else the selected one; None if it is unknown, or ended and not named."""
        agent_id = agent_id or self.key[0]
        named = session_id not in ("", "auto")
        if not named:
            session_id = self.key[1] if agent_id == self.key[0] else ""
        health = await self._workers.find(agent_id, session_id)
        if health is not None and health.vitals.ended and not session_id:
            return None
        return health

    async def show(self, arguments: SummaryArguments) -> str:
        """Return the summary of a worker for a model."""
        health = await self.find(arguments.agent_id, arguments.session_id)
        return show_summary(health, self._clock(), arguments.last_n_steps)


def show_summary(health: WorkerHealth | None, now: float, last_n_steps: int) -> str:
    """Return a worker's summary for a model."""
    return quote_worker(None if health is None else summarise(health, now, last_n_steps))


def show_raised(raised: Raised) -> str:
    """Return the result of raising a ticket for a model."""
    ticket = raised.ticket
    return json.dumps(
        {"ticket_id": ticket.ticket_id, "change": raised.change, "severity": ticket.severity.value}
    )


def open_ticket(tickets: TicketService, ticket_id: str, *, about: str | None = None) -> EscalationTicket:
    """
    Return a ticket that is open for a decision.

    Args:
        ticket_id: The id that a model passed.
        about: The only ticket that may be decided now, empty if none; None for any.

    Raises:
        ToolError: There is no such ticket, it is not the one to decide, or it is already decided.
    """
    ticket = tickets.get(ticket_id)
    if ticket is None:
        raise ToolError(f"there is no ticket {ticket_id[:64]!r}")
    if about is not None and ticket_id != about:
        raise ToolError(
            f"this triage is not about ticket {ticket_id!r}; decide on the one in the last message"
        )
    if ticket.status is not TicketStatus.OPEN:
        raise ToolError(f"ticket {ticket_id!r} is {ticket.status.value} already; end with set_output")
    return ticket


def urgency_of(proposed: Severity, ticket: EscalationTicket) -> Severity:
    """Return the urgency of a notification: never below the ticket's severity."""
    return max(proposed, ticket.severity, key=lambda severity: severity.rank)


def register_worker_monitoring_tools(
    registry: ToolRegistry,
    *,
    workers: Workers,
    tickets: TicketService,
    clock: Clock,
    graph_id: str = "queen",
    stream_id: str = "",
) -> None:
    """
    Add the three tools to ``registry``.

    A ticket is about the worker whose summary was shown last, else about the only one with a running session.

    Args:
        workers: ``LiveWorkers`` with a monitor, ``LoggedWorkers`` with step logs only.
        stream_id: The stream in that graph.

    Raises:
        ValueError: The registry already has one of the tools.
    """
    lookup, shown = Lookup(workers, clock), Lookup(workers, clock)

    async def show(arguments: SummaryArguments) -> str:
        health = await lookup.find(arguments.agent_id, arguments.session_id)
        if health is not None:
            shown.key = health.key
        return show_summary(health, clock(), arguments.last_n_steps)

    async def emit(arguments: EmitArguments) -> str:
        health = await shown.find()
        if health is None:
            raise ToolError("there is no worker with an active session; nothing to write a ticket about")
        try:
            return show_raised(await tickets.raise_ticket(health, parse_draft(arguments.ticket_json)))
        except TicketError as error:
            raise ToolError(str(error)) from error

    async def notify(arguments: NotifyArguments) -> str:
        ticket = open_ticket(tickets, arguments.ticket_id)
        urgency = urgency_of(arguments.urgency, ticket)
        try:
            await tickets.intervene(
                ticket.ticket_id, arguments.analysis, urgency.value, graph_id=graph_id, stream_id=stream_id
            )
        except TicketError as error:
            raise ToolError(str(error)) from error
        return "the operator is notified"

    for tool in (summary_tool(show), emit_tool(emit), notify_tool(notify)):
        registry.add(tool)
