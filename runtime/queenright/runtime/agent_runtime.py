"""The agent runtime: runs several graphs on one event bus."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Unpack

from prometheus_client import CollectorRegistry

from queenright.instrumentation.errors import ConflictError
from queenright.instrumentation.identity import new_id
from queenright.instrumentation.telemetry import Telemetry
from queenright.instrumentation.worker import HEARTBEAT_SECONDS
from queenright.runtime.breaker_protocols import Breakers
from queenright.runtime.bus import EventBus, Handler, Subscription
from queenright.runtime.deadline import Sleep
from queenright.runtime.event_filter import Filters
from queenright.runtime.events import Clock, EventType
from queenright.runtime.execution import Execution, ExecutionResult, Trigger
from queenright.runtime.graphs.goal import Goal, GoalProgress
from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec
from queenright.runtime.heartbeats import HeartbeatSender
from queenright.runtime.inputs import (
    check_input,
    check_json,
    check_names,
    find_missing_inputs,
    input_schema,
    list_used_names,
)
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.nodes.function_node import NodeFunction
from queenright.runtime.nodes.node_guard import GuardFactory
from queenright.runtime.nodes.node_judge import NodeJudge
from queenright.runtime.services import IncarnationRegistry, LoadedGraph
from queenright.runtime.sessions import SessionResolver
from queenright.runtime.storage.checkpoint_store import Checkpoint, CheckpointStore
from queenright.runtime.storage.files import Disk
from queenright.runtime.storage.session_branch import branch_session
from queenright.runtime.storage.session_state import ExecutionState, SessionState, SessionStatus
from queenright.runtime.storage.session_store import Session, SessionStore
from queenright.runtime.stream import EntryHandler, ExecutionStream
from queenright.runtime.stream_services import StreamServices
from queenright.runtime.tooling.approval import ApprovalCallback
from queenright.runtime.tooling.tools import Tool, ToolRegistry
from queenright.runtime.workers import WorkerRegistry

MAX_KEPT_RESULTS: Final = 1000
"""Number of finished runs to keep in memory, newest first."""

PRESENCE_SECONDS: Final = 120.0
"""A user counts as present for this many seconds after their last input."""

_RESUMABLE: Final = frozenset(
    {
        SessionStatus.ACTIVE,
        SessionStatus.PAUSED,
        SessionStatus.FAILED,
        SessionStatus.CANCELLED,
        SessionStatus.TERMINATED,
    }
)


class GraphError(ConflictError):
    """Raised when a graph, entry point, run or node does not exist, or a graph is added twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingNode:
    """A node that is waiting for user input."""

    graph_id: str
    node_id: str
    execution_id: str
    session_id: str
    question: str
    question_id: str
    """Unique within the session."""


@dataclass(frozen=True, slots=True)
class _RegisteredGraph:
    graph: LoadedGraph
    streams: Mapping[str, ExecutionStream]


class AgentRuntime:
    """
    Runs graphs, which share one event bus. Each graph has its own sessions on disk.

    Args:
        storage: Folder of the sessions: ``sessions/...`` for the primary graph, ``graphs/{id}/...`` for
            the others.
        guards: Creates the guards that detect loops inside nodes; None disables them.
        breakers: Provides circuit breakers for tools, models and checkpoints; None disables them.
        telemetry: Receives the spans of workers; None discards them.
        registry: Receives the metrics of workers; None uses a private registry.
        heartbeat_interval: Maximum seconds between two heartbeats of a run; None disables heartbeats.
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
        self._registrations: dict[str, _RegisteredGraph] = {}
        self._active_graph_id: str | None = None
        self._sessions = SessionResolver(
            SessionStore(storage, clock=clock),
            self._is_shareable,
            lambda: [registration.graph.store for registration in list(self._registrations.values())],
        )
        self._user_spoke_at: float | None = None
        self._executions: dict[str, Execution] = {}
        self._finished_runs: dict[str, Execution] = {}
        """The ended runs among ``_executions``, in the order in which they ended."""
        self._deleting: set[str] = set()
        """Sessions that are being deleted; no run may be queued in them."""
        self._is_started = False
        muted_outputs = (Telemetry.muted(), CollectorRegistry())
        random = random or Random()
        self._heartbeats = HeartbeatSender(
            heartbeat_interval, monotonic=monotonic, sleep=sleep, random=random
        )
        self._services = StreamServices(
            bus=bus,
            clock=clock,
            monotonic=monotonic,
            sleep=sleep,
            ids=ids,
            disk=self.disk,
            random=random,
            guards=guards,
            breakers=breakers,
            telemetry=telemetry or muted_outputs[0],
            registry=registry or CollectorRegistry(),
            null_telemetry=muted_outputs,
            incarnations=IncarnationRegistry(ids()),
            heartbeats=self._heartbeats,
            sessions=self._sessions,
            remember=self._remember,
            context={"runtime": self},
        )

        self.workers = WorkerRegistry(
            lambda: [(r.graph, r.streams) for r in self._registrations.values()] if self._is_started else [],
            self._services,
        )
        """Worker control for the health layer: notify, terminate and respawn."""

    # -- lifecycle ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all graphs added so far. Graphs added later start immediately."""
        if not self._is_started:
            self._is_started = True
            for registration in self._registrations.values():
                _start_streams(registration)

    async def stop(self) -> None:
        """Stop all graphs. Runs are paused and can be resumed; no task or subscription remains."""
        self._is_started = False
        streams = [s for r in self._registrations.values() for s in r.streams.values()]
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
        entries: Mapping[str, EntryHandler] | None = None,
    ) -> None:
        """
        Add a graph, before or after ``start``.

        Args:
            model: Default model of the nodes; a graph of functions needs none.
            models: Models of single nodes, by the name in the node's specification.
            functions: Functions of function nodes and routers, by name.
            goal: The graph's goal; progress towards it is published as events.
            agent_id: The worker's id; empty for a graph that is not a worker and is not monitored.
            primary: Whether this is the primary graph. A runtime has at most one.
            entries: Handlers by entry point id; a handler replaces the run of the graph.

        Raises:
            GraphError: The id is in use, or the graph refers to something that was not passed.
        """
        if graph.id in self._registrations:
            raise GraphError(f"graph {graph.id!r} already exists; remove it first")
        if primary and (current := self._get_primary_id()) is not None:
            raise GraphError(f"graph {graph.id!r} cannot be primary: {current!r} already is")
        registry = ToolRegistry(tools)
        loaded_graph = LoadedGraph(
            spec=graph,
            model=model,
            models=dict(models or {}),
            tools=registry,
            functions=dict(functions or {}),
            judges=dict(judges or {}),
            goal=goal,
            agent_id=agent_id,
            primary=primary,
            store=self._create_store(graph.id, primary=primary),
        )
        handlers = dict(entries or {})
        _check_references(loaded_graph, handlers)
        streams = {
            spec.id: ExecutionStream(
                loaded_graph, spec, handler=handlers.get(spec.id), services=self._services
            )
            for spec in graph.entry_points
        }
        self._registrations[graph.id] = _RegisteredGraph(loaded_graph, streams)
        if self._is_started:
            _start_streams(self._registrations[graph.id])

    async def remove_graph(self, graph_id: str) -> None:
        """
        Pause the graph's runs and remove it from the runtime. Its sessions stay on disk.

        Raises:
            GraphError: The graph does not exist, or is the primary graph.
        """
        registration = self._get_registration(graph_id)
        if registration.graph.primary:
            raise GraphError(f"graph {graph_id!r} is primary and cannot be removed; stop the runtime instead")
        del self._registrations[graph_id]
        if self._active_graph_id == graph_id:
            self._active_graph_id = None
        await asyncio.gather(*(stream.stop() for stream in registration.streams.values()))

    def list_graphs(self) -> list[str]:
        """Return the ids of the graphs, in the order they were added."""
        return list(self._registrations)

    def get_graph(self, graph_id: str | None = None) -> GraphSpec:
        """
        Return the specification of a graph, by default of the active graph.

        Raises:
            GraphError: The graph does not exist.
        """
        return self._get_registration(graph_id).graph.spec

    def get_active_graph(self) -> GraphSpec:
        """
        Return the graph that receives user input.

        Raises:
            GraphError: There is no graph.
        """
        return self.get_graph()

    @property
    def active_graph_id(self) -> str:
        """
        The graph that receives user input: the one set explicitly, else the primary, else the first.

        Raises:
            GraphError: There is no graph, or the one that was set no longer exists.
        """
        return self._get_registration(None).graph.spec.id

    @active_graph_id.setter
    def active_graph_id(self, graph_id: str) -> None:
        self._active_graph_id = self._get_registration(graph_id).graph.spec.id

    def get_entry_points(self, graph_id: str | None = None) -> list[EntryPointSpec]:
        """
        Return the entry points of a graph, by default of the active graph.

        Raises:
            GraphError: The graph does not exist.
        """
        return list(self._get_registration(graph_id).graph.spec.entry_points)

    def get_stream(self, entry_point_id: str, *, graph_id: str | None = None) -> ExecutionStream:
        """
        Return the stream of an entry point.

        Raises:
            GraphError: The graph or the entry point does not exist.
        """
        registration = self._get_registration(graph_id)
        stream = registration.streams.get(entry_point_id)
        if stream is None:
            names, name = ", ".join(registration.streams), registration.graph.spec.id
            raise GraphError(f"graph {name!r} has no entry point {entry_point_id!r}; it has: {names}")
        return stream

    def session_store(self, graph_id: str | None = None) -> SessionStore:
        """
        Return the session store of a graph, by default of the active graph.

        Raises:
            GraphError: The graph does not exist.
        """
        return self._get_registration(graph_id).graph.store

    def find_session(
        self, session_id: str, graph_id: str | None = None
    ) -> tuple[SessionStore, Session, SessionState]:
        """
        Return a session that a graph ran in, its own or a shared one, with its store and state. Blocks.

        Raises:
            GraphError: The graph does not exist.
            InvalidSessionIdError: The id is not a valid folder name.
            SessionNotFoundError: The session does not exist.
            UnusableFileError: The session's state cannot be read.
        """
        return self._sessions.locate(self._get_registration(graph_id).graph, session_id)

    def list_sessions(self, graph_id: str | None = None) -> list[tuple[SessionStore, SessionState]]:
        """
        List the sessions of a graph, including shared ones it ran in, newest first. Blocks.

        Raises:
            GraphError: The graph does not exist.
        """
        graph = self._get_registration(graph_id).graph
        sessions = [(graph.store, state) for state in graph.store.list_sessions()]
        if _shares_sessions(graph):
            sessions += [
                (store, state)
                for store in self._sessions.list_stores()
                if store.base != graph.store.base
                for state in store.list_sessions()
                if any(run.graph_id == graph.spec.id for run in state.executions.values())
            ]
        return sorted(sessions, key=lambda row: (row[1].created_at, row[1].session_id), reverse=True)

    async def delete_session(self, session_id: str, graph_id: str | None = None) -> None:
        """
        Delete a session of a graph and its folder.

        Raises:
            GraphError: The graph does not exist, or a run is queued in the session.
            InvalidSessionIdError: The id is not a valid folder name.
            SessionNotFoundError: The session does not exist.
            SessionBusyError: An execution is running in the session.
        """
        store = self.session_store(graph_id)
        streams = [stream for r in self._registrations.values() for stream in r.streams.values()]
        for run in (run for stream in streams for run in stream.executions):
            if run.session_id == session_id and run.is_queued:
                raise GraphError(
                    f"session {session_id!r} is busy: run {run.id!r} is queued in it; stop the run, or wait "
                    "until it ends"
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
        Fire an entry point of any trigger type manually, and return the run's id at once.

        Raises:
            GraphError: The graph or the entry point does not exist, or the runtime is not started.
            TooManyWaitingError: The queue of the entry point is full.
            InvalidInputError: The input is invalid; nothing was run.
            TypeError: ``input_data`` is not a mapping.
        """
        stream = self.get_stream(entry_point_id, graph_id=graph_id)
        self._check_started(stream)
        if input_data is not None and not isinstance(input_data, Mapping):
            kind = type(input_data).__name__
            raise TypeError(
                f"input_data of {stream.id!r} must be a mapping of names to JSON values, "
                f'such as {{"question": "..."}}, not {kind}'
            )
        await self._check_input(self._get_registration(graph_id).graph, stream, input_data or {}, session_id)
        self._check_not_deleting(session_id)
        return stream.fire(Trigger(input_data=input_data or {}), session_id=session_id).id

    async def _check_input(
        self,
        graph: LoadedGraph,
        stream: ExecutionStream,
        input_data: Mapping[str, Any],
        session_id: str | None,
    ) -> None:
        """
        Check that a run can start with its input and the memory of its session.

        Raises:
            InvalidInputError: The input is invalid.
        """
        if stream.has_handler:
            return  # the entry handler builds the node's input
        node = graph.spec.node(stream.spec.node_id)
        function = graph.functions[node.function] if node.function else None
        check_json(input_data)
        names = list(input_data)
        if find_missing_inputs(node, function, input_data):
            memory = await self.disk.run(lambda: self._sessions.memory(graph, stream.spec, session_id))
            if memory is None:
                return  # the run itself reports what is wrong with the session
            input_data = {**memory, **input_data} if node.input_keys else input_data
        check_input(node, function, input_data)
        check_names(graph.spec, node, function, names, self._list_used_names(graph))

    def get_input_schema(self, graph_id: str, node_id: str) -> dict[str, Any]:
        """Return the JSON schema of the input that a run needs to start at a node."""
        graph = self._get_registration(graph_id).graph
        node = graph.spec.node(node_id)
        return input_schema(node, graph.functions[node.function] if node.function else None)

    def _list_used_names(self, graph: LoadedGraph) -> set[str]:
        """Return the memory keys that this graph and the graphs sharing its sessions use."""
        graphs = [graph]
        if _shares_sessions(graph):
            graphs = [r.graph for r in self._registrations.values() if _shares_sessions(r.graph)]
        return set().union(
            *(
                list_used_names(loaded_graph.spec, loaded_graph.functions, loaded_graph.goal)
                for loaded_graph in graphs
            )
        )

    async def resume(
        self, session_id: str, graph_id: str | None = None, *, checkpoint_id: str | None = None
    ) -> str:
        """
        Resume the newest unfinished run of a session and return its id.

        Args:
            graph_id: The session's graph; by default the active one.

        Raises:
            SessionNotFoundError: The session does not exist.
            CheckpointNotFoundError: The checkpoint does not exist.
            CorruptCheckpointError: The checkpoint is corrupt.
            GraphError: The graph does not exist, there is nothing to resume, the run is still running, or
                the runtime is not started.
            SessionBusyError: Another process runs an execution in the session.
            TooManyWaitingError: The queue of the entry point is full.
        """
        graph = self._get_registration(graph_id).graph
        last_run, checkpoint = await self.disk.run(
            lambda: self._find_resumable(graph, session_id, checkpoint_id)
        )
        stream = self.get_stream(last_run.entry_point, graph_id=graph.spec.id)
        self._check_started(stream)
        removed_nodes = {pending.node_id for pending in last_run.pending} - {
            node.id for node in graph.spec.nodes
        }
        if removed_nodes:
            raise GraphError(
                f"session {session_id!r} cannot be resumed: it stopped in node {min(removed_nodes)!r}, which "
                f"graph {graph.spec.id!r} no longer has; trigger a new run with the session's id, or resume "
                "from an earlier checkpoint"
            )
        if any(execution.id == last_run.execution_id for execution in stream.executions):
            raise GraphError(
                f"session {session_id!r} cannot be resumed: run {last_run.execution_id!r} is still running"
            )
        await self.disk.run(lambda: self._check_free(graph, session_id))
        self._check_not_deleting(session_id)
        return stream.resume(last_run.execution_id, session_id, checkpoint).id

    def _find_resumable(
        self, graph: LoadedGraph, session_id: str, checkpoint_id: str | None
    ) -> tuple[ExecutionState, Checkpoint | None]:
        """Return the run to resume: the checkpoint's, or the newest unfinished one. Blocks."""
        _, session, state = self._sessions.locate(graph, session_id)
        if checkpoint_id is not None:
            checkpoints = CheckpointStore(
                session.checkpoints, clock=self._services.clock, ids=self._services.ids
            )
            checkpoint = checkpoints.load(checkpoint_id)
            return checkpoint.execution, checkpoint
        name = graph.spec.id
        runs = [run for run in state.executions.values() if run.graph_id == name]
        candidates = [run for run in runs if run.status in _RESUMABLE]
        if not candidates:
            runs_text = ", ".join(f"{run.entry_point} {run.status.value}" for run in runs) or "no run"
            raise GraphError(f"session {session_id!r} has nothing to resume in graph {name!r}: {runs_text}")
        return max(candidates, key=lambda run: run.updated_at), None

    def _check_free(self, graph: LoadedGraph, session_id: str) -> None:
        """
        Check that no other process runs in a session; runs of this process take turns. Blocks.

        Raises:
            SessionBusyError: Another process runs in it.
            SessionNotFoundError: The session was deleted.
        """
        _, session, _ = self._sessions.locate(graph, session_id)
        session_lock = self._services.locks.get(str(session.path))
        if session_lock is None or not session_lock.locked():
            graph.store.claim(session).release()

    async def replay(self, session_id: str, checkpoint_id: str, graph_id: str | None = None) -> Execution:
        """
        Start a new run in a new session from a checkpoint of another run. The original run is unchanged.

        Artifacts are copied. Effects outside the session are not undone.

        Args:
            graph_id: The session's graph; by default the active one.

        Raises:
            SessionNotFoundError: The session does not exist.
            CheckpointNotFoundError: The checkpoint does not exist.
            CorruptCheckpointError: The checkpoint is corrupt.
            GraphError: The graph does not exist, the run was finished at the checkpoint, the entry point
                is isolated, or the runtime is not started.
            TooManyWaitingError: The queue of the entry point is full.
        """
        graph = self._get_registration(graph_id).graph
        source_run, checkpoint = await self.disk.run(
            lambda: self._find_resumable(graph, session_id, checkpoint_id)
        )
        assert checkpoint is not None  # a checkpoint id was passed
        stream = self.get_stream(source_run.entry_point, graph_id=graph.spec.id)
        self._check_started(stream)
        _check_replayable(graph, stream, checkpoint)
        stream.check_capacity()  # fail before anything is copied
        execution_id = self._services.ids()

        def branch_off() -> str:
            _, session, _ = self._sessions.locate(graph, session_id)
            copy = branch_session(
                graph.store, session, checkpoint, execution_id=execution_id, agent_id=graph.agent_id
            )
            return copy.id

        return stream.resume(execution_id, await self.disk.run(branch_off), checkpoint)

    async def wait(self, execution_id: str) -> ExecutionResult:
        """
        Wait until a run ends and return its result.

        Raises:
            GraphError: The run is unknown.
        """
        return await self.get_execution(execution_id).wait()

    def get_execution_result(self, execution_id: str, graph_id: str | None = None) -> ExecutionResult | None:
        """
        Return the result of a run, or None while it is unfinished.

        Raises:
            GraphError: The run is unknown, or belongs to another graph.
        """
        execution = self.get_execution(execution_id)
        if graph_id is not None and execution.graph_id != graph_id:
            raise GraphError(f"run {execution_id!r} is in graph {execution.graph_id!r}, not {graph_id!r}")
        return execution.result

    def get_execution(self, execution_id: str) -> Execution:
        """
        Return a run: queued, running or finished.

        Raises:
            GraphError: The run is unknown.
        """
        execution = self._executions.get(execution_id)
        if execution is None:
            raise GraphError(
                f"run {execution_id!r} is unknown; only the last {MAX_KEPT_RESULTS} runs are kept"
            )
        return execution

    async def cancel_execution(self, execution_id: str, graph_id: str | None = None) -> bool:
        """
        Cancel a run and wait until it has ended. It continues only if it is resumed.

        Return False if the run does not exist or has already ended.
        """
        return await self._stop_execution(execution_id, graph_id, SessionStatus.CANCELLED)

    async def pause_execution(self, execution_id: str, graph_id: str | None = None) -> bool:
        """
        Pause a run and wait until it has stopped. It can be resumed.

        Return False if the run does not exist or has already ended.
        """
        return await self._stop_execution(execution_id, graph_id, SessionStatus.PAUSED)

    def get_goal_progress(self, graph_id: str | None = None) -> GoalProgress | None:
        """
        Return the goal progress of a graph's newest run, or None without a goal.

        Raises:
            GraphError: The graph does not exist.
        """
        name = self._get_registration(graph_id).graph.spec.id
        for execution in reversed(self._executions.values()):
            if execution.graph_id == name and (goal := execution.goal) is not None:
                return goal
        return None

    # -- users ----------------------------------------------------------------------------------

    async def inject_input(
        self,
        node_id: str,
        content: str,
        graph_id: str | None = None,
        *,
        session_id: str | None = None,
        question_id: str | None = None,
    ) -> bool:
        """
        Send user input to a running node. The input is durable when this returns.

        Without ``graph_id``, the active graph is searched first, then the others. Nodes that wait for input
        take precedence. If the node does not talk to users and ends before its next turn, the input is
        kept for its next visit. A question accepts one answer, the first; ``question_id`` is the question
        that the input answers, by default the open one.

        Returns:
            False if the node is not running; use ``trigger`` instead.

        Raises:
            GraphError: The graph does not exist, or the node is running in several sessions.
            QuestionAnsweredError: The question has an answer.
        """
        self._user_spoke_at = self._monotonic()
        graphs = [self._get_registration(graph_id)] if graph_id is not None else self._list_by_priority()
        for registration in graphs:
            nodes = [
                (execution, node)
                for stream in registration.streams.values()
                for execution, name, node in stream.nodes()
                if name == node_id and session_id in (None, execution.session_id)
            ]
            candidates = [pair for pair in nodes if pair[1].is_waiting_for_user] or nodes
            if len(candidates) > 1:
                sessions = ", ".join(sorted(str(execution.session_id) for execution, _ in candidates))
                raise GraphError(
                    f"node {node_id!r} is running in several sessions; pass one as session_id: {sessions}"
                )
            if candidates:
                await candidates[0][1].inject(content, question_id)
                return True
        return False

    def list_waiting_nodes(self) -> list[WaitingNode]:
        """List the nodes that wait for user input, those of the active graph first."""
        return [
            WaitingNode(
                graph_id=registration.graph.spec.id,
                node_id=node_id,
                execution_id=execution.id,
                session_id=execution.session_id or "",
                question=node.question or "",
                question_id=node.question_id or "",
            )
            for registration in self._list_by_priority()
            for stream in registration.streams.values()
            for execution, node_id, node in stream.nodes()
            if node.is_waiting_for_user
        ]

    @property
    def user_idle_seconds(self) -> float:
        """Seconds since the last user input; infinite if there was none."""
        return math.inf if self._user_spoke_at is None else self._monotonic() - self._user_spoke_at

    @property
    def is_user_present(self) -> bool:
        """Whether a user was active within ``PRESENCE_SECONDS``."""
        return self.user_idle_seconds < PRESENCE_SECONDS

    def set_approval_callback(self, callback: ApprovalCallback | None) -> None:
        """
        Set a callback that approves each tool call before it runs; None approves all calls.

        The callback is called for the tools of all graphs, one call at a time. It may wait for a person;
        meanwhile the worker counts as waiting for user input. If a call is not approved or the callback
        raises, the call is not made and the model gets an error. Built-in tools of nodes need no approval.
        Setting a callback affects visits that begin afterwards; None takes effect at once.
        """
        self._services.approvals.callback = callback

    def subscribe_to_events(
        self,
        types: Collection[EventType] | None,
        handler: Handler,
        *,
        name: str = "runtime",
        **filters: Unpack[Filters],
    ) -> Subscription:
        """Call ``handler`` for matching events; call ``cancel()`` on the result to unsubscribe."""
        return self.bus.subscribe(handler, name=name, types=types, **filters)

    # -- private --------------------------------------------------------------------------------

    def _get_primary_id(self) -> str | None:
        return next((name for name, r in self._registrations.items() if r.graph.primary), None)

    def _create_store(self, graph_id: str, *, primary: bool) -> SessionStore:
        base = self.storage if primary else self.storage / "graphs" / graph_id
        return SessionStore(base, clock=self._services.clock)

    def _get_registration(self, graph_id: str | None) -> _RegisteredGraph:
        name = (
            graph_id
            or self._active_graph_id
            or self._get_primary_id()
            or next(iter(self._registrations), None)
        )
        registration = self._registrations.get(name or "")
        if registration is None:
            names = ", ".join(self._registrations) or "none"
            raise GraphError(f"there is no graph {name!r}; available: {names}")
        return registration

    def _list_by_priority(self) -> list[_RegisteredGraph]:
        if not self._registrations:
            return []
        first = self._get_registration(None)
        return [first, *(r for r in self._registrations.values() if r is not first)]

    def _is_shareable(self, state: SessionState) -> bool:
        registration = self._registrations.get(state.graph_id) or self._registrations.get(
            self._get_primary_id() or ""
        )
        entries = registration.graph.spec.entry_points if registration is not None else ()
        return state.entry_point not in {e.id for e in entries if e.isolation_level == "isolated"}

    def _check_started(self, stream: ExecutionStream) -> None:
        if not self._is_started:
            raise GraphError(f"cannot run {stream.id!r}: the runtime is not started; call start() first")

    def _check_not_deleting(self, session_id: str | None) -> None:
        if session_id in self._deleting:
            raise GraphError(f"session {session_id!r} is being deleted; omit session_id to use a new one")

    def _remember(self, execution: Execution) -> None:
        self._executions.pop(execution.id, None)
        self._finished_runs.pop(execution.id, None)
        self._executions[execution.id] = execution
        execution.add_done_callback(self._note_finished)
        while self._finished_runs and len(self._executions) > MAX_KEPT_RESULTS:
            oldest = next(iter(self._finished_runs))
            del self._finished_runs[oldest], self._executions[oldest]

    def _note_finished(self, execution: Execution) -> None:
        if self._executions.get(execution.id) is execution:
            self._finished_runs[execution.id] = execution

    async def _stop_execution(self, execution_id: str, graph_id: str | None, status: SessionStatus) -> bool:
        graphs = (
            [self._get_registration(graph_id)] if graph_id is not None else list(self._registrations.values())
        )
        for registration in graphs:
            for stream in registration.streams.values():
                if await stream.stop_execution(execution_id, status):
                    return True
        return False


def _start_streams(registration: _RegisteredGraph) -> None:
    for stream in registration.streams.values():
        stream.start()


def _shares_sessions(graph: LoadedGraph) -> bool:
    """Return whether a graph can run in sessions of other graphs, or others in its sessions."""
    return graph.primary or any(entry.isolation_level == "shared" for entry in graph.spec.entry_points)


def _check_replayable(graph: LoadedGraph, stream: ExecutionStream, checkpoint: Checkpoint) -> None:
    """
    Check that a new run can start from a checkpoint.

    Raises:
        GraphError: No new run can start from it.
    """
    prefix = f"checkpoint {checkpoint.checkpoint_id!r} cannot be replayed"
    if stream.spec.isolation_level == "isolated":
        raise GraphError(
            f"{prefix}: all runs of entry point {stream.spec.id!r} share one session; "
            "restore it there instead"
        )
    if not checkpoint.execution.pending:
        raise GraphError(f"{prefix}: the run was finished at that point; choose an earlier one")
    removed_nodes = {p.node_id for p in checkpoint.execution.pending} - {node.id for node in graph.spec.nodes}
    if removed_nodes:
        raise GraphError(
            f"{prefix}: it was in node {min(removed_nodes)!r}, which graph {graph.spec.id!r} no longer has; "
            "choose an earlier checkpoint"
        )


def _check_references(graph: LoadedGraph, entries: Mapping[str, EntryHandler]) -> None:
    """
    Check that everything a graph refers to is available.

    Raises:
        GraphError: A tool, function, model, judge or entry point is missing.
    """
    name = graph.spec.id
    for node in graph.spec.nodes:
        prefix = f"graph {name!r}: node {node.id!r}"
        for kind, names, available in (
            ("tool", node.tools, graph.tools),
            ("function", (node.function,) if node.function else (), graph.functions),
            ("model", (node.model,) if node.model else (), graph.models),
            ("judge", _list_judge_names(node.conversation_judge), graph.judges),
        ):
            missing = [used_name for used_name in names if used_name not in available]
            if missing:
                raise GraphError(f"{prefix} uses {kind} {missing[0]!r}, which was not passed to add_graph")
        if graph.model is None and not node.function and not node.model:
            raise GraphError(f"{prefix} needs a model; pass one to add_graph")
    unknown = entries.keys() - {entry.id for entry in graph.spec.entry_points}
    if unknown:
        raise GraphError(f"graph {name!r} has no entry point {min(unknown)!r}")


def _list_judge_names(judge: str) -> tuple[str, ...]:
    return (judge,) if judge not in ("", "llm") else ()
