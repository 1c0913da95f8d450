"""The agent runner: loads an agent from its folder, validates it and runs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.telemetry import Telemetry
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.agent_check import (
    AgentInfo,
    InvalidAgentError,
    ValidationResult,
    find_unknown_names,
    needs_model,
)
from queenright.runtime.agents.agent_parts import AgentParts, hide_credentials, read_agent
from queenright.runtime.agents.agent_spec import AgentLoadError, AgentSpec
from queenright.runtime.agents.credentials import find_missing_credentials, hide_variables
from queenright.runtime.agents.mcp_tools import McpServer, list_mcp_tools
from queenright.runtime.breaker_protocols import Breakers
from queenright.runtime.bus import EventBus
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.llm.litellm_provider import SCRIPTED, LiteLlmProvider, load_provider
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.llm.scripted_provider import ScriptedProvider
from queenright.runtime.nodes.node_guard import GuardFactory
from queenright.runtime.tooling.tools import Tool

__all__ = ["AgentInfo", "AgentLoadError", "AgentRunner", "InvalidAgentError", "ValidationResult"]


class RunnerOptions(TypedDict, total=False):
    """Options of ``AgentRunner.load``."""

    model: str | LLMProvider | None
    storage: Path | None
    providers: Callable[[str], LLMProvider]
    interactive: bool
    telemetry: Telemetry | None
    guards: GuardFactory | None
    breakers: Breakers | None
    environment: Mapping[str, str]
    bus: EventBus | None
    offered_tools: Iterable[Tool]


class AgentRunner:
    """
    One agent: created with ``load``, run on its own runtime or as a secondary graph on another's.

    On another's runtime, that runtime's loop guards, circuit breakers and event bus apply.
    """

    def __init__(
        self,
        parts: AgentParts,
        *,
        model: str | LLMProvider | None = None,
        storage: Path | None = None,
        providers: Callable[[str], LLMProvider] = load_provider,
        interactive: bool = True,
        telemetry: Telemetry | None = None,
        guards: GuardFactory | None = None,
        breakers: Breakers | None = None,
        environment: Mapping[str, str] = os.environ,
        bus: EventBus | None = None,
        offered_tools: Iterable[Tool] = (),
    ) -> None:
        self.storage = storage or Path.home() / ".queenright" / "agents" / parts.spec.name
        self._parts = parts
        self._model = model if model is not None else parts.provider or parts.spec.model
        self._providers = providers
        self._interactive = interactive
        self._telemetry = telemetry
        self._guards = guards
        self._breakers = breakers
        self._environment = environment
        self._bus = bus
        self._offered_tools = tuple(offered_tools)
        self._provider_cache: dict[str, LLMProvider] = {}
        self._runtime: AgentRuntime | None = None
        self._servers: list[McpServer] = []
        self._start_lock = asyncio.Lock()

    @classmethod
    def load(cls, path: str | Path, **options: Unpack[RunnerOptions]) -> AgentRunner:
        """
        Load an agent. Its modules are imported again each time. Blocks while they load.

        Args:
            path: Its folder, with ``agent.json`` or ``agent.py``, and optionally ``tools.py``,
                ``functions.py``, ``judges.py`` and ``mcp_servers.json``.
            model: Overrides the agent's model: a name or a provider.
            storage: Folder of its sessions; ``~/.queenright/agents/{name}`` by default.
            providers: Creates the provider of a model's name.
            interactive: Whether a user can answer, at a terminal or in the console.
            telemetry: Receives the spans of workers on its own runtime; None discards them.
            guards: Creates the loop guards of its nodes on its own runtime; None disables them. On
                another's runtime, that runtime's guards apply.
            breakers: Provides circuit breakers on its own runtime; None disables them.
            environment: Environment variables with its credentials; by default those of the process.
            bus: The event bus of its own runtime; None creates one.
            offered_tools: Tools from outside the agent that its nodes may use, such as those of a
                ``Lifecycle``. The agent's own tools and those of its MCP servers take precedence.

        Raises:
            AgentLoadError: There is no agent, or one of its files is invalid.
        """
        parts = read_agent(Path(path), options.get("environment", os.environ))
        return cls(parts, **options)

    @property
    def spec(self) -> AgentSpec:
        """The agent's specification."""
        return self._parts.spec

    @property
    def path(self) -> Path:
        """The agent's folder."""
        return self._parts.folder

    def info(self) -> AgentInfo:
        """Describe the agent."""
        spec, graph, goal = self.spec, self.spec.graph, self.spec.goal
        return AgentInfo(
            name=spec.name,
            version=spec.version,
            description=spec.description or graph.description,
            path=self.path,
            goal=(goal.description or goal.name) if goal else "",
            nodes=tuple(node.id for node in graph.nodes),
            client_facing=tuple(node.id for node in graph.nodes if node.client_facing),
            entry_points=tuple(entry.id for entry in graph.entry_points),
            tools=tuple(tool.name for tool in self._parts.tools),
            mcp_servers=tuple(self._parts.mcp_servers),
            models=tuple(dict.fromkeys((self._model_name, *self._list_node_models()))),
            credentials=spec.credentials,
        )

    def validate(self) -> ValidationResult:
        """
        Check for missing tools, functions, judges, models and credentials.

        Nothing is started or sent over the network, and no credential is shown.
        """
        errors, warnings = find_unknown_names(self._parts, {tool.name for tool in self._offered_tools}), []
        reported_variables: set[str] = set()
        for name, server in self._parts.mcp_servers.items():
            unset_variables = [variable for variable in server.variables if variable not in self._environment]
            if unset_variables:
                reported_variables.update(unset_variables)
                errors.append(
                    f"MCP server {name!r}: not set in the environment: {', '.join(unset_variables)}"
                )
        models = [m for m in (self._model, *self._list_node_models()) if m and isinstance(m, str)]
        for variable in find_missing_credentials(self.spec.credentials, models, self._environment):
            if variable not in reported_variables:
                errors.append(f"not set in the environment: {variable}")
        without_model = [n.id for n in self.spec.graph.nodes if needs_model(n) and not n.model]
        if not self._model and without_model:
            errors.append(
                f"node {without_model[0]!r} needs a model, and none is configured; "
                'pass --model, or set "model" in the agent'
            )
        for model in models:
            try:
                provider = self._get_provider(model)
                if isinstance(provider, LiteLlmProvider):
                    provider.check()
            except QueenrightError as error:
                errors.append(str(error))
        client_facing = self.info().client_facing
        if client_facing and not self._interactive:
            warnings.append(
                f"node {client_facing[0]!r} waits for a user, and none can answer; call `inject_input`"
            )
        return ValidationResult(errors=tuple(errors), warnings=tuple(warnings))

    async def start(self) -> AgentRuntime:
        """
        Start the agent and its MCP servers on its own runtime and return the runtime. Idempotent.

        Raises:
            InvalidAgentError: ``validate`` found errors.
            McpUnavailableError: An MCP server cannot be reached.
            GraphError: Its nodes use something that does not exist.
        """
        async with self._start_lock:
            if self._runtime is None:
                runtime = AgentRuntime(
                    bus=self._bus if self._bus is not None else EventBus(),
                    storage=self.storage,
                    telemetry=self._telemetry,
                    guards=self._guards,
                    breakers=self._breakers,
                )
                await self._join(runtime, self.spec.graph, primary=True)
                await runtime.start()
                self._runtime = runtime
            return self._runtime

    async def setup_as_secondary(self, runtime: AgentRuntime, graph_id: str) -> None:
        """
        Add the agent as a secondary graph to a runtime, which ``cleanup_async`` leaves running.

        Raises:
            InvalidAgentError: ``validate`` found errors.
            McpUnavailableError: An MCP server cannot be reached.
            GraphError: The id is in use, or its nodes use something that does not exist.
        """
        graph = self.spec.graph
        secondary_graph = GraphSpec.model_validate({**graph.model_dump(), "id": graph_id})
        await self._join(runtime, secondary_graph, primary=False)

    async def run(
        self,
        input_data: Mapping[str, Any] | None = None,
        *,
        entry_point: str | None = None,
        session_id: str | None = None,
    ) -> ExecutionResult:
        """
        Run the agent to completion. If this is cancelled, the run is paused and can be resumed.

        Args:
            entry_point: The entry point; by default the first manual one.

        Raises:
            GraphError: The entry point does not exist. Also raises what ``start`` raises.
        """
        runtime = await self.start()
        execution_id = await runtime.trigger(
            entry_point or self.default_entry_point,
            input_data,
            graph_id=self.spec.graph.id,
            session_id=session_id,
        )
        return await self._wait_or_pause(runtime, execution_id)

    async def resume(self, session_id: str) -> ExecutionResult:
        """
        Resume the unfinished run of a session and run it to completion.

        Raises:
            SessionNotFoundError: The session does not exist.
            GraphError: There is nothing to resume. Also raises what ``start`` raises.
        """
        runtime = await self.start()
        execution_id = await runtime.resume(session_id, self.spec.graph.id)
        return await self._wait_or_pause(runtime, execution_id)

    async def cleanup_async(self) -> None:
        """Pause running work, stop the agent's own runtime and stop its MCP servers."""
        runtime, self._runtime = self._runtime, None
        try:
            if runtime is not None:
                await runtime.stop()
        finally:
            servers, self._servers = self._servers, []
            await _close_servers(servers)
            self._parts.modules.unload()

    @property
    def default_entry_point(self) -> str:
        """The default entry point: the first manual one, otherwise the first."""
        entries = self.spec.graph.entry_points
        manual = [entry.id for entry in entries if entry.trigger_type == "manual"]
        return (manual or [entry.id for entry in entries])[0]

    # -- private --------------------------------------------------------------------------------

    async def _join(self, runtime: AgentRuntime, graph: GraphSpec, *, primary: bool) -> None:
        # The environment or the model may have changed since the agent was loaded.
        hide_credentials(self.spec, self._parts.mcp_servers, self._environment)
        if isinstance(self._model, str):
            hide_variables((), [self._model], self._environment)
        result = await asyncio.to_thread(self.validate)
        if not result.ok:
            raise InvalidAgentError(self.spec.name, result.errors)
        parts = self._parts
        prefix = "mcp" if primary else f"mcp_{graph.id}"
        servers = [
            McpServer(
                name,
                server,
                folder=parts.folder,
                log=runtime.storage / "logs" / f"{prefix}_{name}.log",
                environment=self._environment,
            )
            for name, server in parts.mcp_servers.items()
        ]
        try:
            tool_names = {tool.name for tool in parts.tools}
            tools = [*parts.tools, *await list_mcp_tools(servers, known_names=tool_names)]
            missing_tools = {name for node in graph.nodes for name in node.tools} - {
                tool.name for tool in tools
            }
            runtime.add_graph(
                graph,
                model=self._get_provider(self._model) if self._model else None,
                models={name: self._get_provider(name) for name in self._list_node_models()},
                tools=[*tools, *(tool for tool in self._offered_tools if tool.name in missing_tools)],
                functions=parts.functions,
                judges=parts.judges,
                goal=self.spec.goal,
                agent_id=self.spec.name,
                primary=primary,
            )
        except BaseException:
            await _close_servers(servers)
            raise
        self._servers += servers

    async def _wait_or_pause(self, runtime: AgentRuntime, execution_id: str) -> ExecutionResult:
        try:
            return await runtime.wait(execution_id)
        except asyncio.CancelledError:
            await runtime.pause_execution(execution_id, self.spec.graph.id)
            raise

    @property
    def _model_name(self) -> str:
        return self._model if isinstance(self._model, str) else self._model.name

    def _list_node_models(self) -> list[str]:
        return list(dict.fromkeys(node.model for node in self.spec.graph.nodes if node.model))

    def _get_provider(self, model: str | LLMProvider) -> LLMProvider:
        if not isinstance(model, str):
            return model
        if model not in self._provider_cache:
            script = model.removeprefix(SCRIPTED)
            # A relative script path is looked up in the agent's folder first.
            is_local = model != script and not Path(script).is_absolute() and (self.path / script).is_file()
            provider = self._providers(f"{SCRIPTED}{self.path / script}" if is_local else model)
            if isinstance(provider, ScriptedProvider):
                provider.restart_for_each_run()
            self._provider_cache[model] = provider
        return self._provider_cache[model]


async def _close_servers(servers: Iterable[McpServer]) -> None:
    await asyncio.gather(*(server.close() for server in servers))
