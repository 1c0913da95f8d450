"""Routes that add, list and end silences of tickets. A silence lasts between a minute and 30 days."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field

from queenright import api
from queenright.alerting.peer_silences import Silence
from queenright.instrumentation.redaction import redact
from queenright.server.access.caller import get_person_name
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.params import By, ExpectedWorker, Reason
from queenright.server.routes.preconditions import require_unchanged_ticket
from queenright.server.routes.short_ids import complete_id

router = APIRouter(prefix="/api/silences", tags=["silences"])

_MAX_SECONDS = 30 * 86_400


class CreateSilence(ExpectedWorker):
    """The ticket to silence, for how long, and why."""

    ticket_id: Annotated[str, Field(min_length=1, max_length=100)]
    seconds: Annotated[float, Field(ge=60, le=_MAX_SECONDS, allow_inf_nan=False, examples=[3600])]
    comment: Reason
    by: By = "operator"


@router.get("")
async def list_silences(service: ServiceDep) -> api.Silences:
    """List active and pending silences by end time, and the state of each Alertmanager."""
    watch = service.silences
    return api.Silences(
        silences=[_make_silence_row(*silence) for silence in watch.silences()],
        unknown=watch.unknown,
        peers=[
            api.SilencePeer(peer=view.peer, read_at=view.read_at, error=view.error or None)
            for view in watch.views()
        ],
    )


@router.post("", **operation(status=201, errors=(404, 409, 502)))
async def add_silence(request: Request, service: ServiceDep, body: CreateSilence) -> api.SilenceResult:
    """Silence a ticket, and other tickets of its agent with the same cause."""
    await require_unchanged_ticket(service, body, body.ticket_id)
    silence_id, peer = await service.silences.add(
        body.ticket_id,
        by=redact(get_person_name(request, body.by), 100),
        comment=f"{redact(body.comment, 1000)} (ticket {body.ticket_id})",
        seconds=body.seconds,
    )
    return api.SilenceResult(silence_id=silence_id, peer=peer)


@router.delete(
    "/{silence_id}", **operation(status=204, errors=(404, 409, 502), description="The silence has ended.")
)
async def expire_silence(
    service: ServiceDep,
    silence_id: Annotated[
        str, Path(description="The silence's id, or its unique beginning (8 characters or more).")
    ],
) -> None:
    """End a silence now."""
    comments = {silence.id: silence.comment[:80] for silence, _, _ in service.silences.silences()}
    await service.silences.expire(complete_id(silence_id, "silences", comments))


def _make_silence_row(silence: Silence, peers: list[str], tickets: list[str]) -> api.Silence:
    return api.Silence.of(silence, silence_id=silence.id, peers=sorted(peers), tickets=sorted(tickets))
