"""Routes for workers in other processes to fetch and answer their instructions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request
from pydantic import Field

from queenright import api
from queenright.health.interventions.instructions import Instruction
from queenright.health.interventions.target import Target
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.redaction import redact
from queenright.server.routes.dependencies import InstructionsDep, ServiceDep
from queenright.server.routes.gateway_requests import is_from_gateway
from queenright.server.routes.openapi import operation
from queenright.server.routes.params import AgentId, Body, Text
from queenright.server.routes.preconditions import require_known_worker
from queenright.server.service import Service

router = APIRouter(prefix="/api/agents/{agent_id:agent}/instructions", tags=["workers"])


class InstructionAnswer(Body):
    """A worker's answer to an instruction."""

    session_id: str
    incarnation_id: str
    outcome: Literal["done", "refused", "failed"]
    detail: Text = ""
    checkpoint_id: Annotated[str | None, Field(max_length=256)] = None


@router.get("", **operation(errors={404: "The path names no worker."}))
async def pull_instructions(
    request: Request,
    service: ServiceDep,
    agent_id: AgentId,
    session_id: Annotated[str, Query(description="The worker's session.")],
    incarnation_id: Annotated[str, Query(description="The worker's incarnation.")],
    wait: Annotated[
        float, Query(ge=0, le=60, description="Seconds to wait if there is no instruction.")
    ] = 0.0,
) -> api.Instructions:
    """Fetch a worker's instructions with a long poll of up to ``wait`` seconds. Polls make it reachable."""
    target = _parse_target(agent_id, session_id, incarnation_id)
    if is_from_gateway(request):
        require_known_worker(service, target.agent_id, target.session_id)
    pulled_instructions = await _pull_until_stopping(service, target, wait)
    return api.Instructions(
        instructions=[api.Instruction.of(instruction) for instruction in pulled_instructions]
    )


@router.post(
    "/{instruction_id}/answer",
    **operation(status=204, errors=(404, 409), description="The answer is recorded."),
)
async def answer_instruction(
    instructions: InstructionsDep,
    agent_id: AgentId,
    instruction_id: Annotated[str, Path(description="The instruction's id.")],
    body: InstructionAnswer,
) -> None:
    """Record a worker's answer to an instruction. Sending the same answer again has no effect."""
    target = _parse_target(agent_id, body.session_id, body.incarnation_id)
    checkpoint = redact(body.checkpoint_id, 256) if body.checkpoint_id is not None else None
    await instructions.answer(
        target, instruction_id, body.outcome, detail=body.detail, checkpoint_id=checkpoint
    )


def _parse_target(agent_id: str, session_id: str, incarnation_id: str) -> Target:
    if not agent_id:
        raise HTTPException(404, "the path names no worker; give its name after /api/agents/")
    return Target(
        agent_id=agent_id, session_id=clean_name(session_id), incarnation_id=clean_name(incarnation_id)
    )


async def _pull_until_stopping(service: Service, target: Target, wait: float) -> Sequence[Instruction]:
    """Wait for instructions, for ``wait`` seconds or until the service stops."""
    pull_task = asyncio.ensure_future(service.instructions.pull(target, wait))
    stop_task = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait((pull_task, stop_task), return_when=asyncio.FIRST_COMPLETED)
        return pull_task.result() if pull_task.done() else ()
    finally:
        stop_task.cancel()
        pull_task.cancel()
