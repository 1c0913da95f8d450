"""Tools with which an agent loads, starts, restarts and unloads other agents on its own runtime."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.tooling.tools import Tool, ToolError

Load = Callable[[Path], AgentRunner]
"""Loads the agent in a folder; blocks while it does."""


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _AgentPath(_Arguments):
    agent_path: Annotated[str, Field(min_length=1, description="The agent's folder.")]


class _GraphId(_Arguments):
    graph_id: Annotated[str, Field(min_length=1, description="As list_agents says it.")]


class _Start(_GraphId):
    entry_point: Annotated[str, Field(description="Where to begin; without, at its first one.")] = ""
    input_data: Annotated[
        dict[str, Any] | str, Field(description="What the run is given: an object, or its JSON.")
    ] = Field(default_factory=dict)


class _Nothing(_Arguments):
    pass


class Lifecycle:
    """
    ``load_agent``, ``unload_agent``, ``start_agent``, ``restart_agent``, ``list_agents`` and
    ``get_user_presence``, for a graph that is to look after others on its runtime; and the agents that
    were loaded by them. Close it after the runtime was stopped, or their MCP servers live on.

    Args:
        roots: Agents are loaded from folders below these only; links are followed before that is looked at.
        load: How an agent is loaded: to give it a model or a storage folder of its own.
        loaded: Holds the agents that are loaded, by graph, for who has others of the same runtime there.
    """

    def __init__(
        self,
        roots: Iterable[Path],
        *,
        load: Load = AgentRunner.load,
        loaded: dict[str, AgentRunner] | None = None,
    ) -> None:
        self._roots = [root.resolve() for root in roots]
        self._load = load
        self._loaded = {} if loaded is None else loaded
        self._changing = asyncio.Lock()

    @property
    def tools(self) -> list[Tool]:
        """The tools; give them to the graph that is to have them."""
        runtime, own = ("runtime",), ("runtime", "graph_id")
        return [
            Tool(
                "load_agent",
                "Load an agent; its graph_id is answered.",
                _AgentPath,
                self._load_agent,
                context=runtime,
            ),
            Tool(
                "unload_agent",
                "Stop an agent that load_agent loaded, and remove it. Runs are paused, sessions stay.",
                _GraphId,
                self._unload_agent,
                context=own,
            ),
            Tool(
                "start_agent",
                "Start a run of a loaded agent and return at once, with the run's id.",
                _Start,
                self._start_agent,
                context=own,
            ),
            Tool(
                "restart_agent",
                "Load an agent anew from its folder, with what was changed there. If it cannot be loaded, "
                "the one that is running stays.",
                _GraphId,
                self._restart_agent,
                context=own,
            ),
            Tool(
                "list_agents",
                "List the agents that are loaded, and what each is doing.",
                _Nothing,
                self._list_agents,
                context=own,
            ),
            Tool(
                "get_user_presence",
                "Say whether a user is there, and for how long none has said anything.",
                _Nothing,
                self._get_user_presence,
                context=runtime,
            ),
        ]

    async def close(self) -> None:
        """End the MCP servers of every agent that was loaded. The runtime stops the graphs."""
        async with self._changing:
            loaded = list(self._loaded.values())
            self._loaded.clear()
            await asyncio.gather(*(runner.cleanup_async() for runner in loaded))

    # -- the tools ------------------------------------------------------------------------------

    async def _load_agent(self, given: _AgentPath, *, runtime: AgentRuntime) -> str:
        async with self._changing:
            runner = await self._read(self._allowed(given.agent_path))
            graph_id = runner.spec.name
            if graph_id in runtime.list_graphs():
                await runner.cleanup_async()
                raise ToolError(
                    f"there is a graph {graph_id!r} already; restart_agent takes up changes in it"
                )
            await self._join(runner, runtime, graph_id)
            entries = ", ".join(entry.id for entry in runtime.get_entry_points(graph_id))
            return f"loaded {graph_id!r}; entry points: {entries}"

    async def _unload_agent(self, given: _GraphId, *, runtime: AgentRuntime, graph_id: str) -> str:
        async with self._changing:
            runner = self._other(given.graph_id, runtime, graph_id)
            await runtime.remove_graph(given.graph_id)
            self._loaded.pop(given.graph_id, None)
            await runner.cleanup_async()
            return f"unloaded {given.graph_id!r}; its runs are paused and its sessions stay on disk"

    async def _start_agent(self, given: _Start, *, runtime: AgentRuntime, graph_id: str) -> str:
        if given.graph_id == graph_id:
            raise ToolError("an agent cannot start a run of itself; go on with your own work")
        if given.graph_id not in runtime.list_graphs():
            raise ToolError(_not_there(given.graph_id, runtime))
        entry = given.entry_point or _first_entry(runtime, given.graph_id)
        started = await runtime.trigger(entry, _object(given.input_data), graph_id=given.graph_id)
        return f"started {given.graph_id!r} at {entry!r}: run {started}"

    async def _restart_agent(self, given: _GraphId, *, runtime: AgentRuntime, graph_id: str) -> str:
        async with self._changing:
            old = self._other(given.graph_id, runtime, graph_id)
            new = await self._read(self._allowed(str(old.path)))
            problems = (await asyncio.to_thread(new.validate)).errors
            if problems:
                await new.cleanup_async()
                said = "; ".join(problems)
                raise ToolError(f"{given.graph_id!r} would not start and was left as it is: {said}")
            await runtime.remove_graph(given.graph_id)
            self._loaded.pop(given.graph_id, None)
            await old.cleanup_async()
            try:
                await self._join(new, runtime, given.graph_id)
            except ToolError as error:
                raise ToolError(
                    f"{given.graph_id!r} was stopped and is not loaded any more: {error}"
                ) from error
            return f"restarted {given.graph_id!r} from {new.path}; runs that were going on are paused"

    async def _list_agents(self, _: _Nothing, *, runtime: AgentRuntime, graph_id: str) -> str:
        waiting = {node.graph_id: node for node in runtime.waiting_nodes()}
        found: list[dict[str, Any]] = []
        for name in runtime.list_graphs():
            entries = [entry.id for entry in runtime.get_entry_points(name)]
            runs = [run for entry in entries for run in runtime.get_stream(entry, graph_id=name).executions]
            row: dict[str, Any] = {
                "graph_id": name,
                "entry_points": entries,
                "runs": [run.id for run in runs],
            }
            if name == graph_id:
                row["you"] = True
            if name in self._loaded:
                row["path"] = str(self._loaded[name].path)
            if name in waiting:
                row["waits_for_user"] = waiting[name].question
            found.append(row)
        return json.dumps(found, ensure_ascii=False)

    async def _get_user_presence(self, _: _Nothing, *, runtime: AgentRuntime) -> str:
        idle = runtime.user_idle_seconds
        said = None if math.isinf(idle) else round(idle, 1)
        return json.dumps({"user_present": runtime.user_present, "user_idle_seconds": said})

    # -- inside ---------------------------------------------------------------------------------

    def _allowed(self, agent_path: str) -> Path:
        below = ", ".join(map(str, self._roots)) or "nowhere"
        path = Path(agent_path)
        choices = [path] if path.is_absolute() else [root / path for root in self._roots]
        for choice in choices:
            resolved = choice.resolve()
            if any(resolved.is_relative_to(root) for root in self._roots) and resolved.exists():
                return resolved
        raise ToolError(
            f"there is no agent {agent_path!r} to be loaded; agents are loaded from below: {below}"
        )

    async def _read(self, path: Path) -> AgentRunner:
        try:
            return await asyncio.to_thread(self._load, path)
        except QueenrightError as error:
            raise ToolError(str(error)) from error

    async def _join(self, runner: AgentRunner, runtime: AgentRuntime, graph_id: str) -> None:
        try:
            await runner.setup_as_secondary(runtime, graph_id)
        except BaseException as error:
            await runner.cleanup_async()
            if isinstance(error, QueenrightError):
                raise ToolError(str(error)) from error
            raise
        self._loaded[graph_id] = runner

    def _other(self, wanted: str, runtime: AgentRuntime, caller: str) -> AgentRunner:
        if wanted == caller:
            raise ToolError("an agent cannot unload or restart itself; another agent, or a person, must")
        if wanted in self._loaded:
            return self._loaded[wanted]
        if wanted in runtime.list_graphs():
            raise ToolError(f"{wanted!r} was not loaded by load_agent and stays as it is")
        raise ToolError(_not_there(wanted, runtime))


def _not_there(graph_id: str, runtime: AgentRuntime) -> str:
    return f"there is no graph {graph_id!r}; there are: {', '.join(runtime.list_graphs())}"


def _first_entry(runtime: AgentRuntime, graph_id: str) -> str:
    entries = runtime.get_entry_points(graph_id)
    return next((entry.id for entry in entries if entry.trigger_type == "manual"), entries[0].id)


def _object(given: dict[str, Any] | str) -> Mapping[str, Any]:
    if isinstance(given, dict):
        return given
    try:
        value = json.loads(given or "{}")
    except ValueError as error:
        raise ToolError(f"input_data is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ToolError('input_data must be a JSON object, such as {"question": "..."}')
    return value
