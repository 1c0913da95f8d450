"""
The monitoring tools: how a worker is, a ticket about it, a word to the operator.

Judge and queen use them with rules of their own around them; ``register_worker_monitoring_tools`` gives them
as they are to any graph. What may become a ticket, and what may be decided about one, is the ticket service's
to say, whoever calls.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from queenright.health.findings import Severity, WorkerKey
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.summary import summarise
from queenright.health.ticket_service import Raised, TicketService
from queenright.health.tickets import EscalationTicket, TicketError, TicketStatus, parse_draft
from queenright.judge.messages import worker_quoted
from queenright.judge.rules import EMIT, NOTIFY, SUMMARY
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool, ToolError, ToolRegistry

NOBODY: WorkerKey = ("", "")


def _no_path(session_id: str) -> str:
    # A session's id is a folder's name in the step logs.
    if session_id == ".." or any(separator in session_id for separator in "/\\\x00"):
        raise ValueError("a session id holds no path separator and no '..'")
    return session_id


SessionId = Annotated[str, Field(max_length=200), AfterValidator(_no_path)]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SummaryArguments(_Arguments):
    """Which worker."""

    agent_id: str = Field(default="", description="The worker; the one in question if left out.")
    session_id: SessionId = Field(default="auto", description="Its session; `auto` is the latest.")
    last_n_steps: int = Field(default=20, ge=1, le=200, description="How many recent verdicts to show.")


def _as_text(given: object) -> object:
    """Let a model give the object itself; its fields are checked where the ticket is read."""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


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

    ticket_json: Annotated[str, BeforeValidator(_as_text), WithJsonSchema(_TICKET_SCHEMA)]


class NotifyArguments(_Arguments):
    """What the operator is told."""

    ticket_id: str
    analysis: str = Field(
        min_length=10, max_length=2000, description="Two or three sentences for the operator."
    )
    urgency: Severity


def summary_tool(run: Callable[[SummaryArguments], Awaitable[str]]) -> Tool:
    """Return ``get_worker_health_summary``."""
    return Tool(
        SUMMARY,
        "How a worker is now: verdicts, bad steps since the last ACCEPT, stall, findings, evidence.",
        SummaryArguments,
        run,
    )


def emit_tool(run: Callable[[EmitArguments], Awaitable[str]]) -> Tool:
    """Return ``emit_escalation_ticket``."""
    return Tool(EMIT, "Write an escalation ticket about the worker in question.", EmitArguments, run)


def notify_tool(run: Callable[[NotifyArguments], Awaitable[str]]) -> Tool:
    """Return ``notify_operator``."""
    return Tool(NOTIFY, "Tell the operator about the ticket.", NotifyArguments, run)


# -- what they do -------------------------------------------------------------------------------


class Workers(Protocol):
    """Where a worker is looked up."""

    async def find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        """
        Return how a worker is now, or None if there is no such.

        Without a session it is the one that is not over and was last heard of; without an agent
        whoever that is true of.
        """
        ...


class LiveWorkers:
    """Workers as the monitor knows them, from what they tell."""

    def __init__(self, monitor: HealthMonitor) -> None:
        self._monitor = monitor

    async def find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        """See ``Workers``."""
        if agent_id:
            return self._monitor.get(agent_id, session_id or None)
        known = [h for h in self._monitor.workers() if session_id in ("", h.vitals.session_id)]
        return max(known, key=lambda h: (not h.vitals.ended, h.vitals.last_event), default=None)


class Lookup:
    """
    Shows workers to a model, and remembers which one is in question.

    Args:
        workers: Where they are looked up.
        clock: Now.
    """

    def __init__(self, workers: Workers, clock: Clock) -> None:
        self._workers = workers
        self._clock = clock
        self.key = NOBODY
        """The worker in question: looked at when a model names none."""

    async def find(self, agent_id: str = "", session_id: str = "") -> WorkerHealth | None:
        """Return the worker named, else the one in question; None if it is unknown, or over and not named."""
        agent_id = agent_id or self.key[0]
        named = session_id not in ("", "auto")
        if not named:
            session_id = self.key[1] if agent_id == self.key[0] else ""
        health = await self._workers.find(agent_id, session_id)
        if health is not None and health.vitals.ended and not session_id:
            return None
        return health

    async def show(self, given: SummaryArguments) -> str:
        """Return the summary of a worker for a model."""
        health = await self.find(given.agent_id, given.session_id)
        return shown(health, self._clock(), given.last_n_steps)


def shown(health: WorkerHealth | None, now: float, last_n_steps: int) -> str:
    """Return a worker's summary for a model."""
    return worker_quoted(None if health is None else summarise(health, now, last_n_steps))


def written(raised: Raised) -> str:
    """Say what became of a ticket, to whoever wrote it."""
    ticket = raised.ticket
    return json.dumps(
        {"ticket_id": ticket.ticket_id, "change": raised.change, "severity": ticket.severity.value}
    )


def open_ticket(tickets: TicketService, ticket_id: str, *, about: str | None = None) -> EscalationTicket:
    """
    Return a ticket that may still be decided on.

    Args:
        tickets: Keeps the tickets.
        ticket_id: As a model wrote it.
        about: The one ticket that may be decided on now, empty if none; any one if None.

    Raises:
        ToolError: There is none of this id, it is not what this is about, or it has been decided on already.
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


def urgency_of(given: Severity, ticket: EscalationTicket) -> Severity:
    """Return how soon the operator should act: never below the ticket's severity."""
    return max(given, ticket.severity, key=lambda severity: severity.rank)


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

    The worker that a ticket is about is the one whose summary was shown last, else the one found by itself.

    Args:
        registry: The tools of the graph that watches.
        workers: ``LiveWorkers`` where a monitor listens, ``LoggedWorkers`` where there are only step logs.
        tickets: Keeps the tickets, and publishes them.
        clock: Now.
        graph_id: The graph in which the operator can ask back.
        stream_id: And the stream in it.

    Raises:
        ValueError: The registry has one of them already.
    """
    anybody, looked_at = Lookup(workers, clock), Lookup(workers, clock)

    async def show(given: SummaryArguments) -> str:
        health = await anybody.find(given.agent_id, given.session_id)
        if health is not None:
            looked_at.key = health.key
        return shown(health, clock(), given.last_n_steps)

    async def emit(given: EmitArguments) -> str:
        health = await looked_at.find()
        if health is None:
            raise ToolError("there is no worker with an active session; nothing to write a ticket about")
        try:
            return written(await tickets.raise_ticket(health, parse_draft(given.ticket_json)))
        except TicketError as refusal:
            raise ToolError(str(refusal)) from refusal

    async def notify(given: NotifyArguments) -> str:
        ticket = open_ticket(tickets, given.ticket_id)
        urgency = urgency_of(given.urgency, ticket)
        try:
            await tickets.intervene(
                ticket.ticket_id, given.analysis, urgency.value, graph_id=graph_id, stream_id=stream_id
            )
        except TicketError as refusal:
            raise ToolError(str(refusal)) from refusal
        return "the operator is told"

    for tool in (summary_tool(show), emit_tool(emit), notify_tool(notify)):
        registry.add(tool)
