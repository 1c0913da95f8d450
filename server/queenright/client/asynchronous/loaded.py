"""Agents that run inside the service: loading, runs, chat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.resource import AsyncResource
from queenright.client.responses import json_body, parse_model


class AsyncLoadedAgents(AsyncResource):
    """Agents that run inside the service."""

    def discover(self, *, limit: int | None = None) -> AsyncIterator[api.DiscoveredAgent]:
        """Yield the agents that can be loaded, ordered by path."""
        return self._transport.list_models(api.DiscoveredAgent, "/api/discover", "agents", limit)

    async def load(self, folder: str, *, model: str | None = None, by: str | None = None) -> api.AgentSlot:
        """Load an agent from a folder on the service's machine; its code runs inside the service."""
        return await self._transport.send_for_model(
            api.AgentSlot, "/api/agents", json_body(path=folder, model=model, by=by)
        )

    async def unload(self, agent_id: str, *, by: str | None = None) -> None:
        """Unload an agent; its runs are paused and its sessions are kept."""
        await self._transport.send(_agent_path(agent_id), method="DELETE", by=by)

    async def loaded(self) -> Sequence[api.AgentSlot]:
        """Return the agents that are loaded."""
        return (await self._transport.get_model(api.AgentsPage, "/api/agents", limit=1)).loaded

    async def get(self, agent_id: str) -> api.AgentDetail:
        """Return an agent and the health of each of its sessions."""
        return await self._transport.get_model(api.AgentDetail, _agent_path(agent_id))

    async def stats(self, agent_id: str) -> api.AgentStats:
        """Return statistics of a loaded agent's runs."""
        return await self._transport.get_model(api.AgentStats, _agent_path(agent_id, "stats"))

    def entry_points(
        self, agent_id: str, *, graph_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.EntryPoint]:
        """Yield the entry points of a loaded agent: calls, timers and events."""
        url_path = _agent_path(agent_id, "entry-points")
        return self._transport.list_models(api.EntryPoint, url_path, "entry_points", limit, graph_id=graph_id)

    async def trigger(
        self,
        agent_id: str,
        input_data: Mapping[str, Any] | None = None,
        *,
        entry_point_id: str | None = None,
        graph_id: str | None = None,
        session_id: str | None = None,
    ) -> api.Started:
        """Start a run without waiting for it; see ``execution`` for its result."""
        body = json_body(
            entry_point_id=entry_point_id,
            input_data=None if input_data is None else dict(input_data),
            graph_id=graph_id,
            session_id=session_id,
        )
        return await self._transport.send_for_model(api.Started, _agent_path(agent_id, "trigger"), body)

    async def execution(self, agent_id: str, execution_id: str) -> api.ExecutionRow:
        """Return the state or the result of a run."""
        return await self._transport.get_model(
            api.ExecutionRow, _agent_path(agent_id, "executions", execution_id)
        )

    async def chat(
        self, agent_id: str, message: str, *, graph_id: str | None = None, session_id: str | None = None
    ) -> api.Injected | api.Started:
        """Send a message: to the node that waits for input, else as the input of a new run."""
        body = json_body(message=message, graph_id=graph_id, session_id=session_id)
        answer = await self._transport.send(_agent_path(agent_id, "chat"), body)
        if answer.get("status") == "injected":
            return parse_model(api.Injected, answer)
        return parse_model(api.Started, answer)

    async def inject(
        self,
        agent_id: str,
        node_id: str,
        content: str,
        *,
        graph_id: str | None = None,
        session_id: str | None = None,
    ) -> api.Injected:
        """Send input to a node of a run."""
        body = json_body(node_id=node_id, content=content, graph_id=graph_id, session_id=session_id)
        return await self._transport.send_for_model(api.Injected, _agent_path(agent_id, "inject"), body)

    async def resume(
        self,
        agent_id: str,
        session_id: str,
        *,
        graph_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> api.Started:
        """Resume the newest unfinished run of a session."""
        body = json_body(session_id=session_id, graph_id=graph_id, checkpoint_id=checkpoint_id)
        return await self._transport.send_for_model(api.Started, _agent_path(agent_id, "resume"), body)

    async def stop(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        session_id: str | None = None,
        graph_id: str | None = None,
    ) -> api.Stopped:
        """Pause a run, or all runs of the agent; they can be resumed."""
        body = json_body(execution_id=execution_id, session_id=session_id, graph_id=graph_id)
        return await self._transport.send_for_model(api.Stopped, _agent_path(agent_id, "stop"), body)

    async def replay(
        self, agent_id: str, session_id: str, checkpoint_id: str, *, graph_id: str | None = None
    ) -> api.Started:
        """Start a run in a new session from a checkpoint of another session."""
        body = json_body(session_id=session_id, checkpoint_id=checkpoint_id, graph_id=graph_id)
        return await self._transport.send_for_model(api.Started, _agent_path(agent_id, "replay"), body)

    async def goal_progress(self, agent_id: str, *, graph_id: str | None = None) -> api.GoalState:
        """Return the goal of a graph, and the progress of its newest run."""
        return await self._transport.get_model(
            api.GoalState, _agent_path(agent_id, "goal-progress"), graph_id=graph_id
        )


def _agent_path(agent_id: str, *parts: str) -> str:
    return build_path("api", "agents", agent_id, *parts)
