"""Requests of the screens that need more than a single call of the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

from queenright import api
from queenright.api.events import Event
from queenright.api.loaded_agents import MessageRow, NodeRow, ToolUse
from queenright.client import AsyncQueenright
from queenright.client.address import remove_credentials
from queenright.client.errors import RequestRejectedError
from queenright.client.notices import Notice
from queenright.tui.event_lines import FEED_TYPES, WORK_TYPES, EventLine
from queenright.tui.formatting import clip, format_clock_time
from queenright.tui.models import ChatEntry, Graph, Row, Transcript

_MAX_TICKETS: Final = 200
_MAX_HISTORY_EVENTS: Final = 200
_MAX_SESSIONS: Final = 20
_MAX_MESSAGES: Final = 100
_CONVERSATION_TYPES: Final = (
    "client_output_delta",
    "client_input_requested",
    "execution_completed",
    "execution_failed",
    "execution_paused",
)


class ServiceGateway:
    """
    The service behind the interface.

    Args:
        client: Client of the service.
        by: Name of the operator for the audit trail.
    """

    def __init__(self, client: AsyncQueenright, *, by: str) -> None:
        self.by = by
        self.client = client

    @property
    def url(self) -> str:
        """URL of the service."""
        return remove_credentials(self.client.url)

    # -- lists ---------------------------------------------------------------------------------

    async def workers(self) -> list[api.AgentRow]:
        """Return all sessions of all workers."""
        return [agent async for agent in self.client.agents.list()]

    async def breakers(self) -> list[api.Breaker]:
        """Return all circuit breakers."""
        return [breaker async for breaker in self.client.breakers.list()]

    async def tickets(self) -> list[api.Ticket]:
        """Return the newest tickets, open and closed."""
        return [ticket async for ticket in self.client.tickets.list(limit=_MAX_TICKETS)]

    async def feed(self) -> tuple[list[EventLine], list[str]]:
        """Return the latest feed lines, oldest first, and the ids of their events."""
        lines = (await self.client.service.status()).feed[::-1]
        return [EventLine(format_clock_time(line.at), line.kind, line.text) for line in lines], [
            line.id for line in lines
        ]

    async def history(self, agent_id: str) -> list[api.HistoryRow]:
        """Return the events of a worker in the last day, oldest first."""
        events = [event async for event in self.client.agents.history(agent_id, limit=_MAX_HISTORY_EVENTS)]
        return sorted(events, key=lambda event: event.seq)

    # -- events ---------------------------------------------------------------------------------

    def fleet_events(
        self, on_notice: Callable[[Notice], None], last_event_id: str | None
    ) -> AsyncIterator[Event]:
        """Yield events of the fleet; reconnects after breaks and reports them to ``on_notice``."""
        return self._stream_events((*FEED_TYPES, *WORK_TYPES), None, on_notice, last_event_id)

    def worker_events(self, agent_id: str) -> AsyncIterator[Event]:
        """Yield all events of one worker from now on."""
        return self._stream_events("all", agent_id)

    def conversation_events(self, on_notice: Callable[[Notice], None]) -> AsyncIterator[Event]:
        """Yield messages, input requests and run results of loaded agents."""
        return self._stream_events(_CONVERSATION_TYPES, None, on_notice)

    def queen_answers(self) -> AsyncIterator[Event]:
        """Yield the pieces of the queen's answers as she writes them."""
        return self._stream_events(("queen_answer_delta",), None)

    async def _stream_events(
        self,
        types: Sequence[str] | str,
        agent_id: str | None,
        on_notice: Callable[[Notice], None] = lambda notice: None,
        last_event_id: str | None = None,
    ) -> AsyncIterator[Event]:
        stream = self.client.events.stream(
            types=types, agent_id=agent_id, last_event_id=last_event_id, wait=True, on_notice=on_notice
        )
        async with aclosing(stream):
            async for event in stream:
                yield event

    # -- actions --------------------------------------------------------------------------------

    async def nudge(self, worker: api.AgentRow, message: str) -> str:
        """Nudge a worker, with the standard reminder if ``message`` is blank; return the outcome."""
        result = await self.client.agents.nudge(
            worker.agent_id, message.strip() or None, session_id=worker.session_id, by=self.by
        )
        return _format_outcome(result.outcome, result.detail)

    async def terminate(self, worker: api.AgentRow | api.AttentionItem, reason: str) -> str:
        """Terminate this incarnation of a worker; return the outcome."""
        result = await self.client.agents.terminate(
            worker.agent_id,
            reason,
            session_id=worker.session_id,
            incarnation_id=worker.incarnation_id or None,
            by=self.by,
        )
        return _format_outcome(result.outcome, result.detail)

    async def answer(self, item: api.AttentionItem, answer: str, text: str = "") -> str:
        """
        Answer an item that needs a person; return the outcome.

        Args:
            item: The item, as the operator saw it.
            answer: A name of ``attention.ANSWERS``.
            text: The reply, or the reason of a termination.
        """
        client, incarnation_id = self.client, item.incarnation_id or None
        match item.kind, answer:
            case "question", _:
                await client.agents.inject(
                    item.agent_id,
                    item.node_id,
                    text,
                    session_id=item.session_id or None,
                    question_id=item.question_id or None,
                    incarnation_id=incarnation_id,
                )
            case "permission", _:
                await client.permissions.answer(
                    item.item_id, answer, by=self.by, incarnation_id=incarnation_id
                )
            case "approval", "approve":
                await client.approvals.approve(item.item_id, by=self.by, incarnation_id=incarnation_id)
            case "approval", _:
                await client.approvals.deny(item.item_id, by=self.by, incarnation_id=incarnation_id)
            case "escalation", _:
                await client.escalations.decide(
                    item.item_id, answer, reason=text or None, by=self.by, incarnation_id=incarnation_id
                )
            case "incident", _:
                await self._acknowledge_incident(item.item_id)
            case _, "acknowledge":
                await client.tickets.acknowledge(item.ticket_id, by=self.by)
            case _:
                return await self.terminate(item, text)
        return "done"

    async def _acknowledge_incident(self, incident_id: str) -> None:
        """Acknowledge the tickets of an incident that allow it; skip the others."""
        incidents = await self.client.tickets.incidents()
        ticket_ids = next(
            (incident.ticket_ids for incident in incidents if incident.incident_id == incident_id), ()
        )
        for ticket_id in ticket_ids:
            if "acknowledge" not in (await self.client.tickets.get(ticket_id)).actions:
                continue
            try:
                await self.client.tickets.acknowledge(ticket_id, by=self.by)
            except RequestRejectedError as error:
                # The ticket was closed or acknowledged in the meantime.
                if error.status != HTTPStatus.CONFLICT:
                    raise

    # -- loaded agents ------------------------------------------------------------------------

    async def has_run(self, agent_id: str, execution_id: str) -> bool:
        """Return whether a loaded agent has a run with this id, in any of its graphs."""
        try:
            await self.client.agents.execution(agent_id, execution_id)
        except RequestRejectedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    async def transcript(self, agent_id: str, graph_id: str) -> Transcript:
        """Return the stored transcript of a graph, and what it waits for."""
        agents = self.client.agents
        session = await self._find_session(agent_id, graph_id)
        if session is None:
            return Transcript()
        messages = agents.messages(agent_id, session, graph_id=graph_id, limit=_MAX_MESSAGES)
        nodes = [node async for node in agents.nodes(agent_id, graph_id)]
        return build_transcript([message async for message in messages], nodes, self.by)

    async def graphs(self, agent_id: str) -> list[Graph]:
        """Return the graphs of an agent, its own first."""
        running: dict[str, int] = {}
        async for entry in self.client.agents.entry_points(agent_id):
            running[entry.graph_id] = running.get(entry.graph_id, 0) + entry.running
        views = [
            Graph(
                graph_id=graph.graph_id,
                agent_id=graph.agent_id,
                active=graph.active,
                primary=graph.primary,
                running=running.get(graph.graph_id, 0),
                waiting=await self._list_waiting_nodes(agent_id, graph.graph_id)
                if running.get(graph.graph_id)
                else (),
            )
            async for graph in self.client.agents.graphs(agent_id)
            if not graph.of_service  # not graphs of the service itself
        ]
        return sorted(views, key=lambda graph: (not graph.primary, graph.graph_id))

    async def _list_waiting_nodes(self, agent_id: str, graph_id: str) -> tuple[str, ...]:
        nodes = self.client.agents.nodes(agent_id, graph_id)
        return tuple([node.node_id async for node in nodes if node.waiting_for_user])

    async def nodes(self, agent_id: str, graph_id: str) -> list[api.NodeDetail]:
        """Return the nodes of a graph with their edges, in the graph's order."""
        agents = self.client.agents
        names = [node.node_id async for node in agents.nodes(agent_id, graph_id)]
        return [await agents.node(agent_id, graph_id, name) for name in names]

    async def session_memory(self, agent_id: str, graph_id: str) -> Row:
        """Return the memory of a graph's active session, otherwise of its newest."""
        session_id = await self._find_session(agent_id, graph_id)
        if session_id is None:
            return {}
        return (await self.client.agents.session(agent_id, session_id, graph_id=graph_id)).memory

    async def _find_session(self, agent_id: str, graph_id: str) -> str | None:
        agents = self.client.agents
        sessions = [
            session async for session in agents.sessions(agent_id, graph_id=graph_id, limit=_MAX_SESSIONS)
        ]
        active = next((session for session in sessions if session.status == "active"), None)
        return (active or sessions[0]).session_id if sessions else None

    async def send_message(self, agent_id: str, text: str) -> str:
        """Send a message to an agent; return whether a node received it or a run was started."""
        run = await self.client.agents.chat(agent_id, text)
        return f"delivered to {run.node_id}" if isinstance(run, api.Injected) else "started a run"


def _format_outcome(outcome: str, detail: str) -> str:
    texts = {"done": "done", "queued": "queued until the worker fetches it"}
    return texts.get(outcome, outcome.replace("_", " ") + (f": {detail}" if detail else ""))


_ASK_TOOL: Final = "ask_user"
"""Tool with which a node asks the user."""
_MAX_INPUT_LENGTH: Final = 200
"""Maximum characters of a run's input."""


def build_transcript(messages: Iterable[MessageRow], nodes: Sequence[NodeRow], me: str) -> Transcript:
    """
    Return the transcript of a session.

    Args:
        messages: Messages of the session.
        nodes: Nodes of its graph.
        me: Name of the user, which the messages do not contain.
    """
    rows = sorted(messages, key=lambda row: (row.at, row.seq))
    speakers = [node.node_id for node in nodes if node.client_facing]
    entries = [
        entry for row in rows for entry in _build_entries(row, speakers[0] if len(speakers) == 1 else "", me)
    ]
    until = max((row.at for row in rows), default=0.0)
    waiting = [node.node_id for node in nodes if node.waiting_for_user]
    if waiting:
        entries.append(
            ChatEntry(by="", text=f"{', '.join(waiting)} waits for your answer", at=until, is_own=False)
        )
    return Transcript(entries=tuple(entries), until=until)


def _build_entries(row: MessageRow, speaker: str, me: str) -> Iterable[ChatEntry]:
    text, at = row.text.strip(), row.at
    match row.kind:
        case "input":
            yield ChatEntry(
                by="", text=f"run started with {clip(text, _MAX_INPUT_LENGTH)}", at=at, is_own=False
            )
        case "user" if text:
            yield ChatEntry(by=me, text=text, at=at, is_own=True)
        case "assistant":
            questions = [_read_question(call) for call in row.tool_calls if call.name == _ASK_TOOL]
            content = "\n".join(part for part in (text, *questions) if part)
            if content:
                yield ChatEntry(by=speaker or row.conversation, text=content, at=at, is_own=False)


def _read_question(call: ToolUse) -> str:
    try:
        return str(json.loads(call.arguments)["question"])
    except (ValueError, KeyError, TypeError):
        return call.arguments
