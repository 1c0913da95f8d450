"""Shared parts of the routes for loaded agents: dependencies, look-ups and masking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, HTTPException, Path, Query

from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec, NodeSpec
from queenright.runtime.storage.session_state import SessionState
from queenright.runtime.storage.session_store import Session, SessionStore
from queenright.server.agents.manager import AgentSlot
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.params import AgentId

T = TypeVar("T")

PREFIX: Final = "/api/agents/{agent_id:agent}"
TAG: Final = "loaded agents"
MAX_TEXT_LENGTH: Final = 20_000
"""Maximum characters of a text that is returned. Longer texts lose their beginning."""

GraphId = Annotated[str, Path(description="The graph's id, from `list_graphs`.", max_length=200)]
NodeId = Annotated[str, Path(description="The node's id, from `list_nodes`.", max_length=200)]
SessionId = Annotated[str, Path(description="The session's id, from `list_sessions`.")]
CheckpointId = Annotated[str, Path(description="The checkpoint's id, from `list_checkpoints`.")]
ExecutionId = Annotated[str, Path(description="The run's id, from the response that started it.")]
GraphQuery = Annotated[str | None, Query(description="Only items of this graph.")]


def find_graph(slot: AgentSlot, graph_id: str | None) -> GraphSpec:
    """Return a graph of an agent, by default the active graph. Raises ``HTTPException`` 404."""
    known_ids = slot.runtime.list_graphs()
    if graph_id is not None and graph_id not in known_ids:
        raise HTTPException(
            404, f"agent {slot.id!r} has no graph {graph_id!r}; it has: {', '.join(sorted(known_ids))}"
        )
    return slot.runtime.get_graph(graph_id)


async def get_slot(service: ServiceDep, agent_id: AgentId) -> AgentSlot:
    """Return the loaded agent of the path. Raises ``AgentNotLoadedError``."""
    return service.agents.get(agent_id)


SlotDep = Annotated[AgentSlot, Depends(get_slot)]


def select_runtime(graph_id: str, slot: AgentSlot, runtime: AgentRuntime) -> AgentSlot:
    """
    Return an agent with the runtime of a graph: the agent's own, or the service's for judge and queen.

    The graphs of judge and queen can be read through every agent, but not changed.
    """
    if graph_id in slot.runtime.list_graphs() or graph_id not in runtime.list_graphs():
        return slot
    return replace(slot, runtime=runtime)


async def get_readable_slot(service: ServiceDep, slot: SlotDep, graph_id: GraphId) -> AgentSlot:
    """Return the loaded agent with the runtime of the graph of the path."""
    return select_runtime(graph_id, slot, service.runtime)


ReadableSlotDep = Annotated[AgentSlot, Depends(get_readable_slot)]


async def get_readable_graph(slot: ReadableSlotDep, graph_id: GraphId) -> GraphSpec:
    """Return the graph of the path, which may be the judge or the queen."""
    return find_graph(slot, graph_id)


ReadableGraphDep = Annotated[GraphSpec, Depends(get_readable_graph)]


async def get_node(graph: ReadableGraphDep, node_id: NodeId) -> NodeSpec:
    """Return the node of the path."""
    return find_node(graph, node_id)


NodeDep = Annotated[NodeSpec, Depends(get_node)]


async def get_session_graph(
    slot: SlotDep,
    graph_id: Annotated[
        str | None, Query(description="The graph of the session; by default the agent's own graph.")
    ] = None,
) -> GraphSpec:
    """Return the graph of the query, by default the agent's own."""
    return find_graph(slot, graph_id or slot.graph_id)


SessionGraphDep = Annotated[GraphSpec, Depends(get_session_graph)]


def find_node(graph: GraphSpec, node_id: str) -> NodeSpec:
    """Return a node of a graph. Raises ``HTTPException`` 404."""
    try:
        return graph.node(node_id)
    except KeyError:
        known_ids = ", ".join(node.id for node in graph.nodes)
        raise HTTPException(404, f"graph {graph.id!r} has no node {node_id!r}; it has: {known_ids}") from None


def find_entry_point(graph: GraphSpec, entry_point_id: str | None) -> str:
    """
    Return the id of an entry point: by default the first manual one, or the first if none is manual.

    Raises:
        HTTPException: 404 if no entry point has this name; 409 if the graph has no entry point.
    """
    entries = graph.entry_points
    if entry_point_id is not None:
        if entry_point_id not in [entry.id for entry in entries]:
            known_ids = ", ".join(entry.id for entry in entries) or "none"
            raise HTTPException(
                404, f"graph {graph.id!r} has no entry point {entry_point_id!r}; it has: {known_ids}"
            )
        return entry_point_id
    manual_ids = [entry.id for entry in entries if entry.trigger_type == "manual"]
    entry_point_ids = manual_ids or [entry.id for entry in entries]
    if not entry_point_ids:
        raise HTTPException(
            409, f"graph {graph.id!r} has no entry point, so it cannot be started; add one to the graph"
        )
    return entry_point_ids[0]


def find_goal(slot: AgentSlot, graph_id: str) -> Goal | None:
    """Return the goal of an agent's graph; None if the graph has no goal."""
    runner = slot.runner if graph_id == slot.graph_id else slot.added_graphs.get(graph_id)
    return None if runner is None else runner.spec.goal


@contextmanager
def convert_storage_errors() -> Iterator[None]:
    """Convert disk errors within the block to ``HTTPException`` 503."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise HTTPException(503, f"the agent's storage cannot be used: {reason}") from error


async def run_on_disk(runtime: AgentRuntime, work: Callable[[], T]) -> T:
    """Run an agent's disk work in a thread. Raises ``HTTPException`` 503 if the disk fails."""
    with convert_storage_errors():
        return await runtime.disk.run(work)


def read_session(
    slot: AgentSlot, graph_id: str, session_id: str
) -> tuple[SessionStore, Session, SessionState]:
    """
    Return the store of a session of a graph, the session, and its state. Blocks.

    This includes sessions that the graph shares with another graph.

    Raises:
        SessionNotFoundError, InvalidSessionIdError, UnusableFileError: See ``SessionStore.read_state``.
    """
    return slot.runtime.find_session(session_id, graph_id)


def mask_values(value: Any) -> Any:
    """Return JSON values with secrets masked and long texts truncated."""
    if isinstance(value, str):
        return redact(value, MAX_TEXT_LENGTH)
    if isinstance(value, Mapping):
        return {str(key): mask_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_values(item) for item in value]
    return value


mask_text = partial(redact, limit=MAX_TEXT_LENGTH)
"""Return a text with secrets masked, truncated to ``MAX_TEXT_LENGTH`` characters."""
