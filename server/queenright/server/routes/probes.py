"""Liveness and readiness probes, and the metrics."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from queenright import api
from queenright.server.access.caller import can_view_fleet
from queenright.server.metrics.metrics import choose_content_type
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.openapi import operation

router = APIRouter()

_OK_CONTENT: Final[dict[str, Any]] = {"text/plain": {"schema": {"type": "string"}, "example": "ok\n"}}


@router.get(
    "/healthz",
    tags=["service"],
    response_class=PlainTextResponse,
    **operation(description="`ok`", content=_OK_CONTENT),
)
async def get_alive() -> PlainTextResponse:
    """Return `ok` while the process runs."""
    return PlainTextResponse("ok\n")


@router.get(
    "/readyz", tags=["service"], **operation(other_responses={503: (api.Ready, "The service is not ready.")})
)
async def get_ready(request: Request, response: Response, service: ServiceDep) -> api.Ready:
    """Return whether the service is ready. If not, callers with a role also get the reasons."""
    reasons = service.ready()
    if reasons:
        response.status_code = 503
    return api.Ready(ready=not reasons, missing=reasons if can_view_fleet(request) else [])


@router.get("/metrics", include_in_schema=False)
async def get_metrics(request: Request, service: ServiceDep) -> Response:
    """Return the metrics in a format that the scraper accepts."""
    content_type = choose_content_type(request.headers.get("accept", ""))
    return Response(await service.metrics.render(content_type), headers={"Content-Type": content_type})
