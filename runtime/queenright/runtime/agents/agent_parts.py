"""The contents of an agent's folder: specification, tools, functions, judges and MCP servers."""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queenright.runtime.agents.agent_modules import AgentModules
from queenright.runtime.agents.agent_spec import AgentLoadError, AgentSpec, read_agent_spec
from queenright.runtime.agents.credentials import hide_variables
from queenright.runtime.agents.mcp_spec import McpServerSpec, read_mcp_servers
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.nodes.node_judge import FunctionJudge, NodeJudge
from queenright.runtime.tooling.tools import Tool, tool_from_function

SPEC_FILES = ("agent.json", "agent.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """One agent, as defined by its folder."""

    folder: Path
    spec: AgentSpec
    modules: AgentModules
    provider: LLMProvider | None
    """The model that ``agent.py`` defines, if any."""
    tools: tuple[Tool, ...]
    functions: Mapping[str, Callable[..., Any]]
    judges: Mapping[str, NodeJudge]
    mcp_servers: Mapping[str, McpServerSpec]


def read_agent(path: Path, environment: Mapping[str, str] = os.environ) -> AgentParts:
    """
    Load the agent in ``path``: its folder, or the ``agent.json`` or ``agent.py`` in it.

    Credentials in the specification are masked before the agent's code runs, so that errors reveal none.

    Raises:
        AgentLoadError: There is no agent, or one of its files is invalid; names the file and the problem.
    """
    folder = (path.parent if path.name in SPEC_FILES else path).resolve()
    if not folder.is_dir():
        raise AgentLoadError(folder, "is not a folder; an agent is a folder with agent.json or agent.py")
    spec_files = [name for name in SPEC_FILES if (folder / name).is_file()]
    if len(spec_files) != 1:
        reason = (
            "has both agent.json and agent.py; keep one" if spec_files else "has no agent.json or agent.py"
        )
        raise AgentLoadError(folder, reason)
    modules = AgentModules(folder)
    try:
        provider = None
        if spec_files == ["agent.json"]:
            spec = read_agent_spec(folder / "agent.json")
        else:
            spec, provider = _load_agent_py(modules)
        servers_file = folder / "mcp_servers.json"
        servers = read_mcp_servers(servers_file) if servers_file.is_file() else {}
        hide_credentials(spec, servers, environment)
        return AgentParts(
            folder=folder,
            spec=spec,
            modules=modules,
            provider=provider,
            tools=_load_tools(modules),
            functions=_list_public(modules, "functions", inspect.isfunction),
            judges=_load_judges(modules),
            mcp_servers=servers,
        )
    except BaseException:
        modules.unload()
        raise


def hide_credentials(
    spec: AgentSpec, servers: Mapping[str, McpServerSpec], environment: Mapping[str, str]
) -> None:
    """Mask the values of an agent's credentials wherever text leaves the process."""
    models = [spec.model, *(node.model for node in spec.graph.nodes)]
    variables = [name for server in servers.values() for name in server.variables]
    hide_variables([*spec.credentials, *variables], filter(None, models), environment)


def _load_agent_py(modules: AgentModules) -> tuple[AgentSpec, LLMProvider | None]:
    module, path = modules.load("agent"), modules.folder / "agent.py"
    spec = getattr(module, "agent", None)
    if not isinstance(spec, AgentSpec):
        problem = "has no `agent`" if spec is None else f"`agent` is a {type(spec).__name__}"
        raise AgentLoadError(path, f"{problem}; define `agent = AgentSpec(...)`")
    provider: Any = getattr(module, "provider", None)
    if inspect.isclass(provider) or inspect.isfunction(provider):
        try:
            provider = provider()
        except Exception as error:
            raise AgentLoadError(path, f"provider() failed: {type(error).__name__}") from error
    if provider is not None and not hasattr(provider, "complete"):
        raise AgentLoadError(path, f"`provider` is a {type(provider).__name__}, not an LLMProvider")
    return spec, provider


def _load_tools(modules: AgentModules) -> tuple[Tool, ...]:
    path, module = modules.folder / "tools.py", modules.load("tools")
    if module is None:
        return ()
    tool_list = getattr(module, "tools", None)
    if isinstance(tool_list, list | tuple):
        wrong_types = [
            type(tool_object).__name__ for tool_object in tool_list if not isinstance(tool_object, Tool)
        ]
        if wrong_types:
            raise AgentLoadError(
                path, f"`tools` contains a {wrong_types[0]}; use tool_from_function to make a Tool"
            )
        tools = tuple(tool_list)
    else:
        function_tools = []
        for function in _list_public(modules, "tools", inspect.isfunction).values():
            try:
                function_tools.append(tool_from_function(function))
            except (TypeError, ValueError) as error:
                raise AgentLoadError(path, str(error), line=function.__code__.co_firstlineno) from error
        tools = tuple(function_tools)
    names = [tool.name for tool in tools]
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise AgentLoadError(path, f"two tools are named {duplicates[0]!r}; rename one")
    return tools


def _load_judges(modules: AgentModules) -> dict[str, NodeJudge]:
    functions = _list_public(modules, "judges", inspect.isfunction)
    objects = _list_public(modules, "judges", lambda value: inspect.iscoroutinefunction(_to_judge(value)))
    return {**objects, **{name: FunctionJudge(function) for name, function in functions.items()}}


def _to_judge(value: object) -> object:
    return None if inspect.isclass(value) else getattr(value, "judge", None)


def _list_public(modules: AgentModules, name: str, accept: Callable[[Any], bool]) -> dict[str, Any]:
    """Return the public objects that a module defines itself."""
    module = modules.load(name)
    if module is None:
        return {}
    return {
        key: value for key, value in vars(module).items() if _is_public(module, key, value) and accept(value)
    }


def _is_public(module: types.ModuleType, key: str, value: object) -> bool:
    is_own = getattr(value, "__module__", None) == module.__name__
    return is_own and not key.startswith("_") and not inspect.ismodule(value)
