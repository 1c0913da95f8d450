"""Workers: how they are, and what can be done about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.asynchronous.graphs import AsyncGraphs
from queenright.client.asynchronous.loaded import AsyncLoadedAgents
from queenright.client.asynchronous.sessions import AsyncSessions

_AGENTS = "/api/agents"


class AsyncAgents(AsyncLoadedAgents, AsyncSessions, AsyncGraphs):
    """The workers of a service; those that run inside it are workers like all others."""

    def list(
        self, *, agent_id: str | None = None, state: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.AgentRow]:
        """Yield the workers, each of its sessions, by name; of this name or in this state only."""
        return self._ask.every(api.AgentRow, _AGENTS, "agents", limit, agent_id=agent_id, state=state)

    async def health(self, agent_id: str, *, session_id: str | None = None) -> api.AgentHealth:
        """Return one worker's health: its state, the signals behind it, metrics and circuit breakers."""
        return await self._ask.one(api.AgentHealth, _of(agent_id, "health"), session_id=session_id)

    def all_health(self, *, limit: int | None = None) -> AsyncIterator[api.AgentHealth]:
        """Yield every worker's health, each of its sessions, by name."""
        return self._ask.every(api.AgentHealth, f"{_AGENTS}/health", "agents", limit)

    def history(
        self, agent_id: str, *, seconds: float | None = None, limit: int | None = None
    ) -> AsyncIterator[api.HistoryRow]:
        """
        Yield what happened to a worker in the last ``seconds`` (a day, without), as the service tells it.

        The newest page comes first, and each page is oldest first.
        """
        return self._ask.every(api.HistoryRow, _of(agent_id, "history"), "history", limit, seconds=seconds)

    async def heartbeat(self, agent_id: str) -> api.Heartbeat:
        """Return the last heartbeat of a worker."""
        return await self._ask.one(api.Heartbeat, _of(agent_id, "heartbeat"))

    async def send_heartbeat(self, heartbeat: Mapping[str, Any]) -> None:
        """Send one heartbeat; its keys are in the API's documents."""
        await self._ask.act("/api/heartbeats", dict(heartbeat))

    async def nudge(
        self,
        agent_id: str,
        message: str | None = None,
        *,
        session_id: str | None = None,
        by: str | None = None,
    ) -> api.NudgeResult:
        """Put a message into a worker's context; the usual reminder, without one."""
        sent = body(message=message, session_id=session_id, by=by)
        return await self._ask.acted(api.NudgeResult, _of(agent_id, "nudge"), sent)

    async def escalate(
        self, agent_id: str, reason: str, *, session_id: str | None = None, by: str | None = None
    ) -> api.EscalationResult:
        """Ask the orchestrator what is to become of a worker."""
        sent = body(reason=reason, session_id=session_id, by=by)
        return await self._ask.acted(api.EscalationResult, _of(agent_id, "escalate"), sent)

    async def terminate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str | None = None,
    ) -> api.TerminationResult:
        """Stop a worker: its state is saved. Answers when it has stopped, or the time for that is over."""
        sent = body(reason=reason, session_id=session_id, incarnation_id=incarnation_id, by=by)
        return await self._ask.acted(api.TerminationResult, _of(agent_id, "terminate"), sent)

    def escalations(self, agent_id: str, *, limit: int | None = None) -> AsyncIterator[api.Ticket]:
        """Yield the tickets of one worker, newest first."""
        return self._ask.every(api.Ticket, _of(agent_id, "escalations"), "tickets", limit)

    async def escalation(self, agent_id: str, ticket_id: str) -> api.Ticket:
        """Return one ticket of one worker."""
        return await self._ask.one(api.Ticket, _of(agent_id, "escalations", ticket_id))


def _of(agent_id: str, *parts: str) -> str:
    return path("api", "agents", agent_id, *parts)
