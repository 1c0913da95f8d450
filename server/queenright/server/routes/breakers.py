"""Circuit breakers over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import ConfigDict, TypeAdapter

from queenright import api
from queenright.health.breakers.circuit import BreakerStatus
from queenright.server.access.caller import who
from queenright.server.routes.openapi import says, to
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import Body, By, Open
from queenright.server.service import Service

_BREAKER = TypeAdapter(BreakerStatus)


class Reset(Body):
    """Who closes a breaker."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "ada"}]})

    by: By = "operator"


BreakerName = Annotated[
    str, Path(description="The breaker's name; a slash may stand as it is.", examples=["provider:openai"])
]


def breakers_router(service: Service) -> APIRouter:
    """Return the routes of circuit breakers."""
    router, health = APIRouter(), service.health

    name_of = to("get_breaker", name="breakers/0/name")

    @router.get(
        "/api/breakers",
        **says(
            "list_breakers",
            api.BreakersPage,
            links={"breaker": name_of, "reset": to("reset_breaker", name="breakers/0/name")},
        ),
    )
    async def breakers(only_open: Open = False, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """Circuit breakers by name; only those that are not closed with ``open``."""
        (after,) = place_of(cursor, "breakers", str) or ("",)
        found = await health.circuit_breakers(limit + 1, after=after, only_open=only_open)
        return await page(
            "breakers",
            found,
            limit,
            row=lambda one: _BREAKER.dump_python(one, mode="json"),
            place=lambda one: (one.name,),
        )

    @router.get(
        "/api/breakers/{name:path}",
        **says(
            "get_breaker",
            api.Breaker,
            refused=(404,),
            links={"reset": to("reset_breaker", name="path.name")},
        ),
    )
    async def breaker(name: BreakerName) -> Any:
        """One circuit breaker."""
        return await health.get_circuit_breaker_status(name)

    @router.post("/api/breakers/{name:path}/reset", **says("reset_breaker", api.Breaker, refused=(404,)))
    async def reset(request: Request, name: BreakerName, body: Reset | None = None) -> Any:
        """Close a circuit breaker by hand."""
        await health.reset_circuit_breaker(name, by=who(request, (body or Reset()).by))
        return await health.get_circuit_breaker_status(name)

    return router
