"""Workers: health, history, heartbeats, and actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from queenright import api
from queenright.client.address import build_path
from queenright.client.responses import json_body
from queenright.client.synchronous.graphs import Graphs
from queenright.client.synchronous.loaded import LoadedAgents
from queenright.client.synchronous.sessions import Sessions

_AGENTS = "/api/agents"


class Agents(LoadedAgents, Sessions, Graphs):
    """The workers of a service, including the agents that run inside it."""

    def list(
        self, *, agent_id: str | None = None, state: str | None = None, limit: int | None = None
    ) -> Iterator[api.AgentRow]:
        """Yield the sessions of workers, ordered by name, filtered by name or state."""
        return self._transport.list_models(
            api.AgentRow, _AGENTS, "agents", limit, agent_id=agent_id, state=state
        )

    def health(self, agent_id: str, *, session_id: str | None = None) -> api.AgentHealth:
        """Return the health of a worker: state, health signals, metrics and circuit breakers."""
        return self._transport.get_model(
            api.AgentHealth, _agent_path(agent_id, "health"), session_id=session_id
        )

    def all_health(self, *, limit: int | None = None) -> Iterator[api.AgentHealth]:
        """Yield the health of every session of every worker, ordered by name."""
        return self._transport.list_models(api.AgentHealth, f"{_AGENTS}/health", "agents", limit)

    def history(
        self, agent_id: str, *, seconds: float | None = None, limit: int | None = None
    ) -> Iterator[api.HistoryRow]:
        """
        Yield the events of a worker in the last ``seconds``; default: one day.

        The newest page comes first; within a page, the oldest event comes first.
        """
        return self._transport.list_models(
            api.HistoryRow, _agent_path(agent_id, "history"), "history", limit, seconds=seconds
        )

    def heartbeat(self, agent_id: str) -> api.Heartbeat:
        """Return the last heartbeat of a worker."""
        return self._transport.get_model(api.Heartbeat, _agent_path(agent_id, "heartbeat"))

    def send_heartbeat(self, heartbeat: Mapping[str, Any]) -> None:
        """Send a heartbeat; docs/api.md lists its keys."""
        self._transport.send("/api/heartbeats", dict(heartbeat))

    def nudge(
        self,
        agent_id: str,
        message: str | None = None,
        *,
        session_id: str | None = None,
        by: str | None = None,
    ) -> api.NudgeResult:
        """Put a message into a worker's context. Default: the usual reminder."""
        body = json_body(message=message, session_id=session_id, by=by)
        return self._transport.send_for_model(api.NudgeResult, _agent_path(agent_id, "nudge"), body)

    def escalate(
        self, agent_id: str, reason: str, *, session_id: str | None = None, by: str | None = None
    ) -> api.EscalationResult:
        """Escalate to the orchestrator, which decides about the worker."""
        body = json_body(reason=reason, session_id=session_id, by=by)
        return self._transport.send_for_model(api.EscalationResult, _agent_path(agent_id, "escalate"), body)

    def terminate(
        self,
        agent_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        incarnation_id: str | None = None,
        by: str | None = None,
    ) -> api.TerminationResult:
        """Stop a worker after saving its state. Returns once it has stopped or the time for that is over."""
        body = json_body(reason=reason, session_id=session_id, incarnation_id=incarnation_id, by=by)
        return self._transport.send_for_model(api.TerminationResult, _agent_path(agent_id, "terminate"), body)

    def escalations(self, agent_id: str, *, limit: int | None = None) -> Iterator[api.Ticket]:
        """Yield the tickets of a worker, newest first."""
        return self._transport.list_models(api.Ticket, _agent_path(agent_id, "escalations"), "tickets", limit)

    def escalation(self, agent_id: str, ticket_id: str) -> api.Ticket:
        """Return a ticket of a worker."""
        return self._transport.get_model(api.Ticket, _agent_path(agent_id, "escalations", ticket_id))


def _agent_path(agent_id: str, *parts: str) -> str:
    return build_path("api", "agents", agent_id, *parts)
