"""Workers: health, history, heartbeats, and actions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from queenright import api
from queenright.client.asynchronous.loaded_agents import (
    AsyncGraphs,
    AsyncLoadedAgents,
    AsyncSessions,
    agent_path,
)
from queenright.client.responses import parse_json_body

_AGENTS = "/api/agents"


class AsyncAgents(AsyncLoadedAgents, AsyncSessions, AsyncGraphs):
    """The workers of a service, including the agents that run inside it."""

    def list(
        self,
        *,
        agent_id: str | None = None,
        state: str | None = None,
        search: str | None = None,
        health: str | None = None,
        activity: str | None = None,
        owner: str | None = None,
        repository: str | None = None,
        sort: str = "agent",
        limit: int | None = None,
    ) -> AsyncIterator[api.AgentRow]:
        """
        Yield the sessions of workers, filtered and ordered by the service.

        ``health`` and ``activity`` are comma-separated lists. With an order other than ``agent``, a session
        whose position changes in the meantime may be missed.
        """
        return self._transport.iterate_items(
            api.AgentRow,
            _AGENTS,
            "agents",
            limit,
            agent_id=agent_id,
            state=state,
            search=search,
            health=health,
            activity=activity,
            owner=owner,
            repository=repository,
            sort=sort,
        )

    async def health(self, agent_id: str, *, session_id: str | None = None) -> api.AgentHealth:
        """Return the health of a worker: state, health signals, metrics and circuit breakers."""
        return await self._transport.get_model(
            api.AgentHealth, agent_path(agent_id, "health"), session_id=session_id
        )

    async def ask_queen(
        self, agent_id: str, message: str, *, session_id: str, by: str | None = None
    ) -> api.ChatMessage:
        """Ask the queen about a session, with or without a ticket, and return her answer."""
        body = parse_json_body(message=message, session_id=session_id, by=by)
        return await self._transport.send_and_parse(api.ChatMessage, agent_path(agent_id, "queen"), body)

    async def queen_messages(
        self, agent_id: str, *, session_id: str, after: str | None = None, limit: int | None = None
    ) -> Sequence[api.ChatMessage]:
        """Return the newest messages about a session, or those after a message, oldest first."""
        chat = await self._transport.get_model(
            api.ChatMessages, agent_path(agent_id, "queen"), session_id=session_id, after=after, limit=limit
        )
        return chat.messages

    def all_health(self, *, limit: int | None = None) -> AsyncIterator[api.AgentHealth]:
        """Yield the health of every session of every worker, ordered by name."""
        return self._transport.iterate_items(api.AgentHealth, f"{_AGENTS}/health", "agents", limit)

    def history(
        self, agent_id: str, *, seconds: float | None = None, limit: int | None = None
    ) -> AsyncIterator[api.HistoryRow]:
        """
        Yield the events of a worker in the last ``seconds``; default: one day.

        The newest page comes first; within a page, the oldest event comes first.
        """
        return self._transport.iterate_items(
            api.HistoryRow, agent_path(agent_id, "history"), "history", limit, seconds=seconds
        )

    async def steps(
        self,
        agent_id: str,
        *,
        session_id: str | None = None,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> api.Steps:
        """
        Return steps of a session and its open work; the newest steps by default, oldest first.

        ``after`` and ``before`` are ``last`` and ``first`` of another page.
        """
        return await self._transport.get_model(
            api.Steps,
            agent_path(agent_id, "steps"),
            session_id=session_id,
            after=after,
            before=before,
            limit=limit,
        )

    async def evaluate(
        self,
        agent_id: str,
        settings: Mapping[str, float] | None = None,
        *,
        session_id: str | None = None,
    ) -> api.Evaluation:
        """Replay a session through the detectors, with other thresholds by dotted name."""
        return await self._transport.send_and_parse(
            api.Evaluation,
            agent_path(agent_id, "evaluation"),
            parse_json_body(session_id=session_id, settings=None if settings is None else dict(settings)),
        )

    async def recording(self, agent_id: str, *, session_id: str | None = None) -> dict[str, Any]:
        """Return a session as a recorded run; ``queenright evaluate`` reads it as one line of JSON."""
        return await self._transport.get_json(agent_path(agent_id, "recording"), session_id=session_id)

    async def heartbeat(self, agent_id: str) -> api.Heartbeat:
        """Return the last heartbeat of a worker."""
        return await self._transport.get_model(api.Heartbeat, agent_path(agent_id, "heartbeat"))

    async def send_heartbeat(self, heartbeat: Mapping[str, Any]) -> None:
        """Send a heartbeat; docs/api.md lists its keys."""
        await self._transport.send("/api/heartbeats", dict(heartbeat))

    async def nudge(
        self,
        agent_id: str,
        message: str | None = None,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str | None = None,
    ) -> api.NudgeResult:
        """Put a message into a worker's context. Default: the standard reminder."""
        body = parse_json_body(message=message, session_id=session_id, incarnation_id=incarnation_id, by=by)
        return await self._transport.send_and_parse(api.NudgeResult, agent_path(agent_id, "nudge"), body)

    async def escalate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str | None = None,
    ) -> api.EscalationResult:
        """Escalate to the orchestrator, which decides about the worker."""
        body = parse_json_body(reason=reason, session_id=session_id, incarnation_id=incarnation_id, by=by)
        return await self._transport.send_and_parse(
            api.EscalationResult, agent_path(agent_id, "escalate"), body
        )

    async def terminate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str | None = None,
    ) -> api.TerminationResult:
        """Stop a worker after saving its state. Returns once it has stopped or the time for that is over."""
        body = parse_json_body(reason=reason, session_id=session_id, incarnation_id=incarnation_id, by=by)
        return await self._transport.send_and_parse(
            api.TerminationResult, agent_path(agent_id, "terminate"), body
        )

    def escalations(self, agent_id: str, *, limit: int | None = None) -> AsyncIterator[api.Ticket]:
        """Yield the tickets of a worker, newest first."""
        return self._transport.iterate_items(
            api.Ticket, agent_path(agent_id, "escalations"), "tickets", limit
        )

    async def escalation(self, agent_id: str, ticket_id: str) -> api.Ticket:
        """Return a ticket of a worker."""
        return await self._transport.get_model(api.Ticket, agent_path(agent_id, "escalations", ticket_id))
