"""Convert loaded agents, their runs and graphs to models of the API."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from queenright.api import loaded_agents as api
from queenright.instrumentation.redaction import redact
from queenright.runtime.execution import Execution
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.storage.files import read_newest_lines
from queenright.runtime.stream import ExecutionStream
from queenright.server.agents.manager import AgentSlot
from queenright.server.routes.loaded_agents.requests import find_graph, mask_values

_MAX_RUNS: Final = 10_000
"""Maximum number of ended runs that the totals count; the newest are counted."""
_COUNTED_KEYS: Final = ("steps", "input_tokens", "output_tokens", "cost")


def make_slot_row(slot: AgentSlot) -> api.AgentSlot:
    """Convert a loaded agent."""
    info = slot.info
    return api.AgentSlot.of(
        info,
        agent_id=slot.id,
        path=str(slot.path),
        graph_id=slot.graph_id,
        active_graph_id=slot.runtime.active_graph_id,
        graphs=sorted(slot.runtime.list_graphs()),
        default_entry_point=slot.runner.default_entry_point,
        models=[redact(name, 200) for name in info.models if name],
        warnings=[redact(warning, 1000) for warning in slot.warnings],
        loaded_at=slot.loaded_at,
    )


def iter_streams(
    slot: AgentSlot, graph_id: str | None = None
) -> Iterator[tuple[EntryPointSpec, ExecutionStream]]:
    """Yield the entry points of one graph or of all graphs of an agent, with their streams, sorted by id."""
    for name in [graph_id] if graph_id is not None else sorted(slot.runtime.list_graphs()):
        for entry in find_graph(slot, name).entry_points:
            yield entry, slot.runtime.get_stream(entry.id, graph_id=name)


def make_entry_point_row(entry: EntryPointSpec, stream: ExecutionStream) -> api.EntryPoint:
    """Convert an entry point."""
    running_count = sum(not run.is_queued for run in stream.executions)
    return api.EntryPoint.of(
        entry,
        graph_id=stream.graph_id,
        entry_point_id=entry.id,
        event_types=sorted(type_.value for type_ in entry.event_types),
        running=running_count,
        queued=stream.pending - running_count,
        ticks_skipped=stream.ticks_skipped,
    )


def make_stats_row(slot: AgentSlot, now: float, *, sessions: int, totals: api.RunTotals) -> api.AgentStats:
    """Convert an agent's statistics."""
    streams = [make_entry_point_row(entry, stream) for entry, stream in iter_streams(slot)]
    return api.AgentStats(
        agent_id=slot.id,
        loaded_at=slot.loaded_at,
        uptime_seconds=max(0.0, now - slot.loaded_at),
        running=sum(stream.running for stream in streams),
        queued=sum(stream.queued for stream in streams),
        waiting_for_user=len(slot.runtime.list_waiting_nodes()),
        ticks_skipped=sum(stream.ticks_skipped for stream in streams),
        sessions=sessions,
        totals=totals,
    )


def count_totals(slot: AgentSlot) -> api.RunTotals:
    """Return the totals of the runs of an agent's own graph. Blocks. Raises ``UnusableFileError``."""
    path = slot.runtime.session_store(slot.graph_id).base / "runtime_logs" / "executions.jsonl"
    rows: dict[str, dict[str, Any]] = {}
    for row in islice(read_newest_lines(path), _MAX_RUNS):
        # A resumed run has several lines. The newest comes first, and only it counts.
        rows.setdefault(str(row.get("execution_id")), row)
    statuses: dict[str, int] = {}
    counts: dict[str, float] = dict.fromkeys(_COUNTED_KEYS, 0)
    for row in rows.values():
        status = str(row.get("status"))
        statuses[status] = statuses.get(status, 0) + 1
        for key in _COUNTED_KEYS:
            value = row.get(key)
            counts[key] += value if isinstance(value, int | float) else 0
    return api.RunTotals(
        executions=len(rows),
        statuses=statuses,
        steps=int(counts["steps"]),
        input_tokens=int(counts["input_tokens"]),
        output_tokens=int(counts["output_tokens"]),
        cost=counts["cost"],
    )


def make_execution_row(run: Execution) -> api.ExecutionRow:
    """Convert a run: its current state, or its result."""
    result = run.result
    if result is None:
        state = run.executor.state if run.executor is not None and run.has_begun else None
        return api.ExecutionRow(
            execution_id=run.id,
            graph_id=run.graph_id,
            session_id=run.session_id,
            status="queued" if run.is_queued else "active",
            outputs={},
            error="",
            error_type="",
            path=[] if state is None else list(state.path),
            checkpoint_id=None,
        )
    return api.ExecutionRow.of(
        result,
        execution_id=run.id,
        graph_id=run.graph_id,
        session_id=result.session_id or None,
        outputs=mask_values(result.outputs),
        error=redact(result.error, 4000),
    )


# -- graphs -----------------------------------------------------------------------------------------


def make_graph_row(slot: AgentSlot, graph_id: str) -> api.GraphRow:
    """Convert a graph of an agent."""
    graph = slot.runtime.get_graph(graph_id)
    is_of_agent = slot.graph_id in slot.runtime.list_graphs()
    spec = slot.added_graphs.get(graph_id, slot.runner).spec if is_of_agent else None
    return api.GraphRow(
        graph_id=graph_id,
        primary=graph_id == slot.graph_id,
        active=is_of_agent and graph_id == slot.runtime.active_graph_id,
        of_service=not is_of_agent,
        agent_id="" if spec is None else spec.name,
        description=graph.description or ("" if spec is None else spec.description),
        path=str(slot.added_graphs.get(graph_id, slot.runner).path) if is_of_agent else "",
        nodes=[node.id for node in graph.nodes],
        entry_points=[entry.id for entry in graph.entry_points],
    )


def make_node_row(slot: AgentSlot, graph: GraphSpec, node: NodeSpec) -> api.NodeRow:
    """Convert a node."""
    active_nodes = [
        active_node
        for _, stream in iter_streams(slot, graph.id)
        for _, node_id, active_node in stream.nodes()
        if node_id == node.id
    ]
    return api.NodeRow.of(
        node,
        node_id=node.id,
        running=len(active_nodes),
        waiting_for_user=sum(active.is_waiting_for_user for active in active_nodes),
    )


def make_node_detail(slot: AgentSlot, graph: GraphSpec, node: NodeSpec) -> api.NodeDetail:
    """Convert a node with all details."""
    return api.NodeDetail.of(
        node,
        **dict(make_node_row(slot, graph, node)),
        graph_id=graph.id,
        system_prompt=mask_values(node.system_prompt),
        routes=dict(node.routes),
        model=redact(node.model, 200),
        input_schema=slot.runtime.get_input_schema(graph.id, node.id),
        edges_in=[_make_edge(edge) for edge in graph.edges if edge.target == node.id],
        edges_out=[_make_edge(edge) for edge in graph.edges_from(node.id)],
        entry_points=[entry.id for entry in graph.entry_points if entry.node_id == node.id],
    )


def _make_edge(edge: EdgeSpec) -> api.Edge:
    return api.Edge.of(edge, edge_id=edge.id)
