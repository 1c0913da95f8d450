"""Connections to MCP servers through the official client, each in its own task."""

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
"""The client waits 2 s for a server to exit and 2 s more after SIGTERM; this must exceed both."""
_LOG_LIMIT: Final = 1_000_000
_EXCERPT_CHARACTERS: Final = 80
_GUARD: Final = Path(__file__).with_name("mcp_guard.py")


class McpConnection:
    """
    One connection. A single task opens and closes it, as the client's cancel scopes require.

    Args:
        transport: The result of ``stdio_transport`` or ``http_transport``.
    """

    def __init__(self, transport: Transport, *, name: str) -> None:
        self._end_event = asyncio.Event()
        self._transport = _WatchedTransport(transport, self._end_event, name)
        self._stop_event = asyncio.Event()
        self._open_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client: mcp.Client
        self.is_suspect = False
        """Whether a call was abandoned before its answer: the server may be hanging."""
        self.tools: list[mcp.Tool] = []
        self._task = asyncio.create_task(self._run(), name=name)

    async def open(self) -> None:
        """Wait until the server has listed its tools; raise the error if it could not."""
        await asyncio.shield(self._open_future)

    @property
    def is_gone(self) -> bool:
        """Whether the server has gone away."""
        return self._end_event.is_set() or self._task.done()

    @property
    def invalid_output(self) -> str:
        """The first invalid output of the server, or an empty string."""
        return self._transport.invalid_output

    def mark_gone(self, error: Exception) -> None:
        """Mark the connection as gone if ``error`` says so."""
        import mcp
        from mcp_types import CONNECTION_CLOSED

        # The client reports this message when a server was restarted behind the same address.
        if isinstance(error, mcp.MCPError) and (
            error.code == CONNECTION_CLOSED or error.message == "Session terminated"
        ):
            self._end_event.set()

    async def close(self) -> None:
        """Close the connection. A server started here has exited when this returns."""
        self._stop_event.set()
        if not self._open_future.done():
            self._task.cancel()
        try:
            await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)
        finally:
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=_CLOSE_SECONDS)

    async def _run(self) -> None:
        import mcp

        try:
            async with mcp.Client(self._transport, cache=None) as self.client:
                cursor: str | None = None
                while True:
                    page = await self.client.list_tools(cursor=cursor)
                    self.tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
                if not self._open_future.done():
                    self._open_future.set_result(None)
                await self._stop_event.wait()
        except Exception as error:
            if not self._open_future.done():
                self._open_future.set_exception(error)
            else:
                logger.debug("%s ended: %s", self._task.get_name(), type(error).__name__)
        finally:
            self._end_event.set()
            if not self._open_future.done():
                self._open_future.cancel()
            elif not self._open_future.cancelled():
                self._open_future.exception()  # retrieve it, or asyncio complains if no one waits for it


class _WatchedTransport:
    """
    A transport that detects when the server closes its end, so that no call has to fail first.

    Invalid output of the server is logged once and dropped.
    """

    def __init__(self, transport: Transport, end_event: asyncio.Event, name: str) -> None:
        self.invalid_output = ""
        self._transport = transport
        self._end_event = end_event
        self._name = name

    async def __aenter__(self) -> Any:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._end_event, self._reject), write

    async def __aexit__(self, *error_info: Any) -> bool | None:
        return await self._transport.__aexit__(*error_info)

    def _reject(self, error: Exception) -> None:
        if not self.invalid_output:
            self.invalid_output = _describe_output(error)
            logger.warning(
                "%s: ignored invalid output on stdout (not a JSON-RPC message): %s",
                self._name,
                self.invalid_output,
            )


class _WatchedStream:
    def __init__(self, stream: Any, end_event: asyncio.Event, reject: Callable[[Exception], None]) -> None:
        self._stream = stream
        self._end_event = end_event
        self._reject = reject

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            while isinstance(item := await self._stream.__anext__(), Exception):
                self._reject(item)
            return item
        except BaseException:
            self._end_event.set()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error_info: Any) -> bool | None:
        suppress: bool | None = await self._stream.__aexit__(*error_info)
        return suppress


def _describe_output(error: Exception) -> str:
    """Return the unparsable output in one short line."""
    faults = error.errors() if isinstance(error, ValidationError) else []
    output = str(faults[0]["input"]) if faults else str(error)
    return repr(redact(" ".join(output.split())[:_EXCERPT_CHARACTERS]))


def _is_wanted_record(record: logging.LogRecord) -> bool:
    """Drop the client's tracebacks for invalid lines, because ``_WatchedTransport`` logs the first."""
    return not str(record.msg).startswith("Failed to parse JSONRPC")


@contextlib.asynccontextmanager
async def stdio_transport(
    spec: McpServerSpec, env: Mapping[str, str], folder: Path, log: Path
) -> AsyncIterator[Any]:
    """Start the server and connect over stdin and stdout; its stderr is appended to ``log``."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    logging.getLogger(stdio_client.__module__).addFilter(_is_wanted_record)
    cwd = folder / spec.cwd
    command = await asyncio.to_thread(_resolve_program, spec.command, env, cwd)
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-I", "-S", str(_GUARD), str(os.getpid()), command, *spec.args],
        env=dict(env),
        cwd=cwd,
        encoding_error_handler="replace",
    )
    with await asyncio.to_thread(_open_log, log) as stderr:
        async with stdio_client(parameters, errlog=stderr) as streams:
            yield streams


def _resolve_program(command: str, env: Mapping[str, str], cwd: Path) -> str:
    if command in ("python", "python3"):
        return sys.executable
    # A path is relative to the server's folder; a bare name is looked up as the server would.
    is_bare_name = os.path.dirname(command) == ""
    path = env.get("PATH", os.environ.get("PATH"))
    if shutil.which(command if is_bare_name else cwd / command, path=path) is None:
        raise FileNotFoundError(errno.ENOENT, "program not found", command)
    return command


def _open_log(log: Path) -> TextIO:
    make_folder(log.parent)
    is_full = log.exists() and log.stat().st_size > _LOG_LIMIT
    return open(
        log,
        "w" if is_full else "a",
        encoding="utf-8",
        opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE),
    )


@contextlib.asynccontextmanager
async def http_transport(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """Connect to the server at ``url`` over streamable HTTP."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    # The client's own limits: 30 s for each operation, 300 s of silence on a stream.
    timeout = httpx2.Timeout(30, read=300)
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=timeout) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams
