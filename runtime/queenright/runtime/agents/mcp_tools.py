"""Tools of MCP servers: named, described and answered as any other tool is."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from queenright.instrumentation.effects import Effect
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import hide, hide_named, redact
from queenright.runtime.agents.credentials import filled_in
from queenright.runtime.agents.mcp_connection import Connection, over_http, over_stdio
from queenright.runtime.agents.mcp_spec import McpServerSpec
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.tooling.tools import Tool, ToolError, ToolUnavailable, json_text

if TYPE_CHECKING:
    import mcp
    from mcp_types import CallToolResult, ToolAnnotations

_log = logging.getLogger(__name__)

_NAME_LIMIT: Final = 64
_ALIVE_SECONDS: Final = 5.0
"""A server that left a call without an answer has so long to answer another."""


class McpUnavailableError(QueenrightError):
    """Raised when a server cannot be reached, or when there is no MCP client here."""


class McpServer:
    """
    One server, connected at the first use and again at the next use after it went away.

    Args:
        name: What ``mcp_servers.json`` calls it.
        spec: Where it is.
        folder: The agent's folder.
        log: The file that a server's stderr is appended to.
        environment: Where ``${NAME}`` is looked up.
        sleep: Counts out the time limit for connecting.
    """

    def __init__(
        self,
        name: str,
        spec: McpServerSpec,
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str] = os.environ,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.name = name
        self._spec = spec
        self._folder = folder
        self._log = log
        self._environment = environment
        self._sleep = sleep
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._closed = False

    @property
    def timeout_seconds(self) -> float:
        """How long one call of a tool may take."""
        return self._spec.timeout_seconds

    @property
    def gone(self) -> bool:
        """Whether the server went away since it was connected; the next call connects to it again."""
        return self._connection is not None and self._connection.gone

    async def list_tools(self) -> list[mcp.Tool]:
        """
        Return what the server offered when it was connected; connect to it if it is not.

        Raises:
            McpUnavailableError: It cannot be reached.
            MissingCredentialError: It refers to a variable that is not set.
        """
        return (await self._connected()).tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """
        Return the answer of one of the server's tools, as text.

        A server that went away before is connected again, once. One that goes away during the call is not
        asked again: whether the call took effect nobody knows.

        Raises:
            ToolError: The tool says so.
            ToolUnavailable: The server cannot be reached, or it went away.
        """
        try:
            connection = await self._connected()
        except QueenrightError as error:
            raise ToolUnavailable(str(error)) from None
        try:
            result = await connection.client.call_tool(tool, dict(arguments))
        except asyncio.CancelledError:
            connection.doubted = True
            raise
        except Exception as error:
            connection.suspect(error)
            if connection.gone:
                raise ToolUnavailable(
                    f"the MCP server {self.name!r} went away during the call, which may or may not have "
                    f"taken effect: check before doing it again"
                ) from None
            raise ToolError(_told(error)) from None
        said = as_text(result)
        if result.is_error:
            raise ToolError(said)
        return said

    async def close(self) -> None:
        """End the connection, and the server if it was started here. It is not connected again."""
        self._closed = True
        async with self._connecting:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._closed:
                raise McpUnavailableError(f"The MCP server {self.name!r} is closed.")
            if self._connection is not None and self._connection.doubted:
                await self._look_after(self._connection)
            if self._connection is not None and self._connection.gone:
                await self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = await self._connect()
            return self._connection

    async def _look_after(self, connection: Connection) -> None:
        """See whether a server still answers that left a call without an answer; if not, end it."""
        # Within what a call may take, so that there is time left to connect again.
        seconds = min(_ALIVE_SECONDS, self.timeout_seconds / 4)
        try:
            # Not a ping, which newer servers do not have.
            await within(seconds, _asked(connection), self._sleep)
        except TimeoutError:
            _log.warning("the MCP server %r hangs: it is ended, and connected again", self.name)
            await connection.close()
        except Exception as error:
            connection.suspect(error)  # it refused, which is an answer, or it is gone
        connection.doubted = False

    async def _connect(self) -> Connection:
        try:
            # Importing it takes about a second.
            await asyncio.to_thread(importlib.import_module, "mcp")
        except ImportError as error:
            raise McpUnavailableError(
                f"The MCP server {self.name!r} needs the MCP client: pip install 'queenright[mcp]'"
            ) from error
        spec = self._spec
        wanted_by = f"MCP server {self.name!r}"
        filled = {
            what: {k: filled_in(text, self._environment, wanted_by=wanted_by) for k, text in texts.items()}
            for what, texts in (("env", spec.env), ("headers", spec.headers), ("url", {"url": spec.url}))
        }
        hide(self._environment[name] for name in spec.variables)
        for texts in (filled["env"], filled["headers"]):
            hide_named(texts)
        if spec.command:
            transport = over_stdio(spec, filled["env"], self._folder, self._log)
        else:
            transport = over_http(filled["url"]["url"], filled["headers"])
        connection = Connection(transport, name=f"mcp {self.name}")
        try:
            await within(spec.connect_timeout_seconds, connection.open(), self._sleep)
        except BaseException as error:
            await connection.close()
            if not isinstance(error, Exception):
                raise
            raise McpUnavailableError(self._unreachable(error, connection.garbage)) from None
        return connection

    def _unreachable(self, error: Exception, garbage: str) -> str:
        garbage = garbage and f"; it wrote to stdout what is no message: {garbage}"
        hint = f"; what it wrote is in {self._log}" if self._spec.command and self._log.exists() else ""
        where = f"The MCP server {self.name!r} ({self._spec.where})"
        return f"{where} cannot be reached: {_told(error)}{garbage}{hint}"


async def mcp_tools(servers: Iterable[McpServer], taken: Collection[str] = ()) -> list[Tool]:
    """
    Return the tools of ``servers``, connecting to all of them at once.

    A tool keeps its name, unless that is in ``taken`` or two servers have it: then it is ``server__tool``.

    Raises:
        McpUnavailableError: A server cannot be reached.
        MissingCredentialError: A server refers to a variable that is not set.
    """
    servers = list(servers)
    offered = await asyncio.gather(*(server.list_tools() for server in servers), return_exceptions=True)
    found: list[tuple[McpServer, mcp.Tool]] = []
    for server, tools in zip(servers, offered, strict=True):
        if isinstance(tools, BaseException):
            raise tools
        found += [(server, tool) for tool in tools]
    names = [_plain(tool.name) for _, tool in found]
    return [
        _tool(server, tool, f"{server.name}__{name}" if name in taken or names.count(name) > 1 else name)
        for (server, tool), name in zip(found, names, strict=True)
    ]


async def _asked(connection: Connection) -> None:
    await connection.client.list_tools()


def _tool(server: McpServer, offered: mcp.Tool, name: str) -> Tool:
    async def run(arguments: Mapping[str, Any]) -> str:
        return await server.call(offered.name, arguments)

    return Tool(
        name=name[:_NAME_LIMIT],
        description=offered.description or offered.title or "",
        arguments=offered.input_schema,
        run=run,
        timeout_seconds=server.timeout_seconds,
        effect=_effect_of(offered.annotations),
    )


def _effect_of(annotations: ToolAnnotations | None) -> str:
    """Return what a server says that a tool does; a hint of it, and better than a guess from its name."""
    if annotations is None:
        return ""
    if annotations.read_only_hint is not None:
        return (Effect.READS if annotations.read_only_hint else Effect.CHANGES).value
    return Effect.CHANGES.value if annotations.destructive_hint else ""


def _plain(name: str) -> str:
    """Return a name that every model's provider takes."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def as_text(result: CallToolResult) -> str:
    """Return a result as a model can read it: its text; what is no text is named, not shown."""
    structured = result.structured_content
    texts = all(block.type == "text" for block in result.content)
    # Of several texts or none, what they are parts of is easier to read.
    if structured is not None and texts and len(result.content) != 1:
        wrapped = isinstance(structured, dict) and structured.keys() == {"result"}
        return json_text(structured["result"] if wrapped else structured)
    return "\n".join(_block(block) for block in result.content)


def _block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource":
        inner = block.resource
        return str(inner.text) if hasattr(inner, "text") else f"[{inner.uri}: {inner.mime_type or 'binary'}]"
    if block.type == "resource_link":
        return f"[{block.uri}]"
    return f"[{block.type}: {getattr(block, 'mime_type', None) or 'no text'}]"


def _told(error: BaseException) -> str:
    """Say what went wrong in one line: of a group, the first that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = redact(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
