"""Agents that run inside the service: loading them, runs of theirs, and talking with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body, parsed
from queenright.client.asynchronous.group import AsyncGroup


class AsyncLoadedAgents(AsyncGroup):
    """What can be asked of an agent that runs inside the service."""

    def discover(self, *, limit: int | None = None) -> AsyncIterator[api.Discovered]:
        """Yield the agents that can be loaded, by path."""
        return self._ask.every(api.Discovered, "/api/discover", "agents", limit)

    async def load(self, folder: str, *, model: str | None = None, by: str | None = None) -> api.AgentSlot:
        """Load an agent from its folder, as the service sees it; its code runs inside the service."""
        return await self._ask.acted(api.AgentSlot, "/api/agents", body(path=folder, model=model, by=by))

    async def unload(self, agent_id: str, *, by: str | None = None) -> None:
        """Unload one: its runs are paused, its sessions stay."""
        await self._ask.act(_of(agent_id), method="DELETE", by=by)

    async def loaded(self) -> Sequence[api.AgentSlot]:
        """Return the agents that are loaded."""
        return (await self._ask.one(api.AgentsPage, "/api/agents", limit=1)).loaded

    async def get(self, agent_id: str) -> api.AgentOne:
        """Return what an agent is, if it is loaded, and how it is in each of its sessions."""
        return await self._ask.one(api.AgentOne, _of(agent_id))

    async def stats(self, agent_id: str) -> api.AgentStats:
        """Return how a loaded agent is getting on: its runs, and what they took."""
        return await self._ask.one(api.AgentStats, _of(agent_id, "stats"))

    def entry_points(
        self, agent_id: str, *, graph_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.EntryPoint]:
        """Yield what starts a loaded agent: calls, timers and events."""
        where = _of(agent_id, "entry-points")
        return self._ask.every(api.EntryPoint, where, "entry_points", limit, graph_id=graph_id)

    async def trigger(
        self,
        agent_id: str,
        input_data: Mapping[str, Any] | None = None,
        *,
        entry_point_id: str | None = None,
        graph_id: str | None = None,
        session_id: str | None = None,
    ) -> api.Started:
        """Start a run, and return at once; see ``execution`` for what becomes of it."""
        sent = body(
            entry_point_id=entry_point_id,
            input_data=None if input_data is None else dict(input_data),
            graph_id=graph_id,
            session_id=session_id,
        )
        return await self._ask.acted(api.Started, _of(agent_id, "trigger"), sent)

    async def execution(self, agent_id: str, execution_id: str) -> api.ExecutionRow:
        """Return a run: as it stands, or how it ended."""
        return await self._ask.one(api.ExecutionRow, _of(agent_id, "executions", execution_id))

    async def chat(
        self, agent_id: str, message: str, *, graph_id: str | None = None, session_id: str | None = None
    ) -> api.Injected | api.Started:
        """Say something: a node that waits for its user is given it, else a run is started with it."""
        sent = body(message=message, graph_id=graph_id, session_id=session_id)
        answer = await self._ask.act(_of(agent_id, "chat"), sent)
        if answer.get("status") == "injected":
            return parsed(api.Injected, answer)
        return parsed(api.Started, answer)

    async def inject(
        self,
        agent_id: str,
        node_id: str,
        content: str,
        *,
        graph_id: str | None = None,
        session_id: str | None = None,
    ) -> api.Injected:
        """Give one node of a run what its user says."""
        sent = body(node_id=node_id, content=content, graph_id=graph_id, session_id=session_id)
        return await self._ask.acted(api.Injected, _of(agent_id, "inject"), sent)

    async def resume(
        self,
        agent_id: str,
        session_id: str,
        *,
        graph_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> api.Started:
        """Go on with the newest run of a session that did not get to its end."""
        sent = body(session_id=session_id, graph_id=graph_id, checkpoint_id=checkpoint_id)
        return await self._ask.acted(api.Started, _of(agent_id, "resume"), sent)

    async def stop(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        session_id: str | None = None,
        graph_id: str | None = None,
    ) -> api.Stopped:
        """Pause runs, all of the agent's where none is named; they can be resumed."""
        sent = body(execution_id=execution_id, session_id=session_id, graph_id=graph_id)
        return await self._ask.acted(api.Stopped, _of(agent_id, "stop"), sent)

    async def replay(
        self, agent_id: str, session_id: str, checkpoint_id: str, *, graph_id: str | None = None
    ) -> api.Started:
        """Begin a new run, in a new session, where another was at a checkpoint."""
        sent = body(session_id=session_id, checkpoint_id=checkpoint_id, graph_id=graph_id)
        return await self._ask.acted(api.Started, _of(agent_id, "replay"), sent)

    async def goal_progress(self, agent_id: str, *, graph_id: str | None = None) -> api.GoalState:
        """Return what a graph is to achieve, and how far its newest run has come."""
        return await self._ask.one(api.GoalState, _of(agent_id, "goal-progress"), graph_id=graph_id)


def _of(agent_id: str, *parts: str) -> str:
    return path("api", "agents", agent_id, *parts)
