"""The agent runner: an agent from its folder, checked, started and run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.telemetry import Telemetry
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.agent_check import (
    AgentInfo,
    InvalidAgentError,
    ValidationResult,
    thinks,
    unknown_names,
)
from queenright.runtime.agents.agent_parts import AgentParts, hide_credentials, read_agent
from queenright.runtime.agents.agent_spec import AgentLoadError, AgentSpec
from queenright.runtime.agents.credentials import hide_variables, missing
from queenright.runtime.agents.mcp_tools import McpServer, mcp_tools
from queenright.runtime.breakers import Breakers
from queenright.runtime.bus import EventBus
from queenright.runtime.execution import ExecutionResult
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.llm.litellm_provider import SCRIPTED, LiteLlmProvider, load_provider
from queenright.runtime.llm.model import LLMProvider, Message, ModelError, ModelReply, OnText, ToolSpec
from queenright.runtime.llm.scripted_provider import ScriptedProvider
from queenright.runtime.nodes.guard import GuardFactory
from queenright.runtime.tooling.tools import Tool

__all__ = ["AgentInfo", "AgentLoadError", "AgentRunner", "InvalidAgentError", "ValidationResult"]


class AgentRunner:
    """
    One agent: loaded with ``load``, and run on a runtime of its own, or on another's as a secondary graph.

    Args:
        parts: What its folder holds.
        model: The model to use in place of its own: a name, or the provider itself.
        storage: The folder of its sessions.
        providers: Gives the provider of a model's name.
        interactive: Whether somebody is at a terminal to talk with it.
        telemetry: Where its spans go; without, nowhere.
        guards: Makes the guards that watch its nodes for loops on a runtime of its own; without, there are
            none. On another's runtime that one's guards watch them.
        breakers: Gives its circuit breakers on a runtime of its own; without, there are none.
        environment: Where its credentials are.
        bus: Where its events go on a runtime of its own; without, it has a bus of its own.
    """

    def __init__(
        self,
        parts: AgentParts,
        *,
        model: str | LLMProvider | None,
        storage: Path,
        providers: Callable[[str], LLMProvider],
        interactive: bool,
        telemetry: Telemetry | None,
        guards: GuardFactory | None,
        breakers: Breakers | None,
        environment: Mapping[str, str],
        bus: EventBus | None = None,
        offered_tools: Iterable[Tool] = (),
    ) -> None:
        self.storage = storage
        self._parts = parts
        self._model = model if model is not None else parts.provider or parts.spec.model
        self._providers = providers
        self._interactive = interactive
        self._telemetry = telemetry
        self._guards = guards
        self._breakers = breakers
        self._environment = environment
        self._bus = bus
        self._offered = tuple(offered_tools)
        self._known: dict[str, LLMProvider] = {}
        self._runtime: AgentRuntime | None = None
        self._servers: list[McpServer] = []
        self._starting = asyncio.Lock()

    @classmethod
    def load(
        cls,
        path: str | Path,
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
    ) -> AgentRunner:
        """
        Load an agent; its modules are loaded anew each time. This blocks, for as long as they take.

        Args:
            path: Its folder, with ``agent.json`` or ``agent.py``, and with ``tools.py``, ``functions.py``,
                ``judges.py`` and ``mcp_servers.json`` as it needs them.
            model: The model to use in place of its own: a name, or the provider itself.
            storage: The folder of its sessions; without, ``~/.queenright/agents/{name}``.
            providers: Gives the provider of a model's name.
            interactive: Whether somebody is at a terminal to talk with it.
            telemetry: Where its spans go; without, nowhere.
            guards: Makes the guards that watch its nodes for loops on a runtime of its own; without, there
                are none. On another's runtime that one's guards watch them.
            breakers: Gives its circuit breakers on a runtime of its own; without, there are none.
            environment: Where its credentials are.
            bus: Where its events go on a runtime of its own; without, it has a bus of its own.
            offered_tools: What its nodes may name besides its own tools, such as those of a ``Lifecycle``; a
                tool of its own, or of its MCP servers, goes before one of the same name.

        Raises:
            AgentLoadError: There is no agent there, or a file of it is faulty.
        """
        parts = read_agent(Path(path), environment)
        return cls(
            parts,
            model=model,
            storage=storage or Path.home() / ".queenright" / "agents" / parts.spec.name,
            providers=providers,
            interactive=interactive,
            telemetry=telemetry,
            guards=guards,
            breakers=breakers,
            environment=environment,
            bus=bus,
            offered_tools=offered_tools,
        )

    @property
    def spec(self) -> AgentSpec:
        """The agent as data."""
        return self._parts.spec

    @property
    def path(self) -> Path:
        """The agent's folder."""
        return self._parts.folder

    def info(self) -> AgentInfo:
        """Say what the agent is."""
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
            models=tuple(dict.fromkeys((self._model_name, *self._node_models()))),
            credentials=spec.credentials,
        )

    def validate(self) -> ValidationResult:
        """
        Say what keeps the agent from working: tools, functions, judges, models and credentials that are
        not there. Nothing is started or asked over the network, and no value of a credential is said.
        """
        errors, warnings = unknown_names(self._parts, {tool.name for tool in self._offered}), []
        for name, server in self._parts.mcp_servers.items():
            absent = [variable for variable in server.variables if variable not in self._environment]
            if absent:
                errors.append(f"MCP server {name!r}: not set in the environment: {', '.join(absent)}")
        models = [m for m in (self._model, *self._node_models()) if m and isinstance(m, str)]
        for absent_one in missing(self.spec.credentials, models, self._environment):
            errors.append(f"not set in the environment: {absent_one}")
        if not self._model and (
            thinking := [n.id for n in self.spec.graph.nodes if thinks(n) and not n.model]
        ):
            errors.append(
                f"node {thinking[0]!r} needs a model, and none is named; "
                'name one with --model, or as "model" of the agent'
            )
        for model in models:
            try:
                provider = self._provider(model)
                if isinstance(provider, LiteLlmProvider):
                    provider.check()
            except QueenrightError as error:
                errors.append(str(error))
        facing = self.info().client_facing
        if facing and not self._interactive:
            warnings.append(
                f"node {facing[0]!r} waits for a user, and nobody is at a terminal: use inject_input"
            )
        return ValidationResult(errors=tuple(errors), warnings=tuple(warnings))

    async def start(self) -> AgentRuntime:
        """
        Start the agent on a runtime of its own, with its MCP servers; return the runtime. Once is enough.

        Raises:
            InvalidAgentError: It cannot work, by ``validate``.
            McpUnavailableError: A server cannot be reached.
            GraphError: Its nodes use something that is not there.
        """
        async with self._starting:
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
        Join a runtime that is there already, as one more graph. ``cleanup_async`` does not stop it.

        Args:
            runtime: The runtime.
            graph_id: What the graph is called there.

        Raises:
            InvalidAgentError: The agent cannot work, by ``validate``.
            McpUnavailableError: A server cannot be reached.
            GraphError: The id is taken, or its nodes use something that is not there.
        """
        graph = self.spec.graph
        renamed = GraphSpec.model_validate({**graph.model_dump(), "id": graph_id})
        await self._join(runtime, renamed, primary=False)

    async def run(
        self,
        input_data: Mapping[str, Any] | None = None,
        *,
        entry_point: str | None = None,
        session_id: str | None = None,
    ) -> ExecutionResult:
        """
        Run the agent to its end; if this is cancelled, the run is paused and can be resumed.

        Args:
            input_data: What it is given, as JSON values.
            entry_point: Where it begins; without, at its first manual entry point.
            session_id: An existing session to run in.

        Raises:
            GraphError: There is no such entry point. And what ``start`` raises.
        """
        runtime = await self.start()
        started = await runtime.trigger(
            entry_point or self.default_entry_point,
            input_data,
            graph_id=self.spec.graph.id,
            session_id=session_id,
        )
        return await self._until_over(runtime, started)

    async def resume(self, session_id: str) -> ExecutionResult:
        """
        Take up what a session left unfinished and run it to its end.

        Raises:
            SessionNotFound: There is no such session.
            GraphError: There is nothing to resume. And what ``start`` raises.
        """
        runtime = await self.start()
        return await self._until_over(runtime, await runtime.resume(session_id, self.spec.graph.id))

    async def cleanup_async(self) -> None:
        """Pause what runs, stop the runtime if it is the agent's own, and end its MCP servers."""
        runtime, self._runtime = self._runtime, None
        try:
            if runtime is not None:
                await runtime.stop()
        finally:
            servers, self._servers = self._servers, []
            await _close(servers)
            self._parts.modules.forget()

    @property
    def default_entry_point(self) -> str:
        """Where a run begins that names no entry point: the first manual one, or the first."""
        entries = self.spec.graph.entry_points
        manual = [entry.id for entry in entries if entry.trigger_type == "manual"]
        return (manual or [entry.id for entry in entries])[0]

    # -- inside ---------------------------------------------------------------------------------

    async def _join(self, runtime: AgentRuntime, graph: GraphSpec, *, primary: bool) -> None:
        # The environment may have changed since it was loaded, and the model may be another one.
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
            own = [*parts.tools, *await mcp_tools(servers, taken={tool.name for tool in parts.tools})]
            wanted = {name for node in graph.nodes for name in node.tools} - {tool.name for tool in own}
            runtime.add_graph(
                graph,
                model=self._provider(self._model) if self._model else _NoModel(),
                models={name: self._provider(name) for name in self._node_models()},
                tools=[*own, *(tool for tool in self._offered if tool.name in wanted)],
                functions=parts.functions,
                judges=parts.judges,
                goal=self.spec.goal,
                agent_id=self.spec.name,
                primary=primary,
            )
        except BaseException:
            await _close(servers)
            raise
        self._servers += servers

    async def _until_over(self, runtime: AgentRuntime, execution_id: str) -> ExecutionResult:
        try:
            return await runtime.wait(execution_id)
        except asyncio.CancelledError:
            await runtime.pause_execution(execution_id, self.spec.graph.id)
            raise

    @property
    def _model_name(self) -> str:
        return self._model if isinstance(self._model, str) else self._model.name

    def _node_models(self) -> list[str]:
        return list(dict.fromkeys(node.model for node in self.spec.graph.nodes if node.model))

    def _provider(self, model: str | LLMProvider) -> LLMProvider:
        if not isinstance(model, str):
            return model
        if model not in self._known:
            script = model.removeprefix(SCRIPTED)
            # A script lies beside the agent that names it.
            own = model != script and not Path(script).is_absolute() and (self.path / script).is_file()
            provider = self._providers(f"{SCRIPTED}{self.path / script}" if own else model)
            if isinstance(provider, ScriptedProvider):
                provider.begin_with_each_run()
            self._known[model] = provider
        return self._known[model]


class _NoModel:
    """Stands where a model would, in a graph none of whose nodes thinks."""

    name = "none"

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        raise ModelError("the agent names no model; name one with --model")


async def _close(servers: Iterable[McpServer]) -> None:
    await asyncio.gather(*(server.close() for server in servers))
