"""Slash commands of `queenright shell` and `queenright code`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.lifecycle_tools import Lifecycle

SLASH_COMMANDS: Final = {
    "/graphs": "list the agents, with their activity",
    "/graph": "ID: switch to this agent",
    "/load": "PATH: load another agent from this folder",
    "/unload": "ID: stop and remove a loaded agent",
    "/sessions": "list the newest sessions of the current agent",
    "/resume": "ID: resume the unfinished run of a session",
    "/data": "list the files that agents wrote in the newest sessions; NAME: show the newest of that name",
    "/new": "start the next run in a new session",
    "/help": "show this list",
    "/quit": "pause active runs and exit (also Ctrl-D, Ctrl-C)",
}

_MAX_SESSIONS: Final = 20
_MAX_BYTES: Final = 20_000
"""Bytes of a file that are shown, counted from its end."""


class SlashCommands:
    """
    Commands that need no run: listing graphs and sessions, loading and unloading agents.

    Args:
        runtime: Runtime of the graphs.
        lifecycle: Loads and unloads agents.
        print_line: Prints a line.
    """

    def __init__(
        self, runtime: AgentRuntime, lifecycle: Lifecycle, print_line: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._tools = {tool.name: tool for tool in lifecycle.tools}
        self._print = print_line

    async def execute(self, name: str, argument: str) -> None:
        """
        Execute a command.

        Raises:
            QueenrightError: The command failed.
            ValueError: Its argument is missing.
        """
        match name:
            case "/help":
                for command, help_ in SLASH_COMMANDS.items():
                    self._print(f"{command:<10} {help_}")
            case "/graphs":
                await self._list_graphs()
            case "/graph":
                self._runtime.active_graph_id = _require_argument(argument, "/graph ID; /graphs lists them")
            case "/load":
                path = await asyncio.to_thread(
                    _resolve_folder, _require_argument(argument, "/load PATH; the agent's folder")
                )
                self._print(await self._call_tool("load_agent", agent_path=path))
            case "/unload":
                graph = _require_argument(argument, "/unload ID; /graphs lists them")
                self._print(await self._call_tool("unload_agent", graph_id=graph))
            case "/sessions":
                await self._list_sessions()
            case "/data":
                await self._show_data(argument.strip())

    async def _list_graphs(self) -> None:
        for agent in json.loads(await self._call_tool("list_agents")):
            marker = "*" if agent["graph_id"] == self._runtime.active_graph_id else " "
            question = agent.get("waits_for_user")
            activity = f"{len(agent['runs'])} running" if agent["runs"] else "idle"
            if question is not None:
                activity = f"waiting for input: {question}"
            self._print(f"{marker} {agent['graph_id']:<24} {activity}")

    async def _list_sessions(self) -> None:
        store = self._runtime.session_store()
        states = await self._runtime.disk.run(lambda: store.list_sessions(limit=_MAX_SESSIONS))
        for state in states:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.created_at))
            self._print(f"{state.session_id}  {state.status.value:<10} {when}  {state.entry_point}")
        if not states:
            self._print("No sessions.")

    async def _show_data(self, name: str) -> None:
        """List the files that agents wrote, or show the newest with a name."""
        files = await self._runtime.disk.run(lambda: _list_artifacts(self._runtime))
        if not name:
            for path, graph_id, file_name in files:
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
                self._print(f"{file_name:<32} {graph_id:<24} {when}")
            if not files:
                self._print("No files.")
            return
        match = next((path for path, _, file_name in files if file_name == name), None)
        if match is None:
            raise ValueError(f"there is no file {name!r}; /data lists the files")
        text = await self._runtime.disk.run(lambda: _read_end(match))
        for line in text.splitlines():
            self._print(line)

    async def _call_tool(self, name: str, **arguments: str) -> str:
        context = {"runtime": self._runtime, "graph_id": ""}
        result = await self._tools[name].call(json.dumps(arguments), context)
        if result.failed:
            raise QueenrightError(str(result.error))
        return result.content


def _list_artifacts(runtime: AgentRuntime) -> list[tuple[Path, str, str]]:
    """Return the files of the newest sessions, newest first: path, graph, name. Blocks."""
    artifacts: list[tuple[float, Path, str, str]] = []
    for graph_id in runtime.list_graphs():
        for _, state in runtime.list_sessions(graph_id)[:_MAX_SESSIONS]:
            folder = runtime.find_session(state.session_id, graph_id)[1].artifacts
            for path in folder.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    file_name = path.relative_to(folder).as_posix()
                    artifacts.append((path.stat().st_mtime, path, graph_id, file_name))
    artifacts.sort(key=lambda artifact: artifact[0], reverse=True)
    return [artifact[1:] for artifact in artifacts]


def _read_end(path: Path) -> str:
    """Return the end of a file as text. Blocks."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MAX_BYTES))
        return file.read().decode("utf-8", "replace")


def format_output(value: Any) -> str:
    """Return an output of a run as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _resolve_folder(path: str) -> str:
    return str(Path(path).expanduser().resolve())


def _require_argument(argument: str, usage: str) -> str:
    if not argument:
        raise ValueError(f"the argument is missing: {usage}")
    return argument
