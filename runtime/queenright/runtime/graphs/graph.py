"""Graphs as data. A graph is checked whole when it is made, and all that is wrong with it is said by name."""

from __future__ import annotations

from pydantic import field_validator, model_validator

from queenright.runtime.graphs.graph_check import adjacency, beyond, problems
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
    A graph: its nodes, the edges between them, and its entry points.

    Raises:
        pydantic.ValidationError: Something is wrong with it; the text names every problem, a line each.
    """

    id: Identifier
    description: str = ""
    repeatable: bool = False
    """A run of it may be done again from its start by itself, where there is no checkpoint to go on from."""
    nodes: tuple[NodeSpec, ...] = ()
    edges: tuple[EdgeSpec, ...] = ()
    entry_points: tuple[EntryPointSpec, ...] = ()

    @field_validator("edges")
    @classmethod
    def _named(cls, edges: tuple[EdgeSpec, ...]) -> tuple[EdgeSpec, ...]:
        """Name the edges that have no name; a second one between the same nodes is ``source-target-2``."""
        taken = {edge.id for edge in edges}
        named = []
        for edge in edges:
            if not edge.id:
                name, number = f"{edge.source}-{edge.target}", 1
                while name in taken:
                    number += 1
                    name = f"{edge.source}-{edge.target}-{number}"
                taken.add(name)
                edge = edge.model_copy(update={"id": name})
            named.append(edge)
        return tuple(named)

    @model_validator(mode="after")
    def _sound(self) -> GraphSpec:
        found = problems(self.nodes, self.edges, self.entry_points)
        if found:
            raise ValueError("\n".join(f"graph {self.id!r}: {problem}" for problem in found))
        return self

    def node(self, node_id: str) -> NodeSpec:
        """
        Return the node called ``node_id``.

        Raises:
            KeyError: There is none.
        """
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)

    def edges_from(self, node_id: str) -> tuple[EdgeSpec, ...]:
        """Return the edges that leave ``node_id``: the highest priority first, then as they were given."""
        leaving = (edge for edge in self.edges if edge.source == node_id)
        return tuple(sorted(leaving, key=lambda edge: -edge.priority))

    def reachable(self, node_id: str) -> frozenset[str]:
        """Return the nodes that an edge or more lead to from ``node_id``: itself only if it is in a cycle."""
        return frozenset(beyond(node_id, adjacency(self.edges)))
