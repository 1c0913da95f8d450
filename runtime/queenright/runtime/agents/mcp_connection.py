"""Connections to MCP servers, over the official client: each lives in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from queenright.runtime.agents.mcp_spec import McpServerSpec
from queenright.runtime.storage.files import PRIVATE_FILE, make_folder

if TYPE_CHECKING:
    import mcp
    from mcp.client import Transport

logger = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 10.0
"""A server that is started here is given 2 s to end, and 2 s more after SIGTERM; this is above both."""
_LOG_LIMIT: Final = 1_000_000


class Connection:
    """
    One connection. It is opened and closed in one task, as the client's cancel scopes must be.

    Args:
        transport: What ``over_stdio`` or ``over_http`` returns.
        name: What the task is called.
    """

    def __init__(self, transport: Transport, *, name: str) -> None:
        self._transport = transport
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client: mcp.Client
        self.tools: list[mcp.Tool] = []
        self._task = asyncio.create_task(self._live(), name=name)

    async def open(self) -> None:
        """Return when the server has said what it offers; raise what went wrong instead."""
        await asyncio.shield(self._opened)

    @property
    def gone(self) -> bool:
        """Whether the server is no longer there."""
        return self._ended.is_set() or self._task.done()

    def suspect(self, error: Exception) -> None:
        """Take the connection for gone if ``error`` says so."""
        import mcp
        from mcp_types import CONNECTION_CLOSED

        # The message is what the client says of a server that was started anew behind the same address.
        if isinstance(error, mcp.MCPError) and (
            error.code == CONNECTION_CLOSED or error.message == "Session terminated"
        ):
            self._ended.set()

    async def close(self) -> None:
        """End it; when this returns, a server that was started here has ended."""
        self._stop.set()
        if not self._opened.done():
            self._task.cancel()
        try:
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)

    async def _live(self) -> None:
        import mcp

        try:
            async with mcp.Client(_Watched(self._transport, self._ended), cache=None) as self.client:
                cursor: str | None = None
                while True:
                    page = await self.client.list_tools(cursor=cursor)
                    self.tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
                if not self._opened.done():
                    self._opened.set_result(None)
                await self._stop.wait()
        except Exception as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                logger.debug("%s ended: %s", self._task.get_name(), type(error).__name__)
        finally:
            self._ended.set()
            if not self._opened.done():
                self._opened.cancel()
            elif not self._opened.cancelled():
                self._opened.exception()  # Whoever waited may have gone: then nobody else looks at it.


class _Watched:
    """A transport that tells when the server's end of it is closed, so that no call is lost to find out."""

    def __init__(self, transport: Transport, ended: asyncio.Event) -> None:
        self._transport = transport
        self._ended = ended

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._ended), write

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._transport.__aexit__(*raised)


class _WatchedStream:
    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream = stream
        self._ended = ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._ended.set()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> bool | None:
        left: bool | None = await self._stream.__aexit__(*raised)
        return left


@contextlib.asynccontextmanager
async def over_stdio(
    spec: McpServerSpec, env: Mapping[str, str], folder: Path, log: Path
) -> AsyncIterator[Any]:
    """Start the server and talk to it over stdin and stdout; its stderr is appended to ``log``."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = sys.executable if spec.command in ("python", "python3") else spec.command
    parameters = StdioServerParameters(
        command=command, args=list(spec.args), env=dict(env), cwd=folder / spec.cwd
    )
    with await asyncio.to_thread(_opened, log) as stderr:
        async with stdio_client(parameters, errlog=stderr) as streams:
            yield streams


def _opened(log: Path) -> TextIO:
    make_folder(log.parent)
    grown = log.exists() and log.stat().st_size > _LOG_LIMIT
    return open(
        log,
        "w" if grown else "a",
        encoding="utf-8",
        opener=lambda name, how: os.open(name, how, PRIVATE_FILE),
    )


@contextlib.asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """Talk to the server at ``url`` over streamable HTTP."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    # The client's own limits: 30 s for each step, and 300 s in which a stream may be silent.
    timeout = httpx2.Timeout(30, read=300)
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams
