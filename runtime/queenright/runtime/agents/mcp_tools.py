"""Tools of MCP servers, adapted to the runtime's tools."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from queenright.instrumentation.effect import Effect
from queenright.instrumentation.errors import InvalidValueError, QueenrightError
from queenright.instrumentation.extras import get_install_command
from queenright.instrumentation.redaction import hide, hide_named, redact
from queenright.runtime.agents.credentials import substitute_variables
from queenright.runtime.agents.mcp_connection import McpConnection, http_transport, stdio_transport
from queenright.runtime.agents.mcp_spec import McpServerSpec
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.tooling.tools import Tool, ToolError, ToolUnavailableError, format_json

if TYPE_CHECKING:
    import mcp
    from mcp_types import CallToolResult, ToolAnnotations

_log = logging.getLogger(__name__)

_NAME_LIMIT: Final = 64
_ALIVE_SECONDS: Final = 5.0
"""Time limit of the probe sent to a server that did not answer a call."""


class McpUnavailableError(InvalidValueError):
    """Raised when an MCP server cannot be reached, or the MCP client is not installed."""


class McpServer:
    """
    One MCP server. It is connected on first use, and again on the next use after it went away.

    Args:
        name: Its name in ``mcp_servers.json``.
        log: File that receives the server's stderr.
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
        self._connection_lock = asyncio.Lock()
        self._connection: McpConnection | None = None
        self._is_closed = False

    @property
    def timeout_seconds(self) -> float:
        """Time limit of one tool call."""
        return self._spec.timeout_seconds

    @property
    def is_gone(self) -> bool:
        """Whether the server went away after it was connected; the next call reconnects."""
        return self._connection is not None and self._connection.is_gone

    async def list_tools(self) -> list[mcp.Tool]:
        """
        Return the server's tools; connect first if necessary.

        Raises:
            McpUnavailableError: The server cannot be reached.
            MissingCredentialError: A referenced variable is not set.
        """
        return (await self._require_connection()).tools

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """
        Call one of the server's tools and return its result as text.

        A server that went away earlier is reconnected once. A call during which the server goes away is not
        repeated, since it may have taken effect.

        Raises:
            ToolError: The tool reported an error.
            ToolUnavailableError: The server cannot be reached, or went away.
        """
        try:
            connection = await self._require_connection()
        except QueenrightError as error:
            raise ToolUnavailableError(str(error)) from None
        try:
            result = await connection.client.call_tool(tool, dict(arguments))
        except asyncio.CancelledError:
            connection.is_suspect = True
            raise
        except Exception as error:
            connection.mark_gone(error)
            if connection.is_gone:
                raise ToolUnavailableError(
                    f"the MCP server {self.name!r} went away during the call, which may or may not have "
                    f"taken effect: check before calling it again"
                ) from None
            raise ToolError(_describe_error(error)) from None
        text = result_text(result)
        if result.is_error:
            raise ToolError(text)
        return text

    async def close(self) -> None:
        """Close the connection permanently, and stop the server if it was started here."""
        self._is_closed = True
        async with self._connection_lock:
            if self._connection is not None:
                await self._connection.close()
                self._connection = None

    async def _require_connection(self) -> McpConnection:
        async with self._connection_lock:
            if self._is_closed:
                raise McpUnavailableError(f"The MCP server {self.name!r} is closed.")
            if self._connection is not None and self._connection.is_suspect:
                await self._probe(self._connection)
            if self._connection is not None and self._connection.is_gone:
                await self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = await self._connect()
            return self._connection

    async def _probe(self, connection: McpConnection) -> None:
        """Check that a server still responds after an unanswered call; if not, close the connection."""
        # Well below the limit of a call, so that time is left to reconnect.
        seconds = min(_ALIVE_SECONDS, self.timeout_seconds / 4)
        try:
            # Not a ping, which newer servers do not support.
            await within(seconds, _list_tools(connection), self._sleep)
        except TimeoutError:
            _log.warning("the MCP server %r does not respond: reconnecting", self.name)
            await connection.close()
        except Exception as error:
            connection.mark_gone(error)  # an error is a response, unless it says that the server is gone
        connection.is_suspect = False

    async def _connect(self) -> McpConnection:
        try:
            # The import takes about a second.
            await asyncio.to_thread(importlib.import_module, "mcp")
        except ImportError as error:
            raise McpUnavailableError(
                f"The MCP server {self.name!r} needs the extra 'mcp'. Run: {get_install_command('mcp')}"
            ) from error
        spec = self._spec
        required_by = f"MCP server {self.name!r}"
        values = {
            name: {
                k: substitute_variables(text, self._environment, required_by=required_by)
                for k, text in texts.items()
            }
            for name, texts in (("env", spec.env), ("headers", spec.headers), ("url", {"url": spec.url}))
        }
        hide(self._environment[name] for name in spec.variables)
        for texts in (values["env"], values["headers"]):
            hide_named(texts)
        if spec.command:
            transport = stdio_transport(spec, values["env"], self._folder, self._log)
        else:
            transport = http_transport(values["url"]["url"], values["headers"])
        connection = McpConnection(transport, name=f"mcp {self.name}")
        try:
            await within(spec.connect_timeout_seconds, connection.open(), self._sleep)
        except BaseException as error:
            await connection.close()
            if not isinstance(error, Exception):
                raise
            raise McpUnavailableError(self._describe_unreachable(error, connection.invalid_output)) from None
        return connection

    def _describe_unreachable(self, error: Exception, invalid_output: str) -> str:
        invalid_output = invalid_output and f"; it wrote invalid output to stdout: {invalid_output}"
        hint = f"; its stderr is in {self._log}" if self._spec.command and self._log.exists() else ""
        server = f"The MCP server {self.name!r} ({self._spec.where})"
        return f"{server} cannot be reached: {_describe_error(error)}{invalid_output}{hint}"


async def list_mcp_tools(servers: Iterable[McpServer], known_names: Collection[str] = ()) -> list[Tool]:
    """
    Return the tools of ``servers``; all servers are connected concurrently.

    A tool keeps its name unless it is in ``known_names`` or two servers offer it: it is then
    ``server__tool``.

    Raises:
        McpUnavailableError: A server cannot be reached.
        MissingCredentialError: A server references a variable that is not set.
    """
    servers = list(servers)
    tool_lists = await asyncio.gather(*(server.list_tools() for server in servers), return_exceptions=True)
    pairs: list[tuple[McpServer, mcp.Tool]] = []
    for server, tools in zip(servers, tool_lists, strict=True):
        if isinstance(tools, BaseException):
            raise tools
        pairs += [(server, tool) for tool in tools]
    names = [_sanitize(tool.name) for _, tool in pairs]
    return [
        _make_tool(
            server, tool, f"{server.name}__{name}" if name in known_names or names.count(name) > 1 else name
        )
        for (server, tool), name in zip(pairs, names, strict=True)
    ]


async def _list_tools(connection: McpConnection) -> None:
    await connection.client.list_tools()


def _make_tool(server: McpServer, declaration: mcp.Tool, name: str) -> Tool:
    async def run(arguments: Mapping[str, Any]) -> str:
        return await server.call(declaration.name, arguments)

    return Tool(
        name=name[:_NAME_LIMIT],
        description=declaration.description or declaration.title or "",
        arguments=declaration.input_schema,
        run=run,
        timeout_seconds=server.timeout_seconds,
        effect=_read_effect(declaration.annotations),
    )


def _read_effect(annotations: ToolAnnotations | None) -> str:
    """Return the effect that a server declares for a tool; empty if it declares none."""
    if annotations is None:
        return ""
    if annotations.read_only_hint is not None:
        return (Effect.READS if annotations.read_only_hint else Effect.CHANGES).value
    return Effect.CHANGES.value if annotations.destructive_hint else ""


def _sanitize(name: str) -> str:
    """Replace the characters that some model providers reject in tool names."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def result_text(result: CallToolResult) -> str:
    """Return a result as text for a model; content that is not text is named, not included."""
    content = result.structured_content
    is_text = all(block.type == "text" for block in result.content)
    # With several text blocks or none, the structured value is easier to read.
    if content is not None and is_text and len(result.content) != 1:
        is_wrapped = isinstance(content, dict) and content.keys() == {"result"}
        return format_json(content["result"] if is_wrapped else content)
    return "\n".join(_describe_block(block) for block in result.content)


def _describe_block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource":
        resource = block.resource
        return (
            str(resource.text)
            if hasattr(resource, "text")
            else f"[{resource.uri}: {resource.mime_type or 'binary'}]"
        )
    if block.type == "resource_link":
        return f"[{block.uri}]"
    return f"[{block.type}: {getattr(block, 'mime_type', None) or 'no text'}]"


def _describe_error(error: BaseException) -> str:
    """Describe an error in one line; for an exception group, the first leaf."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = redact(str(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
