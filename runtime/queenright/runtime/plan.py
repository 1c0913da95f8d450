"""Where an execution goes next: which edges are taken, and which nodes may start. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from queenright.runtime.conditions import holds
from queenright.runtime.graph import EdgeSpec, GraphSpec
from queenright.runtime.session_store import PendingNode


def edges_taken(
    graph: GraphSpec, node_id: str, *, succeeded: bool, route: str, memory: Mapping[str, Any]
) -> tuple[EdgeSpec, ...]:
    """
    Return the edges that are taken from a node that has ended.

    Of the edges whose condition holds, those of the highest priority are taken, side by side; an edge
    of lower priority is for when none above it holds.

    Args:
        graph: The graph.
        node_id: The node that has ended.
        succeeded: Whether it reached what it was for.
        route: Of a router: what it chose.
        memory: What the session knows now.

    Raises:
        ConditionError: An expression cannot be evaluated.
    """
    taken: list[EdgeSpec] = []
    for edge in graph.edges_from(node_id):
        if taken and edge.priority < taken[0].priority:
            break
        if _holds(edge, succeeded, route, memory):
            taken.append(edge)
    return tuple(taken)


def _holds(edge: EdgeSpec, succeeded: bool, route: str, memory: Mapping[str, Any]) -> bool:
    match edge.when:
        case "always":
            return True
        case "success":
            return succeeded
        case "failure":
            return not succeeded
        case "route":
            return succeeded and edge.route == route
        case "expression":
            return succeeded and holds(edge.expression, memory)


def ready(graph: GraphSpec, waiting: Sequence[PendingNode], running: Collection[str]) -> list[PendingNode]:
    """
    Return those of ``waiting`` that may start now, in their order.

    A node waits while another that is under way can still lead to it, so that branches come together
    where they meet. Nodes that can only wait for each other (in a cycle) start together.
    """
    free = [node for node in waiting if node.node_id not in running]
    active = {*running, *(node.node_id for node in waiting)}
    may = [
        node
        for node in free
        if not any(node.node_id in graph.reachable(other) for other in active - {node.node_id})
    ]
    return may or ([] if running else free)
