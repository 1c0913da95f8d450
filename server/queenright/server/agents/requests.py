"""Shared parts of requests about loaded agents: path parameters, error statuses, masking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse

from queenright.instrumentation.identity import InvalidSessionIdError
from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import AgentRuntime, GraphError
from queenright.runtime.agents.agent_check import InvalidAgentError
from queenright.runtime.agents.agent_spec import AgentLoadError
from queenright.runtime.agents.mcp_tools import McpUnavailableError
from queenright.runtime.graphs.goal import Goal
from queenright.runtime.graphs.graph import GraphSpec, NodeSpec
from queenright.runtime.inputs import InputRefused
from queenright.runtime.storage.checkpoint_store import CheckpointNotFoundError, CorruptCheckpointError
from queenright.runtime.storage.files import UnusableFileError
from queenright.runtime.storage.session_store import (
    Session,
    SessionBusy,
    SessionNotFound,
    SessionState,
    SessionStore,
)
from queenright.runtime.stream import TooManyWaitingError
from queenright.server.agents.manager import (
    AgentAlreadyLoadedError,
    AgentNotLoadedError,
    AgentSlot,
    LoadTimeoutError,
    ManagerClosingError,
)
from queenright.server.agents.roots import PathNotAllowedError
from queenright.server.routes.problems import problem

if TYPE_CHECKING:
    from queenright.server.service import Service

T = TypeVar("T")

TAG: Final = "loaded agents"
LONGEST: Final = 20_000
"""Characters of a text that are shown, from its end."""

_LATER: Final = "5"
"""The Retry-After, in seconds, if too many runs are queued."""

GraphId = Annotated[str, Path(description="A graph of it, as `list_graphs` says it.", max_length=200)]
NodeId = Annotated[str, Path(description="A node of the graph, as `list_nodes` says it.", max_length=200)]
SessionId = Annotated[str, Path(description="A session, as `list_sessions` says it.")]
CheckpointId = Annotated[str, Path(description="A checkpoint, as `list_checkpoints` says it.")]
ExecutionId = Annotated[str, Path(description="A run, as starting it says it.")]
OfGraph = Annotated[str | None, Query(description="Only of this graph.")]

STATUS: Final[Mapping[type[Exception], int]] = {
    AgentNotLoadedError: 404,
    AgentAlreadyLoadedError: 409,
    LoadTimeoutError: 503,
    ManagerClosingError: 503,
    PathNotAllowedError: 422,
    AgentLoadError: 422,
    InvalidAgentError: 422,
    McpUnavailableError: 422,
    GraphError: 409,
    TooManyWaitingError: 429,
    InputRefused: 422,
    InvalidSessionIdError: 422,
    SessionNotFound: 404,
    SessionBusy: 409,
    CheckpointNotFoundError: 404,
    CorruptCheckpointError: 409,
    UnusableFileError: 409,
}
"""HTTP statuses by exception."""


def add_refusals(app: FastAPI) -> None:
    """Add exception handlers for what agents and their storage refuse."""
    for kind, status in STATUS.items():
        app.add_exception_handler(kind, _answering(status))


def _answering(status: int) -> Callable[[Request, Exception], Awaitable[JSONResponse]]:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        field = error.field if isinstance(error, InputRefused) else ""
        response = problem(status, str(error), field=field)
        if status == 429:
            response.headers["Retry-After"] = _LATER
        return response

    return answer


def graph_of(slot: AgentSlot, graph_id: str | None) -> GraphSpec:
    """Return a graph of an agent, the active one if none is named; raises ``HTTPException`` 404."""
    have = slot.runtime.list_graphs()
    if graph_id is not None and graph_id not in have:
        raise HTTPException(
            404, f"agent {slot.id!r} has no graph {graph_id!r}; it has: {', '.join(sorted(have))}"
        )
    return slot.runtime.get_graph(graph_id)


def seen_in(service: Service, slot: AgentSlot, graph_id: str | None) -> AgentSlot:
    """
    Return an agent with the runtime of one of its graphs: judge and queen are readable next to every agent.

    Judge and queen run on the service's own runtime, and can only be read.
    """
    runtime = service.runtime
    if graph_id is None or graph_id in slot.runtime.list_graphs() or graph_id not in runtime.list_graphs():
        return slot
    return replace(slot, runtime=runtime)


def node_of(graph: GraphSpec, node_id: str) -> NodeSpec:
    """Return a node of a graph; raises ``HTTPException`` 404."""
    try:
        return graph.node(node_id)
    except KeyError:
        have = ", ".join(node.id for node in graph.nodes)
        raise HTTPException(404, f"graph {graph.id!r} has no node {node_id!r}; it has: {have}") from None


def entry_of(graph: GraphSpec, entry_point_id: str | None) -> str:
    """
    Return an entry point of a graph; without a name the first manual one, or the first.

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
    known = manual or [entry.id for entry in entries]
    if not known:
        raise HTTPException(409, f"graph {graph.id!r} has no entry point; nothing can start it")
    return known[0]


def goal_of(slot: AgentSlot, graph_id: str) -> Goal | None:
    """Return the goal of an agent's graph; None if it has none."""
    runner = slot.runner if graph_id == slot.graph_id else slot.added_graphs.get(graph_id)
    return None if runner is None else runner.spec.goal


async def on_disk(runtime: AgentRuntime, work: Callable[[], T]) -> T:
    """
    Run an agent's disk work in a thread.

    Raises:
        HTTPException: 503, the disk failed.
    """
    try:
        return await runtime.disk.run(work)
    except OSError as error:
        raise storage_fault(error) from error


def storage_fault(error: OSError) -> HTTPException:
    """Return the error for a disk that failed."""
    return HTTPException(503, f"the agent's storage cannot be used: {error.strerror or type(error).__name__}")


def state_of(slot: AgentSlot, graph_id: str, session_id: str) -> tuple[SessionStore, Session, SessionState]:
    """
    Return a session of a graph and its state. Blocks.

    A graph that shares sessions of another graph is found there as well.

    Raises:
        SessionNotFound, InvalidSessionIdError, UnusableFileError: as ``SessionStore.read_state``.
    """
    return slot.runtime.find_session(session_id, graph_id)


def masked(value: Any) -> Any:
    """Return JSON values with secrets masked in every text, and long texts cut."""
    if isinstance(value, str):
        return redact(value, LONGEST)
    if isinstance(value, Mapping):
        return {str(key): masked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    return value


shown_text = partial(redact, limit=LONGEST)
"""Returns a text with secrets masked, cut to ``LONGEST`` characters."""
