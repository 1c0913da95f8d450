"""Connections to MCP servers, over the official client: each lives in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from pydantic import ValidationError

from queenright.instrumentation.redaction import redact
from queenright.runtime.agents.mcp_spec import McpServerSpec
from queenright.runtime.storage.files import PRIVATE_FILE, make_folder

if TYPE_CHECKING:
    import mcp
    from mcp.client import Transport

logger = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 10.0
"""A server that is started here is given 2 s to end, and 2 s more after SIGTERM; this is above both."""
_LOG_LIMIT: Final = 1_000_000
_SHOWN: Final = 80
_GUARD: Final = Path(__file__).with_name("mcp_guard.py")


class Connection:
    """
    One connection. It is opened and closed in one task, as the client's cancel scopes must be.

    Args:
        transport: What ``over_stdio`` or ``over_http`` returns.
        name: What the task is called.
    """

    def __init__(self, transport: Transport, *, name: str) -> None:
        self._ended = asyncio.Event()
        self._watched = _Watched(transport, self._ended, name)
        self._stop = asyncio.Event()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client: mcp.Client
        self.doubted = False
        """Whether a call was given up before it was answered: the server may answer nothing any more."""
        self.tools: list[mcp.Tool] = []
        self._task = asyncio.create_task(self._live(), name=name)

    async def open(self) -> None:
        """Return when the server has said what it offers; raise what went wrong instead."""
        await asyncio.shield(self._opened)

    @property
    def gone(self) -> bool:
        """Whether the server is no longer there."""
        return self._ended.is_set() or self._task.done()

    @property
    def garbage(self) -> str:
        """The first of what the server said that is no message; empty if there was none."""
        return self._watched.garbage

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
            async with mcp.Client(self._watched, cache=None) as self.client:
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
    """
    A transport that tells when the server's end of it is closed, so that no call is lost to find out.

    What the server says that is no message is told in the log, once, and goes no further.
    """

    def __init__(self, transport: Transport, ended: asyncio.Event, name: str) -> None:
        self.garbage = ""
        self._transport = transport
        self._ended = ended
        self._name = name

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._ended, self._refuse), write

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._transport.__aexit__(*raised)

    def _refuse(self, error: Exception) -> None:
        if not self.garbage:
            self.garbage = _given(error)
            logger.warning(
                "%s: it writes what is no message to stdout, which is left out: %s", self._name, self.garbage
            )


class _WatchedStream:
    def __init__(self, stream: Any, ended: asyncio.Event, refuse: Callable[[Exception], None]) -> None:
        self._stream = stream
        self._ended = ended
        self._refuse = refuse

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            while isinstance(item := await self._stream.__anext__(), Exception):
                self._refuse(item)
            return item
        except BaseException:
            self._ended.set()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> bool | None:
        left: bool | None = await self._stream.__aexit__(*raised)
        return left


def _given(error: Exception) -> str:
    """Return what could not be read, in one short line."""
    faults = error.errors() if isinstance(error, ValidationError) else []
    given = str(faults[0]["input"]) if faults else str(error)
    return repr(redact(" ".join(given.split())[:_SHOWN]))


def _no_traceback(record: logging.LogRecord) -> bool:
    """Leave out what the client says of each line that is no message: we say it, and once."""
    return not str(record.msg).startswith("Failed to parse JSONRPC")


@contextlib.asynccontextmanager
async def over_stdio(
    spec: McpServerSpec, env: Mapping[str, str], folder: Path, log: Path
) -> AsyncIterator[Any]:
    """Start the server and talk to it over stdin and stdout; its stderr is appended to ``log``."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    logging.getLogger(stdio_client.__module__).addFilter(_no_traceback)
    cwd = folder / spec.cwd
    command = await asyncio.to_thread(_program, spec.command, env, cwd)
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-I", "-S", str(_GUARD), str(os.getpid()), command, *spec.args],
        env=dict(env),
        cwd=cwd,
        encoding_error_handler="replace",
    )
    with await asyncio.to_thread(_opened, log) as stderr:
        async with stdio_client(parameters, errlog=stderr) as streams:
            yield streams


def _program(command: str, env: Mapping[str, str], cwd: Path) -> str:
    """Return what ``command`` starts."""
    if command in ("python", "python3"):
        return sys.executable
    # A path is one from the server's folder, a name is looked up as the server would.
    named = os.path.dirname(command) == ""
    path = env.get("PATH", os.environ.get("PATH"))
    if shutil.which(command if named else cwd / command, path=path) is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program", command)
    return command


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
