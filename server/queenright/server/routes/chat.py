"""Talking with the queen about a ticket, over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from queenright import api
from queenright.judge.chat import LONGEST_MESSAGE, ChatInterruptedError, ChatRefusedError
from queenright.runtime.bus import UnknownEventError
from queenright.server.access.caller import who
from queenright.server.routes.openapi import says, to
from queenright.server.routes.pagination import Limit
from queenright.server.routes.params import Body, By
from queenright.server.routes.problems import problem
from queenright.server.service import Service

After = Annotated[str | None, Query(max_length=200, description="The id of the last message that is known.")]

TicketId = Annotated[str, Path(description="Which ticket.")]

_STATUS: dict[type[Exception], int] = {
    ChatRefusedError: 422,
    ChatInterruptedError: 503,
    UnknownEventError: 404,
}


class Message(Body):
    """What an operator asks."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": "Why is it stuck?", "by": "ada"}]})

    message: Annotated[str, Field(min_length=1, max_length=LONGEST_MESSAGE, pattern=r"\S")]
    by: By = "operator"
    act: Annotated[
        bool,
        Field(
            description="It is an order, in whatever words: the queen may act on this ticket and its worker "
            "as she reads it. Without, `nudge it: TEXT`, `stop it: REASON` and `acknowledge` are orders only."
        ),
    ] = False


def add_chat_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of the chat, and the status codes of what it refuses."""
    for kind in _STATUS:
        app.add_exception_handler(kind, _refused)
    app.include_router(_routes(service), tags=["tickets"])


async def _refused(request: Request, error: Exception) -> Response:
    return problem(_STATUS[type(error)], str(error))


def _routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/api/tickets/{ticket_id}/chat",
        **says(
            "chat_about_ticket",
            api.ChatMessage,
            refused=(404,),
            links={"messages": to("list_ticket_messages", ticket_id="path.ticket_id")},
        ),
    )
    async def say(request: Request, ticket_id: TicketId, body: Message) -> dict[str, Any]:
        """Ask the queen about a ticket; answers when she has. If the caller gives up, her answer is kept."""
        return asdict(
            await service.judging.chat.say(ticket_id, body.message, by=who(request, body.by), act=body.act)
        )

    @router.get(
        "/api/tickets/{ticket_id}/chat",
        **says("list_ticket_messages", api.ChatMessages, refused=(404,)),
    )
    async def history(ticket_id: TicketId, after: After = None, limit: Limit = 100) -> Response:
        """What was said about a ticket, oldest first: the newest of it, or what came after a message."""
        found = await service.judging.chat.history(ticket_id, after=after, limit=limit)
        return JSONResponse({"messages": [asdict(one) for one in found]})

    return router
