"""Tools with which an agent loads, starts, restarts and unloads other agents on its runtime."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.tooling.tools import CONTEXT_PARAMETERS, Tool, ToolError, get_docstring_summary

Load = Callable[[Path], AgentRunner]
"""Loads the agent in a folder. Blocks."""


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _LoadArguments(_Arguments):
    agent_path: Annotated[str, Field(min_length=1, description="The agent's folder.")]


class _GraphArguments(_Arguments):
    graph_id: Annotated[str, Field(min_length=1, description="As shown by list_agents.")]


class _StartArguments(_GraphArguments):
    entry_point: Annotated[str, Field(description="The entry point; the first one by default.")] = ""
    input_data: Annotated[
        dict[str, Any] | str, Field(description="The input of the run: an object, or its JSON.")
    ] = Field(default_factory=dict)


class _NoArguments(_Arguments):
    pass


class Lifecycle:
    """
    Tools to manage other agents on the same runtime, and the agents loaded with them.

    The tools are ``load_agent``, ``unload_agent``, ``start_agent``, ``restart_agent``, ``list_agents`` and
    ``get_user_presence``. Call ``close`` after the runtime has stopped; otherwise MCP servers keep running.

    Args:
        roots: Agents are loaded only from folders below these, after resolving symbolic links.
        load: Loads an agent; override to set a model or a storage folder.
        runners: The loaded agents by graph id, if the caller tracks other agents of the runtime there.
    """

    def __init__(
        self,
        roots: Iterable[Path],
        *,
        load: Load = AgentRunner.load,
        runners: dict[str, AgentRunner] | None = None,
    ) -> None:
        self._roots = [root.resolve() for root in roots]
        self._load = load
        self._runners = {} if runners is None else runners
        self._lock = asyncio.Lock()

    @property
    def tools(self) -> list[Tool]:
        """The tools, for the graph that manages others."""
        return [
            _make_tool(_LoadArguments, self._load_agent),
            _make_tool(_GraphArguments, self._unload_agent),
            _make_tool(_StartArguments, self._start_agent),
            _make_tool(_GraphArguments, self._restart_agent),
            _make_tool(_NoArguments, self._list_agents),
            _make_tool(_NoArguments, self._get_user_presence),
        ]

    async def close(self) -> None:
        """Stop the MCP servers of all loaded agents. The runtime stops the graphs."""
        async with self._lock:
            runners = list(self._runners.values())
            self._runners.clear()
            await asyncio.gather(*(runner.cleanup_async() for runner in runners))

    # -- tools; models see their docstrings -----------------------------------------------------

    async def _load_agent(self, arguments: _LoadArguments, *, runtime: AgentRuntime) -> str:
        """Load an agent and return its graph_id."""
        async with self._lock:
            runner = await self._load_runner(self._resolve_path(arguments.agent_path))
            graph_id = runner.spec.name
            if graph_id in runtime.list_graphs():
                await runner.cleanup_async()
                raise ToolError(f"graph {graph_id!r} already exists; use restart_agent to apply changes")
            await self._join(runner, runtime, graph_id)
            entries = ", ".join(entry.id for entry in runtime.get_entry_points(graph_id))
            return f"loaded {graph_id!r}; entry points: {entries}"

    async def _unload_agent(self, arguments: _GraphArguments, *, runtime: AgentRuntime, graph_id: str) -> str:
        """Stop an agent loaded with load_agent and remove it. Runs are paused, sessions stay."""
        async with self._lock:
            runner = self._get_loaded(arguments.graph_id, runtime, graph_id)
            await runtime.remove_graph(arguments.graph_id)
            self._runners.pop(arguments.graph_id, None)
            await runner.cleanup_async()
            return f"unloaded {arguments.graph_id!r}; its runs are paused and its sessions stay on disk"

    async def _start_agent(self, arguments: _StartArguments, *, runtime: AgentRuntime, graph_id: str) -> str:
        """Start a run of a loaded agent and return its run id at once."""
        target = arguments.graph_id
        if target == graph_id:
            raise ToolError("an agent cannot start a run of itself; continue with your own work")
        if target not in runtime.list_graphs():
            raise ToolError(_describe_unknown_graph(target, runtime))
        entry = arguments.entry_point or _get_first_entry(runtime, target)
        run_id = await runtime.trigger(entry, _parse_object(arguments.input_data), graph_id=target)
        return f"started {target!r} at {entry!r}: run {run_id}"

    async def _restart_agent(
        self, arguments: _GraphArguments, *, runtime: AgentRuntime, graph_id: str
    ) -> str:
        """Reload an agent from its folder to apply changes. If it cannot be loaded, the running one stays."""
        target = arguments.graph_id
        async with self._lock:
            old_runner = self._get_loaded(target, runtime, graph_id)
            new_runner = await self._load_runner(self._resolve_path(str(old_runner.path)))
            errors = (await asyncio.to_thread(new_runner.validate)).errors
            if errors:
                await new_runner.cleanup_async()
                raise ToolError(f"{target!r} cannot be reloaded and keeps running: {'; '.join(errors)}")
            await runtime.remove_graph(target)
            self._runners.pop(target, None)
            await old_runner.cleanup_async()
            try:
                await self._join(new_runner, runtime, target)
            except ToolError as error:
                raise ToolError(f"{target!r} was stopped and could not be loaded again: {error}") from error
            return f"restarted {target!r} from {new_runner.path}; its running runs are paused"

    async def _list_agents(self, _: _NoArguments, *, runtime: AgentRuntime, graph_id: str) -> str:
        """List the loaded agents and what each is doing."""
        waiting = {node.graph_id: node for node in runtime.list_waiting_nodes()}
        rows: list[dict[str, Any]] = []
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
            if name in self._runners:
                row["path"] = str(self._runners[name].path)
            if name in waiting:
                row["waits_for_user"] = waiting[name].question
            rows.append(row)
        return json.dumps(rows, ensure_ascii=False)

    async def _get_user_presence(self, _: _NoArguments, *, runtime: AgentRuntime) -> str:
        """Return whether a user is present, and the seconds since the last user input."""
        idle_seconds = runtime.user_idle_seconds
        seconds = None if math.isinf(idle_seconds) else round(idle_seconds, 1)
        return json.dumps({"user_present": runtime.is_user_present, "user_idle_seconds": seconds})

    # -- private --------------------------------------------------------------------------------

    def _resolve_path(self, agent_path: str) -> Path:
        roots = ", ".join(map(str, self._roots)) or "nowhere"
        path = Path(agent_path)
        candidates = [path] if path.is_absolute() else [root / path for root in self._roots]
        for candidate in candidates:
            real_path = candidate.resolve()
            if any(real_path.is_relative_to(root) for root in self._roots) and real_path.exists():
                return real_path
        raise ToolError(f"there is no agent {agent_path!r}; agents can be loaded from folders below: {roots}")

    async def _load_runner(self, path: Path) -> AgentRunner:
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
        self._runners[graph_id] = runner

    def _get_loaded(self, target: str, runtime: AgentRuntime, caller: str) -> AgentRunner:
        if target == caller:
            raise ToolError("an agent cannot unload or restart itself; another agent or a person must do it")
        if target in self._runners:
            return self._runners[target]
        if target in runtime.list_graphs():
            raise ToolError(f"{target!r} was not loaded by load_agent and cannot be changed")
        raise ToolError(_describe_unknown_graph(target, runtime))


def _make_tool(arguments: type[_Arguments], method: Callable[..., Any]) -> Tool:
    context = tuple(name for name in inspect.signature(method).parameters if name in CONTEXT_PARAMETERS)
    name = method.__name__.removeprefix("_")
    return Tool(name, get_docstring_summary(method), arguments, method, context=context)


def _describe_unknown_graph(graph_id: str, runtime: AgentRuntime) -> str:
    return f"there is no graph {graph_id!r}; available: {', '.join(runtime.list_graphs())}"


def _get_first_entry(runtime: AgentRuntime, graph_id: str) -> str:
    entries = runtime.get_entry_points(graph_id)
    return next((entry.id for entry in entries if entry.trigger_type == "manual"), entries[0].id)


def _parse_object(text: dict[str, Any] | str) -> Mapping[str, Any]:
    if isinstance(text, dict):
        return text
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ToolError(f"input_data is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ToolError('input_data must be a JSON object, such as {"question": "..."}')
    return value
