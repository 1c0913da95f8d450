"""A real MCP server for tests, as a stdio program or a streamable HTTP app."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations


def make_server(starts_file: Path | None = None) -> MCPServer:
    server = MCPServer("for-tests")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @server.tool()
    def refuse(why: str) -> str:
        """Fail with a reason."""
        raise ToolError(f"refused: {why}")

    @server.tool()
    def environment(variable: str) -> str:
        """Return an environment variable."""
        return os.environ.get(variable, "not set")

    @server.tool()
    def folder() -> str:
        """Return the working folder."""
        return str(Path.cwd())

    @server.tool()
    def die() -> str:
        """Exit without an answer."""
        os._exit(3)

    @server.tool()
    def hang() -> str:
        """Never answer."""
        time.sleep(3600)
        return "never"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def apply_query(query: str) -> str:
        """Read something, despite the name."""
        return query

    @server.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))
    def get_rid_of(what: str) -> str:
        """Change something, despite the name."""
        return what

    @server.tool(name="strange.name/of tool")
    def strange() -> str:
        """Return a text; some providers reject the tool's name."""
        return "strange"

    if starts_file is not None:
        with starts_file.open("a", encoding="utf-8") as starts:
            starts.write("started\n")
    return server


if __name__ == "__main__":
    print("a line on stderr", file=sys.stderr, flush=True)
    make_server(Path(sys.argv[1]) if len(sys.argv) > 1 else None).run("stdio")
