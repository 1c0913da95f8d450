"""Graphs as data. A graph is validated as a whole on construction, and every problem is reported."""

from __future__ import annotations

from pydantic import field_validator, model_validator

from queenright.runtime.graphs.graph_check import build_adjacency, find_graph_problems, find_reachable
from queenright.runtime.graphs.specs import (
    ConversationMode,
    EdgeSpec,
    EdgeWhen,
    EntryPointSpec,
    Identifier,
    IsolationLevel,
    NodeSpec,
    NodeType,
    Spec,
    TriggerType,
)

__all__ = [
    "ConversationMode",
    "EdgeSpec",
    "EdgeWhen",
    "EntryPointSpec",
    "GraphSpec",
    "Identifier",
    "IsolationLevel",
    "NodeSpec",
    "NodeType",
    "TriggerType",
]


class GraphSpec(Spec):
    """
    A graph: nodes, edges and entry points.

    Raises:
        pydantic.ValidationError: The graph is invalid; the message lists every problem, one per line.
    """

    id: Identifier
    description: str = ""
    repeatable: bool = False
    """Whether a run may be repeated automatically from the start if it has no usable checkpoint."""
    nodes: tuple[NodeSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    entry_points: tuple[EntryPointSpec, ...] = ()

    @field_validator("edges")
    @classmethod
    def _name_edges(cls, edges: tuple[EdgeSpec, ...]) -> tuple[EdgeSpec, ...]:
        """Name unnamed edges; a second one between the same nodes is ``source-target-2``."""
        edge_ids = {edge.id for edge in edges}
        named_edges = []
        for edge in edges:
            if not edge.id:
                name, number = f"{edge.source}-{edge.target}", 1
                while name in edge_ids:
                    number += 1
                    name = f"{edge.source}-{edge.target}-{number}"
                edge_ids.add(name)
                edge = edge.model_copy(update={"id": name})
            named_edges.append(edge)
        return tuple(named_edges)

    @model_validator(mode="after")
    def _validate_graph(self) -> GraphSpec:
        problems = find_graph_problems(self.nodes, self.edges, self.entry_points)
        if problems:
            raise ValueError("\n".join(f"graph {self.id!r}: {problem}" for problem in problems))
        return self

    def node(self, node_id: str) -> NodeSpec:
        """
        Return the node with the id ``node_id``.

        Raises:
            KeyError: There is no such node.
        """
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def edges_from(self, node_id: str) -> tuple[EdgeSpec, ...]:
        """Return the edges that leave ``node_id``, by descending priority, then in the order given."""
        outgoing_edges = (edge for edge in self.edges if edge.source == node_id)
        return tuple(sorted(outgoing_edges, key=lambda edge: -edge.priority))

    def find_reachable_nodes(self, node_id: str) -> frozenset[str]:
        """Return the nodes reachable from ``node_id``, which is included only if it is in a cycle."""
        return frozenset(find_reachable(node_id, build_adjacency(self.edges)))
