"""
The queen's tools for the workspace of an agent that this service runs: its files, its log, and restarts.

She may read for every operator. She changes files and restarts agents only on an admin's order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from queenright.judge.quoting import quote
from queenright.runtime.tooling.tools import Tool

LIST_FILES: Final = "list_agent_files"
READ_FILE: Final = "read_agent_file"
READ_LOG: Final = "read_agent_log"
WRITE_FILE: Final = "write_agent_file"
RESTART: Final = "restart_agent"

ADMIN_TOOLS: Final = (WRITE_FILE, RESTART)
"""Tools that only an admin may order."""

MAX_TEXT_LENGTH: Final = 100_000
"""The maximum number of characters that one call may write to a file."""
PAGE: Final = 12_000
"""The maximum number of characters of a file or log that one call returns to a model."""

_CONTEXT: Final = ("session_id",)
_MAX_PATH_LENGTH: Final = 500
# Loading code and starting MCP servers may take a minute each.
_RESTART_SECONDS: Final = 150.0


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of a file: a diff for people, and a description for the model."""

    diff: str
    summary: str


class AgentWorkspaces(Protocol):
    """The workspaces of agents. Every method raises ``ToolError`` on failure."""

    async def list_files(self, agent_id: str) -> tuple[Sequence[str], bool]:
        """Return the paths of the files, and whether there are more than are returned."""
        ...

    async def read_file(self, agent_id: str, path: str) -> str:
        """Return a file's text, with secrets masked."""
        ...

    async def read_log(self, agent_id: str, session_id: str, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return the newest steps of a session, newest first."""
        ...

    async def write_file(
        self, agent_id: str, path: str, new: str, old: str, *, ordered_by: str
    ) -> FileChange:
        """
        Replace ``old``, which must occur once in the file, with ``new``. If ``old`` is empty, replace the
        whole file.
        """
        ...

    async def restart(self, agent_id: str, *, ordered_by: str) -> str:
        """Load the agent again from its folder. Return a sentence about the effect on its runs."""
        ...


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ListArguments(_Arguments):
    """No arguments, because the tool uses the ticket's agent."""


class ReadArguments(_Arguments):
    """A file, and the first character to read."""

    path: str = Field(min_length=1, max_length=_MAX_PATH_LENGTH, description="A path from list_agent_files.")
    offset: int = Field(default=0, ge=0, description="The first character to show.")


class LogArguments(_Arguments):
    """The part of the log to read."""

    last_n_steps: int = Field(default=20, ge=1, le=100)


class WriteArguments(_Arguments):
    """A change of a file."""

    ticket_id: str
    path: str = Field(min_length=1, max_length=_MAX_PATH_LENGTH)
    new: str = Field(max_length=MAX_TEXT_LENGTH, description="The new text.")
    old: str = Field(
        default="",
        max_length=MAX_TEXT_LENGTH,
        description="The exact passage to replace; it must occur once. Empty: `new` is the whole file.",
    )


class RestartArguments(_Arguments):
    """The ticket of the agent."""

    ticket_id: str


Run = Callable[..., Awaitable[str]]


def workspace_tools(
    *, list_files: Run, read_file: Run, read_log: Run, write: Run, restart: Run
) -> list[Tool]:
    """Return the tools. Each function gets its arguments and the calling session."""
    return [
        Tool(
            LIST_FILES, "List the files of the ticket's agent.", ListArguments, list_files, context=_CONTEXT
        ),
        Tool(
            READ_FILE,
            "Read a text file of the ticket's agent. Secrets are masked.",
            ReadArguments,
            read_file,
            context=_CONTEXT,
        ),
        Tool(
            READ_LOG,
            "Read the newest steps of the ticket's session.",
            LogArguments,
            read_log,
            context=_CONTEXT,
        ),
        Tool(
            WRITE_FILE,
            "Change one file of the ticket's agent, on an admin's order. The earlier version is kept.",
            WriteArguments,
            write,
            context=_CONTEXT,
        ),
        Tool(
            RESTART,
            "Load the ticket's agent again from its folder, on an admin's order. Its runs are paused.",
            RestartArguments,
            restart,
            context=_CONTEXT,
            timeout_seconds=_RESTART_SECONDS,
        ),
    ]


def show_files(paths: Sequence[str], has_more: bool) -> str:
    """Return a list of files for a model."""
    return quote("files", {"paths": list(paths), "more": has_more})


def show_text(path: str, text: str, offset: int) -> str:
    """Return a page of a file for a model. It is quoted, because an agent may have written it."""
    page = text[offset : offset + PAGE]
    end = offset + len(page)
    next_page = {"next_offset": end} if end < len(text) else {}
    return quote("file", {"path": path, "characters": len(text), "text": page, **next_page})


def show_log(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the newest steps that fit on a page, oldest first, for a model."""
    page: list[Mapping[str, Any]] = []
    characters_left = PAGE
    for row in rows:
        characters_left -= len(str(row))
        if characters_left < 0 and page:
            break
        page.insert(0, {key: _clip(value) for key, value in row.items()})
    return quote("log", {"steps": page, "omitted": len(rows) - len(page)})


def _clip(value: Any) -> Any:
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= PAGE // 2 else f"{text[: PAGE // 2]}…"
