"""Routes for sessions of loaded agents: runs, memory, messages and checkpoints on disk."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from queenright.api import loaded_agents as api
from queenright.instrumentation.redaction import redact
from queenright.runtime.storage.checkpoint_store import ChainLink, CheckpointStore
from queenright.runtime.storage.conversation import Conversation, list_conversations
from queenright.runtime.storage.entries import Entry
from queenright.runtime.storage.files import UnusableFileError
from queenright.runtime.storage.session_state import ExecutionState, SessionState, SessionStatus
from queenright.runtime.storage.session_store import SessionNotFoundError, SessionStore
from queenright.server.agents.manager import AgentSlot
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.loaded_agents.execution import resume_session
from queenright.server.routes.loaded_agents.operator_log import OperatorLogDep
from queenright.server.routes.loaded_agents.requests import (
    PREFIX,
    TAG,
    CheckpointId,
    ReadableGraphDep,
    ReadableSlotDep,
    SessionGraphDep,
    SessionId,
    SlotDep,
    convert_storage_errors,
    mask_text,
    mask_values,
    read_session,
    run_on_disk,
)
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import Body, Incarnation, allow_word
from queenright.server.routes.preconditions import require_unchanged_run

# The longest paths come first, because an agent's name may contain slashes.
router = APIRouter(prefix=PREFIX, tags=[TAG])

StatusQuery = Annotated[
    api.RunStatus | None, allow_word(api.RunStatus), Query(description="Only sessions with this status.")
]


class Restore(Body):
    """The worker as the caller saw it."""

    incarnation_id: Incarnation = None


@router.post(
    "/sessions/{session_id}/checkpoints/{checkpoint_id}/restore", **operation(status=202, errors=(404, 409))
)
async def restore_checkpoint(
    service: ServiceDep,
    log: OperatorLogDep,
    slot: SlotDep,
    graph: SessionGraphDep,
    session_id: SessionId,
    checkpoint_id: CheckpointId,
    body: Restore | None = None,
) -> api.Started:
    """
    Resume a session from a checkpoint. Everything after the checkpoint is discarded.

    The run is `queued` if others come first. 409 also if another process runs the session.
    """
    require_unchanged_run(service, slot.id, session_id, body.incarnation_id if body else None)
    start = await resume_session(slot, graph, session_id, checkpoint_id, status="restored")
    await log.write_result("restore", slot.id, start, checkpoint_id)
    return start


@router.get("/sessions/{session_id}/checkpoints", **operation(errors=(404,)))
async def list_checkpoints(
    slot: SlotDep,
    graph: SessionGraphDep,
    session_id: SessionId,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.CheckpointPage:
    """List the checkpoints of a session, newest first. An invalid checkpoint has a reason."""
    before = decode_cursor(cursor, "checkpoints", str)
    chain = await run_on_disk(slot.runtime, lambda: _read_chain(slot, graph.id, session_id))
    if before is not None:
        chain = [
            checkpoint
            for checkpoint in chain
            if _get_sort_key(checkpoint.checkpoint_id) < _get_sort_key(before[0])
        ]
    return await build_page(
        api.CheckpointPage,
        "checkpoints",
        chain,
        limit,
        row=_make_checkpoint_row,
        position=lambda checkpoint: (checkpoint.checkpoint_id,),
    )


@router.get("/sessions/{session_id}/messages", **operation(errors=(404,)))
async def list_session_messages(
    slot: SlotDep,
    graph: SessionGraphDep,
    session_id: SessionId,
    conversation: Annotated[str | None, Query(description="Only messages of this node.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.MessagePage:
    """List the newest messages of a session, oldest first; `next` leads to the earlier ones."""
    before = decode_cursor(cursor, "messages", float, str, int)
    messages = await run_on_disk(
        slot.runtime, lambda: _read_messages(slot, graph.id, session_id, conversation)
    )
    messages.sort(key=_get_position, reverse=True)
    if before is not None:
        messages = [
            message
            for message in messages
            if _get_position(message) < (float(before[0]), before[1], before[2])
        ]
    return await build_page(
        api.MessagePage,
        "messages",
        messages,
        limit,
        row=lambda message: _make_message_row(*message),
        position=_get_position,
        backwards=True,
    )


@router.get("/graphs/{graph_id}/sessions/{session_id}", **operation(errors=(404, 409)))
async def get_graph_session(
    slot: ReadableSlotDep, graph: ReadableGraphDep, session_id: SessionId
) -> api.SessionDetail:
    """Return a session of a graph: its runs and its memory."""
    return await _read_detail(slot, graph.id, session_id)


@router.get("/graphs/{graph_id}/sessions", **operation(errors=(404,)))
async def list_graph_sessions(
    slot: ReadableSlotDep,
    graph: ReadableGraphDep,
    status: StatusQuery = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.SessionPage:
    """List the sessions of a graph, newest first."""
    return await _build_session_page(slot, graph.id, status, limit, cursor)


@router.get("/sessions/{session_id}", **operation(errors=(404, 409)))
async def get_session(slot: SlotDep, graph: SessionGraphDep, session_id: SessionId) -> api.SessionDetail:
    """Return a session: its runs and its memory."""
    return await _read_detail(slot, graph.id, session_id)


@router.delete(
    "/sessions/{session_id}",
    **operation(
        status=204,
        errors={
            404: "There is no session of this id.",
            409: "A run in it is active or queued; stop that run first.",
        },
        description="The session is deleted.",
    ),
)
async def delete_session(
    log: OperatorLogDep, slot: SlotDep, graph: SessionGraphDep, session_id: SessionId
) -> None:
    """Delete a session with its conversations, checkpoints, files and logs."""
    with convert_storage_errors():
        await slot.runtime.delete_session(session_id, graph.id)
    await log.write("delete_session", slot.id, graph_id=graph.id, session_id=session_id)


@router.get("/sessions", **operation(errors=(404,)))
async def list_sessions(
    slot: SlotDep, status: StatusQuery = None, limit: Limit = 100, cursor: Cursor = None
) -> api.SessionPage:
    """List the sessions of a loaded agent's own graph, newest first."""
    return await _build_session_page(slot, slot.graph_id, status, limit, cursor)


# -- reading from disk -----------------------------------------------------------------------------


async def _build_session_page(
    slot: AgentSlot, graph_id: str, status: str | None, limit: int, cursor: str | None
) -> api.SessionPage:
    before = decode_cursor(cursor, "sessions", float, str)
    wanted_status = None if status is None else SessionStatus(status)

    def read() -> tuple[list[api.SessionRow], int]:
        states = [
            (store, session)
            for store, session in slot.runtime.list_sessions(graph_id)
            if wanted_status in (None, session.status)
            and (before is None or (session.created_at, session.session_id) < before)
        ]
        # Read one more than the limit, to know whether there is a next page.
        rows = [_make_session_row(store, session) for store, session in states[: limit + 1]]
        return rows, len(slot.runtime.session_store(graph_id).skipped_files)

    rows, unreadable_count = await run_on_disk(slot.runtime, read)
    return await build_page(
        api.SessionPage,
        "sessions",
        rows,
        limit,
        row=lambda row: row,
        position=lambda row: (row.created_at, row.session_id),
        unreadable=unreadable_count,
    )


async def _read_detail(slot: AgentSlot, graph_id: str, session_id: str) -> api.SessionDetail:
    def read() -> api.SessionDetail:
        store, _, state = read_session(slot, graph_id, session_id)
        runs = sorted(state.executions.values(), key=lambda run: run.started_at)
        return api.SessionDetail(
            **dict(_make_session_row(store, state)),
            memory=mask_values(state.memory),
            runs=[_make_run_row(run) for run in runs],
        )

    return await run_on_disk(slot.runtime, read)


def _is_interrupted(store: SessionStore, state: SessionState) -> bool:
    """Return whether a session is active but no process runs it. Blocks."""
    if state.status is not SessionStatus.ACTIVE:
        return False
    try:
        if store.is_claimed(store.open(state.session_id)):
            return False
        return store.read_state(state.session_id).status is SessionStatus.ACTIVE  # may have just ended
    except (SessionNotFoundError, UnusableFileError):
        return False  # deleted or damaged in the meantime


def _make_session_row(store: SessionStore, state: SessionState) -> api.SessionRow:
    """Blocks."""
    newest_run = max(state.executions.values(), key=lambda run: run.updated_at, default=None)
    return api.SessionRow.of(
        state,
        entry_point_id=state.entry_point,
        executions=len(state.executions),
        error="" if newest_run is None else redact(newest_run.error, 4000),
        interrupted=_is_interrupted(store, state),
    )


def _make_run_row(run: ExecutionState) -> api.SessionRun:
    return api.SessionRun.model_validate(
        run.model_dump()
        | {
            "entry_point_id": run.entry_point,
            "pending": [node.node_id for node in run.pending],
            "outputs": mask_values(run.outputs),
            "error": redact(run.error, 4000),
        }
    )


def _read_chain(slot: AgentSlot, graph_id: str, session_id: str) -> list[ChainLink]:
    """Blocks."""
    _, session, _ = read_session(slot, graph_id, session_id)
    return CheckpointStore(session.checkpoints, clock=lambda: 0.0, ids=str).chain()


def _get_sort_key(checkpoint_id: str) -> tuple[int, str]:
    number = checkpoint_id.partition("-")[0]
    return (int(number) if number.isdecimal() and len(number) < 100 else 0), checkpoint_id


def _make_checkpoint_row(link: ChainLink) -> api.CheckpointRow:
    checkpoint = link.checkpoint
    return api.CheckpointRow(
        checkpoint_id=link.checkpoint_id,
        valid=checkpoint is not None,
        problem=redact(link.reason, 1000),
        created_at=None if checkpoint is None else checkpoint.created_at,
        execution_id=None if checkpoint is None else checkpoint.execution_id,
        graph_id=None if checkpoint is None else checkpoint.graph_id,
        node_id=None if checkpoint is None else checkpoint.node_id,
        reason=None if checkpoint is None else checkpoint.reason,
        pending=[] if checkpoint is None else [node.node_id for node in checkpoint.execution.pending],
    )


def _read_messages(
    slot: AgentSlot, graph_id: str, session_id: str, conversation: str | None
) -> list[tuple[str, Entry]]:
    """Return the messages of a session, each with the name of its conversation. Blocks."""
    _, session, _ = read_session(slot, graph_id, session_id)
    names = list_conversations(session.conversations)
    return [
        (name, entry)
        for name in names
        if conversation in (None, name)
        for entry in Conversation.open(
            session.conversations / name, disk=slot.runtime.disk, clock=lambda: 0.0
        ).entries
    ]


def _get_position(entry: tuple[str, Entry]) -> tuple[float, str, int]:
    return entry[1].at, entry[0], entry[1].seq


def _make_message_row(conversation: str, entry: Entry) -> api.MessageRow:
    message = entry.message
    return api.MessageRow(
        conversation=conversation,
        seq=entry.seq,
        at=entry.at,
        kind=entry.kind.value,
        role="user" if message.role == "system" else message.role,  # no system prompt is stored
        text=mask_text(message.content),
        tool_calls=[
            api.ToolUse(id=call.id, name=call.name, arguments=mask_text(call.arguments))
            for call in message.tool_calls
        ],
        tool_call_id=message.tool_call_id,
    )
