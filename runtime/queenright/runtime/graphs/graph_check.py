"""Validation of a graph as a whole. Each problem is one sentence that names its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from queenright.runtime.graphs import conditions
from queenright.runtime.graphs.spec_check import (
    find_duplicates,
    find_entry_point_problems,
    find_node_problems,
)
from queenright.runtime.graphs.specs import EdgeSpec, EntryPointSpec, NodeSpec

Adjacency = Mapping[str, Sequence[str]]
"""The targets of each node's edges."""


def find_graph_problems(
    nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], entry_points: Sequence[EntryPointSpec]
) -> list[str]:
    """Return all problems, in the order: ids, nodes, edges, entry points, structure."""
    by_id = {node.id: node for node in nodes}
    result = [*_find_id_problems(nodes, edges, entry_points)]
    for node in nodes:
        result += find_node_problems(node)
        result += _find_router_problems(node, edges)
    for edge in edges:
        result += _find_edge_problems(edge, by_id)
    result += _find_repeated_edges(edges)
    for entry in entry_points:
        if entry.node_id not in by_id:
            result.append(
                f"entry point {entry.id!r} starts node {entry.node_id!r}, which does not exist; "
                f"nodes: {_join_names(by_id)}"
            )
        result += find_entry_point_problems(entry)
    result += _find_unreachable_nodes(by_id, edges, entry_points)
    result += _find_endless_cycles(by_id, edges)
    return result


def build_adjacency(edges: Iterable[EdgeSpec]) -> Adjacency:
    """Return the targets of each node's edges, in order."""
    targets: dict[str, list[str]] = {}
    for edge in edges:
        targets.setdefault(edge.source, []).append(edge.target)
    return targets


def find_reachable(start: str, targets: Adjacency) -> dict[str, None]:
    """Return the nodes reachable from ``start``, nearest first; ``start`` itself only if it is in a cycle."""
    reachable_nodes: dict[str, None] = {}
    frontier = [start]
    while frontier:
        current, frontier = frontier, []
        for source in current:
            for target in targets.get(source, ()):
                if target not in reachable_nodes:
                    reachable_nodes[target] = None
                    frontier.append(target)
    return reachable_nodes


def _find_id_problems(
    nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], entry_points: Sequence[EntryPointSpec]
) -> Iterator[str]:
    if not nodes:
        yield "a graph needs at least one node"
    if not entry_points:
        yield "a graph needs at least one entry point"
    yield from find_duplicates("node", (node.id for node in nodes))
    yield from find_duplicates("edge", (edge.id for edge in edges))
    yield from find_duplicates("entry point", (entry.id for entry in entry_points))


def _find_router_problems(node: NodeSpec, edges: Sequence[EdgeSpec]) -> Iterator[str]:
    if node.node_type == "router":
        routes = {edge.route for edge in edges if edge.source == node.id and edge.when == "route"}
        for route in node.routes:
            if route not in routes:
                yield f"node {node.id!r}: route {route!r} has no edge"


def _find_edge_problems(edge: EdgeSpec, by_id: Mapping[str, NodeSpec]) -> Iterator[str]:
    prefix = f"edge {edge.id!r}"
    if edge.source not in by_id:
        yield f"{prefix} leaves node {edge.source!r}, which does not exist; nodes: {_join_names(by_id)}"
    if edge.target not in by_id:
        yield f"{prefix} leads to node {edge.target!r}, which does not exist; nodes: {_join_names(by_id)}"
    yield from (f"{prefix}: {problem}" for problem in _find_condition_problems(edge))
    yield from (f"{prefix}: {problem}" for problem in _find_route_problems(edge, by_id.get(edge.source)))
    target = by_id.get(edge.target)
    if target is not None and target.input_keys:
        for key in edge.input_mapping:
            if key not in target.input_keys:
                keys = _join_names(target.input_keys)
                yield f"{prefix}: {key!r} is not an input key of node {target.id!r}; it has: {keys}"


def _find_condition_problems(edge: EdgeSpec) -> Iterator[str]:
    if edge.when != "expression":
        if edge.expression:
            yield f"expression requires when='expression', not {edge.when!r}"
    elif not edge.expression:
        yield "when='expression' requires an expression"
    else:
        try:
            conditions.check(edge.expression)
        except (conditions.ConditionError, conditions.ConditionsUnavailableError) as error:
            yield str(error)


def _find_route_problems(edge: EdgeSpec, source: NodeSpec | None) -> Iterator[str]:
    if edge.when != "route":
        if edge.route:
            yield f"route requires when='route', not {edge.when!r}"
    elif source is not None and source.node_type != "router":
        yield f"a route leaves node {source.id!r}, which is not a router but {source.node_type}"
    elif source is not None and edge.route not in source.routes:
        yield f"node {source.id!r} has no route {edge.route!r}; it has: {_join_names(source.routes)}"


def _find_repeated_edges(edges: Sequence[EdgeSpec]) -> Iterator[str]:
    first_edge_ids: dict[tuple[str, ...], str] = {}
    for edge in edges:
        key = (edge.source, edge.target, edge.when, edge.expression, edge.route)
        if key in first_edge_ids and first_edge_ids[key] != edge.id:
            first_id = first_edge_ids[key]
            yield f"edge {edge.id!r} repeats edge {first_id!r}: it would start node {edge.target!r} twice"
        first_edge_ids.setdefault(key, edge.id)


def _find_unreachable_nodes(
    by_id: Mapping[str, NodeSpec], edges: Sequence[EdgeSpec], entry_points: Sequence[EntryPointSpec]
) -> Iterator[str]:
    targets = build_adjacency(edges)
    reachable_nodes: set[str] = set()
    for start in {entry.node_id for entry in entry_points}:
        reachable_nodes |= {start, *find_reachable(start, targets)}
    for node_id in by_id:
        if node_id not in reachable_nodes and entry_points:
            yield f"node {node_id!r} is not reachable from any entry point"


def _find_endless_cycles(by_id: Mapping[str, NodeSpec], edges: Sequence[EdgeSpec]) -> Iterator[str]:
    """
    Yield a problem for each set of nodes that never ends once it is entered.

    In such a set each node can be reached from each other, no edge leads out, every node takes an edge when
    it succeeds, and none limits its visits.
    """
    edges = [edge for edge in edges if edge.source in by_id and edge.target in by_id]
    targets = build_adjacency(edges)
    reachable = {node_id: find_reachable(node_id, targets) for node_id in by_id}
    checked_nodes: set[str] = set()
    for node_id in by_id:
        if node_id in checked_nodes or node_id not in reachable[node_id]:
            continue
        cycle = dict.fromkeys(
            [node_id, *(other for other in reachable[node_id] if node_id in reachable[other])]
        )
        checked_nodes.update(cycle)
        has_exit = any(target not in cycle for source in cycle for target in targets[source])
        if not has_exit and all(_always_continues(by_id[source], edges) for source in cycle):
            names = " -> ".join(repr(name) for name in (*cycle, node_id))
            yield (
                f"nodes form an endless cycle: {names}; give one of them an edge that leads out, "
                "a condition, or max_node_visits"
            )


def _always_continues(node: NodeSpec, edges: Sequence[EdgeSpec]) -> bool:
    """Return whether a node takes an edge whenever it succeeds, however often it was visited."""
    if "max_node_visits" in node.model_fields_set and node.max_node_visits:
        return False
    has_unconditional_edge = any(
        edge.source == node.id and edge.when in ("success", "always") for edge in edges
    )
    return node.node_type == "router" or has_unconditional_edge


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
