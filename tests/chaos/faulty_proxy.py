"""A proxy to an Alertmanager that can fail in every way, and records what was accepted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

Fault = Literal["none", "refuses", "hangs", "slow", "500", "503", "cuts the request", "cuts the answer"]
FAULTS: tuple[Fault, ...] = ("refuses", "hangs", "slow", "500", "503", "cuts the request", "cuts the answer")

_POST = b"POST /api/v2/alerts"


@dataclass(frozen=True, slots=True)
class ForwardedPost:
    """
    An alert that Alertmanager accepted, whether or not the sender got the response.
    """

    at: float
    alert: dict[str, Any]


class FaultyProxy:
    """
    An HTTP proxy on its own port.

    Args:
        port: The port to listen on.
        target: The port of the Alertmanager.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.accepted_posts: list[ForwardedPost] = []
        self.rejections: list[str] = []
        """Responses by which Alertmanager itself refused alerts."""
        self._target = target
        self._fault: Fault = "none"
        self._server: asyncio.Server | None = None
        self._connection_tasks: set[asyncio.Task[None]] = set()

    async def set_fault(self, fault: Fault) -> None:
        """Change the fault, which affects open connections too."""
        self._fault = fault
        if (fault == "refuses") != (self._server is None):
            await (self.close() if self._server else self.open())

    async def open(self) -> None:
        """Start listening."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 24)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connection_tasks:
            task.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connection_tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            while await self._answer(await _read_message(reader), writer):
                pass
        self._connection_tasks.discard(task)
        writer.close()

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Handle a request with the current fault, and return False if the connection ends."""
        fault = self._fault
        if fault == "hangs":
            await asyncio.sleep(3600)
        if fault in ("500", "503"):
            writer.write(f"HTTP/1.1 {fault} Bad\r\nContent-Length: 7\r\n\r\nnot now".encode())
            return True
        if fault == "cuts the request":
            await self._forward(request, cut=len(request) * 2 // 3)
            return False
        response = await self._forward(request)
        if fault == "cuts the answer":
            writer.write(response[: len(response) // 2])
            await writer.drain()
            return False
        if fault == "slow":
            for place in range(0, len(response), 40):
                writer.write(response[place : place + 40])
                await asyncio.sleep(0.1)
            return True
        writer.write(response)
        return True

    async def _forward(self, request: bytes, *, cut: int | None = None) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            writer.write(request[:cut])
            await writer.drain()
            if cut is not None:
                return b""
            response = await _read_message(reader)
        finally:
            writer.close()
        if request.startswith(_POST):
            self._record_post(request, response)
        return response

    def _record_post(self, request: bytes, response: bytes) -> None:
        body = request.partition(b"\r\n\r\n")[2]
        if response.startswith(b"HTTP/1.1 200"):
            now = time.time()
            self.accepted_posts += [ForwardedPost(now, alert) for alert in json.loads(body)]
        else:
            self.rejections.append(response.decode(errors="replace"))


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """Read a request or response that has a Content-Length."""
    header = await reader.readuntil(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1] for line in header.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    return header + await reader.readexactly(int(lengths[0]) if lengths else 0)
