"""
The operator chat, in which operators ask the queen about a ticket, or about a worker without a ticket.

Each ticket and each such worker has its own session in the queen's graph, and each question is a run in it. A
question is in the event log before it is processed, and an answer before it is returned. A question that is
interrupted when the service stops is answered once, after the next start.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

from queenright.health.interventions.intervention import Intervention
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.monitoring_service import AgentNotFoundError
from queenright.health.tickets.ticket import EscalationTicket, TicketNotFoundError, WorkerFacts
from queenright.health.tickets.ticket_rules import worker_facts
from queenright.instrumentation.redaction import redact
from queenright.judge.agent_workspace import AgentWorkspaces
from queenright.judge.chat_answers import answer
from queenright.judge.chat_case import build_case
from queenright.judge.chat_log import (
    CHAT_EVENTS,
    CHAT_STREAM,
    OPERATOR_CHAT,
    ChatInterruptedError,
    ChatRecord,
    ChatRefusedError,
    Question,
    Subject,
    chat_event,
    parse_chat_record,
    parse_question,
)
from queenright.judge.chat_tools import ChatTools, ChatTurn
from queenright.judge.decision_context import MAX_TURNS, DecisionContext
from queenright.judge.messages import question_message
from queenright.judge.metrics import FallbackReason
from queenright.judge.models import AssignedModel
from queenright.judge.prompting import chat_prompt
from queenright.judge.queen_actions import QueenActions
from queenright.judge.queen_triage import QUEEN_GRAPH
from queenright.judge.quoting import unquote
from queenright.runtime.agent_runtime import AgentRuntime, GraphError
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.graph import EntryPointSpec, NodeSpec
from queenright.runtime.storage.session_state import ExecutionState, SessionStatus
from queenright.runtime.storage.session_store import SessionExistsError
from queenright.runtime.tooling.tools import Tool

__all__ = [
    "MAX_MESSAGE_LENGTH",
    "MAX_WAITING",
    "OPERATOR_CHAT",
    "ChatInterruptedError",
    "ChatRecord",
    "ChatRefusedError",
    "OperatorChat",
    "Subject",
]

_log = logging.getLogger(__name__)

MAX_MESSAGE_LENGTH: Final = 4_000
"""The maximum number of characters of a question."""

MAX_WAITING: Final = 32
"""The maximum number of questions that wait for an answer, in all chats."""

_MAX_ANSWER_LENGTH: Final = 8_000
_MAX_WAITING_PER_CHAT: Final = 8
_CONCURRENT_CHATS: Final = 4
_RESUMED_SECONDS: Final = 24 * 3600.0
_RESUMED_EVENTS: Final = 1_000
_OPEN_STATES: Final = frozenset({SessionStatus.ACTIVE, SessionStatus.PAUSED, SessionStatus.FAILED})

ListInterventions = Callable[[int, str], Awaitable[Sequence[Intervention]]]
"""Returns up to the given number of interventions on an agent's workers, newest first."""
_INTERVENTIONS_SHOWN: Final = 50

_FALLBACK: Final[Mapping[FallbackReason, str]] = {
    "budget": "By rule: the budget for models is spent.",
    "timeout": "By rule: the model timed out too often and is not called for a while.",
    "error": "By rule: the model failed too often and is not called for a while.",
    "invalid": "By rule: the model gave too many invalid answers and is not called for a while.",
}


class OperatorChat:
    """
    Answers operators' questions about tickets and workers. Chats run concurrently, and each answers in order.

    The queen acts only on an operator's command, or on a message that was sent as an order. She has no tool
    to approve her own requests.

    Args:
        runtime: Runs the queen's graph, which must be added before the first question.
        list_interventions: Returns the interventions on an agent's workers. If None, a case lists no
            interventions.
        actions: Nudges and stops workers. If None, the queen only answers.
        workspaces: The files and logs of agents. The queen reads them, and changes files on an admin's order.
    """

    def __init__(
        self,
        context: DecisionContext,
        model: AssignedModel,
        *,
        runtime: AgentRuntime,
        bus: EventBus,
        list_interventions: ListInterventions | None = None,
        actions: QueenActions | None = None,
        workspaces: AgentWorkspaces | None = None,
    ) -> None:
        self._context = context
        self._runtime = runtime
        self._bus = bus
        self._tickets = context.tickets
        self._monitor = context.monitor
        self._model = model
        self._clock = context.clock
        self._list_interventions = list_interventions
        self._tools = ChatTools(
            tickets=context.tickets,
            monitor=context.monitor,
            clock=context.clock,
            actions=actions,
            workspaces=workspaces,
        )
        self._prompt = chat_prompt()
        self._locks: WeakValueDictionary[Subject, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[ChatRecord]] = set()
        self._pending_counts: Counter[Subject] = Counter()

    @property
    def waiting(self) -> int:
        """The number of questions that wait for an answer."""
        return self._pending_counts.total()

    def node(self) -> NodeSpec:
        """Return the chat node, whose text is the answer."""
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
        """Return the entry point. Each question starts it in the session of its chat."""
        return EntryPointSpec(id=OPERATOR_CHAT, node_id=OPERATOR_CHAT, max_concurrent=_CONCURRENT_CHATS)

    def tools(self) -> list[Tool]:
        """Return the queen's tools in the chat."""
        return [*self._tools.all, *self._context.read_tools]

    async def ask(
        self, subject: Subject, text: str, by: str = "operator", *, act: bool = False, is_admin: bool = False
    ) -> ChatRecord:
        """
        Ask about an open or closed ticket, or about a session of a worker, and return the answer.

        The answer is stored even if the caller is cancelled. Without a ticket, no order is carried out.

        Args:
            text: The question or command.
            act: Whether the message is an order, which the model may interpret to act on this ticket and its
                worker. If not, only a command (``chat_commands.parse_command``) is carried out.
            is_admin: Whether the person may order changes and restarts of the agent.

        Raises:
            TicketNotFoundError, AgentNotFoundError: There is no such ticket or session.
            ChatRefusedError: The message is blank or too long, or too many questions wait.
            ChatInterruptedError: The service stopped before the answer.
            StoreError: The question could not be stored.
        """
        text = _check_message(text)
        self._reserve(subject)
        try:
            worker = await self._get_facts(subject)
            data = {
                "ticket_id": subject.ticket_id,
                "agent_id": worker.agent_id,
                "session_id": worker.session_id,
                "by": by,
                "text": redact(text, MAX_MESSAGE_LENGTH),
                "act": act,
            }
            event = chat_event(EventType.OPERATOR_ASKED, subject, self._clock(), data)
            await self._bus.publish(event)
        except BaseException:
            self._release(subject)
            raise
        question = replace(parse_question(event), is_admin=is_admin)
        return await asyncio.shield(self._start_answer(question, is_resumed=False))

    async def history(self, subject: Subject, after: str | None = None, limit: int = 100) -> list[ChatRecord]:
        """
        Return the newest messages of a chat, or those after message ``after``, oldest first.

        Raises:
            TicketNotFoundError, AgentNotFoundError: There is no such ticket or session.
            UnknownEventError: No message has the id ``after``.
        """
        await self._get_facts(subject)
        events = await self._bus.history(
            types=CHAT_EVENTS,
            session_id=subject.chat_session,
            after=after,
            limit=limit,
            newest=after is None,
        )
        return [parse_chat_record(event) for event in events]

    async def resume(self) -> None:
        """
        Answer the questions that were interrupted when the service last stopped. Call it after the start.
        """
        events = await self._bus.history(types=CHAT_EVENTS, filter_graph=QUEEN_GRAPH, limit=_RESUMED_EVENTS)
        answer_ids = {str(e.data["question_id"]) for e in events if e.type is EventType.QUEEN_ANSWERED}
        since = self._clock() - _RESUMED_SECONDS
        for event in events:
            if event.type is EventType.OPERATOR_ASKED and event.id not in answer_ids and event.time >= since:
                question = parse_question(event)
                self._pending_counts[question.subject] += (
                    1  # no limit applies, because it was accepted before the stop
                )
                self._start_answer(question, is_resumed=True)

    async def stop(self) -> None:
        """Stop answering. The runtime has paused the runs, and ``resume`` continues them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _reserve(self, subject: Subject) -> None:
        """Count a question before anything is awaited, so that concurrent callers cannot pass the limits."""
        if self._pending_counts[subject] >= _MAX_WAITING_PER_CHAT:
            raise ChatRefusedError(
                f"{_MAX_WAITING_PER_CHAT} questions about {subject} wait for an answer; try again later"
            )
        if self.waiting >= MAX_WAITING:
            raise ChatRefusedError(
                f"{MAX_WAITING} questions wait for an answer in all chats; try again later"
            )
        self._pending_counts[subject] += 1

    def _release(self, subject: Subject) -> None:
        self._pending_counts[subject] -= 1
        if not self._pending_counts[subject]:
            del self._pending_counts[subject]

    async def _get_facts(self, subject: Subject) -> EscalationTicket | WorkerFacts:
        """Return the ticket, or the facts about the worker."""
        if subject.ticket_id:
            return await self._get_ticket(subject.ticket_id)
        worker = self._monitor.get(subject.agent_id, subject.session_id)
        if worker is None:
            raise AgentNotFoundError(subject.agent_id, subject.session_id)
        return worker_facts(worker, self._clock())

    async def _get_ticket(self, ticket_id: str) -> EscalationTicket:
        ticket = await self._tickets.find(ticket_id)
        if ticket is None:
            raise TicketNotFoundError(ticket_id)
        return ticket

    # -- questions ------------------------------------------------------------------------------

    def _start_answer(self, question: Question, *, is_resumed: bool) -> asyncio.Task[ChatRecord]:
        lock = self._locks.get(question.subject) or asyncio.Lock()
        self._locks[question.subject] = lock

        async def answer_in_order() -> ChatRecord:
            async with lock:
                return await self._answer(question, is_resumed=is_resumed)

        task = asyncio.create_task(answer_in_order(), name=f"chat:{question.id}")
        self._tasks.add(task)
        task.add_done_callback(lambda done_task: self._finish_answer(question, done_task))
        return task

    def _finish_answer(self, question: Question, task: asyncio.Task[ChatRecord]) -> None:
        self._tasks.discard(task)
        self._release(question.subject)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("question %s about %s: %s", question.id, question.subject, error)

    async def _answer(self, question: Question, *, is_resumed: bool) -> ChatRecord:
        worker = await self._get_facts(question.subject)
        started_at = self._clock()
        session_id = await self._ensure_session(question.subject)
        with self._tools.open_turn(session_id, worker, question) as turn, self._deliver_text(turn):
            run = await self._find_interrupted_run(session_id, question) if is_resumed else None
            if run is not None and run.status is SessionStatus.COMPLETED:
                return await self._store_answer(turn, _read_completed_answer(run), started_at)
            message = await self._build_message(turn)
            fallback = self._model.fallback_reason
            try:
                result = await self._run(message, session_id, run)
            except GraphError as error:
                raise ChatInterruptedError(question.id) from error
            if result.status is SessionStatus.PAUSED:
                raise ChatInterruptedError(question.id)
            answer = _to_answer(result, turn)
            if fallback is not None and answer["outcome"] == "answered":
                answer |= {"text": f"({_FALLBACK[fallback]}) {answer['text']}", "outcome": "by_rule"}
            return await self._store_answer(turn, answer, started_at)

    @contextmanager
    def _deliver_text(self, turn: ChatTurn) -> Iterator[None]:
        """Deliver the answer's text while the model writes it. An ``index`` of 0 restarts the text."""
        subject, indexes = turn.question.subject, itertools.count()

        async def deliver(event: AgentEvent) -> None:
            nonlocal indexes
            if event.session_id != subject.chat_session:
                return
            if event.type is EventType.LLM_CALL_STARTED:
                indexes = itertools.count()
                return
            data = {**_subject_fields(turn), "index": next(indexes), "text": event.data["text"]}
            self._bus.fan_out(chat_event(EventType.QUEEN_ANSWER_DELTA, subject, event.time, data))

        subscription = self._bus.subscribe(
            deliver,
            name="chat",
            types={EventType.LLM_CALL_STARTED, EventType.LLM_TEXT_DELTA},
            filter_graph=QUEEN_GRAPH,
            filter_node=OPERATOR_CHAT,
        )
        try:
            yield
        finally:
            subscription.cancel()

    async def _run(self, message: str, session_id: str, last_state: ExecutionState | None) -> ExecutionResult:
        """Run the chat node with a message, or continue the interrupted run."""
        if last_state is not None and last_state.status in _OPEN_STATES:
            run_id = await self._runtime.resume(session_id, QUEEN_GRAPH)
        else:
            run_id = await self._runtime.trigger(
                OPERATOR_CHAT, {"message": message}, graph_id=QUEEN_GRAPH, session_id=session_id
            )
        return await self._runtime.wait(run_id)

    async def _ensure_session(self, subject: Subject) -> str:
        store, session_id = self._runtime.session_store(QUEEN_GRAPH), subject.chat_session

        def create() -> None:
            try:
                store.create(graph_id=QUEEN_GRAPH, entry_point=OPERATOR_CHAT, session_id=session_id)
            except SessionExistsError:
                return

        await self._runtime.disk.run(create)
        return session_id

    async def _find_interrupted_run(self, session_id: str, question: Question) -> ExecutionState | None:
        """Return the interrupted run of a question, if there is one."""
        store = self._runtime.session_store(QUEEN_GRAPH)
        state = await self._runtime.disk.run(lambda: store.read_state(session_id))
        run = state.executions.get(CHAT_STREAM)
        if run is None:
            return None
        asked_question = unquote("question", str(run.input.get("message") or "")) or {}
        return run if asked_question.get("question_id") == question.id else None

    async def _build_message(self, turn: ChatTurn) -> str:
        worker, question = turn.worker, turn.question
        agent_id = worker.agent_id
        interventions: Sequence[Intervention] = []
        if self._list_interventions is not None:
            interventions = await self._list_interventions(_INTERVENTIONS_SHOWN, agent_id)
        related_tickets = await self._tickets.history(20, agent_id=agent_id)
        if turn.ticket is not None:
            related_tickets += [
                other
                for other in self._tickets.open_tickets()
                if other.agent_id != agent_id and other.kind == turn.ticket.kind
            ]
        health = self._monitor.get(agent_id, worker.session_id)
        summary = None if health is None else summarise(health, question.at)
        question_fields = {
            "question_id": question.id,
            "ticket_id": question.subject.ticket_id,
            "by": question.by,
            "at": question.at,
            "message": question.text,
            "may": list(turn.allowed_tools),
            "is_admin": question.is_admin,
        }
        return question_message(
            question.at, build_case(worker, interventions, related_tickets), summary, question_fields
        )

    async def _store_answer(self, turn: ChatTurn, answer: dict[str, Any], started_at: float) -> ChatRecord:
        question = turn.question
        text = "\n\n".join([str(answer["text"]), *turn.diffs])
        data = {
            **_subject_fields(turn),
            "model": self._model.settings.model,
            "prompt": self._prompt.id,
            "seconds": round(max(self._clock() - started_at, 0.0), 3),
            "did": sorted(turn.used_tools),
            **answer,
            "text": redact(text, _MAX_ANSWER_LENGTH),
        }
        event = chat_event(EventType.QUEEN_ANSWERED, question.subject, self._clock(), data)
        await self._bus.publish(event)
        return parse_chat_record(event)


def _subject_fields(turn: ChatTurn) -> dict[str, str]:
    """Return the fields that all events of an answer have: its subject and its question."""
    return {
        "ticket_id": turn.question.subject.ticket_id,
        "agent_id": turn.worker.agent_id,
        "session_id": turn.worker.session_id,
        "question_id": turn.question.id,
    }


def _check_message(text: str) -> str:
    text = text.strip()
    if not text:
        raise ChatRefusedError("the message is blank; ask a question or give a command")
    if len(text) > MAX_MESSAGE_LENGTH:
        raise ChatRefusedError(
            f"the message has {len(text)} characters; at most {MAX_MESSAGE_LENGTH} are allowed"
        )
    return text


def _read_completed_answer(run: ExecutionState) -> dict[str, Any]:
    """Return the answer of a run that completed before the process was killed, but was not logged."""
    return {
        "text": str(run.outputs.get("text") or ""),
        "outcome": "answered",
        "llm_calls": run.steps,
        "tokens": run.input_tokens + run.output_tokens,
        "cost": run.cost,
    }


def _to_answer(result: ExecutionResult, turn: ChatTurn) -> dict[str, Any]:
    """Return the model's answer, or the rules' answer if there is none."""
    node = result.node
    usage = {
        "llm_calls": 0 if node is None else node.turns,
        "tokens": 0 if node is None else node.input_tokens + node.output_tokens,
        "cost": 0.0 if node is None else node.cost,
    }
    if result.succeeded and node is not None:
        return {"text": node.text, "outcome": "answered", **usage}
    if turn.command is None:
        fallback_text = answer({"ticket": turn.worker.model_dump(mode="json")})
    else:
        fallback_text = f"It is unknown whether anything was done. By hand: {turn.command.by_hand}"
    return {
        "text": f"The model gave no answer ({result.error}). {fallback_text}",
        "outcome": "by_rule",
        **usage,
    }
