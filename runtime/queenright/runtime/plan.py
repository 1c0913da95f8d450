"""
Where an execution goes next: which edges are taken, which nodes are under way, and which may start.

Pure: nothing here waits, reads or writes but the values it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from queenright.runtime.graphs.conditions import ConditionError, holds
from queenright.runtime.graphs.graph import EdgeSpec, GraphSpec
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.nodes.routing import ROUTE
from queenright.runtime.storage.session_state import PATH_LENGTH, ExecutionState, PendingNode

_OVER: Final = ("incomplete", "escalated")
"""A visit that ended so has nothing more to say; others may go on where they stood."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What became of a run when a node ended: the edges taken, and why it cannot go on, if it cannot."""

    taken: tuple[EdgeSpec, ...] = ()
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
    Move a run past a node that has ended.

    Args:
        graph: The graph.
        run: The run's state; changed.
        memory: What the session knows; changed.
        pending: The node.
        result: How it ended.
        running: The nodes that run now, this one not among them.
        thread: The conversation that a node which runs alone talks in; empty for its own.
    """
    spec = graph.node(pending.node_id)
    outputs = {key: result.outputs[key] for key in spec.output_keys if key in result.outputs}
    memory.update(outputs)
    run.results[spec.id] = result.outcome
    run.steps += result.turns
    run.input_tokens += result.input_tokens
    run.output_tokens += result.output_tokens
    run.cost += result.cost
    succeeded = result.outcome == "done"
    route = str(result.outputs.get(ROUTE, ""))
    try:
        taken = edges_taken(graph, spec.id, succeeded=succeeded, route=route, memory=memory)
    except ConditionError as error:
        return Advance(failure=_failed(error))
    if full := _visited_enough(graph, run, taken):
        return Advance(failure=full)
    if not succeeded and not taken:
        if result.outcome in _OVER:
            _drop(run, pending)
            add_nodes(run, [(spec.id, pending.input)], running=running, thread=thread)
        return Advance(failure=result)
    _drop(run, pending)
    run.path = [*run.path, spec.id][-PATH_LENGTH:]
    if not taken:
        run.outputs.update(outputs or ({"text": result.text} if result.text else {}))
    next_nodes = [(edge.target, _carried(graph, edge, outputs, result, memory)) for edge in taken]
    add_nodes(run, next_nodes, running=running, thread=thread)
    return Advance(taken)


def add_nodes(
    run: ExecutionState,
    nodes: Sequence[tuple[str, dict[str, Any]]],
    *,
    running: Collection[str] = (),
    thread: str,
) -> None:
    """
    Put nodes with their inputs among those under way; one that waits already is given the rest of its input.

    Args:
        run: The run's state; changed.
        nodes: Node ids, and what each is given.
        running: The nodes that run now.
        thread: The conversation that a node which runs alone talks in; empty for its own.
    """
    for node_id, given in nodes:
        waits = [p for p in run.pending if p.node_id == node_id and p.node_id not in running]
        if waits:
            waits[0].input.update(given)
            continue
        run.visits[node_id] = run.visits.get(node_id, 0) + 1
        run.pending.append(PendingNode(node_id=node_id, visit=run.visits[node_id], input=given))
    if nodes and len(run.pending) == 1:
        run.pending[0].thread = thread


def _drop(run: ExecutionState, pending: PendingNode) -> None:
    run.pending = [other for other in run.pending if other != pending]


def _visited_enough(graph: GraphSpec, run: ExecutionState, taken: Sequence[EdgeSpec]) -> NodeResult | None:
    for edge in taken:
        limit = graph.node(edge.target).max_node_visits
        if limit and run.visits.get(edge.target, 0) >= limit:
            return NodeResult(
                outcome="failed",
                error=f"edge {edge.id!r} leads to node {edge.target!r} once more, which was visited "
                f"{limit} times; raise max_node_visits if that is right",
                error_type="TooManyVisits",
            )
    return None


def _carried(
    graph: GraphSpec,
    edge: EdgeSpec,
    outputs: Mapping[str, Any],
    result: NodeResult,
    memory: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what goes along an edge: what it maps, else what the node put out if no keys are named."""
    if edge.input_mapping:
        return {target: memory[key] for target, key in edge.input_mapping.items() if key in memory}
    if graph.node(edge.target).input_keys:
        return {}
    if result.outcome != "done":
        return {"error": result.error, "outcome": result.outcome}
    return dict(outputs) or ({"text": result.text} if result.text else {})


def _failed(error: Exception) -> NodeResult:
    return NodeResult(outcome="failed", error=str(error), error_type=type(error).__name__)


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
