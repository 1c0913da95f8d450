"""Chat with the queen about a ticket, or about a session of a worker."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from queenright import api
from queenright.judge.chat import MAX_MESSAGE_LENGTH, Subject
from queenright.server.access.caller import find_caller, get_person_name
from queenright.server.access.roles import Role
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Limit
from queenright.server.routes.params import AgentId, Body, By, TicketId

router = APIRouter(prefix="/api", tags=["tickets"])

AfterMessageQuery = Annotated[
    str | None, Query(max_length=200, description="The id of the last message that the client has.")
]
SessionIdQuery = Annotated[str, Query(max_length=256, description="The worker's session.")]
SessionField = Annotated[str, Field(max_length=256, description="The worker's session.")]


class QuestionRequest(Body):
    """An operator's question."""

    message: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_LENGTH, pattern=r"\S")]
    by: By = "operator"


class SessionQuestion(QuestionRequest):
    """An operator's question about a session."""

    session_id: SessionField


class MessageRequest(QuestionRequest):
    """An operator's message."""

    act: Annotated[
        bool,
        Field(
            description="Treat the message as an order: the queen may act on this ticket and its worker "
            "as she understands the message. Otherwise only `nudge it: TEXT`, `terminate it: REASON`, "
            "`acknowledge` and, from an admin, `restart it` and `change FILE: TEXT` are orders."
        ),
    ] = False


@router.post("/tickets/{ticket_id}/chat", **operation(errors=(404,)))
async def chat_about_ticket(
    request: Request, service: ServiceDep, ticket_id: TicketId, body: MessageRequest
) -> api.ChatMessage:
    """Ask the queen about a ticket, and wait for her answer. It is stored even if the client disconnects."""
    answer = await service.judging.chat.ask(
        Subject(ticket_id),
        body.message,
        by=get_person_name(request, body.by),
        act=body.act,
        is_admin=find_caller(request).role is Role.ADMIN,
    )
    return api.ChatMessage.of(answer)


@router.get("/tickets/{ticket_id}/chat", **operation(errors=(404,)))
async def list_ticket_messages(
    service: ServiceDep, ticket_id: TicketId, after: AfterMessageQuery = None, limit: Limit = 100
) -> api.ChatMessages:
    """List the messages about a ticket, oldest first: the newest ones, or those after a message."""
    messages = await service.judging.chat.history(Subject(ticket_id), after=after, limit=limit)
    return api.ChatMessages(messages=[api.ChatMessage.of(message) for message in messages])


@router.post("/agents/{agent_id:agent}/queen", **operation(errors=(404,)))
async def chat_about_worker(
    request: Request, service: ServiceDep, agent_id: AgentId, body: SessionQuestion
) -> api.ChatMessage:
    """Ask the queen about a session, with or without a ticket, and wait. She answers, but does not act."""
    answer = await service.judging.chat.ask(
        Subject(agent_id=agent_id, session_id=body.session_id),
        body.message,
        by=get_person_name(request, body.by),
    )
    return api.ChatMessage.of(answer)


@router.get("/agents/{agent_id:agent}/queen", **operation(errors=(404,)))
async def list_worker_messages(
    service: ServiceDep,
    agent_id: AgentId,
    session_id: SessionIdQuery,
    after: AfterMessageQuery = None,
    limit: Limit = 100,
) -> api.ChatMessages:
    """List the messages about a session, oldest first: the newest ones, or those after a message."""
    subject = Subject(agent_id=agent_id, session_id=session_id)
    messages = await service.judging.chat.history(subject, after=after, limit=limit)
    return api.ChatMessages(messages=[api.ChatMessage.of(message) for message in messages])
