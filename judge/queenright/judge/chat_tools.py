"""What the queen can look at while she talks with an operator, and do about the ticket in question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from queenright.health.monitor import HealthMonitor
from queenright.health.ticket_service import TicketService
from queenright.health.tickets import EscalationTicket, TicketError
from queenright.judge.chat_case import Question
from queenright.judge.chat_rules import ACKNOWLEDGE
from queenright.judge.hands import LONGEST_REASON, REQUEST_TERMINATION, Hands, acting_tools
from queenright.judge.monitoring_tools import SummaryArguments, shown, summary_tool
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool, ToolError

_BY_WHOM: Final = "It is approved or denied with `queenright approvals`, and not in this chat."


class AcknowledgeArguments(BaseModel):
    """Which ticket the operator has in hand."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str


class ChatTools:
    """
    The tools of the chat. Whose question it is, and about which ticket, is known by the session of the call.

    Args:
        tickets: Keeps the tickets.
        monitor: Knows how workers are now.
        clock: Now.
        hands: Act on a worker; without, nothing does.
    """

    def __init__(
        self, *, tickets: TicketService, monitor: HealthMonitor, clock: Clock, hands: Hands | None
    ) -> None:
        self._tickets = tickets
        self._monitor = monitor
        self._clock = clock
        self._about: dict[str, tuple[EscalationTicket, Question]] = {}
        acting = [] if hands is None else acting_tools(hands, self._open_ticket)
        self.all: Sequence[Tool] = [
            replace(summary_tool(_nothing), run=self._show, context=("session_id",)),
            *(self._held_to_its_ticket(tool) for tool in acting),
            Tool(
                ACKNOWLEDGE,
                "Note that the operator has the ticket in hand.",
                AcknowledgeArguments,
                self._acknowledge,
                context=("session_id",),
            ),
        ]
        """All of them."""

    @contextmanager
    def talking(self, session_id: str, ticket: EscalationTicket, question: Question) -> Iterator[None]:
        """Say what is talked about in a session, for as long as it is."""
        self._about[session_id] = ticket, question
        try:
            yield
        finally:
            del self._about[session_id]

    async def _show(self, given: SummaryArguments, *, session_id: str) -> str:
        ticket, _ = self._talked_about(session_id)
        agent_id = given.agent_id or ticket.worker_agent_id
        wanted = None if given.session_id == "auto" else given.session_id
        if wanted is None and agent_id == ticket.worker_agent_id:
            wanted = ticket.worker_session_id
        return shown(self._monitor.get(agent_id, wanted), self._clock(), given.last_n_steps)

    async def _acknowledge(self, given: AcknowledgeArguments, *, session_id: str) -> str:
        ticket, question = self._its_own(session_id, given.ticket_id)
        try:
            await self._tickets.acknowledge(ticket.ticket_id, by=question.by)
        except TicketError as refused:
            raise ToolError(str(refused)) from refused
        return f"Noted: {question.by} has it in hand."

    def _held_to_its_ticket(self, tool: Tool) -> Tool:
        """Return a tool that acts, for the ticket that is talked about and no other."""

        async def run(given: Any, *, session_id: str) -> Any:
            _, question = self._its_own(session_id, given.ticket_id)
            if tool.name == REQUEST_TERMINATION:
                given = given.model_copy(update={"reason": f"{question.by}: {given.reason}"[:LONGEST_REASON]})
            answer = str(await tool.run(given))
            return f"{answer} {_BY_WHOM}" if "approv" in answer else answer

        return replace(tool, run=run, context=("session_id",))

    def _its_own(self, session_id: str, ticket_id: str) -> tuple[EscalationTicket, Question]:
        ticket, question = self._talked_about(session_id)
        if ticket.ticket_id != ticket_id:
            raise ToolError(
                f"this talk is about ticket {ticket.ticket_id!r}, and nothing else can be done in it"
            )
        return ticket, question

    def _talked_about(self, session_id: str) -> tuple[EscalationTicket, Question]:
        found = self._about.get(session_id)
        if found is None:
            raise ToolError("nobody waits for this answer any more; say in words what you found")
        return found

    def _open_ticket(self, ticket_id: str) -> EscalationTicket:
        ticket = self._tickets.get(ticket_id)
        if ticket is None or not ticket.live:
            raise ToolError(
                "the ticket is closed, and nothing is done about it any more; act on the worker itself, with "
                "queenright nudge or queenright terminate"
            )
        return ticket


async def _nothing(given: SummaryArguments) -> str:
    return ""
