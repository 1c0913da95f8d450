"""The agents that run inside the service: loaded, unloaded, and found again."""

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

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.agents.agent_check import AgentInfo
from queenright.runtime.agents.agent_spec import AgentLoadError
from queenright.runtime.agents.lifecycle_tools import Lifecycle
from queenright.runtime.agents.runner import AgentRunner
from queenright.runtime.breakers import Breakers
from queenright.runtime.bus import EventBus
from queenright.runtime.deadline import Sleep, within
from queenright.runtime.events import Clock
from queenright.runtime.nodes.guard import GuardFactory
from queenright.runtime.tooling.tool_threads import ToolThreads
from queenright.server.agents.companion_sessions import CompanionSessions, list_companion_sessions
from queenright.server.agents.roots import Roots

_log = logging.getLogger(__name__)

LOAD_SECONDS: Final = 60.0
"""How long the code of an agent may take to be loaded, and how long the agent then to start."""

_ENDING_SECONDS: Final = 10.0
"""A start that is given up ends its servers within so many seconds, and is waited for."""

_CLOSING: Final = "the service is stopping, and loads no agents"

T = TypeVar("T")


class AgentNotLoadedError(QueenrightError):
    """Raised when something is asked of an agent that does not run here."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(
            f"agent {redact(agent_id, 200)!r} is not loaded here; load it with `queenright agents load`; "
            "`queenright agents discover` lists those that can be loaded"
        )


class AgentAlreadyLoadedError(QueenrightError):
    """Raised when an agent is loaded whose name is taken."""


class LoadTimeoutError(QueenrightError):
    """Raised when an agent's code or start takes too long, or another one's code keeps it from beginning."""


class ManagerClosingError(QueenrightError):
    """Raised when an agent is loaded into a service that stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSlot:
    """One agent that is loaded: what runs it, and what it is."""

    id: str
    path: Path
    runner: AgentRunner
    runtime: AgentRuntime
    info: AgentInfo
    warnings: tuple[str, ...]
    loaded_at: float
    lifecycle: Lifecycle
    """The tools with which its nodes may load others beside it."""
    beside: dict[str, AgentRunner] = field(default_factory=dict)
    """Agents that were loaded as further graphs of it, by graph: by somebody, or by its own nodes."""
    coming: set[str] = field(default_factory=set)
    """Graphs that are about to be."""

    @property
    def graph_id(self) -> str:
        """Its own graph."""
        return self.runner.spec.graph.id


class AgentManager:
    """
    The agents that are loaded. Each has a runtime of its own, and a bus that leads into the service's.

    Args:
        roots: Agents are loaded from below these folders only.
        bus: Makes the bus of an agent, given what says its name, once it has begun.
        companions: Remembers the sessions of graphs that run next to an agent.
        storage: Holds a folder for each agent's sessions; None is where `queenright run` has them.
        clock: Seconds since the epoch.
        guards: Makes the guards that watch nodes from inside.
        breakers: Gives the circuit breakers.
        sleep: The clock of time limits.
        load_seconds: How long an agent's code may take to be loaded, and how long the agent then to start.
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
        load_seconds: float = LOAD_SECONDS,
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
        self._load_seconds = load_seconds
        self._slots: dict[str, AgentSlot] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reading = asyncio.Lock()
        self._coming: set[Path] = set()
        """Folders of agents that are being loaded."""
        self._underway: set[asyncio.Task[Any]] = set()
        self._starting: set[asyncio.Task[Any]] = set()
        """Starts that are not over, also those that were given up and end their servers."""
        self._threads = ToolThreads()
        self._hanging: list[Path] = []
        """Agents whose code is still being loaded, though nobody waits for them any more."""
        self._closing = False

    @property
    def slots(self) -> Mapping[str, AgentSlot]:
        """The agents that are loaded, by name, in the order they were."""
        return MappingProxyType(self._slots)

    def get(self, agent_id: str) -> AgentSlot:
        """
        Return one that is loaded.

        Raises:
            AgentNotLoadedError: It is not.
        """
        slot = self._slots.get(agent_id)
        if slot is None:
            raise AgentNotLoadedError(agent_id)
        return slot

    def runtimes(self) -> Iterator[AgentRuntime]:
        """Give what they run on, for who watches over them."""
        return iter([slot.runtime for slot in self._slots.values()])

    @property
    def is_held_up(self) -> bool:
        """Whether the code of an agent that was given up is still at work: no other can be loaded then."""
        self._hanging = [path for path in self._hanging if self._threads.running(str(path))]
        return bool(self._hanging)

    async def load(self, path: str | Path, *, model: str | None = None) -> AgentSlot:
        """
        Load an agent and start it. Its code runs in this process.

        Args:
            path: Its folder, below a root.
            model: The model to use in place of its own.

        Raises:
            PathNotAllowedError: There is no such folder below the roots.
            AgentLoadError, InvalidAgentError, McpUnavailableError, GraphError: What is wrong with it.
            AgentAlreadyLoadedError: Its name is taken.
            LoadTimeoutError: Its code does not come to an end, or its MCP servers do not answer.
            ManagerClosingError: The service stops.
        """
        return await self._unless_closing(self._loaded(path, model))

    async def unload(self, agent_id: str) -> None:
        """
        Pause what an agent does, and let it go; its sessions stay on disk.

        Raises:
            AgentNotLoadedError: It is not there.
        """
        self.get(agent_id)
        async with self._turn_of(agent_id):
            await self._close(self.get(agent_id))

    async def add_graph(
        self, agent_id: str, path: str | Path, *, graph_id: str | None = None, model: str | None = None
    ) -> str:
        """
        Load an agent as one more graph of another one; return the graph's id.

        Args:
            agent_id: Whose graph it becomes.
            path: Its folder, below a root.
            graph_id: What it is called there; its own name without.
            model: The model to use in place of its own.

        Raises:
            AgentNotLoadedError: The other one is not there, or not any more.
            AgentAlreadyLoadedError: It has a graph of this id, or is about to.
            GraphError: And what ``load`` raises.
        """
        return await self._unless_closing(self._added(agent_id, path, graph_id, model))

    async def remove_graph(self, agent_id: str, graph_id: str) -> None:
        """
        Pause what a graph does, and let it go; its sessions stay on disk.

        Raises:
            AgentNotLoadedError: There is no such agent.
            GraphError: There is no such graph, or it is the agent's own.
        """
        async with self._turn_of(agent_id):
            slot = self.get(agent_id)
            await slot.runtime.remove_graph(graph_id)
            runner = slot.beside.pop(graph_id, None)
            if runner is not None:
                await runner.cleanup_async()

    def stop_loading(self) -> None:
        """Give up what is being loaded: whoever waits for that is told; none is loaded any more."""
        self._closing = True
        for task in self._underway:
            task.cancel()

    async def shutdown_all(self) -> None:
        """Pause and let go of all agents; none is loaded any more."""
        self.stop_loading()
        await asyncio.gather(*self._underway, return_exceptions=True)
        if self._starting:
            await asyncio.wait(self._starting, timeout=_ENDING_SECONDS)
        ended = await asyncio.gather(
            *(self.unload(agent_id) for agent_id in list(self._slots)), return_exceptions=True
        )
        for error in ended:
            if isinstance(error, Exception) and not isinstance(error, AgentNotLoadedError):
                _log.error("an agent could not be stopped: %s", redact(str(error)))

    # -- inside ---------------------------------------------------------------------------------

    async def _unless_closing(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closing:
            work.close()
            raise ManagerClosingError(_CLOSING)
        task = asyncio.create_task(work)
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closing:
                raise ManagerClosingError(_CLOSING) from None
            raise

    def _turn_of(self, agent_id: str) -> asyncio.Lock:
        """Return what is held while an agent of this name begins or ends; nobody else waits for that."""
        return self._turns.setdefault(agent_id, asyncio.Lock())

    async def _loaded(self, path: str | Path, model: str | None) -> AgentSlot:
        folder = await asyncio.to_thread(self.roots.agent, str(path))
        self._refuse_folder(folder)
        self._coming.add(folder)
        name = ""
        bus = self._bus(lambda: name)
        beside: dict[str, AgentRunner] = {}
        lifecycle = self._lifecycle(beside)
        try:
            runner = await self._read(folder, model, bus, lifecycle)
            name = runner.spec.name
            try:
                return await self._started(runner, lifecycle, beside)
            except BaseException:
                await _end(runner)
                raise
        except BaseException:
            await bus.close()
            raise
        finally:
            self._coming.discard(folder)

    def _lifecycle(self, beside: dict[str, AgentRunner]) -> Lifecycle:
        """Return the tools of an agent with which it loads others; what it loads is in ``beside``."""

        def load(path: Path) -> AgentRunner:
            return self._load(self.roots.agent(str(path)), None, None, lifecycle)

        lifecycle = Lifecycle(self.roots.folders, load=load, loaded=beside)
        return lifecycle

    async def _started(
        self, runner: AgentRunner, lifecycle: Lifecycle, beside: dict[str, AgentRunner]
    ) -> AgentSlot:
        name = runner.spec.name
        async with self._turn_of(name):
            if (taken := self._slots.get(name)) is not None:
                raise AgentAlreadyLoadedError(_taken(taken))
            self.companions.note(name, await asyncio.to_thread(list_companion_sessions, runner.storage))
            runtime = await self._soon(runner, runner.start())
            checked = await asyncio.to_thread(runner.validate)
            slot = self._slots[name] = AgentSlot(
                id=name,
                path=runner.path,
                runner=runner,
                runtime=runtime,
                info=runner.info(),
                warnings=checked.warnings,
                loaded_at=self._clock(),
                lifecycle=lifecycle,
                beside=beside,
            )
        return slot

    async def _added(self, agent_id: str, path: str | Path, graph_id: str | None, model: str | None) -> str:
        slot = self.get(agent_id)
        runner = await self._read(
            await asyncio.to_thread(self.roots.agent, str(path)), model, None, slot.lifecycle
        )
        name = graph_id or runner.spec.name
        try:
            if name in slot.runtime.list_graphs() or name in slot.coming:
                raise AgentAlreadyLoadedError(
                    f"agent {agent_id!r} has a graph {name!r} already, or is about to; remove it first"
                )
            slot.coming.add(name)
            try:
                await self._soon(runner, runner.setup_as_secondary(slot.runtime, name))
            finally:
                slot.coming.discard(name)
            if self._slots.get(agent_id) is not slot or name not in slot.runtime.list_graphs():
                raise AgentNotLoadedError(agent_id)  # it went meanwhile
            slot.beside[name] = runner
        except BaseException:
            await _end(runner)
            raise
        return name

    async def _soon(self, runner: AgentRunner, work: Coroutine[Any, Any, T]) -> T:
        """Return what an agent's start returns in time: its servers may never answer."""
        task = asyncio.create_task(work)
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        try:
            return await within(self._load_seconds, _of(task), self._sleep, grace=_ENDING_SECONDS)
        except TimeoutError as error:
            servers = ", ".join(runner.info().mcp_servers) or "none"
            raise LoadTimeoutError(
                f"agent {runner.spec.name!r} has not started within {self._load_seconds:g} s; its MCP "
                f"servers ({servers}) write what they do to {runner.storage / 'logs'}"
            ) from error

    async def _close(self, slot: AgentSlot) -> None:
        del self._slots[slot.id]
        try:
            await slot.runner.cleanup_async()
        finally:
            await asyncio.gather(*(_end(runner) for runner in list(slot.beside.values())))
            await slot.runtime.bus.close()

    def _refuse_folder(self, folder: Path) -> None:
        """Refuse a folder before its code is run again."""
        for slot in self._slots.values():
            if slot.path == folder:
                raise AgentAlreadyLoadedError(_taken(slot))
        if folder in self._coming:
            raise AgentAlreadyLoadedError(
                f"{folder} is being loaded already; `queenright agents list` shows it once it is there"
            )

    def _refuse_held_up(self, folder: Path) -> None:
        if self.is_held_up:
            raise LoadTimeoutError(
                f"{folder} cannot be loaded: the code of {self._hanging[0]} is still at work, and no other "
                "is loaded meanwhile; if it never ends, mend it and restart the service"
            )

    async def _read(
        self, folder: Path, model: str | None, bus: EventBus | None, lifecycle: Lifecycle
    ) -> AgentRunner:
        """Run an agent's code, in a thread that may hang: it cannot be stopped."""
        if model is not None:
            model = await asyncio.to_thread(self.roots.model, model, folder)
        self._refuse_held_up(folder)

        def work() -> AgentRunner:
            try:
                return self._load(folder, model, bus, lifecycle)
            except Exception:
                raise
            except BaseException as error:
                # What would end a program must not end this one.
                raise AgentLoadError(folder, f"its code raised {type(error).__name__}") from error

        # The code of one at a time: who waits for another's is not to blame for the time.
        async with self._reading:
            self._refuse_held_up(folder)
            try:
                return await within(self._load_seconds, self._threads.run(str(folder), work), self._sleep)
            except TimeoutError as error:
                raise LoadTimeoutError(
                    f"{folder} has not been loaded within {self._load_seconds:g} s: its code does too much "
                    "when it is imported; do that where a tool is called, or when a run begins"
                ) from error
            finally:
                if self._threads.running(str(folder)):
                    self._hanging.append(folder)

    def _load(
        self, folder: Path, model: str | None, bus: EventBus | None, lifecycle: Lifecycle
    ) -> AgentRunner:
        """Blocks."""
        runner = AgentRunner.load(
            folder,
            model=model,
            interactive=False,
            guards=self._guards,
            breakers=self._breakers,
            bus=bus,
            offered_tools=lifecycle.tools,
        )
        if self._storage is not None:
            runner.storage = self._storage / runner.spec.name
        return runner


async def _of(task: asyncio.Task[T]) -> T:
    return await task


def _taken(slot: AgentSlot) -> str:
    return (
        f"agent {slot.id!r} is loaded already, from {slot.path}; unload it first, with "
        f"`queenright agents unload {quote(slot.id)}`"
    )


async def _end(runner: AgentRunner) -> None:
    """Let go of an agent, whatever it says to that."""
    try:
        await runner.cleanup_async()
    except Exception as error:
        _log.error("agent %r could not be ended: %s", runner.spec.name, redact(str(error)))
