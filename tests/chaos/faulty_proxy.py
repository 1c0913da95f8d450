"""The connection to an Alertmanager, which can fail in every way, and records what arrived."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

Mood = Literal["well", "refuses", "hangs", "slow", "500", "503", "cuts the request", "cuts the answer"]
BAD: tuple[Mood, ...] = ("refuses", "hangs", "slow", "500", "503", "cuts the request", "cuts the answer")

_POST = b"POST /api/v2/alerts"


@dataclass(frozen=True, slots=True)
class ForwardedPost:
    """
    An alert that the Alertmanager behind the proxy accepted, whether or not the sender got the response.
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
        self.taken: list[ForwardedPost] = []
        self.refused: list[str] = []
        """Alerts that the Alertmanager itself refused."""
        self._target = target
        self._mood: Mood = "well"
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def set_fault(self, mood: Mood) -> None:
        """Change the fault; open connections are affected, too."""
        self._mood = mood
        if (mood == "refuses") != (self._server is None):
            await (self.close() if self._server else self.open())

    async def open(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 24)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
            while await self._answer(await _message(reader), writer):
                pass
        self._serving.discard(task)
        writer.close()

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Handle a request with the current fault; return False if the connection ends."""
        mood = self._mood
        if mood == "hangs":
            await asyncio.sleep(3600)
        if mood in ("500", "503"):
            writer.write(f"HTTP/1.1 {mood} Bad\r\nContent-Length: 7\r\n\r\nnot now".encode())
            return True
        if mood == "cuts the request":
            await self._pass_on(request, cut=len(request) * 2 // 3)
            return False
        answer = await self._pass_on(request)
        if mood == "cuts the answer":
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return False
        if mood == "slow":
            for place in range(0, len(answer), 40):
                writer.write(answer[place : place + 40])
                await asyncio.sleep(0.1)
            return True
        writer.write(answer)
        return True

    async def _pass_on(self, request: bytes, *, cut: int | None = None) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            writer.write(request[:cut])
            await writer.drain()
            if cut is not None:
                return b""
            answer = await _message(reader)
        finally:
            writer.close()
        if request.startswith(_POST):
            self._take(request, answer)
        return answer

    def _take(self, request: bytes, answer: bytes) -> None:
        body = request.partition(b"\r\n\r\n")[2]
        if answer.startswith(b"HTTP/1.1 200"):
            now = time.time()
            self.taken += [ForwardedPost(now, alert) for alert in json.loads(body)]
        else:
            self.refused.append(answer.decode(errors="replace"))


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read a request or response that has a Content-Length."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    return head + await reader.readexactly(int(lengths[0]) if lengths else 0)
