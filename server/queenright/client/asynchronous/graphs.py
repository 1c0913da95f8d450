"""The graphs of loaded agents: their own, those beside it, and the nodes in them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.asynchronous.group import AsyncGroup


class AsyncGraphs(AsyncGroup):
    """The graphs of a loaded agent."""

    def graphs(self, agent_id: str, *, limit: int | None = None) -> AsyncIterator[api.GraphRow]:
        """Yield the graphs of a loaded agent, by id."""
        return self._ask.every(api.GraphRow, _of(agent_id, "graphs"), "graphs", limit)

    async def add_graph(
        self,
        agent_id: str,
        folder: str,
        *,
        graph_id: str | None = None,
        model: str | None = None,
        by: str | None = None,
    ) -> api.GraphRow:
        """Load another agent beside it, from its folder; its code runs inside the service."""
        sent = body(path=folder, graph_id=graph_id, model=model, by=by)
        return await self._ask.acted(api.GraphRow, _of(agent_id, "graphs"), sent)

    async def remove_graph(self, agent_id: str, graph_id: str) -> None:
        """Unload one that was loaded beside it; its runs are paused."""
        await self._ask.act(_of(agent_id, "graphs", graph_id), method="DELETE")

    async def active_graph(self, agent_id: str) -> str:
        """Return the graph that receives what a user says."""
        return (await self._ask.one(api.ActiveGraph, _of(agent_id, "active-graph"))).graph_id

    async def set_active_graph(self, agent_id: str, graph_id: str) -> str:
        """Let another graph receive what a user says."""
        sent = body(graph_id=graph_id)
        done = await self._ask.acted(api.ActiveGraph, _of(agent_id, "active-graph"), sent, method="PUT")
        return done.graph_id

    def nodes(self, agent_id: str, graph_id: str, *, limit: int | None = None) -> AsyncIterator[api.NodeRow]:
        """Yield the nodes of a graph, in its order."""
        return self._ask.every(api.NodeRow, _of(agent_id, "graphs", graph_id, "nodes"), "nodes", limit)

    async def node(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeDetail:
        """Return all that is known of a node."""
        return await self._ask.one(api.NodeDetail, _of(agent_id, "graphs", graph_id, "nodes", node_id))

    async def criteria(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeCriteria:
        """Return what a node must do to end, who judges that, and what was judged lately."""
        where = _of(agent_id, "graphs", graph_id, "nodes", node_id, "criteria")
        return await self._ask.one(api.NodeCriteria, where)


def _of(agent_id: str, *parts: str) -> str:
    return path("api", "agents", agent_id, *parts)
