"""
The workers that a runtime runs, for who watches over them: told something, stopped, and brought back.

A worker is named by agent and session; which life of it is meant, whoever calls has to say and is held to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.execution import Execution, ExecutionResult, Respawn
from queenright.runtime.nodes.inbox import Note
from queenright.runtime.parts import LoadedGraph
from queenright.runtime.storage.checkpoint_store import ChainLink, CheckpointStore
from queenright.runtime.storage.session_state import ExecutionState, SessionStatus
from queenright.runtime.storage.session_store import Session, SessionBusy
from queenright.runtime.stream import ExecutionStream
from queenright.runtime.stream_surroundings import StreamSurroundings

_OVER: Final = frozenset({SessionStatus.COMPLETED, SessionStatus.CANCELLED, SessionStatus.UNKNOWN})


class InvalidWorkerError(QueenrightError):
    """
    Raised when something cannot be done with a worker; says why.

    ``final``: it never can, with this work. ``over``: as that is at its end.
    """

    def __init__(self, message: str, *, final: bool = False, over: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.over = over


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """A run of a worker that goes on now, or waits for its turn."""

    graph: LoadedGraph
    stream: ExecutionStream
    execution: Execution

    @property
    def incarnation_id(self) -> str:
        """Which life it is; empty before it has its session."""
        return self.execution.incarnation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedWorker:
    """A run of a worker that did not get to its end, as it is on the disk."""

    graph: LoadedGraph
    stream: ExecutionStream
    session: Session
    state: ExecutionState
    chain: Sequence[ChainLink]
    """Its checkpoints, newest first; those of other runs in the session are not among them."""


class Workers:
    """
    The workers of one runtime.

    Args:
        graphs: Returns the graphs with their streams; none while the runtime is not started.
        around: The runtime.
    """

    def __init__(
        self,
        graphs: Callable[[], Iterable[tuple[LoadedGraph, Mapping[str, ExecutionStream]]]],
        around: StreamSurroundings,
    ) -> None:
        self._graphs = graphs
        self._around = around

    def running(self, agent_id: str, session_id: str) -> RunningWorker | None:
        """Return the run of a worker that goes on in a session, or else one that waits for its turn there."""
        found = [
            RunningWorker(graph=graph, stream=stream, execution=execution)
            for graph, streams in self._of(agent_id)
            for stream in streams.values()
            for execution in stream.executions
            if execution.session_id == session_id
        ]
        return min(found, key=lambda run: run.execution.executor is None, default=None)

    def knows(self, agent_id: str, session_id: str) -> bool:
        """Return whether a session of a worker is on the disk. Looks for one file."""
        return any(self._around.sessions.is_there(graph, session_id) for graph, _ in self._of(agent_id))

    async def tell(self, run: RunningWorker, note: Note) -> None:
        """
        Give the nodes that are talking with a model a note; it is on the disk on return.

        Raises:
            InvalidWorkerError: None is, or they wait for their user.
            OSError: The disk refused.
        """
        nodes = [node for execution, _, node in run.stream.nodes() if execution is run.execution]
        if not nodes:
            raise InvalidWorkerError("none of its nodes is talking with a model now")
        listening = [node for node in nodes if not node.waiting_for_user]
        if not listening:
            raise InvalidWorkerError("it waits for its user")
        for node in listening:
            await node.tell(note)

    async def terminate(self, run: RunningWorker, reason: str) -> ExecutionResult:
        """
        Stop a run, save its state, and return how it ended; ``checkpoint_id`` of that is where the state is.

        Takes as long as what it is doing takes to stop; a run that was at its end is left as it is.
        """
        await run.stream.end(run.execution.id, SessionStatus.TERMINATED, reason)
        return await run.execution.ended()

    def still_works(self, run: RunningWorker) -> bool:
        """Return whether a function of a run goes on in a thread, which cannot be stopped."""
        return bool(run.graph.tools.threads.running(run.execution.session_id or ""))

    async def interrupted(self, agent_id: str, session_id: str, incarnation_id: str) -> StoppedWorker:
        """
        Return the run of a worker that could be brought back.

        Args:
            agent_id: The worker.
            session_id: Its session.
            incarnation_id: Of several runs in it that of this life; without one, the newest.

        Raises:
            InvalidWorkerError: There is none, or it is at its end.
            UnusableFileError: The session's state cannot be read.
        """
        return await self._around.disk.run(lambda: self._interrupted(agent_id, session_id, incarnation_id))

    async def abandoned(self, agent_id: str, session_id: str, incarnation_id: str) -> StoppedWorker:
        """
        Return a run that was killed: of this life, not at its end, and nobody has its session.

        Raises:
            InvalidWorkerError: It is another life's, is over, or another process runs it.
            UnusableFileError: The session's state cannot be read.
        """
        left = await self.interrupted(agent_id, session_id, incarnation_id)
        life = left.state.incarnation_id
        if life != incarnation_id:
            raise InvalidWorkerError(
                f"session {session_id!r} was last run by incarnation {life!r}", final=True
            )
        try:
            claim = await self._around.disk.run(lambda: left.graph.store.claim(left.session))
        except SessionBusy as error:
            raise InvalidWorkerError(str(error)) from error
        claim.release()
        return left

    async def respawn(
        self, worker: StoppedWorker, checkpoint_id: str | None, note: str, incarnation_id: str
    ) -> Execution:
        """
        Bring a run back, and return it when it goes on.

        Args:
            worker: The run.
            checkpoint_id: From where; None is from the start, with what it was given then, as a new run.
            note: What its nodes are told before they go on.
            incarnation_id: The id of its new life.

        Raises:
            InvalidWorkerError: It did not begin; says why.
            CheckpointNotFoundError, CorruptCheckpointError: The checkpoint cannot be used any more.
        """
        session_id = worker.session.id
        if self.running(worker.graph.agent_id, session_id) is not None:
            raise InvalidWorkerError(f"session {session_id!r} has a run that goes on; stop that first")
        if checkpoint_id is None:
            again = Respawn(incarnation_id=incarnation_id, note=note, restarts=worker.state.execution_id)
            execution = worker.stream.begin_anew(worker.state.input, session_id, again)
        else:
            store = self._checkpoints(worker.session)
            checkpoint = await self._around.disk.run(lambda: store.load(checkpoint_id))
            again = Respawn(incarnation_id=incarnation_id, note=note)
            execution = worker.stream.take_up(
                worker.state.execution_id, session_id, checkpoint, respawn=again
            )
        try:
            await execution.begun()
        except asyncio.CancelledError:
            await worker.stream.end(execution.id, SessionStatus.TERMINATED, "it took too long to begin")
            raise
        if not execution.has_begun:
            result = await execution.ended()
            why = result.error or result.status.value
            raise InvalidWorkerError(f"session {session_id!r} did not go on: {why}")
        return execution

    def _of(self, agent_id: str) -> list[tuple[LoadedGraph, Mapping[str, ExecutionStream]]]:
        return [(g, streams) for g, streams in self._graphs() if agent_id and g.agent_id == agent_id]

    def _interrupted(self, agent_id: str, session_id: str, incarnation_id: str) -> StoppedWorker:
        """Blocks."""
        for graph, streams in self._of(agent_id):
            if self._around.sessions.is_there(graph, session_id):
                return self._stopped(graph, streams, session_id, incarnation_id)
        raise InvalidWorkerError(
            f"agent {agent_id!r} has no session {session_id!r} here; it was deleted, or is another "
            "process's: then bring it back there",
            final=True,
        )

    def _stopped(
        self,
        graph: LoadedGraph,
        streams: Mapping[str, ExecutionStream],
        session_id: str,
        incarnation_id: str,
    ) -> StoppedWorker:
        session, state = self._around.sessions.known(graph, session_id)
        runs = [run for run in state.executions.values() if run.graph_id == graph.spec.id]
        last = _meant(runs, incarnation_id)
        if last is None:
            raise InvalidWorkerError(
                f"session {session_id!r} has no run of graph {graph.spec.id!r}", final=True
            )
        if last.status in _OVER:
            raise InvalidWorkerError(
                f"session {session_id!r} is {last.status.value}; what is over is not brought back",
                final=True,
                over=last.status is not SessionStatus.UNKNOWN,
            )
        stream = streams.get(last.entry_point)
        if stream is None:
            raise InvalidWorkerError(
                f"session {session_id!r} was begun by entry point {last.entry_point!r}, which graph "
                f"{graph.spec.id!r} has no more",
                final=True,
            )
        nodes = {node.id for node in graph.spec.nodes}
        links = [_usable(link, nodes) for link in self._checkpoints(session).chain()]
        chain = [
            link
            for link in links
            if link.checkpoint is None or link.checkpoint.execution_id == last.execution_id
        ]
        return StoppedWorker(graph=graph, stream=stream, session=session, state=last, chain=chain)

    def _checkpoints(self, session: Session) -> CheckpointStore:
        return CheckpointStore(session.checkpoints, clock=self._around.clock, ids=self._around.ids)


def _meant(runs: Sequence[ExecutionState], incarnation_id: str) -> ExecutionState | None:
    """Return the run of an incarnation that is not at its end, or else the newest of all."""
    mine = [run for run in runs if run.incarnation_id == incarnation_id and run.status not in _OVER]
    return max(mine or runs, key=lambda run: run.updated_at, default=None)


def _usable(link: ChainLink, nodes: Collection[str]) -> ChainLink:
    """Return a link without its checkpoint, if that is of a graph that was another one."""
    if link.checkpoint is None:
        return link
    gone = {pending.node_id for pending in link.checkpoint.execution.pending} - set(nodes)
    if not gone:
        return link
    reason = f"it was in node {min(gone)!r}, which the graph has no more"
    return ChainLink(checkpoint_id=link.checkpoint_id, checkpoint=None, reason=reason)
