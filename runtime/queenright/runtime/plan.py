"""
Plan of an execution: which edges are taken, which nodes are in progress, and which may start.

No I/O. ``run`` and ``memory`` are updated in place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queenright.runtime.graphs.conditions import ConditionError, evaluate
from queenright.runtime.graphs.graph import EdgeSpec, GraphSpec
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.nodes.routing import ROUTE
from queenright.runtime.storage.session_state import PATH_LENGTH, ExecutionState, PendingNode

_FINAL_OUTCOMES: Final = ("incomplete", "escalated")
"""Final outcomes of a visit; after others, the same visit can continue."""


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of a transition: the edges taken, or the failure that ends the run."""

    edges: tuple[EdgeSpec, ...] = ()
    failure: NodeResult | None = None


def advance(
    graph: GraphSpec,
    run: ExecutionState,
    memory: dict[str, Any],
    pending: PendingNode,
    result: NodeResult,
    *,
    running: Collection[str],
    thread: str,
) -> Advance:
    """
    Advance a run past a node that has ended.

    Args:
        run: The run's state; changed.
        memory: The run's memory; changed.
        thread: Conversation for the node if it is the only pending one; empty: its own.
    """
    spec = graph.node(pending.node_id)
    outputs = {key: result.outputs[key] for key in spec.output_keys if key in result.outputs}
    memory.update(outputs)
    run.results[spec.id] = result.outcome
    run.steps += result.turns
    run.input_tokens += result.input_tokens
    run.output_tokens += result.output_tokens
    run.cost += result.cost
    has_succeeded = result.outcome == "done"
    route = str(result.outputs.get(ROUTE, ""))
    try:
        edges = select_edges(graph, spec.id, has_succeeded=has_succeeded, route=route, memory=memory)
    except ConditionError as error:
        return Advance(failure=_make_failed_result(error))
    if failure := _check_visit_limit(graph, run, edges):
        return Advance(failure=failure)
    if not has_succeeded and not edges:
        if result.outcome in _FINAL_OUTCOMES:
            _remove_pending(run, pending)
            add_nodes(run, [(spec.id, pending.input)], running=running, thread=thread)
        return Advance(failure=result)
    _remove_pending(run, pending)
    run.path = [*run.path, spec.id][-PATH_LENGTH:]
    if not edges:
        run.outputs.update(outputs or ({"text": result.text} if result.text else {}))
    next_nodes = [(edge.target, _build_edge_input(graph, edge, outputs, result, memory)) for edge in edges]
    add_nodes(run, next_nodes, running=running, thread=thread)
    return Advance(edges)


def add_nodes(
    run: ExecutionState,
    nodes: Sequence[tuple[str, dict[str, Any]]],
    *,
    running: Collection[str] = (),
    thread: str,
) -> None:
    """
    Queue nodes with their inputs; the input of a node that is queued already is merged.

    Args:
        run: The run's state; changed.
        nodes: Node ids with their inputs.
        thread: Conversation for the node if it is the only pending one; empty: its own.
    """
    for node_id, node_input in nodes:
        pending_visits = [p for p in run.pending if p.node_id == node_id and p.node_id not in running]
        if pending_visits:
            pending_visits[0].input.update(node_input)
            continue
        run.visits[node_id] = run.visits.get(node_id, 0) + 1
        run.pending.append(PendingNode(node_id=node_id, visit=run.visits[node_id], input=node_input))
    if nodes and len(run.pending) == 1:
        run.pending[0].thread = thread


def _remove_pending(run: ExecutionState, pending: PendingNode) -> None:
    run.pending = [other for other in run.pending if other != pending]


def _check_visit_limit(graph: GraphSpec, run: ExecutionState, edges: Sequence[EdgeSpec]) -> NodeResult | None:
    for edge in edges:
        limit = graph.node(edge.target).max_node_visits
        if limit and run.visits.get(edge.target, 0) >= limit:
            return NodeResult(
                outcome="failed",
                error=f"edge {edge.id!r} leads to node {edge.target!r}, which reached its limit of "
                f"{limit} visits; raise max_node_visits if more are intended",
                error_type="TooManyVisits",
            )
    return None


def _build_edge_input(
    graph: GraphSpec,
    edge: EdgeSpec,
    outputs: Mapping[str, Any],
    result: NodeResult,
    memory: Mapping[str, Any],
) -> dict[str, Any]:
    """
    Return the input that an edge passes on.

    With a mapping, that is the mapped memory values. Without one, and if the target declares no input keys,
    it is the node's outputs, or the error of a failed node.
    """
    if edge.input_mapping:
        return {target: memory[key] for target, key in edge.input_mapping.items() if key in memory}
    if graph.node(edge.target).input_keys:
        return {}
    if result.outcome != "done":
        return {"error": result.error, "outcome": result.outcome}
    return dict(outputs) or ({"text": result.text} if result.text else {})


def _make_failed_result(error: Exception) -> NodeResult:
    return NodeResult(outcome="failed", error=str(error), error_type=type(error).__name__)


def select_edges(
    graph: GraphSpec, node_id: str, *, has_succeeded: bool, route: str, memory: Mapping[str, Any]
) -> tuple[EdgeSpec, ...]:
    """
    Return the edges that are taken from a node that has ended.

    All edges of the highest priority whose condition holds are taken. An edge of lower priority is
    taken only if none above it is.

    Raises:
        ConditionError: An expression cannot be evaluated.
    """
    edges: list[EdgeSpec] = []
    for edge in graph.edges_from(node_id):
        if edges and edge.priority < edges[0].priority:
            break
        if _is_taken(edge, has_succeeded, route, memory):
            edges.append(edge)
    return tuple(edges)


def _is_taken(edge: EdgeSpec, has_succeeded: bool, route: str, memory: Mapping[str, Any]) -> bool:
    match edge.when:
        case "always":
            return True
        case "success":
            return has_succeeded
        case "failure":
            return not has_succeeded
        case "route":
            return has_succeeded and edge.route == route
        case "expression":
            return has_succeeded and evaluate(edge.expression, memory)


def find_ready_nodes(
    graph: GraphSpec, pending_nodes: Sequence[PendingNode], running: Collection[str]
) -> list[PendingNode]:
    """
    Return the nodes of ``pending_nodes`` that may start now, in order.

    A node waits while another node in progress can still lead to it, so that branches join where they meet.
    Nodes that only wait for each other, in a cycle, start together.
    """
    candidates = [node for node in pending_nodes if node.node_id not in running]
    active = {*running, *(node.node_id for node in pending_nodes)}
    startable = [
        node
        for node in candidates
        if not any(node.node_id in graph.find_reachable_nodes(other) for other in active - {node.node_id})
    ]
    return startable or ([] if running else candidates)
