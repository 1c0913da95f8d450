"""Runs of loaded agents over HTTP: started, talked with, stopped, and gone on with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, HTTPException, Request
from pydantic import Field, field_validator

from queenright.api import loaded as api
from queenright.api.wire import example_of
from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import GraphError
from queenright.runtime.execution import Execution
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.storage.session_store import SessionNotFound
from queenright.server.agents.graphs_api import goal_state
from queenright.server.agents.manager import AgentSlot
from queenright.server.agents.operator_log import What, log_operator_action
from queenright.server.agents.requests import (
    ExecutionId,
    OfGraph,
    entry_of,
    graph_of,
    on_disk,
    state_of,
    storage_fault,
)
from queenright.server.agents.rows import execution_row
from queenright.server.routes.openapi import operation, to
from queenright.server.routes.pagination import NO_TEXT
from queenright.server.routes.params import AgentId, Body
from queenright.server.service import Service

LONGEST_WORDS: Final = 100_000
"""Characters that a user may say at once."""

Words = Annotated[str, Field(min_length=1, max_length=LONGEST_WORDS, pattern=r"\S")]
Name = Annotated[str, Field(min_length=1, max_length=256)]
MaybeName = Annotated[str | None, Field(min_length=1, max_length=256)]
_EXAMPLE: Final = "session_20260101_000000_a30df858"
Session = Annotated[str, Field(min_length=1, max_length=256, examples=[_EXAMPLE])]
MaybeSession = Annotated[str | None, Field(min_length=1, max_length=256)]
MaybeGraph = Annotated[
    str | None, Field(min_length=1, max_length=200, description="Without, the active graph.")
]


class Trigger(Body):
    """Where a run begins, and what it is given."""

    entry_point_id: Annotated[
        MaybeName, Field(description="Without, the first manual entry point, or the first.")
    ] = None
    input_data: Annotated[
        dict[str, Any], Field(description="JSON values by name.", examples=[{"folder": "docs"}])
    ] = Field(default_factory=dict)
    graph_id: MaybeGraph = None
    session_id: Annotated[MaybeSession, Field(description="An existing session to run in.")] = None

    @field_validator("input_data")
    @classmethod
    def _texts_can_be_kept(cls, given: dict[str, Any]) -> dict[str, Any]:
        if _unkept(given):
            raise ValueError(
                "no text in it may have a NUL character or half of a surrogate pair, and no number may be "
                "NaN or Infinity, which are no JSON"
            )
        return given


class Chat(Body):
    """What a user says: to the node that waits for it, or to begin with."""

    message: Annotated[Words, Field(examples=["Hello!"])]
    graph_id: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="Only to this graph; without, the active one first."),
    ] = None
    session_id: Annotated[MaybeSession, Field(description="Only in this session, if several nodes wait.")] = (
        None
    )


class Inject(Body):
    """What a user says to one node."""

    node_id: Annotated[Name, Field(examples=["talk"])]
    content: Annotated[Words, Field(examples=["Yes, go on."])]
    graph_id: Annotated[
        str | None, Field(min_length=1, max_length=200, description="Without, the active one first.")
    ] = None
    session_id: Annotated[MaybeSession, Field(description="Which run, if several are in such a node.")] = None


class Resume(Body):
    """What is to go on."""

    session_id: Session
    graph_id: MaybeGraph = None
    checkpoint_id: Annotated[
        MaybeName, Field(description="Go back to this checkpoint first; what came after it is forgotten.")
    ] = None


class Stop(Body):
    """Which runs are to be paused; without any of these, all of the agent's."""

    execution_id: MaybeName = None
    session_id: MaybeSession = None
    graph_id: Annotated[str | None, Field(min_length=1, max_length=200)] = None


class Replay(Body):
    """From where a new run is to begin."""

    session_id: Session
    checkpoint_id: Annotated[Name, Field(examples=["0000000003-5f2c9a"])]
    graph_id: MaybeGraph = None


A = TypeVar("A", api.Started, api.Injected)


def _unkept(value: Any) -> bool:
    if isinstance(value, str):
        return NO_TEXT.search(value) is not None
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_unkept(key) or _unkept(one) for key, one in value.items())
    return isinstance(value, list) and any(_unkept(one) for one in value)


_LINKS: Final = {
    "get_execution": to("get_execution", agent_id="path.agent_id", execution_id="execution_id"),
    "stop_agent": to("stop_agent", agent_id="path.agent_id"),
}


def execution_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    _starting(router, service)
    _talking(router, service)
    _looking(router, service)
    return router


def _starting(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.post(
        "/api/agents/{agent_id:agent}/trigger",
        **operation("trigger_agent", api.Started, status=202, errors=(404, 409), links=_LINKS),
    )
    async def trigger(request: Request, agent_id: AgentId, body: Trigger | None = None) -> api.Started:
        """
        Start a run, and return at once.

        `queued`: as many go on as may (`max_concurrent` of its entry point), and it waits for its turn in the
        memory of the service; if that is killed, it is lost. A run that waits for its user takes no place.
        429: as many wait as may (`max_waiting`).
        """
        given = body or Trigger()
        slot = agents.get(agent_id)
        graph = graph_of(slot, given.graph_id)
        entry = entry_of(graph, given.entry_point_id)
        if (session := given.session_id) is not None:
            await on_disk(slot.runtime, lambda: state_of(slot, graph.id, session))
        started = await _start(slot, graph, entry, given.input_data, session)
        return await noted(service, request, "trigger", agent_id, started, detail=entry)

    @router.post(
        "/api/agents/{agent_id:agent}/resume",
        **operation("resume_agent", api.Started, status=202, errors=(404, 409), links=_LINKS),
    )
    async def resume(request: Request, agent_id: AgentId, body: Resume) -> api.Started:
        """
        Go on with the newest run of a session that did not get to its end.

        `queued`: other runs come first. 409 also where another process runs an execution in the session.
        """
        slot = agents.get(agent_id)
        graph = graph_of(slot, body.graph_id)
        started = await resumed(slot, graph, body.session_id, body.checkpoint_id, status="resumed")
        return await noted(service, request, "resume", agent_id, started, detail=body.checkpoint_id or "")

    @router.post(
        "/api/agents/{agent_id:agent}/replay",
        **operation("replay_agent", api.Started, status=202, errors=(404, 409), links=_LINKS),
    )
    async def replay(request: Request, agent_id: AgentId, body: Replay) -> api.Started:
        """Begin a new run, in a new session, where another was at a checkpoint; that one stays as it is."""
        slot = agents.get(agent_id)
        graph = graph_of(slot, body.graph_id)
        try:
            run = await slot.runtime.replay(body.session_id, body.checkpoint_id, graph.id)
        except OSError as error:
            raise storage_fault(error) from error
        started = await _started(run, slot, graph, "replayed")
        what = f"{body.checkpoint_id} of {body.session_id}"
        return await noted(service, request, "replay", agent_id, started, detail=what)

    @router.post(
        "/api/agents/{agent_id:agent}/stop",
        **operation("stop_agent", api.Stopped, errors=(404, 409)),
    )
    async def stop(request: Request, agent_id: AgentId, body: Stop | None = None) -> api.Stopped:
        """Pause runs; they have stopped when this answers, and can be resumed."""
        given = body or Stop()
        slot = agents.get(agent_id)
        if given.graph_id is not None:
            graph_of(slot, given.graph_id)
        if (session := given.session_id) is not None:
            await on_disk(slot.runtime, lambda: _session_of_any(slot, given.graph_id, session))
        if given.execution_id is not None:
            run = _run(slot, given.execution_id)
            if run.done:
                raise HTTPException(409, f"run {run.id!r} is over already: {execution_row(run).status}")
        meant = [
            run
            for run in _going_on(slot)
            if given.execution_id in (None, run.id)
            and given.session_id in (None, run.session_id)
            and given.graph_id in (None, run.graph_id)
        ]
        stopped = [run.id for run in meant if await slot.runtime.pause_execution(run.id, run.graph_id)]
        await log_operator_action(
            service,
            request,
            "stop",
            agent_id,
            graph_id=given.graph_id or "",
            session_id=given.session_id,
            detail=", ".join(stopped) or "nothing was running",
        )
        return api.Stopped(status="stopped", executions=stopped)


def _talking(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.post(
        "/api/agents/{agent_id:agent}/chat",
        **operation(
            "chat_with_agent",
            api.Injected | api.Started,
            errors=(404, 409),
            description="A node that waited was given the message, or a run was started with it.",
            content={
                "application/json": {
                    "examples": {
                        "a node waited": {"value": example_of(api.Injected)},
                        "a run was started": {"value": example_of(api.Started)},
                    }
                }
            },
        ),
    )
    async def chat(request: Request, agent_id: AgentId, body: Chat) -> api.Injected | api.Started:
        """
        Say something to an agent: a node that waits for its user is given it, else a run is started with it.

        If several wait, it is for one of the active graph; `session_id` picks another.
        """
        slot = agents.get(agent_id)
        graph = graph_of(slot, body.graph_id)
        for node in slot.runtime.waiting_nodes():
            if body.graph_id not in (None, node.graph_id) or body.session_id not in (None, node.session_id):
                continue
            given = await _inject(slot, node.node_id, body.message, node.graph_id, node.session_id)
            if given is not None:  # it has not gone on meanwhile
                return await noted(service, request, "chat", agent_id, given, detail=given.node_id)
        if (session := body.session_id) is not None:
            await on_disk(slot.runtime, lambda: state_of(slot, graph.id, session))
        entry = entry_of(graph, None)
        started = await _start(slot, graph, entry, _said(graph, entry, body.message), session)
        return await noted(service, request, "chat", agent_id, started, detail=entry)

    @router.post(
        "/api/agents/{agent_id:agent}/inject",
        **operation("inject_input", api.Injected, errors=(404, 409)),
    )
    async def inject(request: Request, agent_id: AgentId, body: Inject) -> api.Injected:
        """Give one node of a run what its user says; it is durable when this answers."""
        slot = agents.get(agent_id)
        graphs = [graph_of(slot, body.graph_id)] if body.graph_id is not None else _graphs(slot)
        if not any(node.id == body.node_id for graph in graphs for node in graph.nodes):
            have = ", ".join(node.id for graph in graphs for node in graph.nodes)
            raise HTTPException(404, f"there is no node {body.node_id!r}; there are: {have}")
        given = await _inject(slot, body.node_id, body.content, body.graph_id, body.session_id)
        if given is None:
            raise HTTPException(
                409,
                f"node {body.node_id!r} is not running; start a run with "
                f"`queenright agents chat {quote(slot.id)}`",
            )
        return await noted(service, request, "inject", agent_id, given, detail=given.node_id)


def _looking(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.get(
        "/api/agents/{agent_id:agent}/executions/{execution_id}",
        **operation("get_execution", api.ExecutionRow, errors=(404,)),
    )
    async def execution(agent_id: AgentId, execution_id: ExecutionId) -> api.ExecutionRow:
        """A run of a loaded agent: as it stands, or how it ended. The last 1000 are remembered."""
        return execution_row(_run(agents.get(agent_id), execution_id))

    @router.get(
        "/api/agents/{agent_id:agent}/goal-progress",
        **operation("get_goal_progress", api.GoalState, errors=(404,)),
    )
    async def goal_progress(agent_id: AgentId, graph_id: OfGraph = None) -> api.GoalState:
        """What a graph is to achieve, and how far its newest run has come; without one, the active graph."""
        slot = agents.get(agent_id)
        return goal_state(slot, graph_of(slot, graph_id))


# -- what they do -----------------------------------------------------------------------------------


async def noted(
    service: Service, request: Request, what: What, agent_id: str, answer: A, *, detail: str
) -> A:
    """Note what somebody did with an agent, and give back what is answered; see ``log_operator_action``."""
    await log_operator_action(
        service,
        request,
        what,
        agent_id,
        graph_id=answer.graph_id,
        session_id=answer.session_id,
        execution_id=answer.execution_id if isinstance(answer, api.Started) else "",
        detail=detail,
    )
    return answer


async def resumed(
    slot: AgentSlot, graph: GraphSpec, session_id: str, checkpoint_id: str | None, *, status: Any
) -> api.Started:
    """
    Go on with a run of a session, and say which.

    Raises:
        SessionNotFound, SessionBusy, CheckpointNotFoundError, CorruptCheckpointError, GraphError: as
            ``AgentRuntime.resume``.
        HTTPException: 409, the run cannot go on; 503, the disk refused.
    """
    try:
        started = await slot.runtime.resume(session_id, graph.id, checkpoint_id=checkpoint_id)
    except OSError as error:
        raise storage_fault(error) from error
    return await _started(slot.runtime.get_execution(started), slot, graph, status)


async def _start(
    slot: AgentSlot, graph: GraphSpec, entry: str, given: Mapping[str, Any], session_id: str | None
) -> api.Started:
    started = await slot.runtime.trigger(entry, given, graph_id=graph.id, session_id=session_id)
    waits = slot.runtime.get_execution(started).is_queued
    return api.Started(
        status="queued" if waits else "started",
        execution_id=started,
        graph_id=graph.id,
        entry_point_id=entry,
        session_id=session_id,
    )


async def _started(run: Execution, slot: AgentSlot, graph: GraphSpec, status: Any) -> api.Started:
    """
    Say that a run goes on, or that it waits for its turn.

    Raises:
        HTTPException: 409, it ended without having gone on.
    """
    entry = next(
        entry.id
        for entry in graph.entry_points
        if any(one is run for one in slot.runtime.get_stream(entry.id, graph_id=graph.id).executions)
    )
    if run.task is not None:
        await run.wait_placed()
    if run.done and not run.has_begun:
        result = await run.wait()
        raise HTTPException(409, redact(result.error, 1000) or f"run {run.id!r} was {result.status.value}")
    return api.Started(
        status="queued" if run.is_queued else status,
        execution_id=run.id,
        graph_id=graph.id,
        entry_point_id=entry,
        session_id=run.session_id,
    )


async def _inject(
    slot: AgentSlot, node_id: str, content: str, graph_id: str | None, session_id: str | None
) -> api.Injected | None:
    """Give a node what its user says; None if it is not running."""
    running = {
        (run.graph_id, str(run.session_id))
        for graph in _graphs(slot)
        if graph_id in (None, graph.id)
        for entry in graph.entry_points
        for run, name, _ in slot.runtime.get_stream(entry.id, graph_id=graph.id).nodes()
        if name == node_id and session_id in (None, run.session_id)
    }
    waiting = {
        (one.graph_id, one.session_id) for one in slot.runtime.waiting_nodes() if one.node_id == node_id
    }
    # As the runtime chooses: who waits before who does not, the active graph before the others.
    order = [graph.id for graph in _graphs(slot)]
    meant = min(running, key=lambda one: (order.index(one[0]), one not in waiting), default=None)
    if meant is None:
        return None
    try:
        if not await slot.runtime.inject_input(node_id, content, meant[0], session_id=session_id):
            return None
    except OSError as error:
        raise storage_fault(error) from error
    return api.Injected(status="injected", node_id=node_id, graph_id=meant[0], session_id=meant[1])


def _graphs(slot: AgentSlot) -> list[GraphSpec]:
    """Return the graphs of an agent, the active one first."""
    active = slot.runtime.active_graph_id
    names = sorted(slot.runtime.list_graphs(), key=lambda name: name != active)
    return [slot.runtime.get_graph(name) for name in names]


def _going_on(slot: AgentSlot) -> list[Execution]:
    return [
        run
        for graph in _graphs(slot)
        for entry in graph.entry_points
        for run in slot.runtime.get_stream(entry.id, graph_id=graph.id).executions
    ]


def _session_of_any(slot: AgentSlot, graph_id: str | None, session_id: str) -> None:
    """Look for a session of one graph, or of any; raises as ``state_of`` if there is none. Blocks."""
    *others, last = [graph_id] if graph_id is not None else [graph.id for graph in _graphs(slot)]
    for graph in others:
        with suppress(SessionNotFound):
            state_of(slot, graph, session_id)
            return
    state_of(slot, last, session_id)


def _run(slot: AgentSlot, execution_id: str) -> Execution:
    try:
        return slot.runtime.get_execution(execution_id)
    except GraphError as error:
        raise HTTPException(404, str(error)) from error


def _said(graph: GraphSpec, entry_point_id: str, message: str) -> dict[str, Any]:
    """
    Return what a user says to begin with as the input of a run: under the name that its first node takes.

    Raises:
        HTTPException: 409, it takes several, so that nobody knows which it is.
    """
    entry = next(entry for entry in graph.entry_points if entry.id == entry_point_id)
    keys = graph.node(entry.node_id).input_keys
    if not keys or "message" in keys:
        return {"message": message}
    if len(keys) > 1:
        raise HTTPException(
            409,
            f"graph {graph.id!r} begins with {', '.join(keys)}, and no node waits for a user; start a run "
            "with POST .../trigger, which takes them as input_data",
        )
    return {keys[0]: message}
