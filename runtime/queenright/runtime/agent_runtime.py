"""The agent runtime: several graphs at work on one event bus."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from prometheus_client import CollectorRegistry

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.telemetry import Telemetry
from queenright.instrumentation.worker import HEARTBEAT_SECONDS
from queenright.runtime.breakers import Breakers
from queenright.runtime.bus import EventBus, Handler, Subscription
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock, EventType
from queenright.runtime.execution import Execution, ExecutionResult, Trigger
from queenright.runtime.graphs.goal import Goal, GoalProgress
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec
from queenright.runtime.heartbeats import Heartbeats
from queenright.runtime.inputs import check_input, check_json, check_names, missing_input, used_names
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.nodes.function_node import NodeFunction
from queenright.runtime.nodes.guard import GuardFactory
from queenright.runtime.nodes.node_judge import NodeJudge
from queenright.runtime.parts import Lives, LoadedGraph
from queenright.runtime.sessions import Sessions
from queenright.runtime.storage.checkpoint_store import Checkpoint, CheckpointStore
from queenright.runtime.storage.files import Disk
from queenright.runtime.storage.replay import branch
from queenright.runtime.storage.session_state import ExecutionState, SessionState
from queenright.runtime.storage.session_store import Session, SessionStatus, SessionStore
from queenright.runtime.stream import Entry, ExecutionStream
from queenright.runtime.stream_surroundings import StreamSurroundings
from queenright.runtime.tooling.approval import ApprovalCallback
from queenright.runtime.tooling.tools import Tool, ToolRegistry
from queenright.runtime.workers import Workers

_log = logging.getLogger(__name__)

RESULTS_KEPT: Final = 1000
"""So many runs that are over are remembered, the newest."""

PRESENT_SECONDS: Final = 120.0
"""A user who said something within so many seconds is there."""

_RESUMABLE: Final = frozenset(
    {
        SessionStatus.ACTIVE,
        SessionStatus.PAUSED,
        SessionStatus.FAILED,
        SessionStatus.CANCELLED,
        SessionStatus.TERMINATED,
    }
)


class GraphError(QueenrightError):
    """Raised when a graph, entry point, run or node is asked for that is not there, or is added twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingNode:
    """A node that waits for a user."""

    graph_id: str
    node_id: str
    execution_id: str
    session_id: str
    question: str


@dataclass(frozen=True, slots=True)
class _Registered:
    graph: LoadedGraph
    streams: Mapping[str, ExecutionStream]


class AgentRuntime:
    """
    Runs graphs. All of them share one bus; each has its own sessions on disk.

    Args:
        bus: Where events come from and go to.
        storage: The folder of the sessions: ``sessions/...`` of the primary graph, ``graphs/{id}/...`` of
            the others.
        clock: Times of events, and of cron.
        monotonic: The clock that intervals and presence go by, in seconds from anywhere.
        sleep: Waits on that clock.
        ids: Makes ids of runs.
        disk: Does the disk work.
        guards: Makes the guards that watch nodes for loops from inside; without, there are none.
        breakers: Gives the circuit breakers before tools, models and checkpoints; without, there are none.
        telemetry: Where spans of workers go; without, nowhere.
        registry: Where the metrics of workers live; without, in one of their own.
        random: Spreads retries and heartbeats.
        heartbeat_interval: Seconds between the heartbeats of a run of a worker at most; None for none.
    """

    def __init__(
        self,
        *,
        bus: EventBus,
        storage: Path,
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        ids: Callable[[], str] = new_id,
        disk: Disk | None = None,
        guards: GuardFactory | None = None,
        breakers: Breakers | None = None,
        telemetry: Telemetry | None = None,
        registry: CollectorRegistry | None = None,
        random: Random | None = None,
        heartbeat_interval: float | None = HEARTBEAT_SECONDS,
    ) -> None:
        self.bus = bus
        self.storage = storage
        self.disk = disk or Disk()
        self._monotonic = monotonic
        self._registered: dict[str, _Registered] = {}
        self._active_graph_id: str | None = None
        self._sessions = Sessions(
            SessionStore(storage, clock=clock),
            self._is_shareable,
            lambda: [registered.graph.store for registered in list(self._registered.values())],
        )
        self._user_spoke_at: float | None = None
        self._executions: dict[str, Execution] = {}
        self._deleting: set[str] = set()
        """Sessions that are being deleted: nothing may be queued in them."""
        self._started = False
        muted = (Telemetry.muted(), CollectorRegistry())
        random = random or Random()
        self._heartbeats = Heartbeats(heartbeat_interval, monotonic=monotonic, sleep=sleep, random=random)
        self._around = StreamSurroundings(
            bus=bus,
            clock=clock,
            monotonic=monotonic,
            sleep=sleep,
            ids=ids,
            disk=self.disk,
            random=random,
            guards=guards,
            breakers=breakers,
            telemetry=telemetry or muted[0],
            registry=registry or CollectorRegistry(),
            muted=muted,
            lives=Lives(ids()),
            heartbeats=self._heartbeats,
            sessions=self._sessions,
            remember=self._remember,
            context={"runtime": self},
        )

        self.workers = Workers(
            lambda: [(r.graph, r.streams) for r in self._registered.values()] if self._started else [],
            self._around,
        )
        """The workers among its graphs, for who watches over them."""

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start every graph added so far; those added later start at once."""
        if not self._started:
            self._started = True
            for registered in self._registered.values():
                _start(registered)

    async def stop(self) -> None:
        """Stop everything; runs are paused and can be resumed, and no task and no subscription is left."""
        self._started = False
        streams = [s for r in self._registered.values() for s in r.streams.values()]
        await asyncio.gather(*(stream.stop() for stream in streams))
        await self._heartbeats.stop()

    # -- graphs ---------------------------------------------------------------------------------

    def add_graph(
        self,
        graph: GraphSpec,
        *,
        model: LLMProvider | None = None,
        models: Mapping[str, LLMProvider] | None = None,
        tools: Iterable[Tool] = (),
        functions: Mapping[str, NodeFunction] | None = None,
        judges: Mapping[str, NodeJudge] | None = None,
        goal: Goal | None = None,
        agent_id: str = "",
        primary: bool = False,
        entries: Mapping[str, Entry] | None = None,
    ) -> None:
        """
        Add a graph, before the start or after.

        Args:
            graph: What it is.
            model: Who thinks in its nodes; a graph of functions needs none.
            models: Models of single nodes, by the name that the node gives.
            tools: What its nodes may use.
            functions: What its function nodes and routers run, by name.
            judges: Who judges its nodes' turns, by name.
            goal: What it is for; progress towards it is told.
            agent_id: The worker that it is; empty for a graph that is none, and is not monitored.
            primary: Whether this is the graph that the others are there for: at most one.
            entries: By entry point, what to do when it fires in place of one run of the graph.

        Raises:
            GraphError: The id is taken, or something that the graph names is not given; says what.
        """
        if graph.id in self._registered:
            raise GraphError(f"graph {graph.id!r} is there already; remove it first")
        if primary and (taken := self._primary()) is not None:
            raise GraphError(f"graph {graph.id!r} cannot be primary: {taken!r} is")
        registry = ToolRegistry(tools)
        loaded = LoadedGraph(
            spec=graph,
            model=model,
            models=dict(models or {}),
            tools=registry,
            functions=dict(functions or {}),
            judges=dict(judges or {}),
            goal=goal,
            agent_id=agent_id,
            primary=primary,
            store=self._store(graph.id, primary=primary),
        )
        chosen = dict(entries or {})
        _complete(loaded, chosen)
        streams = {
            spec.id: ExecutionStream(loaded, spec, entry=chosen.get(spec.id), around=self._around)
            for spec in graph.entry_points
        }
        self._registered[graph.id] = _Registered(loaded, streams)
        if self._started:
            _start(self._registered[graph.id])

    async def remove_graph(self, graph_id: str) -> None:
        """
        Pause what the graph is doing and forget it; its sessions stay on disk.

        Raises:
            GraphError: There is no such graph, or it is the primary one.
        """
        registered = self._find(graph_id)
        if registered.graph.primary:
            raise GraphError(f"graph {graph_id!r} is the primary one and stays; stop the runtime instead")
        del self._registered[graph_id]
        if self._active_graph_id == graph_id:
            self._active_graph_id = None
        await asyncio.gather(*(stream.stop() for stream in registered.streams.values()))

    def list_graphs(self) -> list[str]:
        """Ids of the graphs, in the order they were added."""
        return list(self._registered)

    def get_graph(self, graph_id: str | None = None) -> GraphSpec:
        """
        Return a graph's specification; without an id, the active graph's.

        Raises:
            GraphError: There is no such graph.
        """
        return self._find(graph_id).graph.spec

    def get_active_graph(self) -> GraphSpec:
        """
        Return the graph that receives what a user says.

        Raises:
            GraphError: There is no graph.
        """
        return self.get_graph()

    @property
    def active_graph_id(self) -> str:
        """
        The graph that receives what a user says: the one that was set, else the primary, else the first.

        Raises:
            GraphError: There is no graph, or none of the id that is set.
        """
        return self._find(None).graph.spec.id

    @active_graph_id.setter
    def active_graph_id(self, graph_id: str) -> None:
        self._active_graph_id = self._find(graph_id).graph.spec.id

    def get_entry_points(self, graph_id: str | None = None) -> list[EntryPointSpec]:
        """
        Return the entry points of a graph; without an id, the active graph's.

        Raises:
            GraphError: There is no such graph.
        """
        return list(self._find(graph_id).graph.spec.entry_points)

    def get_stream(self, entry_point_id: str, *, graph_id: str | None = None) -> ExecutionStream:
        """
        Return the stream of an entry point: what runs, what waits, ticks skipped.

        Raises:
            GraphError: There is no such graph or entry point.
        """
        registered = self._find(graph_id)
        stream = registered.streams.get(entry_point_id)
        if stream is None:
            have, name = ", ".join(registered.streams), registered.graph.spec.id
            raise GraphError(f"graph {name!r} has no entry point {entry_point_id!r}; it has: {have}")
        return stream

    def session_store(self, graph_id: str | None = None) -> SessionStore:
        """
        Return where a graph's sessions are.

        Raises:
            GraphError: There is no such graph.
        """
        return self._find(graph_id).graph.store

    def find_session(
        self, session_id: str, graph_id: str | None = None
    ) -> tuple[SessionStore, Session, SessionState]:
        """
        Return a session that a graph has run in, its own or one that it shares, and its state. Blocks.

        Raises:
            GraphError: There is no such graph.
            InvalidSessionIdError: The id could not be the name of a folder.
            SessionNotFound: There is no such session.
            UnusableFileError: Its state cannot be read.
        """
        return self._sessions.located(self._find(graph_id).graph, session_id)

    def list_sessions(self, graph_id: str | None = None) -> list[tuple[SessionStore, SessionState]]:
        """
        Return the sessions of a graph, and those of others that it has run in, newest first. Blocks.

        Raises:
            GraphError: There is no such graph.
        """
        graph = self._find(graph_id).graph
        found = [(graph.store, state) for state in graph.store.list_sessions()]
        if _shares_sessions(graph):
            found += [
                (store, state)
                for store in self._sessions.stores()
                if store.base != graph.store.base
                for state in store.list_sessions()
                if any(run.graph_id == graph.spec.id for run in state.executions.values())
            ]
        return sorted(found, key=lambda one: (one[1].created_at, one[1].session_id), reverse=True)

    async def delete_session(self, session_id: str, graph_id: str | None = None) -> None:
        """
        Remove a session of a graph with all that lies in its folder.

        Raises:
            GraphError: There is no such graph, or a run waits for its turn in the session.
            InvalidSessionIdError: The id could not be the name of a folder.
            SessionNotFound: There is no such session.
            SessionBusy: An execution writes in it.
        """
        store = self.session_store(graph_id)
        streams = [stream for r in self._registered.values() for stream in r.streams.values()]
        for run in (run for stream in streams for run in stream.executions):
            if run.session_id == session_id and run.is_queued:
                raise GraphError(
                    f"session {session_id!r} is busy: run {run.id!r} waits for its turn in it; stop that "
                    "first, or wait until it is over"
                )
        self._deleting.add(session_id)
        try:
            await self.disk.run(lambda: store.delete_session(session_id))
        finally:
            self._deleting.discard(session_id)

    # -- runs -----------------------------------------------------------------------------------

    async def trigger(
        self,
        entry_point_id: str,
        input_data: Mapping[str, Any] | None = None,
        *,
        graph_id: str | None = None,
        session_id: str | None = None,
    ) -> str:
        """
        Fire an entry point, whatever its own trigger is, and return the run's id at once.

        Args:
            entry_point_id: Which one.
            input_data: What the run is given, as JSON values.
            graph_id: Of which graph; without, of the active one.
            session_id: An existing session to run in.

        Raises:
            GraphError: There is no such graph or entry point, or the runtime is not started.
            TooManyWaitingError: As many runs wait for their turn there as may.
            InputRefused: The run cannot begin with this input; nothing was run.
            TypeError: ``input_data`` is no mapping.
        """
        stream = self.get_stream(entry_point_id, graph_id=graph_id)
        self._check_started(stream)
        if input_data is not None and not isinstance(input_data, Mapping):
            kind = type(input_data).__name__
            raise TypeError(
                f"input_data of {stream.id!r} must be a mapping of names to JSON values, "
                f'such as {{"question": "..."}}, not {kind}'
            )
        await self._check_input(self._find(graph_id).graph, stream, input_data or {}, session_id)
        self._check_kept(session_id)
        return stream.fire(Trigger(input_data=input_data or {}), session_id=session_id).id

    async def _check_input(
        self,
        graph: LoadedGraph,
        stream: ExecutionStream,
        given: Mapping[str, Any],
        session_id: str | None,
    ) -> None:
        """
        Check that a run can begin with what it is given, and with what its session remembers.

        Raises:
            InputRefused: It cannot.
        """
        if stream.has_entry:
            return  # whoever fires it makes the node's input
        node = graph.spec.node(stream.spec.node_id)
        function = graph.functions[node.function] if node.function else None
        check_json(given)
        names = list(given)
        if missing_input(node, function, given):
            known = await self.disk.run(lambda: self._sessions.memory(graph, stream.spec, session_id))
            if known is None:
                return  # whatever is wrong with that session, the run says
            given = {**known, **given} if node.input_keys else given
        check_input(node, function, given)
        check_names(graph.spec, node, function, names, self._used_names(graph))

    def _used_names(self, graph: LoadedGraph) -> set[str]:
        """Return what is used of the memory of a graph's sessions, by it and by graphs that share them."""
        graphs = [graph]
        if _shares_sessions(graph):
            graphs = [one for one in (r.graph for r in self._registered.values()) if _shares_sessions(one)]
        return set().union(*(used_names(one.spec, one.functions, one.goal) for one in graphs))

    async def resume(
        self, session_id: str, graph_id: str | None = None, *, checkpoint_id: str | None = None
    ) -> str:
        """
        Take up the newest run of a session that did not get to its end, and return its id.

        Args:
            session_id: The session.
            graph_id: Whose session; without, the active graph's.
            checkpoint_id: Take up the run that this checkpoint is of, as it was then.

        Raises:
            SessionNotFound: There is no such session.
            CheckpointNotFoundError: There is no such checkpoint.
            CorruptCheckpointError: The checkpoint cannot be believed.
            GraphError: There is no such graph, nothing to resume, it goes on already, or the runtime is
                not started.
            SessionBusy: Another process runs an execution in the session.
            TooManyWaitingError: As many runs wait for their turn there as may.
        """
        graph = self._find(graph_id).graph
        last, checkpoint = await self.disk.run(lambda: self._resumable(graph, session_id, checkpoint_id))
        stream = self.get_stream(last.entry_point, graph_id=graph.spec.id)
        self._check_started(stream)
        gone = {pending.node_id for pending in last.pending} - {node.id for node in graph.spec.nodes}
        if gone:
            raise GraphError(
                f"session {session_id!r} cannot be resumed: it was in node {min(gone)!r}, which graph "
                f"{graph.spec.id!r} has no more; trigger it anew with the session's id, or go back to a "
                "checkpoint from before it"
            )
        if any(execution.id == last.execution_id for execution in stream.executions):
            raise GraphError(f"session {session_id!r} need not be resumed: run {last.execution_id!r} goes on")
        await self.disk.run(lambda: self._check_free(graph, session_id))
        self._check_kept(session_id)
        return stream.take_up(last.execution_id, session_id, checkpoint).id

    def _resumable(
        self, graph: LoadedGraph, session_id: str, checkpoint_id: str | None
    ) -> tuple[ExecutionState, Checkpoint | None]:
        """Return the run to go on with: the checkpoint's, or the newest that is not at its end. Blocks."""
        session, state = self._sessions.known(graph, session_id)
        if checkpoint_id is not None:
            checkpoints = CheckpointStore(session.checkpoints, clock=self._around.clock, ids=self._around.ids)
            checkpoint = checkpoints.load(checkpoint_id)
            return checkpoint.execution, checkpoint
        name = graph.spec.id
        runs = [run for run in state.executions.values() if run.graph_id == name]
        unfinished = [run for run in runs if run.status in _RESUMABLE]
        if not unfinished:
            ended = ", ".join(f"{run.entry_point} {run.status.value}" for run in runs) or "no run"
            raise GraphError(f"session {session_id!r} has nothing to resume in graph {name!r}: {ended}")
        return max(unfinished, key=lambda run: run.updated_at), None

    def _check_free(self, graph: LoadedGraph, session_id: str) -> None:
        """
        Check that no other process writes in a session; runs of this one take turns. Blocks.

        Raises:
            SessionBusy: One does.
            SessionNotFound: The session was deleted.
        """
        session, _ = self._sessions.known(graph, session_id)
        turn = self._around.locks.get(str(session.path))
        if turn is None or not turn.locked():
            graph.store.claim(session).release()

    async def replay(self, session_id: str, checkpoint_id: str, graph_id: str | None = None) -> Execution:
        """
        Begin a new run, in a new session, where another one was at a checkpoint; that one is left as it is.

        What its nodes made is copied along; what they did outside of the session is not undone.

        Args:
            session_id: The session of the checkpoint.
            checkpoint_id: Where the new run begins.
            graph_id: Whose session; without, the active graph's.

        Raises:
            SessionNotFound: There is no such session.
            CheckpointNotFoundError: There is no such checkpoint.
            CorruptCheckpointError: The checkpoint cannot be believed.
            GraphError: There is no such graph, nothing is left to do at the checkpoint, all runs of its
                entry point are in one session, or the runtime is not started.
            TooManyWaitingError: As many runs wait for their turn there as may.
        """
        graph = self._find(graph_id).graph
        last, checkpoint = await self.disk.run(lambda: self._resumable(graph, session_id, checkpoint_id))
        assert checkpoint is not None  # one was named
        stream = self.get_stream(last.entry_point, graph_id=graph.spec.id)
        self._check_started(stream)
        _check_replayable(graph, stream, checkpoint)
        stream.check_room()  # before anything is copied
        ids = self._around.ids()

        def branched() -> str:
            session, _ = self._sessions.known(graph, session_id)
            made = branch(graph.store, session, checkpoint, execution_id=ids, agent_id=graph.agent_id)
            return made.id

        return stream.take_up(ids, await self.disk.run(branched), checkpoint)

    async def wait(self, execution_id: str) -> ExecutionResult:
        """
        Wait until a run is over, and return how it ended.

        Raises:
            GraphError: No run of that id is known.
        """
        return await self._execution(execution_id).ended()

    def get_execution_result(self, execution_id: str, graph_id: str | None = None) -> ExecutionResult | None:
        """
        Return how a run ended; None while it has not.

        Raises:
            GraphError: No run of that id is known, or it is another graph's.
        """
        execution = self._execution(execution_id)
        if graph_id is not None and execution.graph_id != graph_id:
            raise GraphError(f"run {execution_id!r} is of graph {execution.graph_id!r}, not {graph_id!r}")
        return execution.result

    def get_execution(self, execution_id: str) -> Execution:
        """
        Return a run: waiting for its turn, going on, or over.

        Raises:
            GraphError: No run of that id is known.
        """
        return self._execution(execution_id)

    async def cancel_execution(self, execution_id: str, graph_id: str | None = None) -> bool:
        """
        Stop a run; it has ended when this returns, and goes on only if it is resumed.

        False if there is none such, or it was at its end already.
        """
        return await self._end(execution_id, graph_id, SessionStatus.CANCELLED)

    async def pause_execution(self, execution_id: str, graph_id: str | None = None) -> bool:
        """
        Put a run by, to be resumed; it has stopped when this returns.

        False if there is none such, or it was at its end already.
        """
        return await self._end(execution_id, graph_id, SessionStatus.PAUSED)

    def get_goal_progress(self, graph_id: str | None = None) -> GoalProgress | None:
        """
        Return how far the newest run of a graph has got towards its goal; None if it has none.

        Raises:
            GraphError: There is no such graph.
        """
        name = self._find(graph_id).graph.spec.id
        for execution in reversed(self._executions.values()):
            if execution.graph_id == name and (goal := execution.goal) is not None:
                return goal
        return None

    # -- users ----------------------------------------------------------------------------------

    async def inject_input(
        self, node_id: str, content: str, graph_id: str | None = None, *, session_id: str | None = None
    ) -> bool:
        """
        Give a running node what a user said; it is durable when this returns.

        Without a graph, the active one is looked at first, then the others; a node that waits for input
        comes before one that does not.

        Returns:
            False if no such node is running: then ``trigger`` is what was meant. What is said to a node that
        talks with no user, and ends before its next turn, waits for its next visit.

        Raises:
            GraphError: There is no such graph, or several runs have such a node: then say the session.
        """
        self._user_spoke_at = self._monotonic()
        graphs = [self._find(graph_id)] if graph_id is not None else self._by_attention()
        for registered in graphs:
            nodes = [
                (execution, node)
                for stream in registered.streams.values()
                for execution, name, node in stream.nodes()
                if name == node_id and session_id in (None, execution.session_id)
            ]
            waiting = [found for found in nodes if found[1].waiting_for_user]
            found = waiting or nodes
            if len(found) > 1:
                sessions = ", ".join(sorted(str(execution.session_id) for execution, _ in found))
                raise GraphError(
                    f"node {node_id!r} is running in several sessions; say which with session_id: {sessions}"
                )
            if found:
                await found[0][1].inject(content)
                return True
        return False

    def waiting_nodes(self) -> list[WaitingNode]:
        """Return the nodes that wait for a user, those of the active graph first."""
        return [
            WaitingNode(
                graph_id=registered.graph.spec.id,
                node_id=node_id,
                execution_id=execution.id,
                session_id=execution.session_id or "",
                question=node.question or "",
            )
            for registered in self._by_attention()
            for stream in registered.streams.values()
            for execution, node_id, node in stream.nodes()
            if node.waiting_for_user
        ]

    @property
    def user_idle_seconds(self) -> float:
        """How long no user has said anything; infinite if none ever has."""
        return math.inf if self._user_spoke_at is None else self._monotonic() - self._user_spoke_at

    @property
    def user_present(self) -> bool:
        """Whether a user said something lately."""
        return self.user_idle_seconds < PRESENT_SECONDS

    def set_approval_callback(self, callback: ApprovalCallback | None) -> None:
        """
        Have a callback approve each tool call before it is made; None approves all.

        It is asked about the tools of all graphs, one call at a time, and may take as long as a person does:
        the worker waits for its user meanwhile. A call that is not approved, or about which the callback
        fails, is not made, and the model is told so. The nodes' own tools are not asked about. It holds for
        nodes that begin their visit from now on; while one is set, None takes effect at once.
        """
        self._around.approvals.callback = callback

    def subscribe_to_events(
        self,
        types: Collection[EventType] | None,
        handler: Handler,
        *,
        name: str = "runtime",
        filter_graph: str | None = None,
        filter_stream: str | None = None,
        filter_node: str | None = None,
    ) -> Subscription:
        """Call ``handler`` for events of this bus; ``cancel()`` what is returned to end it."""
        return self.bus.subscribe(
            handler,
            name=name,
            types=types,
            filter_graph=filter_graph,
            filter_stream=filter_stream,
            filter_node=filter_node,
        )

    # -- inside ---------------------------------------------------------------------------------

    def _primary(self) -> str | None:
        return next((name for name, r in self._registered.items() if r.graph.primary), None)

    def _store(self, graph_id: str, *, primary: bool) -> SessionStore:
        base = self.storage if primary else self.storage / "graphs" / graph_id
        return SessionStore(base, clock=self._around.clock)

    def _find(self, graph_id: str | None) -> _Registered:
        wanted = graph_id or self._active_graph_id or self._primary() or next(iter(self._registered), None)
        registered = self._registered.get(wanted or "")
        if registered is None:
            have = ", ".join(self._registered) or "none"
            raise GraphError(f"there is no graph {wanted!r}; there are: {have}")
        return registered

    def _by_attention(self) -> list[_Registered]:
        if not self._registered:
            return []
        first = self._find(None)
        return [first, *(r for r in self._registered.values() if r is not first)]

    def _is_shareable(self, state: SessionState) -> bool:
        registered = self._registered.get(state.graph_id) or self._registered.get(self._primary() or "")
        entries = registered.graph.spec.entry_points if registered is not None else ()
        return state.entry_point not in {e.id for e in entries if e.isolation_level == "isolated"}

    def _check_started(self, stream: ExecutionStream) -> None:
        if not self._started:
            raise GraphError(f"cannot run {stream.id!r}: the runtime is not started")

    def _check_kept(self, session_id: str | None) -> None:
        if session_id in self._deleting:
            raise GraphError(f"session {session_id!r} is being deleted; leave the id out for a new one")

    def _remember(self, execution: Execution) -> None:
        self._executions.pop(execution.id, None)
        self._executions[execution.id] = execution
        if len(self._executions) > RESULTS_KEPT:
            over = [name for name, known in self._executions.items() if known.done]
            for name in over[: len(self._executions) - RESULTS_KEPT]:
                del self._executions[name]

    def _execution(self, execution_id: str) -> Execution:
        execution = self._executions.get(execution_id)
        if execution is None:
            raise GraphError(f"no run {execution_id!r} is known; the last {RESULTS_KEPT} are remembered")
        return execution

    async def _end(self, execution_id: str, graph_id: str | None, status: SessionStatus) -> bool:
        graphs = [self._find(graph_id)] if graph_id is not None else list(self._registered.values())
        for registered in graphs:
            for stream in registered.streams.values():
                if await stream.end(execution_id, status):
                    return True
        return False


def _start(registered: _Registered) -> None:
    for stream in registered.streams.values():
        stream.start()


def _shares_sessions(graph: LoadedGraph) -> bool:
    """Return whether a graph may run in sessions of other graphs, or others in its own."""
    return graph.primary or any(entry.isolation_level == "shared" for entry in graph.spec.entry_points)


def _check_replayable(graph: LoadedGraph, stream: ExecutionStream, checkpoint: Checkpoint) -> None:
    """
    Check that a new run can begin at a checkpoint.

    Raises:
        GraphError: It cannot.
    """
    named = f"checkpoint {checkpoint.checkpoint_id!r}"
    if stream.spec.isolation_level == "isolated":
        raise GraphError(
            f"{named} cannot be replayed: all runs of entry point {stream.spec.id!r} are in one session; "
            "restore it there instead"
        )
    if not checkpoint.execution.pending:
        raise GraphError(f"{named} cannot be replayed: the run was at its end there; name an earlier one")
    gone = {one.node_id for one in checkpoint.execution.pending} - {node.id for node in graph.spec.nodes}
    if gone:
        raise GraphError(
            f"{named} cannot be replayed: it was in node {min(gone)!r}, which graph {graph.spec.id!r} has "
            "no more; name a checkpoint from before it"
        )


def _complete(graph: LoadedGraph, entries: Mapping[str, Entry]) -> None:
    """
    Check that everything a graph names is given.

    Raises:
        GraphError: Something is not.
    """
    name = graph.spec.id
    for node in graph.spec.nodes:
        where = f"graph {name!r}: node {node.id!r}"
        for what, wanted, given in (
            ("tool", node.tools, graph.tools),
            ("function", (node.function,) if node.function else (), graph.functions),
            ("model", (node.model,) if node.model else (), graph.models),
            ("judge", _named_judge(node.conversation_judge), graph.judges),
        ):
            missing = [one for one in wanted if one not in given]
            if missing:
                raise GraphError(f"{where} uses {what} {missing[0]!r}, which is not given")
        if graph.model is None and not node.function and not node.model:
            raise GraphError(f"{where} uses model, which is not given")
    unknown = entries.keys() - {entry.id for entry in graph.spec.entry_points}
    if unknown:
        raise GraphError(f"graph {name!r} has no entry point {min(unknown)!r}")


def _named_judge(judge: str) -> tuple[str, ...]:
    return (judge,) if judge not in ("", "llm") else ()
