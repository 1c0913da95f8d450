"""Silences over HTTP: which hold at the Alertmanagers, and of which tickets nobody hears because of them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field

from queenright import api
from queenright.alerting.alertmanager import AlertmanagerError, AlertsRejectedError, SilenceNotFoundError
from queenright.alerting.silence_watch import NoPeerError, NothingToSilenceError
from queenright.alerting.silences import Silence
from queenright.instrumentation.redaction import redact
from queenright.server.access.caller import who
from queenright.server.routes.openapi import says, to
from queenright.server.routes.params import Body, By, Reason, answering
from queenright.server.routes.problems import problem
from queenright.server.service import Service

_LONGEST = 30 * 86_400


class Silenced(Body):
    """What is not to be heard of, for how long, and why."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"ticket_id": "018f6f7e-…", "seconds": 3600, "comment": "being mended", "by": "ada"}]
        }
    )

    ticket_id: Annotated[str, Field(min_length=1, max_length=100)]
    seconds: Annotated[float, Field(ge=60, le=_LONGEST, allow_inf_nan=False)]
    comment: Reason
    by: By = "operator"


def add_silences_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of silences, and the status codes of what they refuse."""
    app.add_exception_handler(NothingToSilenceError, answering(409))
    app.add_exception_handler(NoPeerError, answering(409))
    app.add_exception_handler(AlertmanagerError, _not_done)
    app.include_router(_routes(service), tags=["silences"])


def silence_row(silence: Silence, peers: list[str], tickets: list[str]) -> dict[str, Any]:
    """Return one silence as JSON values; times in seconds since the epoch."""
    return {
        "silence_id": silence.id,
        "by": silence.by,
        "comment": silence.comment,
        "state": silence.state,
        "starts_at": silence.starts_at,
        "ends_at": silence.ends_at,
        "matchers": list(silence.matchers),
        "peers": sorted(peers),
        "tickets": sorted(tickets),
    }


def _routes(service: Service) -> APIRouter:
    router, watch = APIRouter(), service.silences

    @router.get(
        "/api/silences",
        **says(
            "list_silences",
            api.Silences,
            links={"expire": to("expire_silence", silence_id="silences/0/silence_id")},
        ),
    )
    async def silences() -> dict[str, Any]:
        """Silences that hold or will, the first to end first; and of which peers they are not known."""
        return {
            "silences": [silence_row(*one) for one in watch.silences()],
            "unknown": watch.unknown,
            "peers": [
                {"peer": view.peer, "read_at": view.read_at, "error": view.error or None}
                for view in watch.views()
            ],
        }

    @router.post(
        "/api/silences",
        **says(
            "add_silence",
            api.SilenceMade,
            status=201,
            refused=(404, 409, 502),
            links={"expire": to("expire_silence", silence_id="silence_id")},
        ),
    )
    async def add(request: Request, body: Silenced) -> dict[str, str]:
        """Let nobody hear of a ticket for a while, nor of its agent for the same cause."""
        made, peer = await watch.add(
            body.ticket_id,
            by=redact(who(request, body.by), 100),
            comment=f"{redact(body.comment, 1000)} (ticket {body.ticket_id})",
            seconds=body.seconds,
        )
        return {"silence_id": made, "peer": peer}

    @router.delete(
        "/api/silences/{silence_id}",
        **says("expire_silence", None, status=204, refused=(404, 409, 502), what="It has ended."),
    )
    async def expire(silence_id: Annotated[str, Path(description="Which silence.")]) -> Response:
        """Let a silence end now."""
        await watch.expire(silence_id)
        return Response(status_code=204)

    return router


async def _not_done(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, SilenceNotFoundError):
        return problem(404, "no Alertmanager knows this silence; take its id from the list of silences")
    # Alertmanager's word on what was asked, or that nobody could be asked.
    return problem(409 if isinstance(error, AlertsRejectedError) else 502, str(error))
