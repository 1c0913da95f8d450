"""Keeps what clients send: OTLP exports and hook calls, with the time at which each arrived."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PROTOBUF: Final = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class Received:
    """One request of a client."""

    at: float
    """Unix time."""
    path: str
    headers: dict[str, str]
    body: bytes


class Recorder:
    """Accepts and keeps every OTLP export and hook call."""

    def __init__(self) -> None:
        self.received: list[Received] = []

    @property
    def routes(self) -> list[Route]:
        """The routes that clients report to."""
        return [
            Route("/v1/{signal:str}", self._receive, methods=["POST"]),
            Route("/hooks/{client:str}", self._receive, methods=["POST"]),
        ]

    async def _receive(self, request: Request) -> Response:
        at = time.time()
        headers: dict[str, Any] = dict(request.headers)
        self.received.append(Received(at, request.url.path, headers, await request.body()))
        if headers.get("content-type") == PROTOBUF:
            return Response(b"", media_type=PROTOBUF)
        return JSONResponse({})
