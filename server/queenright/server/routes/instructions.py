"""A worker's letterbox over HTTP: it asks what there is for it, and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Response
from pydantic import ConfigDict, Field

from queenright import api
from queenright.health.interventions.instructions import Instruction, Instructions
from queenright.health.interventions.target import Target
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.routes.openapi import says, to
from queenright.server.routes.params import AgentId, Body, Text
from queenright.server.service import Service


class Answered(Body):
    """A worker's answer to an instruction."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"session_id": "session-1", "incarnation_id": "life-1", "outcome": "done"}]
        }
    )

    session_id: str
    incarnation_id: str
    outcome: Literal["done", "refused", "failed"]
    detail: Text = ""
    checkpoint_id: Annotated[str | None, Field(max_length=256)] = None


def instructions_router(service: Service) -> APIRouter:
    """Return the routes that workers ask."""
    router, mailbox = APIRouter(), service.instructions

    @router.get(
        "/api/agents/{agent_id:agent}/instructions",
        **says(
            "pull_instructions",
            api.Instructions,
            refused={404: "The path names no worker."},
            links={
                "answer": to(
                    "answer_instruction",
                    agent_id="path.agent_id",
                    instruction_id="instructions/0/instruction_id",
                )
            },
        ),
    )
    async def pull(
        agent_id: AgentId,
        session_id: Annotated[str, Query(description="The session that asks.")],
        incarnation_id: Annotated[str, Query(description="The life that asks.")],
        wait: Annotated[
            float, Query(ge=0, le=60, description="Seconds to wait for one, if there is none.")
        ] = 0.0,
    ) -> dict[str, Any]:
        """What there is for a worker; a long poll of up to ``wait`` seconds. Asking makes it reachable."""
        target = _asker(agent_id, session_id, incarnation_id)
        found = await _until_stopping(service, mailbox, target, wait)
        fields = {"instruction_id", "kind", "message", "expires_at"}
        return {"instructions": [one.model_dump(mode="json", include=fields) for one in found]}

    @router.post(
        "/api/agents/{agent_id:agent}/instructions/{instruction_id}/answer",
        **says("answer_instruction", None, status=204, refused=(404, 409), what="It is noted."),
    )
    async def answer(
        agent_id: AgentId,
        instruction_id: Annotated[str, Path(description="Which instruction.")],
        body: Answered,
    ) -> Response:
        """What became of an instruction; the same answer twice is one."""
        target = _asker(agent_id, body.session_id, body.incarnation_id)
        checkpoint = redact(body.checkpoint_id, 256) if body.checkpoint_id is not None else None
        await mailbox.answer(
            target, instruction_id, body.outcome, detail=body.detail, checkpoint_id=checkpoint
        )
        return Response(status_code=204)

    return router


def _asker(agent_id: str, session_id: str, incarnation_id: str) -> Target:
    """Return who asks, by the names that the service has from its telemetry."""
    if not agent_id:
        raise HTTPException(404, "the path names no worker: give its name after /api/agents/")
    return Target(
        agent_id=agent_id, session_id=clean_name(session_id), incarnation_id=clean_name(incarnation_id)
    )


async def _until_stopping(
    service: Service, mailbox: Instructions, target: Target, wait: float
) -> Sequence[Instruction]:
    """Pull; but a service that stops waits for no worker."""
    pulling = asyncio.ensure_future(mailbox.pull(target, wait))
    stopping = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait((pulling, stopping), return_when=asyncio.FIRST_COMPLETED)
        return pulling.result() if pulling.done() else ()
    finally:
        stopping.cancel()
        pulling.cancel()
