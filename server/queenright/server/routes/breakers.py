"""Circuit breakers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from queenright import api
from queenright.server.access.caller import get_person_name
from queenright.server.routes.dependencies import HealthDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import Body, By, OnlyOpenQuery

router = APIRouter(prefix="/api/breakers", tags=["circuit breakers"])

BreakerName = Annotated[
    str, Path(description="The breaker's name; a slash in it needs no escape.", examples=["provider:openai"])
]


class Reset(Body):
    """Who resets a breaker."""

    by: By = "operator"


@router.get("")
async def list_breakers(
    health: HealthDep, only_open: OnlyOpenQuery = False, limit: Limit = 100, cursor: Cursor = None
) -> api.BreakersPage:
    """List circuit breakers by name; with ``open`` only those that are not closed."""
    (after,) = decode_cursor(cursor, "breakers", str) or ("",)
    return await build_page(
        api.BreakersPage,
        "breakers",
        await health.circuit_breakers(limit + 1, after=after, only_open=only_open),
        limit,
        row=api.Breaker.of,
        position=lambda breaker: (breaker.name,),
    )


@router.get("/{name:path}", **operation(errors=(404,)))
async def get_breaker(health: HealthDep, name: BreakerName) -> api.Breaker:
    """Return a circuit breaker."""
    return api.Breaker.of(await health.get_circuit_breaker_status(name))


@router.post("/{name:path}/reset", **operation(errors=(404, 409)))
async def reset_breaker(
    request: Request, health: HealthDep, name: BreakerName, body: Reset | None = None
) -> api.Breaker:
    """Close a circuit breaker manually."""
    await health.reset_circuit_breaker(name, by=get_person_name(request, (body or Reset()).by))
    return api.Breaker.of(await health.get_circuit_breaker_status(name))
