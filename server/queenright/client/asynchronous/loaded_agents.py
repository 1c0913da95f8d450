"""Agents that run inside the service: loading, runs, chat, graphs, and stored data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from queenright import api
from queenright.client.address import build_path
from queenright.client.asynchronous.transport import AsyncResource
from queenright.client.responses import parse_json_body, parse_model


class AsyncLoadedAgents(AsyncResource):
    """Agents that run inside the service."""

    def discover(self, *, limit: int | None = None) -> AsyncIterator[api.DiscoveredAgent]:
        """Yield the agents that can be loaded, ordered by path."""
        return self._transport.iterate_items(api.DiscoveredAgent, "/api/discover", "agents", limit)

    async def load(self, folder: str, *, model: str | None = None, by: str | None = None) -> api.AgentSlot:
        """Load an agent from a folder on the service's machine; its code runs inside the service."""
        return await self._transport.send_and_parse(
            api.AgentSlot, "/api/agents", parse_json_body(path=folder, model=model, by=by)
        )

    async def unload(self, agent_id: str, *, by: str | None = None) -> None:
        """Unload an agent; its runs are paused and its sessions are kept."""
        await self._transport.send(agent_path(agent_id), method="DELETE", by=by)

    async def loaded(self) -> Sequence[api.AgentSlot]:
        """Return the agents that are loaded."""
        return (await self._transport.get_model(api.AgentsPage, "/api/agents", limit=1)).loaded

    async def get(self, agent_id: str) -> api.AgentDetail:
        """Return an agent and the health of each of its sessions."""
        return await self._transport.get_model(api.AgentDetail, agent_path(agent_id))

    async def stats(self, agent_id: str) -> api.AgentStats:
        """Return statistics of a loaded agent's runs."""
        return await self._transport.get_model(api.AgentStats, agent_path(agent_id, "stats"))

    def entry_points(
        self, agent_id: str, *, graph_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.EntryPoint]:
        """Yield the entry points of a loaded agent: calls, timers and events."""
        url_path = agent_path(agent_id, "entry-points")
        return self._transport.iterate_items(
            api.EntryPoint, url_path, "entry_points", limit, graph_id=graph_id
        )

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
        body = parse_json_body(
            entry_point_id=entry_point_id,
            input_data=None if input_data is None else dict(input_data),
            graph_id=graph_id,
            session_id=session_id,
        )
        return await self._transport.send_and_parse(api.Started, agent_path(agent_id, "trigger"), body)

    async def execution(self, agent_id: str, execution_id: str) -> api.ExecutionRow:
        """Return the state or the result of a run."""
        return await self._transport.get_model(
            api.ExecutionRow, agent_path(agent_id, "executions", execution_id)
        )

    async def chat(
        self,
        agent_id: str,
        message: str,
        *,
        graph_id: str | None = None,
        session_id: str | None = None,
        question_id: str | None = None,
    ) -> api.Injected | api.Started:
        """Send a message to the node that waits for input, else to a new run; or answer ``question_id``."""
        body = parse_json_body(
            message=message, graph_id=graph_id, session_id=session_id, question_id=question_id
        )
        answer = await self._transport.send(agent_path(agent_id, "chat"), body)
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
        question_id: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.Injected:
        """Send input to a node of a run; with ``question_id``, only as the answer to that question."""
        body = parse_json_body(
            node_id=node_id,
            content=content,
            graph_id=graph_id,
            session_id=session_id,
            question_id=question_id,
            incarnation_id=incarnation_id,
        )
        return await self._transport.send_and_parse(api.Injected, agent_path(agent_id, "inject"), body)

    async def resume(
        self,
        agent_id: str,
        session_id: str,
        *,
        graph_id: str | None = None,
        checkpoint_id: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.Started:
        """Resume the newest unfinished run of a session."""
        body = parse_json_body(
            session_id=session_id,
            graph_id=graph_id,
            checkpoint_id=checkpoint_id,
            incarnation_id=incarnation_id,
        )
        return await self._transport.send_and_parse(api.Started, agent_path(agent_id, "resume"), body)

    async def stop(
        self,
        agent_id: str,
        *,
        execution_id: str | None = None,
        session_id: str | None = None,
        graph_id: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.Stopped:
        """Pause a run, or all runs of the agent; they can be resumed."""
        body = parse_json_body(
            execution_id=execution_id,
            session_id=session_id,
            graph_id=graph_id,
            incarnation_id=incarnation_id,
        )
        return await self._transport.send_and_parse(api.Stopped, agent_path(agent_id, "stop"), body)

    async def replay(
        self, agent_id: str, session_id: str, checkpoint_id: str, *, graph_id: str | None = None
    ) -> api.Started:
        """Start a run in a new session from a checkpoint of another session."""
        body = parse_json_body(session_id=session_id, checkpoint_id=checkpoint_id, graph_id=graph_id)
        return await self._transport.send_and_parse(api.Started, agent_path(agent_id, "replay"), body)

    async def goal_progress(self, agent_id: str, *, graph_id: str | None = None) -> api.GoalState:
        """Return the goal of a graph, and the progress of its newest run."""
        return await self._transport.get_model(
            api.GoalState, agent_path(agent_id, "goal-progress"), graph_id=graph_id
        )


class AsyncGraphs(AsyncResource):
    """The graphs of a loaded agent."""

    def graphs(self, agent_id: str, *, limit: int | None = None) -> AsyncIterator[api.GraphRow]:
        """Yield the graphs of a loaded agent, ordered by id."""
        return self._transport.iterate_items(api.GraphRow, agent_path(agent_id, "graphs"), "graphs", limit)

    async def add_graph(
        self,
        agent_id: str,
        folder: str,
        *,
        graph_id: str | None = None,
        model: str | None = None,
        by: str | None = None,
    ) -> api.GraphRow:
        """Add the graph of another agent from its folder; its code runs inside the service."""
        body = parse_json_body(path=folder, graph_id=graph_id, model=model, by=by)
        return await self._transport.send_and_parse(api.GraphRow, agent_path(agent_id, "graphs"), body)

    async def remove_graph(self, agent_id: str, graph_id: str) -> None:
        """Remove an added graph; its runs are paused."""
        await self._transport.send(agent_path(agent_id, "graphs", graph_id), method="DELETE")

    async def active_graph(self, agent_id: str) -> str:
        """Return the graph that receives the user's messages."""
        return (
            await self._transport.get_model(api.ActiveGraph, agent_path(agent_id, "active-graph"))
        ).graph_id

    async def set_active_graph(self, agent_id: str, graph_id: str) -> str:
        """Set the graph that receives the user's messages."""
        body = parse_json_body(graph_id=graph_id)
        graph = await self._transport.send_and_parse(
            api.ActiveGraph, agent_path(agent_id, "active-graph"), body, method="PUT"
        )
        return graph.graph_id

    def nodes(self, agent_id: str, graph_id: str, *, limit: int | None = None) -> AsyncIterator[api.NodeRow]:
        """Yield the nodes of a graph, in the graph's order."""
        return self._transport.iterate_items(
            api.NodeRow, agent_path(agent_id, "graphs", graph_id, "nodes"), "nodes", limit
        )

    async def node(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeDetail:
        """Return the details of a node."""
        return await self._transport.get_model(
            api.NodeDetail, agent_path(agent_id, "graphs", graph_id, "nodes", node_id)
        )

    async def criteria(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeCriteria:
        """Return the completion criteria of a node, who judges them, and recent verdicts."""
        url_path = agent_path(agent_id, "graphs", graph_id, "nodes", node_id, "criteria")
        return await self._transport.get_model(api.NodeCriteria, url_path)


class AsyncSessions(AsyncResource):
    """Stored data of a loaded agent; ``graph_id`` defaults to its own graph."""

    def sessions(
        self,
        agent_id: str,
        *,
        graph_id: str | None = None,
        status: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.SessionRow]:
        """Yield sessions, newest first."""
        graph = () if graph_id is None else ("graphs", graph_id)
        url_path = build_path("api", "agents", agent_id, *graph, "sessions")
        return self._transport.iterate_items(api.SessionRow, url_path, "sessions", limit, status=status)

    async def session(
        self, agent_id: str, session_id: str, *, graph_id: str | None = None
    ) -> api.SessionDetail:
        """Return a session with its memory and its runs."""
        return await self._transport.get_model(
            api.SessionDetail, _session_path(agent_id, session_id), graph_id=graph_id
        )

    async def delete_session(self, agent_id: str, session_id: str, *, graph_id: str | None = None) -> None:
        """Delete a session permanently."""
        await self._transport.send(_session_path(agent_id, session_id), method="DELETE", graph_id=graph_id)

    def checkpoints(
        self, agent_id: str, session_id: str, *, graph_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[api.CheckpointRow]:
        """Yield the checkpoints of a session, newest first."""
        url_path = _session_path(agent_id, session_id, "checkpoints")
        return self._transport.iterate_items(
            api.CheckpointRow, url_path, "checkpoints", limit, graph_id=graph_id
        )

    async def restore(
        self,
        agent_id: str,
        session_id: str,
        checkpoint_id: str,
        *,
        graph_id: str | None = None,
        incarnation_id: str | None = None,
    ) -> api.Started:
        """Restore a checkpoint and continue from there; later progress is discarded."""
        url_path = _session_path(agent_id, session_id, "checkpoints", checkpoint_id, "restore")
        body = parse_json_body(incarnation_id=incarnation_id)
        return await self._transport.send_and_parse(api.Started, url_path, body, graph_id=graph_id)

    def messages(
        self,
        agent_id: str,
        session_id: str,
        *,
        graph_id: str | None = None,
        conversation: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[api.MessageRow]:
        """
        Yield the messages of a session: the newest page first, oldest first within a page.

        ``conversation``: only messages of this node.
        """
        url_path = _session_path(agent_id, session_id, "messages")
        params = {"graph_id": graph_id, "conversation": conversation}
        return self._transport.iterate_items(api.MessageRow, url_path, "messages", limit, **params)

    def logs(
        self,
        agent_id: str,
        *,
        level: str | None = None,
        session_id: str | None = None,
        graph_id: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield log rows of an agent, newest first: one per run, node visit or step, by ``level``."""
        params = {"level": level, "session_id": session_id, "graph_id": graph_id}
        return self._transport.list_rows(
            build_path("api", "agents", agent_id, "logs"), "rows", limit, **params
        )

    def node_logs(
        self,
        agent_id: str,
        graph_id: str,
        node_id: str,
        *,
        level: str | None = None,
        session_id: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield log rows of a node, newest first: one per visit or step, by ``level``."""
        url_path = build_path("api", "agents", agent_id, "graphs", graph_id, "nodes", node_id, "logs")
        return self._transport.list_rows(url_path, "rows", limit, level=level, session_id=session_id)


def _session_path(agent_id: str, session_id: str, *parts: str) -> str:
    return build_path("api", "agents", agent_id, "sessions", session_id, *parts)


def agent_path(agent_id: str, *parts: str) -> str:
    """Return a URL path below an agent."""
    return build_path("api", "agents", agent_id, *parts)
