"""
The operator talks with the queen about a ticket.

Every ticket has a session of its own in her graph, and every question is one run in it. What is asked is in
the event log before it is thought about, and what is answered before anybody is told: a question that was cut
off when the process ended is taken up by the next one, and answered once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from queenright.health.interventions.record import Intervention
from queenright.health.summary import summarise
from queenright.health.tickets import EscalationTicket, TicketNotFoundError
from queenright.instrumentation.redaction import redact
from queenright.judge import chat_rules
from queenright.judge.chat_case import Question, case_of, question_id_in, question_message
from queenright.judge.chat_log import (
    CHAT_STREAM,
    OPERATOR_CHAT,
    SAID,
    ChatInterruptedError,
    ChatRefusedError,
    Said,
    question_of,
    said,
    said_event,
    session_of,
)
from queenright.judge.chat_tools import ChatTools, Talk
from queenright.judge.desk import MAX_TURNS, Desk
from queenright.judge.metrics import FallbackReason
from queenright.judge.models import AssignedModel
from queenright.judge.prompting import load_prompt
from queenright.judge.queen import QUEEN_GRAPH
from queenright.judge.queen_actions import QueenActions
from queenright.runtime.agent_runtime import AgentRuntime, GraphError
from queenright.runtime.bus import EventBus
from queenright.runtime.events import EventType
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.graph import EntryPointSpec, NodeSpec
from queenright.runtime.storage.session_state import ExecutionState
from queenright.runtime.storage.session_store import SessionExists, SessionStatus
from queenright.runtime.tooling.tools import Tool

__all__ = [
    "LONGEST_MESSAGE",
    "MOST_WAITING",
    "OPERATOR_CHAT",
    "ChatInterruptedError",
    "ChatRefusedError",
    "OperatorChat",
    "Said",
]

_log = logging.getLogger(__name__)

LONGEST_MESSAGE: Final = 4_000
"""Characters of a question, at most."""

MOST_WAITING: Final = 32
"""Questions that wait for their answers, about all tickets together, at most."""

_LONGEST_ANSWER: Final = 8_000
_MOST_WAITING_A_TICKET: Final = 8
_TALKING_AT_ONCE: Final = 4
_LEFT_OVER_SECONDS: Final = 24 * 3600.0
_READ: Final = 1_000
_UNFINISHED: Final = frozenset({SessionStatus.ACTIVE, SessionStatus.PAUSED, SessionStatus.FAILED})

ListInterventions = Callable[[str], Awaitable[Sequence[Intervention]]]
"""Returns the interventions on an agent's workers, newest first."""


_INSTEAD: Final[Mapping[FallbackReason, str]] = {
    "budget": "By rule: the budget for models is spent.",
    "timeout": "By rule: the model was too slow too often, and rests.",
    "error": "By rule: the model failed too often, and rests.",
    "invalid": "By rule: the model gave no usable answer too often, and rests.",
}


class OperatorChat:
    """
    Answers operators about tickets, several at a time, each ticket's questions one after another.

    She acts only where the operator's words are an order, which is told by rule, or where the operator says
    that they are one. Nothing in it can approve what it asks for: approving is no tool of hers.

    Args:
        desk: What all roles share.
        model: The queen's model.
        runtime: Runs the queen's graph; the graph may be added later, before the first question.
        bus: Logs questions and answers.
        list_interventions: Returns what was done to an agent's workers; without it, the case lists nothing.
        actions: Nudges and stops workers when an operator orders it; without it, the queen only answers.
    """

    def __init__(
        self,
        desk: Desk,
        model: AssignedModel,
        *,
        runtime: AgentRuntime,
        bus: EventBus,
        list_interventions: ListInterventions | None = None,
        actions: QueenActions | None = None,
    ) -> None:
        self._desk = desk
        self._runtime = runtime
        self._bus = bus
        self._tickets = desk.tickets
        self._monitor = desk.monitor
        self._model = model
        self._clock = desk.clock
        self._list_interventions = list_interventions
        self._tools = ChatTools(tickets=desk.tickets, monitor=desk.monitor, clock=desk.clock, actions=actions)
        self._prompt = load_prompt("chat", {})
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._answering: set[asyncio.Task[Said]] = set()
        self._waiting: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """How many questions wait for their answers."""
        return self._waiting.total()

    def node(self) -> NodeSpec:
        """Return the node that answers: its words are the answer."""
        return NodeSpec(
            id=OPERATOR_CHAT,
            system_prompt=self._prompt.text,
            tools=tuple(tool.name for tool in self.tools()),
            max_turns=MAX_TURNS,
            max_retries=1,
            model_attempts=1,
            max_messages=60,
            max_context_tokens=24_000,
            model_timeout_seconds=self._model.settings.timeout_seconds,
        )

    def entry(self) -> EntryPointSpec:
        """Return the entry point: started by questions, each in the session of its ticket."""
        return EntryPointSpec(id=OPERATOR_CHAT, node_id=OPERATOR_CHAT, max_concurrent=_TALKING_AT_ONCE)

    def tools(self) -> list[Tool]:
        """Return what she can look at and do while she talks."""
        return [*self._tools.all, *self._desk.read_tools]

    # -- talking --------------------------------------------------------------------------------

    async def say(self, ticket_id: str, text: str, by: str = "operator", *, act: bool = False) -> Said:
        """
        Ask about a ticket, open or closed, and return the answer.

        Where the caller gives up, the answer is still in the chat when it comes.

        Args:
            ticket_id: Which ticket.
            text: What is asked, or ordered.
            by: Who asks.
            act: It is an order, in whatever words: the model may read it as it will, and act on this ticket
                and its worker. Without, only what is an order by rule (``chat_rules.order``) is carried out.

        Raises:
            TicketNotFoundError: There is no such ticket.
            ChatRefusedError: There are no words in it, or too many, or too many questions wait already.
            ChatInterruptedError: The service ends first.
            StoreError: It could not be written down.
        """
        text = _checked(text)
        self._take_a_place(ticket_id)
        try:
            ticket = await self._found(ticket_id)
            data = {
                "ticket_id": ticket_id,
                "agent_id": ticket.worker_agent_id,
                "by": by,
                "text": redact(text, LONGEST_MESSAGE),
                "act": act,
            }
            asked = said_event(EventType.OPERATOR_ASKED, ticket_id, self._clock(), data)
            await self._bus.publish(asked)
        except BaseException:
            self._leave(ticket_id)
            raise
        return await asyncio.shield(self._start(question_of(asked), left_over=False))

    async def history(self, ticket_id: str, after: str | None = None, limit: int = 100) -> list[Said]:
        """
        Return what was said about a ticket, oldest first: the newest of it, or what came after ``after``.

        Raises:
            TicketNotFoundError: There is no such ticket.
            UnknownEventError: Nothing that was said has the id ``after``.
        """
        await self._found(ticket_id)
        events = await self._bus.history(
            types=SAID, session_id=session_of(ticket_id), after=after, limit=limit, newest=after is None
        )
        return [said(event) for event in events]

    async def resume(self) -> None:
        """Answer what was asked in an earlier life of the service and not answered; after the start."""
        events = await self._bus.history(types=SAID, filter_graph=QUEEN_GRAPH, limit=_READ)
        answered = {str(e.data["question_id"]) for e in events if e.type is EventType.QUEEN_ANSWERED}
        since = self._clock() - _LEFT_OVER_SECONDS
        for event in events:
            if event.type is EventType.OPERATOR_ASKED and event.id not in answered and event.time >= since:
                question = question_of(event)
                self._waiting[question.ticket_id] += 1  # it had its place before
                self._start(question, left_over=True)

    async def stop(self) -> None:
        """Leave off; the runtime has paused what was being answered."""
        tasks = list(self._answering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _take_a_place(self, ticket_id: str) -> None:
        """Let a question in, before anything is awaited: who asks at the same moment is counted, too."""
        if self._waiting[ticket_id] >= _MOST_WAITING_A_TICKET:
            raise ChatRefusedError(
                f"{_MOST_WAITING_A_TICKET} questions about ticket {ticket_id} wait for an answer already; "
                "ask again when they are there"
            )
        if self.waiting >= MOST_WAITING:
            raise ChatRefusedError(
                f"{MOST_WAITING} questions wait for their answers already, about all tickets together; "
                "ask again when some are there"
            )
        self._waiting[ticket_id] += 1

    def _leave(self, ticket_id: str) -> None:
        self._waiting[ticket_id] -= 1
        if not self._waiting[ticket_id]:
            del self._waiting[ticket_id]

    async def _found(self, ticket_id: str) -> EscalationTicket:
        ticket = await self._tickets.find(ticket_id)
        if ticket is None:
            raise TicketNotFoundError(ticket_id)
        return ticket

    # -- one question ---------------------------------------------------------------------------

    def _start(self, question: Question, *, left_over: bool) -> asyncio.Task[Said]:
        lock = self._turns.get(question.ticket_id) or asyncio.Lock()
        self._turns[question.ticket_id] = lock

        async def in_turn() -> Said:
            async with lock:
                return await self._answer(question, left_over=left_over)

        task = asyncio.create_task(in_turn(), name=f"chat:{question.id}")
        self._answering.add(task)
        task.add_done_callback(lambda done: self._over(question, done))
        return task

    def _over(self, question: Question, task: asyncio.Task[Said]) -> None:
        self._answering.discard(task)
        self._leave(question.ticket_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("question %s about ticket %s: %s", question.id, question.ticket_id, error)

    async def _answer(self, question: Question, *, left_over: bool) -> Said:
        """Have a question answered, and write the answer down."""
        ticket = await self._found(question.ticket_id)
        began = self._clock()
        session_id = await self._session(question.ticket_id)
        with self._tools.talking(session_id, ticket, question) as talk:
            earlier = await self._earlier_run(session_id, question) if left_over else None
            if earlier is not None and earlier.status is SessionStatus.COMPLETED:
                return await self._write_down(talk, _of_earlier(earlier), began)
            message = await self._message(talk)
            instead = self._model.fallback_reason
            try:
                result = await self._run(message, session_id, earlier)
            except GraphError as stopped:
                raise ChatInterruptedError(question.id) from stopped
            if result.status is SessionStatus.PAUSED:
                raise ChatInterruptedError(question.id)
            answer = _of_run(result, message)
            if instead is not None and answer["outcome"] == "answered":
                answer |= {"text": f"({_INSTEAD[instead]}) {answer['text']}", "outcome": "by_rule"}
            return await self._write_down(talk, answer, began)

    async def _run(self, message: str, session_id: str, earlier: ExecutionState | None) -> ExecutionResult:
        """Ask in a new run; or go on with the one that an earlier life of the service began."""
        if earlier is not None and earlier.status in _UNFINISHED:
            run_id = await self._runtime.resume(session_id, QUEEN_GRAPH)
        else:
            run_id = await self._runtime.trigger(
                OPERATOR_CHAT, {"message": message}, graph_id=QUEEN_GRAPH, session_id=session_id
            )
        return await self._runtime.wait(run_id)

    async def _session(self, ticket_id: str) -> str:
        store, session_id = self._runtime.session_store(QUEEN_GRAPH), session_of(ticket_id)

        def make() -> None:
            try:
                store.create(graph_id=QUEEN_GRAPH, entry_point=OPERATOR_CHAT, session_id=session_id)
            except SessionExists:
                return

        await self._runtime.disk.run(make)
        return session_id

    async def _earlier_run(self, session_id: str, question: Question) -> ExecutionState | None:
        """Return the run in which an earlier life of the service began to answer a question, if it did."""
        store = self._runtime.session_store(QUEEN_GRAPH)
        state = await self._runtime.disk.run(lambda: store.read_state(session_id))
        run = state.executions.get(CHAT_STREAM)
        return run if run is not None and question_id_in(run.input.get("message")) == question.id else None

    async def _message(self, talk: Talk) -> str:
        ticket, question = talk.ticket, talk.question
        agent_id = ticket.worker_agent_id
        done = [] if self._list_interventions is None else await self._list_interventions(agent_id)
        others = await self._tickets.history(20, agent_id=agent_id)
        others += [
            one
            for one in self._tickets.open_tickets()
            if one.worker_agent_id != agent_id and one.kind == ticket.kind
        ]
        health = self._monitor.get(agent_id, ticket.worker_session_id)
        summary = None if health is None else summarise(health, question.at)
        return question_message(question, case_of(ticket, done, others), summary, may=talk.may)

    async def _write_down(self, talk: Talk, answer: dict[str, Any], began: float) -> Said:
        question, ticket = talk.question, talk.ticket
        data = {
            "ticket_id": question.ticket_id,
            "agent_id": ticket.worker_agent_id,
            "question_id": question.id,
            "model": self._model.settings.model,
            "prompt": self._prompt.id,
            "seconds": round(max(self._clock() - began, 0.0), 3),
            "did": sorted(talk.did),
            **answer,
            "text": redact(str(answer["text"]), _LONGEST_ANSWER),
        }
        answered = said_event(EventType.QUEEN_ANSWERED, question.ticket_id, self._clock(), data)
        await self._bus.publish(answered)
        return said(answered)


def _checked(text: str) -> str:
    text = text.strip()
    if not text:
        raise ChatRefusedError("there is nothing to answer: the message is blank")
    if len(text) > LONGEST_MESSAGE:
        raise ChatRefusedError(
            f"the message has {len(text)} characters, at most {LONGEST_MESSAGE} are read; say it shorter"
        )
    return text


def _of_earlier(run: ExecutionState) -> dict[str, Any]:
    """Return an answer that was there, and not written down any more, before the process was killed."""
    return {
        "text": str(run.outputs.get("text") or ""),
        "outcome": "answered",
        "llm_calls": run.steps,
        "tokens": run.input_tokens + run.output_tokens,
        "cost": run.cost,
    }


def _of_run(result: ExecutionResult, message: str) -> dict[str, Any]:
    """Return the answer of a run; where there is none, what the rules say."""
    node = result.node
    spent = {
        "llm_calls": 0 if node is None else node.turns,
        "tokens": 0 if node is None else node.input_tokens + node.output_tokens,
        "cost": 0.0 if node is None else node.cost,
    }
    if result.succeeded and node is not None:
        return {"text": node.text, "outcome": "answered", **spent}
    asked = chat_rules.read(message)
    by_rule = "" if asked is None else chat_rules.without_model(asked)
    return {"text": f"The model gave no answer ({result.error}). {by_rule}", "outcome": "by_rule", **spent}
