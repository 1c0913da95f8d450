"""
The workers of a runtime, as the health layer controls them: notify, terminate and respawn.

A worker is identified by agent and session; the caller also names the incarnation, which is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.execution import Execution, ExecutionResult, Respawn
from queenright.runtime.nodes.inbox import Note
from queenright.runtime.services import LoadedGraph
from queenright.runtime.storage.checkpoint_store import ChainLink, CheckpointStore
from queenright.runtime.storage.session_state import ExecutionState, SessionStatus
from queenright.runtime.storage.session_store import Session, SessionBusyError
from queenright.runtime.stream import ExecutionStream
from queenright.runtime.stream_services import StreamServices

_FINAL_STATUSES: Final = frozenset({SessionStatus.COMPLETED, SessionStatus.CANCELLED, SessionStatus.UNKNOWN})


class InvalidWorkerError(QueenrightError):
    """
    Raised when an action on a worker is not possible; says why.

    ``final``: it will never be possible for this run. ``over``: the run has ended.
    """

    def __init__(self, message: str, *, final: bool = False, over: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.over = over


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """A run of a worker that is active or queued."""

    graph: LoadedGraph
    stream: ExecutionStream
    execution: Execution

    @property
    def incarnation_id(self) -> str:
        """The incarnation; empty until the run has its session."""
        return self.execution.incarnation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedWorker:
    """An unfinished run of a worker, as stored on disk."""

    graph: LoadedGraph
    stream: ExecutionStream
    session: Session
    state: ExecutionState
    chain: Sequence[ChainLink]
    """The run's checkpoints, newest first, without those of other runs in the session."""


class WorkerRegistry:
    """
    The workers of one runtime.

    Args:
        graphs: Returns the graphs with their streams; none while the runtime is not started.
    """

    def __init__(
        self,
        graphs: Callable[[], Iterable[tuple[LoadedGraph, Mapping[str, ExecutionStream]]]],
        services: StreamServices,
    ) -> None:
        self._graphs = graphs
        self._services = services

    def find_running(self, agent_id: str, session_id: str) -> RunningWorker | None:
        """Return the active run of a worker in a session, or else a queued one."""
        runs = [
            RunningWorker(graph=graph, stream=stream, execution=execution)
            for graph, streams in self._list_graphs(agent_id)
            for stream in streams.values()
            for execution in stream.executions
            if execution.session_id == session_id
        ]
        return min(runs, key=lambda run: run.execution.executor is None, default=None)

    def has_session(self, agent_id: str, session_id: str) -> bool:
        """Return whether a worker's session is on disk. Checks one file."""
        return any(
            self._services.sessions.exists(graph, session_id) for graph, _ in self._list_graphs(agent_id)
        )

    async def send_note(self, run: RunningWorker, note: Note) -> None:
        """
        Send a note to the run's model-driven nodes. It is durable when this returns.

        Raises:
            InvalidWorkerError: No such node is running, or all wait for their user.
            OSError: The disk write failed.
        """
        nodes = [node for execution, _, node in run.stream.nodes() if execution is run.execution]
        if not nodes:
            raise InvalidWorkerError("the run has no running node with a model")
        ready_nodes = [node for node in nodes if not node.is_waiting_for_user]
        if not ready_nodes:
            raise InvalidWorkerError("the worker waits for its user")
        for node in ready_nodes:
            await node.send_note(note)

    async def terminate(self, run: RunningWorker, reason: str) -> ExecutionResult:
        """
        Terminate a run, save its state and return its result, with the ``checkpoint_id`` of the state.

        Waits until the current work has stopped. A run that has already ended is left unchanged.
        """
        await run.stream.stop_execution(run.execution.id, SessionStatus.TERMINATED, reason)
        return await run.execution.wait()

    def has_running_function(self, run: RunningWorker) -> bool:
        """Return whether a function of a run is still running in a thread, which cannot be stopped."""
        return bool(run.graph.tools.threads.count_running(run.execution.session_id or ""))

    async def find_interrupted(self, agent_id: str, session_id: str, incarnation_id: str) -> StoppedWorker:
        """
        Return a worker's unfinished run, which can be respawned.

        Args:
            incarnation_id: Selects the run of this incarnation; empty selects the newest.

        Raises:
            InvalidWorkerError: There is no such run, or it has ended.
            UnusableFileError: The session's state cannot be read.
        """
        return await self._services.disk.run(
            lambda: self._find_interrupted(agent_id, session_id, incarnation_id)
        )

    async def find_abandoned(self, agent_id: str, session_id: str, incarnation_id: str) -> StoppedWorker:
        """
        Return a run that was killed: unfinished, of this incarnation, with no process in its session.

        Raises:
            InvalidWorkerError: The worker is another incarnation, has ended, or a process is running it.
            UnusableFileError: The session's state cannot be read.
        """
        target = await self.find_interrupted(agent_id, session_id, incarnation_id)
        last_incarnation = target.state.incarnation_id
        if last_incarnation != incarnation_id:
            raise InvalidWorkerError(
                f"session {session_id!r} was last run by incarnation {last_incarnation!r}", final=True
            )
        try:
            claim = await self._services.disk.run(lambda: target.graph.store.claim(target.session))
        except SessionBusyError as error:
            raise InvalidWorkerError(str(error)) from error
        claim.release()
        return target

    async def respawn(
        self, worker: StoppedWorker, checkpoint_id: str | None, note: str, incarnation_id: str
    ) -> Execution:
        """
        Respawn a run, and return it once it has started.

        Args:
            checkpoint_id: The checkpoint to resume from; None starts a new run with the original input.
            note: A note that its nodes read before they continue.

        Raises:
            InvalidWorkerError: The worker did not start; says why.
            CheckpointNotFoundError, CorruptCheckpointError: The checkpoint is no longer usable.
        """
        session_id = worker.session.id
        if self.find_running(worker.graph.agent_id, session_id) is not None:
            raise InvalidWorkerError(f"session {session_id!r} has an active run; stop it first")
        if checkpoint_id is None:
            respawn = Respawn(incarnation_id=incarnation_id, note=note, restarts=worker.state.execution_id)
            execution = worker.stream.restart(worker.state.input, session_id, respawn)
        else:
            store = self._open_checkpoints(worker.session)
            checkpoint = await self._services.disk.run(lambda: store.load(checkpoint_id))
            respawn = Respawn(incarnation_id=incarnation_id, note=note)
            execution = worker.stream.resume(
                worker.state.execution_id, session_id, checkpoint, respawn=respawn
            )
        try:
            await execution.wait_started()
        except asyncio.CancelledError:
            await worker.stream.stop_execution(
                execution.id, SessionStatus.TERMINATED, "it took too long to start"
            )
            raise
        if not execution.has_begun:
            result = await execution.wait()
            reason = result.error or result.status.value
            raise InvalidWorkerError(f"session {session_id!r} did not start again: {reason}")
        return execution

    def _list_graphs(self, agent_id: str) -> list[tuple[LoadedGraph, Mapping[str, ExecutionStream]]]:
        return [(g, streams) for g, streams in self._graphs() if agent_id and g.agent_id == agent_id]

    def _find_interrupted(self, agent_id: str, session_id: str, incarnation_id: str) -> StoppedWorker:
        """Find an interrupted run. Blocks."""
        for graph, streams in self._list_graphs(agent_id):
            if self._services.sessions.exists(graph, session_id):
                return self._load_stopped(graph, streams, session_id, incarnation_id)
        raise InvalidWorkerError(
            f"agent {agent_id!r} has no session {session_id!r} here; it was deleted, or belongs to another "
            "process: respawn it there",
            final=True,
        )

    def _load_stopped(
        self,
        graph: LoadedGraph,
        streams: Mapping[str, ExecutionStream],
        session_id: str,
        incarnation_id: str,
    ) -> StoppedWorker:
        _, session, state = self._services.sessions.locate(graph, session_id)
        runs = [run for run in state.executions.values() if run.graph_id == graph.spec.id]
        last_run = _select_run(runs, incarnation_id)
        if last_run is None:
            raise InvalidWorkerError(
                f"session {session_id!r} has no run of graph {graph.spec.id!r}", final=True
            )
        if last_run.status in _FINAL_STATUSES:
            raise InvalidWorkerError(
                f"session {session_id!r} is {last_run.status.value}; a run that has ended is not respawned",
                final=True,
                over=last_run.status is not SessionStatus.UNKNOWN,
            )
        stream = streams.get(last_run.entry_point)
        if stream is None:
            raise InvalidWorkerError(
                f"session {session_id!r} was started by entry point {last_run.entry_point!r}, which graph "
                f"{graph.spec.id!r} no longer has",
                final=True,
            )
        nodes = {node.id for node in graph.spec.nodes}
        links = [_discard_outdated(link, nodes) for link in self._open_checkpoints(session).chain()]
        chain = [
            link
            for link in links
            if link.checkpoint is None or link.checkpoint.execution_id == last_run.execution_id
        ]
        return StoppedWorker(graph=graph, stream=stream, session=session, state=last_run, chain=chain)

    def _open_checkpoints(self, session: Session) -> CheckpointStore:
        return CheckpointStore(session.checkpoints, clock=self._services.clock, ids=self._services.ids)


def _select_run(runs: Sequence[ExecutionState], incarnation_id: str) -> ExecutionState | None:
    """Return an incarnation's unfinished run, or else the newest run."""
    active_runs = [
        run for run in runs if run.incarnation_id == incarnation_id and run.status not in _FINAL_STATUSES
    ]
    return max(active_runs or runs, key=lambda run: run.updated_at, default=None)


def _discard_outdated(link: ChainLink, nodes: Collection[str]) -> ChainLink:
    """Return a link without its checkpoint, if the graph has changed since it was made."""
    if link.checkpoint is None:
        return link
    removed_nodes = {pending.node_id for pending in link.checkpoint.execution.pending} - set(nodes)
    if not removed_nodes:
        return link
    reason = f"it was in node {min(removed_nodes)!r}, which the graph no longer has"
    return ChainLink(checkpoint_id=link.checkpoint_id, checkpoint=None, reason=reason)
