"""The agents that run inside the service: load and unload them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from queenright.instrumentation.errors import ConflictError, NotFoundError, QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.agent_check import AgentInfo, InvalidAgentError
from queenright.runtime.agents.agent_spec import AgentLoadError
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.breaker_protocols import Breakers
from queenright.runtime.bus import EventBus
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.events import Clock
from queenright.runtime.nodes.node_guard import GuardFactory
from queenright.runtime.tooling.tool_threads import ToolThreads
from queenright.server.agents.companion_sessions import CompanionSessions, list_companion_sessions
from queenright.server.agents.roots import Roots

_log = logging.getLogger(__name__)

LOAD_SECONDS: Final = 60.0
"""Time limit for loading an agent's code, and again for starting the agent."""

_STOP_SECONDS: Final = 10.0
"""Time for a start that timed out to stop its MCP servers."""

_CLOSING_TEXT: Final = "the service is stopping and loads no agents; try again after its restart"

T = TypeVar("T")


class AgentNotLoadedError(NotFoundError):
    """Raised when no agent with this name is loaded."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(
            f"agent {redact(agent_id, 200)!r} is not loaded here; load it with `queenright agents load`; "
            "`queenright agents discover` lists those that can be loaded"
        )


class AgentAlreadyLoadedError(ConflictError):
    """Raised when an agent or graph with this name, or from this folder, is already loaded or loading."""


class ReloadRefusedError(QueenrightError):
    """Raised when an agent cannot be reloaded. The running one stays loaded."""


class LoadTimeoutError(QueenrightError):
    """Raised when loading or starting an agent times out, or another agent's code blocks loading."""


class ManagerClosingError(QueenrightError):
    """Raised when an agent is loaded while the service stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSlot:
    """A loaded agent with its runtime and added graphs."""

    id: str
    path: Path
    runner: AgentRunner
    runtime: AgentRuntime
    info: AgentInfo
    warnings: tuple[str, ...]
    loaded_at: float
    model: str | None = None
    """The model that replaces the agent's own; None if none does."""
    lifecycle: Lifecycle
    """The tools that let its nodes load further graphs."""
    added_graphs: dict[str, AgentRunner] = field(default_factory=dict)
    """Agents that run as further graphs of this one, by graph id."""
    loading_graphs: set[str] = field(default_factory=set)
    """Ids of graphs that are being loaded."""

    @property
    def graph_id(self) -> str:
        """The id of the agent's own graph."""
        return self.runner.spec.graph.id


class AgentManager:
    """
    The loaded agents. Each has its own runtime, and a bus that forwards to the service's.

    Args:
        roots: Agents are loaded only from below these folders.
        bus: Makes an agent's bus. Its argument returns the agent's name, or "" until the name is known.
        companions: Records the sessions of graphs that run next to an agent.
        storage: The folder with a folder for each agent's sessions; None: the folder of `queenright run`.
        clock: Seconds since the epoch.
        guards: Makes the guards of nodes.
        breakers: The circuit breakers.
        sleep: Sleeps for a number of seconds; used for time limits.
    """

    def __init__(
        self,
        roots: Iterable[Path],
        *,
        bus: Callable[[Callable[[], str]], EventBus],
        companions: CompanionSessions | None = None,
        storage: Path | None,
        clock: Clock,
        guards: GuardFactory | None = None,
        breakers: Breakers | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.roots = Roots(roots)
        self.companions = companions or CompanionSessions()
        """Sessions of the graphs that run next to the agents."""
        self._bus = bus
        self._storage = storage
        self._clock = clock
        self._guards = guards
        self._breakers = breakers
        self._sleep = sleep
        self._slots: dict[str, AgentSlot] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._read_lock = asyncio.Lock()
        self._loading_folders: set[Path] = set()
        """Folders of agents that are being loaded."""
        self._load_tasks: set[asyncio.Task[Any]] = set()
        self._start_tasks: set[asyncio.Task[Any]] = set()
        """Starts in progress, including those that timed out and are stopping their servers."""
        self._threads = ToolThreads()
        self._hanging_folders: list[Path] = []
        """Folders whose code still runs although loading timed out."""
        self._is_closing = False

    @property
    def slots(self) -> Mapping[str, AgentSlot]:
        """The loaded agents by name, in the order of loading."""
        return MappingProxyType(self._slots)

    def get(self, agent_id: str) -> AgentSlot:
        """
        Return a loaded agent.

        Raises:
            AgentNotLoadedError: There is no agent of this name.
        """
        slot = self._slots.get(agent_id)
        if slot is None:
            raise AgentNotLoadedError(agent_id)
        return slot

    def list_runtimes(self) -> Iterator[AgentRuntime]:
        """Return the runtimes of the loaded agents."""
        return iter([slot.runtime for slot in self._slots.values()])

    @property
    def is_blocked(self) -> bool:
        """Whether code whose loading timed out still runs. No agent can be loaded until it ends."""
        self._hanging_folders = [
            path for path in self._hanging_folders if self._threads.count_running(str(path))
        ]
        return bool(self._hanging_folders)

    async def load(self, path: str | Path, *, model: str | None = None) -> AgentSlot:
        """
        Load an agent and start it. Its code runs in this process.

        Args:
            path: The agent's folder, below a root.
            model: The model to use instead of the agent's own.

        Raises:
            PathNotAllowedError: There is no such folder below the roots.
            AgentLoadError, InvalidAgentError, McpUnavailableError, GraphError: The agent is invalid.
            AgentAlreadyLoadedError: An agent of this name or folder is loaded.
            LoadTimeoutError: The code does not return, the MCP servers do not answer, or loading is blocked.
            ManagerClosingError: The service stops.
        """
        return await self._run_unless_closing(self._load_agent(path, model))

    async def reload(self, agent_id: str) -> AgentSlot:
        """
        Reload an agent from its folder, in place of the running one.

        The running agent stays until the new one has been read and validated. Then its runs are paused, as
        in ``unload``.

        Raises:
            AgentNotLoadedError: There is no such agent, or it was unloaded in the meantime.
            ReloadRefusedError: Other agents run as its graphs, or its name has changed.
            PathNotAllowedError, AgentLoadError, InvalidAgentError, LoadTimeoutError: The new one is invalid.
            McpUnavailableError, GraphError: The new one did not start. No agent of this name is loaded now.
            ManagerClosingError: The service stops.
        """
        return await self._run_unless_closing(self._reload_agent(agent_id))

    async def unload(self, agent_id: str) -> None:
        """
        Pause an agent's runs and unload it; its sessions stay on disk.

        Raises:
            AgentNotLoadedError: There is no such agent.
        """
        self.get(agent_id)
        async with self._get_lock(agent_id):
            await self._close(self.get(agent_id))

    async def add_graph(
        self, agent_id: str, path: str | Path, *, graph_id: str | None = None, model: str | None = None
    ) -> str:
        """
        Load an agent as a further graph of a loaded one; return the graph's id.

        Args:
            agent_id: The loaded agent.
            path: The folder of the agent to add, below a root.
            graph_id: The id of the new graph; by default the added agent's name.
            model: The model to use instead of the added agent's own.

        Raises:
            AgentNotLoadedError: The loaded agent does not exist, or was unloaded in the meantime.
            AgentAlreadyLoadedError: The agent has a graph of this id, or is loading one.
            GraphError: The graph is invalid. The errors of ``load`` are raised too.
        """
        return await self._run_unless_closing(self._add_graph(agent_id, path, graph_id, model))

    async def remove_graph(self, agent_id: str, graph_id: str) -> None:
        """
        Pause a graph's runs and unload it; its sessions stay on disk.

        Raises:
            AgentNotLoadedError: There is no such agent.
            GraphError: There is no such graph, or it is the agent's own.
        """
        async with self._get_lock(agent_id):
            slot = self.get(agent_id)
            await slot.runtime.remove_graph(graph_id)
            runner = slot.added_graphs.pop(graph_id, None)
            if runner is not None:
                await runner.cleanup_async()

    def stop_loading(self) -> None:
        """Cancel loading, and refuse to load further agents."""
        self._is_closing = True
        for task in self._load_tasks:
            task.cancel()

    async def shutdown_all(self) -> None:
        """Unload all agents, and refuse to load further ones."""
        self.stop_loading()
        await asyncio.gather(*self._load_tasks, return_exceptions=True)
        if self._start_tasks:
            await asyncio.wait(self._start_tasks, timeout=_STOP_SECONDS)
        results = await asyncio.gather(
            *(self.unload(agent_id) for agent_id in list(self._slots)), return_exceptions=True
        )
        for error in results:
            if isinstance(error, Exception) and not isinstance(error, AgentNotLoadedError):
                _log.error("cannot stop an agent: %s", redact(str(error)))

    # -- private ---------------------------------------------------------------------------------

    async def _run_unless_closing(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closing:
            work.close()
            raise ManagerClosingError(_CLOSING_TEXT)
        task = asyncio.create_task(work)
        self._load_tasks.add(task)
        task.add_done_callback(self._load_tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_closing:
                raise ManagerClosingError(_CLOSING_TEXT) from None
            raise

    def _get_lock(self, agent_id: str) -> asyncio.Lock:
        """Return the lock that is held while an agent of this name is loaded or unloaded."""
        return self._locks.setdefault(agent_id, asyncio.Lock())

    async def _load_agent(self, path: str | Path, model: str | None) -> AgentSlot:
        folder = await asyncio.to_thread(self.roots.find_agent, str(path))
        self._reject_loaded_folder(folder)
        return await self._read_and_start(folder, model)

    async def _reload_agent(self, agent_id: str) -> AgentSlot:
        slot = self.get(agent_id)
        _reject_reload_with_graphs(slot)
        folder = await asyncio.to_thread(self.roots.find_agent, str(slot.path))
        self._reject_loading_folder(folder)
        return await self._read_and_start(folder, slot.model, replaced_slot=slot)

    async def _read_and_start(
        self, folder: Path, model: str | None, *, replaced_slot: AgentSlot | None = None
    ) -> AgentSlot:
        self._loading_folders.add(folder)
        name = ""
        bus = self._bus(lambda: name)
        added_graphs: dict[str, AgentRunner] = {}
        lifecycle = self._make_lifecycle(added_graphs)
        try:
            runner = await self._read_agent(folder, model, bus, lifecycle)
            name = runner.spec.name
            try:
                return await self._start_agent(runner, model, lifecycle, added_graphs, replaced_slot)
            except BaseException:
                await _clean_up(runner)
                raise
        except BaseException:
            await bus.close()
            raise
        finally:
            self._loading_folders.discard(folder)

    def _make_lifecycle(self, added_graphs: dict[str, AgentRunner]) -> Lifecycle:
        """Return the tools with which an agent loads further graphs into ``added_graphs``."""

        def load(path: Path) -> AgentRunner:
            return self._load_runner(self.roots.find_agent(str(path)), None, None, lifecycle)

        lifecycle = Lifecycle(self.roots.folders, load=load, runners=added_graphs)
        return lifecycle

    async def _start_agent(
        self,
        runner: AgentRunner,
        model: str | None,
        lifecycle: Lifecycle,
        added_graphs: dict[str, AgentRunner],
        replaced_slot: AgentSlot | None,
    ) -> AgentSlot:
        name = runner.spec.name
        async with self._get_lock(name):
            if replaced_slot is not None:
                await self._close_for_replacement(replaced_slot, runner)
            elif (loaded_slot := self._slots.get(name)) is not None:
                raise AgentAlreadyLoadedError(_describe_loaded_agent(loaded_slot))
            self.companions.add(name, await asyncio.to_thread(list_companion_sessions, runner.storage))
            runtime = await self._run_within_limit(runner, runner.start())
            validation = await asyncio.to_thread(runner.validate)
            slot = self._slots[name] = AgentSlot(
                id=name,
                path=runner.path,
                runner=runner,
                runtime=runtime,
                info=runner.info(),
                warnings=validation.warnings,
                loaded_at=self._clock(),
                model=model,
                lifecycle=lifecycle,
                added_graphs=added_graphs,
            )
        return slot

    async def _close_for_replacement(self, slot: AgentSlot, runner: AgentRunner) -> None:
        """Close an agent so that its new version can start. Check the new version first."""
        if runner.spec.name != slot.id:
            raise ReloadRefusedError(
                f"the agent in {slot.path} is named {runner.spec.name!r} now, not {slot.id!r}; "
                "unload it and load the new one"
            )
        validation = await asyncio.to_thread(runner.validate)
        if not validation.ok:
            raise InvalidAgentError(slot.id, validation.errors)
        if self._slots.get(slot.id) is not slot:
            raise AgentNotLoadedError(slot.id)  # it was unloaded in the meantime
        _reject_reload_with_graphs(slot)
        await self._close(slot)

    async def _add_graph(
        self, agent_id: str, path: str | Path, graph_id: str | None, model: str | None
    ) -> str:
        slot = self.get(agent_id)
        runner = await self._read_agent(
            await asyncio.to_thread(self.roots.find_agent, str(path)), model, None, slot.lifecycle
        )
        name = graph_id or runner.spec.name
        try:
            if name in slot.runtime.list_graphs() or name in slot.loading_graphs:
                raise AgentAlreadyLoadedError(
                    f"agent {agent_id!r} has a graph {name!r} already, or is loading it; remove it first"
                )
            slot.loading_graphs.add(name)
            try:
                await self._run_within_limit(runner, runner.setup_as_secondary(slot.runtime, name))
            finally:
                slot.loading_graphs.discard(name)
            if self._slots.get(agent_id) is not slot or name not in slot.runtime.list_graphs():
                raise AgentNotLoadedError(agent_id)  # it was unloaded in the meantime
            slot.added_graphs[name] = runner
        except BaseException:
            await _clean_up(runner)
            raise
        return name

    async def _run_within_limit(self, runner: AgentRunner, work: Coroutine[Any, Any, T]) -> T:
        """Run an agent's start within the time limit: its MCP servers may never answer."""
        task = asyncio.create_task(work)
        self._start_tasks.add(task)
        task.add_done_callback(self._start_tasks.discard)
        try:
            return await within(LOAD_SECONDS, _await_task(task), self._sleep, grace=_STOP_SECONDS)
        except TimeoutError as error:
            servers = ", ".join(runner.info().mcp_servers) or "none"
            raise LoadTimeoutError(
                f"agent {runner.spec.name!r} has not started within {LOAD_SECONDS:g} s; see the logs "
                f"of its MCP servers ({servers}) in {runner.storage / 'logs'}"
            ) from error

    async def _close(self, slot: AgentSlot) -> None:
        del self._slots[slot.id]
        try:
            await slot.runner.cleanup_async()
        finally:
            await asyncio.gather(*(_clean_up(runner) for runner in list(slot.added_graphs.values())))
            await slot.runtime.bus.close()

    def _reject_loaded_folder(self, folder: Path) -> None:
        """Reject a folder whose agent is loaded, before its code runs again."""
        for slot in self._slots.values():
            if slot.path == folder:
                raise AgentAlreadyLoadedError(_describe_loaded_agent(slot))
        self._reject_loading_folder(folder)

    def _reject_loading_folder(self, folder: Path) -> None:
        if folder in self._loading_folders:
            raise AgentAlreadyLoadedError(
                f"{folder} is being loaded already; `queenright agents list` shows it once it is loaded"
            )

    def _reject_if_blocked(self, folder: Path) -> None:
        if self.is_blocked:
            raise LoadTimeoutError(
                f"{folder} cannot be loaded: the code of {self._hanging_folders[0]} is still running, and "
                "agents are loaded one at a time; if it never ends, fix it and restart the service"
            )

    async def _read_agent(
        self, folder: Path, model: str | None, bus: EventBus | None, lifecycle: Lifecycle
    ) -> AgentRunner:
        """Run an agent's code in a thread. A thread that hangs cannot be stopped."""
        if model is not None:
            model = await asyncio.to_thread(self.roots.resolve_model, model, folder)
        self._reject_if_blocked(folder)

        def work() -> AgentRunner:
            try:
                return self._load_runner(folder, model, bus, lifecycle)
            except Exception:
                raise
            except BaseException as error:
                # Exceptions such as SystemExit must not stop the service.
                raise AgentLoadError(folder, f"its code raised {type(error).__name__}") from error

        # One at a time: the time limit does not count the wait for another agent's code.
        async with self._read_lock:
            self._reject_if_blocked(folder)
            try:
                return await within(LOAD_SECONDS, self._threads.run(str(folder), work), self._sleep)
            except TimeoutError as error:
                raise LoadTimeoutError(
                    f"{folder} has not been loaded within {LOAD_SECONDS:g} s: its code does too much "
                    "on import; move that into a tool, or to the start of a run"
                ) from error
            finally:
                if self._threads.count_running(str(folder)):
                    self._hanging_folders.append(folder)

    def _load_runner(
        self, folder: Path, model: str | None, bus: EventBus | None, lifecycle: Lifecycle
    ) -> AgentRunner:
        """Load an agent. Blocks."""
        runner = AgentRunner.load(
            folder,
            model=model,
            guards=self._guards,
            breakers=self._breakers,
            bus=bus,
            offered_tools=lifecycle.tools,
        )
        if self._storage is not None:
            runner.storage = self._storage / runner.spec.name
        return runner


async def _await_task(task: asyncio.Task[T]) -> T:
    return await task


def _describe_loaded_agent(slot: AgentSlot) -> str:
    return (
        f"agent {slot.id!r} is loaded already, from {slot.path}; unload it first, with "
        f"`queenright agents unload {quote(slot.id)}`"
    )


def _reject_reload_with_graphs(slot: AgentSlot) -> None:
    if graph_ids := [*slot.added_graphs, *slot.loading_graphs]:
        raise ReloadRefusedError(
            f"agent {slot.id!r} runs other agents as its graphs ({', '.join(graph_ids)}); remove them first, "
            "or unload and load it"
        )


async def _clean_up(runner: AgentRunner) -> None:
    """Clean up after an agent. Log a failure."""
    try:
        await runner.cleanup_async()
    except Exception as error:
        _log.error("cannot clean up after agent %r: %s", runner.spec.name, redact(str(error)))
