"""What can be typed with a slash while talking with agents."""

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

COMMANDS: Final = {
    "/graphs": "the agents that are here, and what each does",
    "/graph": "ID: talk with this one from now on",
    "/load": "PATH: load the agent in this folder beside the others",
    "/unload": "ID: stop an agent that was loaded, and remove it",
    "/sessions": "the newest sessions of the agent you talk with",
    "/resume": "ID: go on with what a session left unfinished",
    "/data": "the files that agents wrote in the newest sessions; NAME: show the newest of that name",
    "/new": "let the next run begin a session of its own",
    "/help": "this list",
    "/quit": "end; what goes on is paused (so do Ctrl-D and Ctrl-C)",
}

_SESSIONS_SHOWN: Final = 20
_LONGEST: Final = 20_000
"""Bytes of a file that are shown, from its end."""


class Commands:
    """
    Obeys what needs no run: a look at graphs and sessions, and loading and unloading.

    Args:
        runtime: Where the graphs are.
        lifecycle: Loads and unloads.
        say: Shows a line.
    """

    def __init__(self, runtime: AgentRuntime, lifecycle: Lifecycle, say: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._tools = {tool.name: tool for tool in lifecycle.tools}
        self._say = say

    async def obey(self, word: str, rest: str) -> None:
        """
        Do what a command says.

        Raises:
            QueenrightError: It cannot be done; says why.
            ValueError: Something is missing behind it.
        """
        match word:
            case "/help":
                for name, what in COMMANDS.items():
                    self._say(f"{name:<10} {what}")
            case "/graphs":
                await self._graphs()
            case "/graph":
                self._runtime.active_graph_id = _needed(rest, "/graph ID, as /graphs shows it")
            case "/load":
                path = await asyncio.to_thread(_folder, _needed(rest, "/load PATH, the agent's folder"))
                self._say(await self._tool("load_agent", agent_path=path))
            case "/unload":
                graph = _needed(rest, "/unload ID, as /graphs shows it")
                self._say(await self._tool("unload_agent", graph_id=graph))
            case "/sessions":
                await self._sessions()
            case "/data":
                await self._data(rest.strip())

    async def _graphs(self) -> None:
        for one in json.loads(await self._tool("list_agents")):
            here = "*" if one["graph_id"] == self._runtime.active_graph_id else " "
            waits = f"waits for you: {one['waits_for_user']}" if one.get("waits_for_user") is not None else ""
            does = waits or (f"{len(one['runs'])} at work" if one["runs"] else "idle")
            self._say(f"{here} {one['graph_id']:<24} {does}")

    async def _sessions(self) -> None:
        store = self._runtime.session_store()
        states = await self._runtime.disk.run(lambda: store.list_sessions(limit=_SESSIONS_SHOWN))
        for state in states:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.created_at))
            self._say(f"{state.session_id}  {state.status.value:<10} {when}  {state.entry_point}")
        if not states:
            self._say("No sessions.")

    async def _data(self, name: str) -> None:
        """List the files that agents wrote, or show the newest of a name."""
        files = await self._runtime.disk.run(lambda: _written(self._runtime))
        if not name:
            for path, graph_id, shown in files:
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
                self._say(f"{shown:<32} {graph_id:<24} {when}")
            if not files:
                self._say("No agent has written a file.")
            return
        found = next((path for path, _, shown in files if shown == name), None)
        if found is None:
            raise ValueError(f"no agent has written a file {name!r}; /data lists what there is")
        text = await self._runtime.disk.run(lambda: _end_of(found))
        for line in text.splitlines():
            self._say(line)

    async def _tool(self, name: str, **arguments: str) -> str:
        context = {"runtime": self._runtime, "graph_id": ""}
        result = await self._tools[name].call(json.dumps(arguments), context)
        if result.failed:
            raise QueenrightError(str(result.error))
        return result.content


def _written(runtime: AgentRuntime) -> list[tuple[Path, str, str]]:
    """Return the files in the newest sessions of all graphs, newest first: path, graph, name. Blocks."""
    found: list[tuple[float, Path, str, str]] = []
    for graph_id in runtime.list_graphs():
        for _, state in runtime.list_sessions(graph_id)[:_SESSIONS_SHOWN]:
            folder = runtime.find_session(state.session_id, graph_id)[1].artifacts
            for path in folder.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    shown = path.relative_to(folder).as_posix()
                    found.append((path.stat().st_mtime, path, graph_id, shown))
    found.sort(key=lambda one: one[0], reverse=True)
    return [one[1:] for one in found]


def _end_of(path: Path) -> str:
    """Return the end of a file as text. Blocks."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LONGEST))
        return file.read().decode("utf-8", "replace")


def said(value: Any) -> str:
    """Return an output as words."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _folder(typed: str) -> str:
    return str(Path(typed).expanduser().resolve())


def _needed(rest: str, usage: str) -> str:
    if not rest:
        raise ValueError(f"say which: {usage}")
    return rest
