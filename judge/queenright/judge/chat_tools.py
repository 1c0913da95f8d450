"""What the queen can look at while she talks with an operator, and do about the ticket in question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from queenright.health.monitor import HealthMonitor
from queenright.health.ticket_service import TicketService
from queenright.health.tickets import EscalationTicket, TicketError, Way
from queenright.judge.chat_case import Question
from queenright.judge.chat_rules import ACKNOWLEDGE, Asked, Order, order
from queenright.judge.monitoring_tools import SummaryArguments, shown, summary_tool
from queenright.judge.queen_actions import NUDGE, REQUEST_TERMINATION, QueenActions, acting_tools
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool, ToolError

ACTING: Final = (NUDGE, REQUEST_TERMINATION, ACKNOWLEDGE)
"""The tools that do something."""

_HOW: Final = {
    NUDGE: "`nudge it: TEXT`",
    REQUEST_TERMINATION: "`stop it: REASON`",
    ACKNOWLEDGE: "`acknowledge`",
}
_BY_WHOM: Final = "It is approved or denied with `queenright approvals`, and not in this chat."


class AcknowledgeArguments(BaseModel):
    """Which ticket the operator has in hand."""

    model_config = ConfigDict(extra="forbid")

    ticket_id: str


@dataclass(frozen=True, slots=True)
class Talk:
    """One question while it is answered: what it is about, what it orders, and what was done for it."""

    ticket: EscalationTicket
    question: Question
    did: set[str] = field(default_factory=set)

    @property
    def order(self) -> Order | None:
        """What the operator's words order, told by rule; None if nothing."""
        about = {"worker_agent_id": self.ticket.worker_agent_id, "ticket_id": self.ticket.ticket_id}
        found = order(Asked({"message": self.question.text}, {"ticket": about}, None))
        return found if isinstance(found, Order) else None

    @property
    def may(self) -> Sequence[str]:
        """The tools that may be used for it."""
        if self.question.act:
            return ACTING
        return () if self.order is None else (self.order.tool,)

    @property
    def own_words(self) -> str | None:
        """What the operator wants said, in their own words; None where a model is to find the words."""
        wanted = None if self.question.act else self.order
        if wanted is None:
            return None
        return str(wanted.arguments.get("message") or wanted.arguments.get("reason") or "")


class ChatTools:
    """
    The tools of the chat. Whose question it is, and about which ticket, is known by the session of the call.

    Those that act do so where the operator's newest words are an order for it, or were sent as one (``act``):
    what a worker wrote may make a model want anything, and cannot make it the operator's wish. Each is used
    once a question.

    Args:
        tickets: Keeps the tickets.
        monitor: Knows how workers are now.
        clock: Now.
        actions: Nudges and stops workers; without it, nothing does.
    """

    def __init__(
        self, *, tickets: TicketService, monitor: HealthMonitor, clock: Clock, actions: QueenActions | None
    ) -> None:
        self._tickets = tickets
        self._monitor = monitor
        self._clock = clock
        self._about: dict[str, Talk] = {}
        self.all: Sequence[Tool] = [
            replace(summary_tool(_nothing), run=self._show, context=("session_id",)),
            *(() if actions is None else self._acting(actions)),
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
    def talking(self, session_id: str, ticket: EscalationTicket, question: Question) -> Iterator[Talk]:
        """Say what is talked about in a session, for as long as it is."""
        self._about[session_id] = talk = Talk(ticket, question)
        try:
            yield talk
        finally:
            del self._about[session_id]

    async def _show(self, given: SummaryArguments, *, session_id: str) -> str:
        ticket = self._talked_about(session_id).ticket
        agent_id = given.agent_id or ticket.worker_agent_id
        wanted = None if given.session_id == "auto" else given.session_id
        if wanted is None and agent_id == ticket.worker_agent_id:
            wanted = ticket.worker_session_id
        return shown(self._monitor.get(agent_id, wanted), self._clock(), given.last_n_steps)

    async def _acknowledge(self, given: AcknowledgeArguments, *, session_id: str) -> str:
        with self._ordered(session_id, given.ticket_id, ACKNOWLEDGE) as talk:
            by = talk.question.by
            noted = f"{by} (noted by the queen)"
            try:
                await self._tickets.acknowledge(talk.ticket.ticket_id, by=noted, via=Way.CHAT)
            except TicketError as refused:
                raise ToolError(str(refused)) from refused
            return f"Noted: {by} has it in hand."

    def _acting(self, actions: QueenActions) -> list[Tool]:
        return [self._held_to_its_ticket(tool, actions) for tool in acting_tools(actions, self._open_ticket)]

    def _held_to_its_ticket(self, tool: Tool, actions: QueenActions) -> Tool:
        """Return a tool that acts, for the ticket that is talked about only, where that is ordered."""

        async def run(given: Any, *, session_id: str) -> Any:
            with self._ordered(session_id, given.ticket_id, tool.name) as talk:
                ticket = self._open_ticket(talk.ticket.ticket_id)
                by = talk.question.by
                if tool.name == NUDGE:
                    words = talk.own_words or given.message
                    return await actions.nudge(ticket, words, ordered_by=by)
                words = talk.own_words or given.reason
                answer = await actions.request_termination(ticket, words, ordered_by=by)
                return f"{answer} {_BY_WHOM}" if "approv" in answer else answer

        return replace(tool, run=run, context=("session_id",))

    @contextmanager
    def _ordered(self, session_id: str, ticket_id: str, tool: str) -> Iterator[Talk]:
        """Let a tool act in the talk in which it was called, if it may; once, unless that fails."""
        talk = self._talked_about(session_id)
        if talk.ticket.ticket_id != ticket_id:
            raise ToolError(
                f"this talk is about ticket {talk.ticket.ticket_id!r}, and nothing else can be done in it"
            )
        if tool not in talk.may:
            raise ToolError(
                f"what the operator said is no order for {tool}, and without one nothing is done; they can "
                f"say {_HOW[tool]}, or send any words as an order (`queenright chat --act`)"
            )
        if tool in talk.did:
            raise ToolError(f"{tool} is done already for this question; say in words what came of it")
        talk.did.add(tool)
        try:
            yield talk
        except BaseException:
            talk.did.discard(tool)
            raise

    def _talked_about(self, session_id: str) -> Talk:
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
