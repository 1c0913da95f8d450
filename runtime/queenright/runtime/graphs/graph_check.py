"""What can be wrong with a graph as a whole: every problem, each one sentence that names its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from queenright.runtime.graphs import conditions
from queenright.runtime.graphs.spec_check import entry_point_problems, node_problems, twice
from queenright.runtime.graphs.specs import EdgeSpec, EntryPointSpec, NodeSpec

Adjacency = Mapping[str, Sequence[str]]
"""For each node, the nodes that its edges lead to."""


def problems(
    nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], entry_points: Sequence[EntryPointSpec]
) -> list[str]:
    """Return all that is wrong, in the order: ids, nodes, edges, entry points, the whole."""
    by_id = {node.id: node for node in nodes}
    found = [*_id_problems(nodes, edges, entry_points)]
    for node in nodes:
        found += node_problems(node)
        found += _router_problems(node, edges)
    for edge in edges:
        found += _edge_problems(edge, by_id)
    found += _repeated_edges(edges)
    for entry in entry_points:
        if entry.node_id not in by_id:
            found.append(
                f"entry point {entry.id!r} starts node {entry.node_id!r}, which is not there; "
                f"there are: {_list(by_id)}"
            )
        found += entry_point_problems(entry)
    found += _unreached(by_id, edges, entry_points)
    found += _endless(by_id, edges)
    return found


def adjacency(edges: Iterable[EdgeSpec]) -> Adjacency:
    """Return where the edges of each node lead to, in their order."""
    leads: dict[str, list[str]] = {}
    for edge in edges:
        leads.setdefault(edge.source, []).append(edge.target)
    return leads


def beyond(start: str, leads: Adjacency) -> dict[str, None]:
    """Return, nearest first, the nodes that one edge or more lead to: ``start`` only if it is in a cycle."""
    found: dict[str, None] = {}
    ahead = [start]
    while ahead:
        nearest, ahead = ahead, []
        for source in nearest:
            for target in leads.get(source, ()):
                if target not in found:
                    found[target] = None
                    ahead.append(target)
    return found


def _id_problems(
    nodes: Sequence[NodeSpec], edges: Sequence[EdgeSpec], entry_points: Sequence[EntryPointSpec]
) -> Iterator[str]:
    if not nodes:
        yield "there is no node"
    if not entry_points:
        yield "there is no entry point: nothing starts it"
    yield from twice("node", (node.id for node in nodes))
    yield from twice("edge", (edge.id for edge in edges))
    yield from twice("entry point", (entry.id for entry in entry_points))


def _router_problems(node: NodeSpec, edges: Sequence[EdgeSpec]) -> Iterator[str]:
    if node.node_type == "router":
        taken = {edge.route for edge in edges if edge.source == node.id and edge.when == "route"}
        for route in node.routes:
            if route not in taken:
                yield f"node {node.id!r}: route {route!r} has no edge"


def _edge_problems(edge: EdgeSpec, by_id: Mapping[str, NodeSpec]) -> Iterator[str]:
    it = f"edge {edge.id!r}"
    if edge.source not in by_id:
        yield f"{it} leaves node {edge.source!r}, which is not there; there are: {_list(by_id)}"
    if edge.target not in by_id:
        yield f"{it} leads to node {edge.target!r}, which is not there; there are: {_list(by_id)}"
    yield from (f"{it}: {problem}" for problem in _condition_problems(edge))
    yield from (f"{it}: {problem}" for problem in _route_problems(edge, by_id.get(edge.source)))
    target = by_id.get(edge.target)
    if target is not None and target.input_keys:
        for key in edge.input_mapping:
            if key not in target.input_keys:
                have = _list(target.input_keys)
                yield f"{it}: {key!r} is no input key of node {target.id!r}; it has: {have}"


def _condition_problems(edge: EdgeSpec) -> Iterator[str]:
    if edge.when != "expression":
        if edge.expression:
            yield f"expression is for edges that are taken when 'expression', not {edge.when!r}"
    elif not edge.expression:
        yield "an edge that is taken when 'expression' needs an expression"
    else:
        try:
            conditions.check(edge.expression)
        except (conditions.ConditionError, conditions.ConditionsUnavailableError) as error:
            yield str(error)


def _route_problems(edge: EdgeSpec, source: NodeSpec | None) -> Iterator[str]:
    if edge.when != "route":
        if edge.route:
            yield f"route is for edges that are taken when 'route', not {edge.when!r}"
    elif source is not None and source.node_type != "router":
        yield f"a route leaves node {source.id!r}, which is no router but {source.node_type}"
    elif source is not None and edge.route not in source.routes:
        yield f"node {source.id!r} has no route {edge.route!r}; it has: {_list(source.routes)}"


def _repeated_edges(edges: Sequence[EdgeSpec]) -> Iterator[str]:
    first: dict[tuple[str, ...], str] = {}
    for edge in edges:
        what = (edge.source, edge.target, edge.when, edge.expression, edge.route)
        if what in first and first[what] != edge.id:
            yield f"edge {edge.id!r} is edge {first[what]!r} again: it would start node {edge.target!r} twice"
        first.setdefault(what, edge.id)


def _unreached(
    by_id: Mapping[str, NodeSpec], edges: Sequence[EdgeSpec], entry_points: Sequence[EntryPointSpec]
) -> Iterator[str]:
    leads = adjacency(edges)
    reached: set[str] = set()
    for start in {entry.node_id for entry in entry_points}:
        reached |= {start, *beyond(start, leads)}
    for node_id in by_id:
        if node_id not in reached and entry_points:
            yield f"node {node_id!r} is reached from no entry point"


def _endless(by_id: Mapping[str, NodeSpec], edges: Sequence[EdgeSpec]) -> Iterator[str]:
    """
    Yield a problem for each set of nodes that, once entered, surely go round for ever.

    That is: each can be reached from each, no edge leads out, each goes on inside when it succeeds, and
    none has a limit to its visits.
    """
    edges = [edge for edge in edges if edge.source in by_id and edge.target in by_id]
    leads = adjacency(edges)
    reach = {node_id: beyond(node_id, leads) for node_id in by_id}
    seen: set[str] = set()
    for node_id in by_id:
        if node_id in seen or node_id not in reach[node_id]:
            continue
        cycle = dict.fromkeys([node_id, *(other for other in reach[node_id] if node_id in reach[other])])
        seen.update(cycle)
        leads_out = any(target not in cycle for source in cycle for target in leads[source])
        if not leads_out and all(_goes_on(by_id[source], edges) for source in cycle):
            names = " -> ".join(repr(name) for name in (*cycle, node_id))
            yield (
                f"nodes go round for ever: {names}; give one of them an edge that leads out, "
                "a condition, or max_node_visits"
            )


def _goes_on(node: NodeSpec, edges: Sequence[EdgeSpec]) -> bool:
    """Return whether a node that succeeds surely takes an edge, however often it was there before."""
    if "max_node_visits" in node.model_fields_set and node.max_node_visits:
        return False
    unconditional = any(edge.source == node.id and edge.when in ("success", "always") for edge in edges)
    return node.node_type == "router" or unconditional


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
