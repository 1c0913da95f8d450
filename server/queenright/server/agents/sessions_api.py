"""Sessions of loaded agents over HTTP: what is on the disk of them, and where they can go on from."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from queenright.api import loaded as api
from queenright.instrumentation.redaction import redact
from queenright.runtime.storage.checkpoint_store import ChainLink, CheckpointStore
from queenright.runtime.storage.conversation import Conversation, conversations_in
from queenright.runtime.storage.entries import Entry
from queenright.runtime.storage.files import UnusableFileError
from queenright.runtime.storage.session_state import ExecutionState, SessionState, SessionStatus
from queenright.runtime.storage.session_store import SessionNotFound, SessionStore
from queenright.server.agents.execution_api import noted, resumed
from queenright.server.agents.manager import AgentSlot
from queenright.server.agents.operator_log import log_operator_action
from queenright.server.agents.requests import (
    CheckpointId,
    GraphId,
    OfGraph,
    SessionId,
    graph_of,
    masked,
    on_disk,
    seen_in,
    shown_text,
    state_of,
    storage_fault,
)
from queenright.server.routes.openapi import operation, to
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import AgentId, one_of
from queenright.server.service import Service

OfStatus = Annotated[
    api.RunStatus | None, one_of(api.RunStatus), Query(description="Only those that stand so.")
]
OwnGraph = Annotated[str | None, Query(description="Whose session; without, the agent's own graph's.")]

_ONE: Final = {
    name: to(name, agent_id="path.agent_id", session_id="sessions/0/session_id")
    for name in ("get_session", "list_checkpoints", "list_session_messages", "resume_agent", "delete_session")
}
_ONE["resume_agent"] = to("resume_agent", agent_id="path.agent_id")


def session_routes(service: Service) -> APIRouter:
    """Return the routes; the longest first, as an agent's name may hold anything."""
    router = APIRouter()
    _inside(router, service)
    _of_graphs(router, service)
    _sessions(router, service)
    return router


def _inside(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.post(
        "/api/agents/{agent_id:agent}/sessions/{session_id}/checkpoints/{checkpoint_id}/restore",
        **operation("restore_checkpoint", api.Started, status=202, errors=(404, 409)),
    )
    async def restore(
        request: Request,
        agent_id: AgentId,
        session_id: SessionId,
        checkpoint_id: CheckpointId,
        graph_id: OwnGraph = None,
    ) -> api.Started:
        """
        Go on in a session from a checkpoint: what was said and done in it since is forgotten.

        `queued`: other runs come first. 409 also where another process runs an execution in the session.
        """
        slot = agents.get(agent_id)
        graph = graph_of(slot, graph_id or slot.graph_id)
        started = await resumed(slot, graph, session_id, checkpoint_id, status="restored")
        return await noted(service, request, "restore", agent_id, started, detail=checkpoint_id)

    @router.get(
        "/api/agents/{agent_id:agent}/sessions/{session_id}/checkpoints",
        **operation(
            "list_checkpoints",
            api.CheckpointPage,
            errors=(404,),
            links={
                "restore": to(
                    "restore_checkpoint",
                    agent_id="path.agent_id",
                    session_id="path.session_id",
                    checkpoint_id="checkpoints/0/checkpoint_id",
                )
            },
        ),
    )
    async def checkpoints(
        agent_id: AgentId,
        session_id: SessionId,
        graph_id: OwnGraph = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> api.CheckpointPage:
        """Where a session can go on from, newest first; what cannot be believed is there with its reason."""
        slot = agents.get(agent_id)
        graph = graph_of(slot, graph_id or slot.graph_id)
        before = place_of(cursor, "checkpoints", str)
        found = await on_disk(slot.runtime, lambda: _chain(slot, graph.id, session_id))
        if before is not None:
            found = [one for one in found if _order(one.checkpoint_id) < _order(before[0])]
        return await page(
            api.CheckpointPage,
            "checkpoints",
            found,
            limit,
            row=lambda one: _checkpoint(one),
            place=lambda one: (one.checkpoint_id,),
        )

    @router.get(
        "/api/agents/{agent_id:agent}/sessions/{session_id}/messages",
        **operation("list_session_messages", api.MessagePage, errors=(404,)),
    )
    async def messages(
        agent_id: AgentId,
        session_id: SessionId,
        graph_id: OwnGraph = None,
        conversation: Annotated[str | None, Query(description="Only of this node's.")] = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> api.MessagePage:
        """What was said in a session, oldest first: the newest of it; `next` leads to what was before."""
        slot = agents.get(agent_id)
        graph = graph_of(slot, graph_id or slot.graph_id)
        before = place_of(cursor, "messages", float, str, int)
        found = await on_disk(slot.runtime, lambda: _said(slot, graph.id, session_id, conversation))
        found.sort(key=_place, reverse=True)
        if before is not None:
            found = [one for one in found if _place(one) < (float(before[0]), before[1], before[2])]
        return await page(
            api.MessagePage,
            "messages",
            found,
            limit,
            row=lambda one: _message(*one),
            place=_place,
            backwards=True,
        )


def _of_graphs(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.get(
        "/api/agents/{agent_id:agent}/graphs/{graph_id}/sessions/{session_id}",
        **operation("get_graph_session", api.SessionDetail, errors=(404, 409)),
    )
    async def graph_session(agent_id: AgentId, graph_id: GraphId, session_id: SessionId) -> api.SessionDetail:
        """One session of a graph: how its runs stand, and its memory."""
        slot = seen_in(service, agents.get(agent_id), graph_id)
        return await _one(slot, graph_of(slot, graph_id).id, session_id)

    @router.get(
        "/api/agents/{agent_id:agent}/graphs/{graph_id}/sessions",
        **operation("list_graph_sessions", api.SessionPage, errors=(404,)),
    )
    async def graph_sessions(
        agent_id: AgentId,
        graph_id: GraphId,
        status: OfStatus = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> api.SessionPage:
        """The sessions of a graph, newest first."""
        slot = seen_in(service, agents.get(agent_id), graph_id)
        return await _listed(slot, graph_of(slot, graph_id).id, status, limit, cursor)


def _sessions(router: APIRouter, service: Service) -> None:
    agents = service.agents

    @router.get(
        "/api/agents/{agent_id:agent}/sessions/{session_id}",
        **operation(
            "get_session",
            api.SessionDetail,
            errors=(404, 409),
            links={
                name: to(name, agent_id="path.agent_id", session_id="path.session_id")
                for name in ("list_checkpoints", "list_session_messages", "delete_session")
            },
        ),
    )
    async def session(
        agent_id: AgentId, session_id: SessionId, graph_id: OfGraph = None
    ) -> api.SessionDetail:
        """One session: how its runs stand, and its memory."""
        slot = agents.get(agent_id)
        return await _one(slot, graph_of(slot, graph_id or slot.graph_id).id, session_id)

    @router.delete(
        "/api/agents/{agent_id:agent}/sessions/{session_id}",
        **operation(
            "delete_session",
            None,
            status=204,
            errors={
                404: "There is none of this id.",
                409: "A run is going on in it, or waits for its turn in it; stop that first.",
            },
            description="It is gone.",
        ),
    )
    async def delete(
        request: Request, agent_id: AgentId, session_id: SessionId, graph_id: OwnGraph = None
    ) -> Response:
        """Remove a session with all that it holds: conversations, checkpoints, what its nodes made, logs."""
        slot = agents.get(agent_id)
        graph = graph_of(slot, graph_id or slot.graph_id).id
        try:
            await slot.runtime.delete_session(session_id, graph)
        except OSError as error:
            raise storage_fault(error) from error
        await log_operator_action(
            service, request, "delete_session", agent_id, graph_id=graph, session_id=session_id
        )
        return Response(status_code=204)

    @router.get(
        "/api/agents/{agent_id:agent}/sessions",
        **operation("list_sessions", api.SessionPage, errors=(404,), links=_ONE),
    )
    async def sessions(
        agent_id: AgentId, status: OfStatus = None, limit: Limit = 100, cursor: Cursor = None
    ) -> api.SessionPage:
        """The sessions of a loaded agent's own graph, newest first."""
        slot = agents.get(agent_id)
        return await _listed(slot, slot.graph_id, status, limit, cursor)


# -- what is on the disk ----------------------------------------------------------------------------


async def _listed(
    slot: AgentSlot, graph_id: str, status: str | None, limit: int, cursor: str | None
) -> api.SessionPage:
    before = place_of(cursor, "sessions", float, str)
    wanted = None if status is None else SessionStatus(status)

    def read() -> tuple[list[SessionState], set[str], int]:
        states = [
            (store, one)
            for store, one in slot.runtime.list_sessions(graph_id)
            if wanted in (None, one.status) and (before is None or (one.created_at, one.session_id) < before)
        ]
        shown = states[: limit + 1]  # one more says that there are more
        left = {one.session_id for store, one in shown if _is_interrupted(store, one)}
        unreadable = len(slot.runtime.session_store(graph_id).skipped)
        return [one for _, one in shown], left, unreadable

    found, left, unreadable = await on_disk(slot.runtime, read)
    return await page(
        api.SessionPage,
        "sessions",
        found,
        limit,
        row=lambda one: api.SessionRow(**_row(one, one.session_id in left)),
        place=lambda one: (one.created_at, one.session_id),
        unreadable=unreadable,
    )


async def _one(slot: AgentSlot, graph_id: str, session_id: str) -> api.SessionDetail:
    def read() -> tuple[SessionState, bool]:
        store, _, state = state_of(slot, graph_id, session_id)
        return state, _is_interrupted(store, state)

    state, left = await on_disk(slot.runtime, read)
    runs = sorted(state.executions.values(), key=lambda run: run.started_at)
    row = _row(state, left)
    return api.SessionDetail(**row, memory=masked(state.memory), runs=[_run(run) for run in runs])


def _is_interrupted(store: SessionStore, state: SessionState) -> bool:
    """Return whether a session stands as if somebody ran it, and nobody does. Blocks."""
    if state.status is not SessionStatus.ACTIVE:
        return False
    try:
        if store.is_claimed(store.open(state.session_id)):
            return False
        return store.read_state(state.session_id).status is SessionStatus.ACTIVE  # it may just have ended
    except (SessionNotFound, UnusableFileError):
        return False  # it was deleted or spoilt meanwhile


def _row(state: SessionState, interrupted: bool) -> dict[str, Any]:
    newest = max(state.executions.values(), key=lambda run: run.updated_at, default=None)
    return {
        "session_id": state.session_id,
        "graph_id": state.graph_id,
        "entry_point_id": state.entry_point,
        "status": state.status.value,
        "created_at": state.created_at,
        "updated_at": state.updated_at,
        "executions": len(state.executions),
        "error": "" if newest is None else redact(newest.error, 4000),
        "interrupted": interrupted,
    }


def _run(run: ExecutionState) -> api.SessionRun:
    return api.SessionRun(
        execution_id=run.execution_id,
        graph_id=run.graph_id,
        entry_point_id=run.entry_point,
        status=run.status.value,
        started_at=run.started_at,
        updated_at=run.updated_at,
        ended_at=run.ended_at,
        path=list(run.path),
        pending=[one.node_id for one in run.pending],
        visits=dict(run.visits),
        outputs=masked(run.outputs),
        error=redact(run.error, 4000),
        error_type=run.error_type,
        steps=run.steps,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
        cost=run.cost,
        goal_progress=run.goal_progress,
    )


def _chain(slot: AgentSlot, graph_id: str, session_id: str) -> list[ChainLink]:
    """Blocks."""
    _, session, _ = state_of(slot, graph_id, session_id)
    return CheckpointStore(session.checkpoints, clock=lambda: 0.0, ids=str).chain()


def _order(checkpoint_id: str) -> tuple[int, str]:
    number = checkpoint_id.partition("-")[0]
    return (int(number) if number.isdecimal() and len(number) < 100 else 0), checkpoint_id


def _checkpoint(link: ChainLink) -> api.CheckpointRow:
    known = link.checkpoint
    return api.CheckpointRow(
        checkpoint_id=link.checkpoint_id,
        valid=known is not None,
        problem=redact(link.reason, 1000),
        created_at=None if known is None else known.created_at,
        execution_id=None if known is None else known.execution_id,
        graph_id=None if known is None else known.graph_id,
        node_id=None if known is None else known.node_id,
        reason=None if known is None else known.reason,
        pending=[] if known is None else [one.node_id for one in known.execution.pending],
    )


def _said(
    slot: AgentSlot, graph_id: str, session_id: str, conversation: str | None
) -> list[tuple[str, Entry]]:
    """Return what was said in a session, with the name of its conversation. Blocks."""
    _, session, _ = state_of(slot, graph_id, session_id)
    names = conversations_in(session.conversations)
    return [
        (name, entry)
        for name in names
        if conversation in (None, name)
        for entry in Conversation.open(
            session.conversations / name, disk=slot.runtime.disk, clock=lambda: 0.0
        ).entries
    ]


def _place(one: tuple[str, Entry]) -> tuple[float, str, int]:
    return one[1].at, one[0], one[1].seq


def _message(conversation: str, entry: Entry) -> api.MessageRow:
    said = entry.message
    return api.MessageRow(
        conversation=conversation,
        seq=entry.seq,
        at=entry.at,
        kind=entry.kind.value,
        role="user" if said.role == "system" else said.role,  # a conversation holds none of the system
        text=shown_text(said.content),
        tool_calls=[
            api.ToolUse(id=call.id, name=call.name, arguments=shown_text(call.arguments))
            for call in said.tool_calls
        ],
        tool_call_id=said.tool_call_id,
    )
