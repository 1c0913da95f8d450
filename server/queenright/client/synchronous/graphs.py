"""The graphs of loaded agents: their own, those beside it, and the nodes in them."""

from __future__ import annotations

from collections.abc import Iterator

from queenright import api
from queenright.client.address import path
from queenright.client.answers import body
from queenright.client.synchronous.group import Group


class Graphs(Group):
    """The graphs of a loaded agent."""

    def graphs(self, agent_id: str, *, limit: int | None = None) -> Iterator[api.GraphRow]:
        """Yield the graphs of a loaded agent, by id."""
        return self._ask.every(api.GraphRow, _of(agent_id, "graphs"), "graphs", limit)

    def add_graph(
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
        return self._ask.acted(api.GraphRow, _of(agent_id, "graphs"), sent)

    def remove_graph(self, agent_id: str, graph_id: str) -> None:
        """Unload one that was loaded beside it; its runs are paused."""
        self._ask.act(_of(agent_id, "graphs", graph_id), method="DELETE")

    def active_graph(self, agent_id: str) -> str:
        """Return the graph that receives what a user says."""
        return (self._ask.one(api.ActiveGraph, _of(agent_id, "active-graph"))).graph_id

    def set_active_graph(self, agent_id: str, graph_id: str) -> str:
        """Let another graph receive what a user says."""
        sent = body(graph_id=graph_id)
        done = self._ask.acted(api.ActiveGraph, _of(agent_id, "active-graph"), sent, method="PUT")
        return done.graph_id

    def nodes(self, agent_id: str, graph_id: str, *, limit: int | None = None) -> Iterator[api.NodeRow]:
        """Yield the nodes of a graph, in its order."""
        return self._ask.every(api.NodeRow, _of(agent_id, "graphs", graph_id, "nodes"), "nodes", limit)

    def node(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeDetail:
        """Return all that is known of a node."""
        return self._ask.one(api.NodeDetail, _of(agent_id, "graphs", graph_id, "nodes", node_id))

    def criteria(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeCriteria:
        """Return what a node must do to end, who judges that, and what was judged lately."""
        where = _of(agent_id, "graphs", graph_id, "nodes", node_id, "criteria")
        return self._ask.one(api.NodeCriteria, where)


def _of(agent_id: str, *parts: str) -> str:
    return path("api", "agents", agent_id, *parts)
