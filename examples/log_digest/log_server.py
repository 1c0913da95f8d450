"""An MCP server for one folder of log files: lists logs, and groups their errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

FOLDER = Path(os.environ["LOG_FOLDER"]).expanduser()

_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b\s*[:\]]?\s*(.*)")
# Parts that differ between occurrences of the same error.
_REPLACEMENTS = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\d+(?:\.\d+)*"), "<n>"),
)

server = MCPServer("logs", instructions="Reads the log files of one folder.")


@server.tool()
def list_logs() -> list[dict[str, Any]]:
    """List the log files with their numbers of lines and errors."""
    return [
        {
            "log": path.name,
            "lines": sum(1 for _ in read_lines(path)),
            "errors": sum(1 for _ in find_errors(path)),
        }
        for path in sorted(FOLDER.glob("*.log"))
    ]


@server.tool()
def error_groups(log: str, limit: int = 20) -> list[dict[str, Any]]:
    """
    Group the errors of one log by their text without numbers and ids, most frequent first.

    Args:
        log: The file's name, as in list_logs.
        limit: Maximum number of groups.
    """
    groups: dict[str, dict[str, Any]] = {}
    for number, message in find_errors(find_log(log)):
        pattern = message
        for number_pattern, replacement in _REPLACEMENTS:
            pattern = number_pattern.sub(replacement, pattern)
        group = groups.setdefault(
            pattern, {"log": log, "pattern": pattern, "count": 0, "first_line": number, "example": message}
        )
        group["count"] += 1
    return sorted(groups.values(), key=lambda group: -group["count"])[:limit]


@server.tool()
def lines_around(log: str, line: int, before: int = 3, after: int = 3) -> str:
    """Read the lines around a line of a log, to see what led to an error."""
    numbers = range(line - min(before, 20), line + min(after, 20) + 1)
    return "\n".join(f"{number}: {text}" for number, text in read_lines(find_log(log)) if number in numbers)


def find_log(log: str) -> Path:
    """Return the path of a log; other files of the machine are out of reach."""
    for path in FOLDER.glob("*.log"):
        if path.name == log:
            return path
    raise ToolError(f"there is no log {log!r}; list_logs lists the logs")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers, from 1; it may be larger than memory."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip("\n")


def find_errors(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the errors of a file: line number and message."""
    for number, line in read_lines(path):
        match = _ERROR.search(line)
        if match:
            yield number, match[2]


if __name__ == "__main__":
    server.run("stdio")
