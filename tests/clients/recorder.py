"""Store requests of clients: OTLP exports and hook calls, with their arrival times."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PROTOBUF: Final = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One request of a client."""

    at: float
    """Unix time."""
    path: str
    headers: dict[str, str]
    body: bytes


class Recorder:
    """Accepts and stores every OTLP export and hook call."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []

    @property
    def routes(self) -> list[Route]:
        """Return the routes for telemetry and hook calls."""
        return [
            Route("/v1/{signal:str}", self._receive, methods=["POST"]),
            Route("/hooks/{client:str}", self._receive, methods=["POST"]),
        ]

    async def _receive(self, request: Request) -> Response:
        at = time.time()
        headers: dict[str, Any] = dict(request.headers)
        self.requests.append(ReceivedRequest(at, request.url.path, headers, await request.body()))
        if headers.get("content-type") == PROTOBUF:
            return Response(b"", media_type=PROTOBUF)
        return JSONResponse({})
