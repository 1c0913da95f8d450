"""Routes for runs of loaded agents: start, chat, stop, resume and replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException
from pydantic import Field, field_validator

from queenright.api import loaded_agents as api
from queenright.api.examples import make_example
from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import GraphError
from queenright.runtime.execution import Execution
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.nodes.event_loop import QuestionAnsweredError
from queenright.runtime.storage.session_store import SessionNotFoundError
from queenright.server.agents.manager import AgentSlot
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.loaded_agents.operator_log import OperatorLogDep
from queenright.server.routes.loaded_agents.requests import (
    PREFIX,
    TAG,
    ExecutionId,
    SlotDep,
    convert_storage_errors,
    find_entry_point,
    find_graph,
    read_session,
    run_on_disk,
)
from queenright.server.routes.loaded_agents.rows import make_execution_row
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import UNSTORABLE_CHARACTERS
from queenright.server.routes.params import Body, Incarnation
from queenright.server.routes.preconditions import require_unchanged_run

router = APIRouter(prefix=PREFIX, tags=[TAG])

MAX_MESSAGE_LENGTH: Final = 100_000
"""Maximum characters of a user message."""

Message = Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_LENGTH, pattern=r"\S")]
Name = Annotated[str, Field(min_length=1, max_length=256)]
OptionalName = Annotated[str | None, Field(min_length=1, max_length=256)]
Session = Annotated[str, Field(min_length=1, max_length=256, examples=["session_20260101_000000_a30df858"])]
OptionalGraph = Annotated[
    str | None, Field(min_length=1, max_length=200, description="By default the active graph.")
]


class TriggerRequest(Body):
    """The entry point of a run, and its input."""

    entry_point_id: Annotated[
        OptionalName, Field(description="By default the first manual entry point, otherwise the first.")
    ] = None
    input_data: Annotated[
        dict[str, Any], Field(description="JSON values by name.", examples=[{"folder": "docs"}])
    ] = Field(default_factory=dict)
    graph_id: OptionalGraph = None
    session_id: Annotated[OptionalName, Field(description="An existing session to run in.")] = None

    @field_validator("input_data")
    @classmethod
    def _reject_unstorable_values(cls, value: dict[str, Any]) -> dict[str, Any]:
        if not _is_storable(value):
            raise ValueError("NUL characters, lone surrogates, NaN and Infinity are not allowed")
        return value


class ChatRequest(Body):
    """A user's message: for the node that waits for one, or for a new run."""

    message: Annotated[Message, Field(examples=["Hello!"])]
    graph_id: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=200,
            description="Send it only to this graph; by default, the active graph is tried first.",
        ),
    ] = None
    session_id: Annotated[OptionalName, Field(description="The session, if nodes wait in several.")] = None
    question_id: Annotated[
        OptionalName,
        Field(description="The question to answer, from `GET /api/attention`; no other node gets it."),
    ] = None


class Inject(Body):
    """A user's message to one node."""

    node_id: Annotated[Name, Field(examples=["talk"])]
    content: Annotated[Message, Field(examples=["Yes, go on."])]
    graph_id: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="By default, the active graph is tried first."),
    ] = None
    session_id: Annotated[OptionalName, Field(description="The session, if the node runs in several.")] = None
    question_id: Annotated[
        OptionalName,
        Field(description="The question to answer, from `GET /api/attention`; by default the open one."),
    ] = None
    incarnation_id: Incarnation = None


class Resume(Body):
    """The session to resume."""

    session_id: Session
    graph_id: OptionalGraph = None
    checkpoint_id: Annotated[
        OptionalName,
        Field(description="Return to this checkpoint first; everything after it is discarded."),
    ] = None
    incarnation_id: Incarnation = None


class Stop(Body):
    """The runs to pause; by default all runs of the agent."""

    execution_id: OptionalName = None
    session_id: OptionalName = None
    graph_id: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    incarnation_id: Incarnation = None


class CheckpointReplay(Body):
    """The checkpoint that the new run starts from."""

    session_id: Session
    checkpoint_id: Annotated[Name, Field(examples=["0000000003-5f2c9a"])]
    graph_id: OptionalGraph = None


def _is_storable(value: Any) -> bool:
    if isinstance(value, str):
        return UNSTORABLE_CHARACTERS.search(value) is None
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(_is_storable(key) and _is_storable(item) for key, item in value.items())
    return not isinstance(value, list) or all(_is_storable(item) for item in value)


@router.post("/trigger", **operation(status=202, errors=(404, 409)))
async def trigger_agent(
    log: OperatorLogDep, slot: SlotDep, body: TriggerRequest | None = None
) -> api.Started:
    """
    Start a run. Return when its session exists, or when it is queued.

    A run is `queued` if the entry point already has `max_concurrent` active runs; runs that wait for their
    user do not count. A queued run is in memory, and is lost if the service is killed. 429: `max_waiting`
    runs are already queued.
    """
    trigger = body or TriggerRequest()
    graph = find_graph(slot, trigger.graph_id)
    entry_point = find_entry_point(graph, trigger.entry_point_id)
    start = await _start_run(slot, graph, entry_point, trigger.input_data, trigger.session_id)
    await log.write_result("trigger", slot.id, start, entry_point)
    return start


@router.post("/resume", **operation(status=202, errors=(404, 409)))
async def resume_agent(service: ServiceDep, log: OperatorLogDep, slot: SlotDep, body: Resume) -> api.Started:
    """
    Resume the newest unfinished run of a session.

    The run is `queued` if others come first. 409 also if another process runs the session.
    """
    graph = find_graph(slot, body.graph_id)
    require_unchanged_run(service, slot.id, body.session_id, body.incarnation_id)
    start = await resume_session(slot, graph, body.session_id, body.checkpoint_id, status="resumed")
    await log.write_result("resume", slot.id, start, body.checkpoint_id or "")
    return start


@router.post("/replay", **operation(status=202, errors=(404, 409)))
async def replay_agent(log: OperatorLogDep, slot: SlotDep, body: CheckpointReplay) -> api.Started:
    """Start a new run in a new session from a checkpoint of another run, which is not changed."""
    graph = find_graph(slot, body.graph_id)
    with convert_storage_errors():
        run = await slot.runtime.replay(body.session_id, body.checkpoint_id, graph.id)
    start = await _describe_start(run, slot, graph, "replayed")
    await log.write_result("replay", slot.id, start, f"{body.checkpoint_id} of {body.session_id}")
    return start


@router.post("/stop", **operation(errors=(404, 409)))
async def stop_agent(
    service: ServiceDep, log: OperatorLogDep, slot: SlotDep, body: Stop | None = None
) -> api.Stopped:
    """Pause runs. Return when they have stopped. They can be resumed."""
    stop = body or Stop()
    if stop.graph_id is not None:
        find_graph(slot, stop.graph_id)
    if (session := stop.session_id) is not None:
        await run_on_disk(slot.runtime, lambda: _require_session(slot, stop.graph_id, session))
    if stop.execution_id is not None:
        run = _find_run(slot, stop.execution_id)
        if run.done:
            raise HTTPException(409, f"run {run.id!r} has ended already: {make_execution_row(run).status}")
    require_unchanged_run(service, slot.id, stop.session_id, stop.incarnation_id)
    chosen_runs = [
        run
        for run in _list_current_runs(slot)
        if stop.execution_id in (None, run.id)
        and stop.session_id in (None, run.session_id)
        and stop.graph_id in (None, run.graph_id)
    ]
    stopped_ids = [run.id for run in chosen_runs if await slot.runtime.pause_execution(run.id, run.graph_id)]
    await log.write(
        "stop",
        slot.id,
        graph_id=stop.graph_id or "",
        session_id=stop.session_id,
        detail=", ".join(stopped_ids) or "nothing was running",
    )
    return api.Stopped(status="stopped", executions=stopped_ids)


@router.post(
    "/chat",
    **operation(
        errors=(404, 409),
        description="A waiting node received the message, or a run was started with it.",
        content={
            "application/json": {
                "examples": {
                    "a node waited": {"value": make_example(api.Injected)},
                    "a run was started": {"value": make_example(api.Started)},
                }
            }
        },
    ),
)
async def chat_with_agent(
    log: OperatorLogDep, slot: SlotDep, body: ChatRequest
) -> api.Injected | api.Started:
    """
    Send a message to an agent: to a node that waits for its user, otherwise to a new run.

    If several nodes wait, one of the active graph receives it; `session_id` chooses another. 409 also if the
    question of `question_id` is not open.
    """
    graph = find_graph(slot, body.graph_id)
    for node in slot.runtime.list_waiting_nodes():
        if body.graph_id not in (None, node.graph_id) or body.session_id not in (None, node.session_id):
            continue
        if body.question_id not in (None, node.question_id):
            continue
        injection = await _inject(
            slot,
            node.node_id,
            body.message,
            node.graph_id,
            node.session_id,
            question_id=body.question_id,
        )
        if injection is not None:  # the node is still running
            await log.write_result("chat", slot.id, injection, injection.node_id)
            return injection
    if body.question_id is not None:
        raise QuestionAnsweredError(None)
    entry_point = find_entry_point(graph, None)
    start = await _start_run(
        slot, graph, entry_point, _build_message_input(graph, entry_point, body.message), body.session_id
    )
    await log.write_result("chat", slot.id, start, entry_point)
    return start


@router.post("/inject", **operation(errors=(404, 409)))
async def inject_input(service: ServiceDep, log: OperatorLogDep, slot: SlotDep, body: Inject) -> api.Injected:
    """
    Send a message to one node of a run. It is durable when this returns.

    409 also if the node's question, or that of `question_id`, has been answered.
    """
    graphs = _list_graphs(slot) if body.graph_id is None else [find_graph(slot, body.graph_id)]
    nodes = [node.id for graph in graphs for node in graph.nodes]
    if body.node_id not in nodes:
        raise HTTPException(404, f"there is no node {body.node_id!r}; the nodes are: {', '.join(nodes)}")
    require_unchanged_run(service, slot.id, body.session_id, body.incarnation_id)
    injection = await _inject(
        slot, body.node_id, body.content, body.graph_id, body.session_id, question_id=body.question_id
    )
    if injection is None:
        raise HTTPException(
            409,
            f"node {body.node_id!r} is not running; start a run with "
            f"`queenright agents chat {quote(slot.id)}`",
        )
    await log.write_result("inject", slot.id, injection, injection.node_id)
    return injection


@router.get("/executions/{execution_id}", **operation(errors=(404,)))
async def get_execution(slot: SlotDep, execution_id: ExecutionId) -> api.ExecutionRow:
    """Return a run of a loaded agent: its state or its result. The last 1000 runs are kept."""
    return make_execution_row(_find_run(slot, execution_id))


# -- runs -------------------------------------------------------------------------------------------


async def resume_session(
    slot: AgentSlot, graph: GraphSpec, session_id: str, checkpoint_id: str | None, *, status: Any
) -> api.Started:
    """
    Resume a run of a session.

    Raises:
        SessionNotFoundError, SessionBusyError, CheckpointNotFoundError, CorruptCheckpointError,
        GraphError: See ``AgentRuntime.resume``.
        HTTPException: 409 if the run cannot be resumed; 503 if the disk failed.
    """
    with convert_storage_errors():
        execution_id = await slot.runtime.resume(session_id, graph.id, checkpoint_id=checkpoint_id)
    return await _describe_start(slot.runtime.get_execution(execution_id), slot, graph, status)


async def _start_run(
    slot: AgentSlot,
    graph: GraphSpec,
    entry_point_id: str,
    input_data: Mapping[str, Any],
    session_id: str | None,
) -> api.Started:
    if session_id is not None:
        await run_on_disk(slot.runtime, lambda: read_session(slot, graph.id, session_id))
    execution_id = await slot.runtime.trigger(
        entry_point_id, input_data, graph_id=graph.id, session_id=session_id
    )
    run = slot.runtime.get_execution(execution_id)
    if run.task is not None:
        await run.wait_until_scheduled()
    return api.Started(
        status="queued" if run.is_queued else "started",
        execution_id=execution_id,
        graph_id=graph.id,
        entry_point_id=entry_point_id,
        session_id=run.session_id,
    )


async def _describe_start(run: Execution, slot: AgentSlot, graph: GraphSpec, status: Any) -> api.Started:
    """
    Return the response for a run that was resumed or replayed.

    Raises:
        HTTPException: 409 if the run ended before it began.
    """
    entry_point_id = next(
        entry.id
        for entry in graph.entry_points
        if any(
            execution is run for execution in slot.runtime.get_stream(entry.id, graph_id=graph.id).executions
        )
    )
    if run.task is not None:
        await run.wait_until_scheduled()
    if run.done and not run.has_begun:
        result = await run.wait()
        raise HTTPException(409, redact(result.error, 1000) or f"run {run.id!r} was {result.status.value}")
    return api.Started(
        status="queued" if run.is_queued else status,
        execution_id=run.id,
        graph_id=graph.id,
        entry_point_id=entry_point_id,
        session_id=run.session_id,
    )


async def _inject(
    slot: AgentSlot,
    node_id: str,
    content: str,
    graph_id: str | None,
    session_id: str | None,
    *,
    question_id: str | None = None,
) -> api.Injected | None:
    """Send a message to a node. Return None if the node is not running."""
    running_nodes = {
        (run.graph_id, str(run.session_id))
        for graph in _list_graphs(slot)
        if graph_id in (None, graph.id)
        for entry in graph.entry_points
        for run, name, _ in slot.runtime.get_stream(entry.id, graph_id=graph.id).nodes()
        if name == node_id and session_id in (None, run.session_id)
    }
    waiting_nodes = {
        (node.graph_id, node.session_id)
        for node in slot.runtime.list_waiting_nodes()
        if node.node_id == node_id
    }
    # The runtime chooses in this order: the active graph first, and within a graph waiting nodes first.
    graph_order = [graph.id for graph in _list_graphs(slot)]
    chosen_node = min(
        running_nodes, key=lambda node: (graph_order.index(node[0]), node not in waiting_nodes), default=None
    )
    if chosen_node is None:
        return None
    with convert_storage_errors():
        if not await slot.runtime.inject_input(
            node_id, content, chosen_node[0], session_id=session_id, question_id=question_id
        ):
            return None
    return api.Injected(
        status="injected", node_id=node_id, graph_id=chosen_node[0], session_id=chosen_node[1]
    )


def _list_graphs(slot: AgentSlot) -> list[GraphSpec]:
    """Return the graphs of an agent, the active one first."""
    active_id = slot.runtime.active_graph_id
    graph_ids = sorted(slot.runtime.list_graphs(), key=lambda name: name != active_id)
    return [slot.runtime.get_graph(name) for name in graph_ids]


def _list_current_runs(slot: AgentSlot) -> list[Execution]:
    return [
        run
        for graph in _list_graphs(slot)
        for entry in graph.entry_points
        for run in slot.runtime.get_stream(entry.id, graph_id=graph.id).executions
    ]


def _require_session(slot: AgentSlot, graph_id: str | None, session_id: str) -> None:
    """Check that a graph, or any graph of the agent, has a session. Raises as ``read_session``. Blocks."""
    *other_ids, last_id = [graph_id] if graph_id is not None else [graph.id for graph in _list_graphs(slot)]
    for graph in other_ids:
        with suppress(SessionNotFoundError):
            read_session(slot, graph, session_id)
            return
    read_session(slot, last_id, session_id)


def _find_run(slot: AgentSlot, execution_id: str) -> Execution:
    try:
        return slot.runtime.get_execution(execution_id)
    except GraphError as error:
        raise HTTPException(404, str(error)) from error


def _build_message_input(graph: GraphSpec, entry_point_id: str, message: str) -> dict[str, Any]:
    """
    Return the input of a run that starts with a user's message, under the input key of its first node.

    Raises:
        HTTPException: 409 if the node has several input keys.
    """
    entry = next(entry for entry in graph.entry_points if entry.id == entry_point_id)
    keys = graph.node(entry.node_id).input_keys
    if not keys or "message" in keys:
        return {"message": message}
    if len(keys) > 1:
        raise HTTPException(
            409,
            f"graph {graph.id!r} needs input {', '.join(keys)}, and no node waits for a user; start a run "
            "with POST .../trigger and pass it as input_data",
        )
    return {keys[0]: message}
