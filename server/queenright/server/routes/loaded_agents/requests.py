"""Shared parts of requests about loaded agents: dependencies, look-ups, masking."""

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
TEXT_LIMIT: Final = 20_000
"""Characters of a text that are returned, from its end."""

GraphId = Annotated[str, Path(description="The graph's id, from `list_graphs`.", max_length=200)]
NodeId = Annotated[str, Path(description="The node's id, from `list_nodes`.", max_length=200)]
SessionId = Annotated[str, Path(description="The session's id, from `list_sessions`.")]
CheckpointId = Annotated[str, Path(description="The checkpoint's id, from `list_checkpoints`.")]
ExecutionId = Annotated[str, Path(description="The run's id, from the response that started it.")]
OfGraph = Annotated[str | None, Query(description="Only of this graph.")]


def graph_of(slot: AgentSlot, graph_id: str | None) -> GraphSpec:
    """Return a graph of an agent, the active one if none is named; raises ``HTTPException`` 404."""
    have = slot.runtime.list_graphs()
    if graph_id is not None and graph_id not in have:
        raise HTTPException(
            404, f"agent {slot.id!r} has no graph {graph_id!r}; it has: {', '.join(sorted(have))}"
        )
    return slot.runtime.get_graph(graph_id)


async def get_slot(service: ServiceDep, agent_id: AgentId) -> AgentSlot:
    """Return the loaded agent of the path; raises ``AgentNotLoadedError``."""
    return service.agents.get(agent_id)


SlotDep = Annotated[AgentSlot, Depends(get_slot)]


def with_runtime_of(graph_id: str, slot: AgentSlot, runtime: AgentRuntime) -> AgentSlot:
    """
    Return an agent with the runtime that runs a graph: its own, or the service's for judge and queen.

    Judge and queen can be read next to every agent, and only read.
    """
    if graph_id in slot.runtime.list_graphs() or graph_id not in runtime.list_graphs():
        return slot
    return replace(slot, runtime=runtime)


async def get_readable_slot(service: ServiceDep, slot: SlotDep, graph_id: GraphId) -> AgentSlot:
    """Return the loaded agent with the runtime of the graph of the path."""
    return with_runtime_of(graph_id, slot, service.runtime)


ReadableSlotDep = Annotated[AgentSlot, Depends(get_readable_slot)]


async def get_readable_graph(slot: ReadableSlotDep, graph_id: GraphId) -> GraphSpec:
    """Return the graph of the path, which may be the judge or the queen."""
    return graph_of(slot, graph_id)


ReadableGraphDep = Annotated[GraphSpec, Depends(get_readable_graph)]


async def get_node(graph: ReadableGraphDep, node_id: NodeId) -> NodeSpec:
    """Return the node of the path."""
    return node_of(graph, node_id)


NodeDep = Annotated[NodeSpec, Depends(get_node)]


async def get_session_graph(
    slot: SlotDep,
    graph_id: Annotated[
        str | None, Query(description="The graph of the session; by default the agent's own graph.")
    ] = None,
) -> GraphSpec:
    """Return the graph of the query, by default the agent's own."""
    return graph_of(slot, graph_id or slot.graph_id)


SessionGraphDep = Annotated[GraphSpec, Depends(get_session_graph)]


def node_of(graph: GraphSpec, node_id: str) -> NodeSpec:
    """Return a node of a graph; raises ``HTTPException`` 404."""
    try:
        return graph.node(node_id)
    except KeyError:
        have = ", ".join(node.id for node in graph.nodes)
        raise HTTPException(404, f"graph {graph.id!r} has no node {node_id!r}; it has: {have}") from None


def entry_point_of(graph: GraphSpec, entry_point_id: str | None) -> str:
    """
    Return the id of an entry point of a graph; by default the first manual one, otherwise the first.

    Raises:
        HTTPException: 404, there is none of this name; 409, the graph has none.
    """
    entries = graph.entry_points
    if entry_point_id is not None:
        if entry_point_id not in [entry.id for entry in entries]:
            have = ", ".join(entry.id for entry in entries) or "none"
            raise HTTPException(
                404, f"graph {graph.id!r} has no entry point {entry_point_id!r}; it has: {have}"
            )
        return entry_point_id
    manual = [entry.id for entry in entries if entry.trigger_type == "manual"]
    ids = manual or [entry.id for entry in entries]
    if not ids:
        raise HTTPException(409, f"graph {graph.id!r} has no entry point; nothing can start it")
    return ids[0]


def goal_of(slot: AgentSlot, graph_id: str) -> Goal | None:
    """Return the goal of an agent's graph; None if it has none."""
    runner = slot.runner if graph_id == slot.graph_id else slot.added_graphs.get(graph_id)
    return None if runner is None else runner.spec.goal


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise ``HTTPException`` 503 for an error of the disk."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise HTTPException(503, f"the agent's storage cannot be used: {why}") from error


async def run_on_disk(runtime: AgentRuntime, work: Callable[[], T]) -> T:
    """Run an agent's disk work in a thread; raises ``HTTPException`` 503 if the disk fails."""
    with storage_errors():
        return await runtime.disk.run(work)


def state_of(slot: AgentSlot, graph_id: str, session_id: str) -> tuple[SessionStore, Session, SessionState]:
    """
    Return a session of a graph and its state. Blocks.

    Sessions that the graph shares with another graph are found too.

    Raises:
        SessionNotFoundError, InvalidSessionIdError, UnusableFileError: See ``SessionStore.read_state``.
    """
    return slot.runtime.find_session(session_id, graph_id)


def mask_values(value: Any) -> Any:
    """Return JSON values with secrets masked and long texts cut."""
    if isinstance(value, str):
        return redact(value, TEXT_LIMIT)
    if isinstance(value, Mapping):
        return {str(key): mask_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_values(item) for item in value]
    return value


mask_text = partial(redact, limit=TEXT_LIMIT)
"""Return a text with secrets masked, cut to ``TEXT_LIMIT`` characters."""
