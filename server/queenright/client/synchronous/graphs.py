"""The graphs of loaded agents, and their nodes."""

from __future__ import annotations

from collections.abc import Iterator

from queenright import api
from queenright.client.address import build_path
from queenright.client.responses import json_body
from queenright.client.synchronous.resource import Resource


class Graphs(Resource):
    """The graphs of a loaded agent."""

    def graphs(self, agent_id: str, *, limit: int | None = None) -> Iterator[api.GraphRow]:
        """Yield the graphs of a loaded agent, ordered by id."""
        return self._transport.list_models(api.GraphRow, _agent_path(agent_id, "graphs"), "graphs", limit)

    def add_graph(
        self,
        agent_id: str,
        folder: str,
        *,
        graph_id: str | None = None,
        model: str | None = None,
        by: str | None = None,
    ) -> api.GraphRow:
        """Add the graph of another agent from its folder; its code runs inside the service."""
        body = json_body(path=folder, graph_id=graph_id, model=model, by=by)
        return self._transport.send_for_model(api.GraphRow, _agent_path(agent_id, "graphs"), body)

    def remove_graph(self, agent_id: str, graph_id: str) -> None:
        """Remove an added graph; its runs are paused."""
        self._transport.send(_agent_path(agent_id, "graphs", graph_id), method="DELETE")

    def active_graph(self, agent_id: str) -> str:
        """Return the graph that receives the user's messages."""
        return (self._transport.get_model(api.ActiveGraph, _agent_path(agent_id, "active-graph"))).graph_id

    def set_active_graph(self, agent_id: str, graph_id: str) -> str:
        """Set the graph that receives the user's messages."""
        body = json_body(graph_id=graph_id)
        done = self._transport.send_for_model(
            api.ActiveGraph, _agent_path(agent_id, "active-graph"), body, method="PUT"
        )
        return done.graph_id

    def nodes(self, agent_id: str, graph_id: str, *, limit: int | None = None) -> Iterator[api.NodeRow]:
        """Yield the nodes of a graph, in the graph's order."""
        return self._transport.list_models(
            api.NodeRow, _agent_path(agent_id, "graphs", graph_id, "nodes"), "nodes", limit
        )

    def node(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeDetail:
        """Return the details of a node."""
        return self._transport.get_model(
            api.NodeDetail, _agent_path(agent_id, "graphs", graph_id, "nodes", node_id)
        )

    def criteria(self, agent_id: str, graph_id: str, node_id: str) -> api.NodeCriteria:
        """Return the completion criteria of a node, who judges them, and recent verdicts."""
        url_path = _agent_path(agent_id, "graphs", graph_id, "nodes", node_id, "criteria")
        return self._transport.get_model(api.NodeCriteria, url_path)


def _agent_path(agent_id: str, *parts: str) -> str:
    return build_path("api", "agents", agent_id, *parts)
