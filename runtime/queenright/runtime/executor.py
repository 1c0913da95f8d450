"""
The graph executor: one run of a graph in one session, from node to node.

``state.json`` says which nodes are under way, and is changed in one write when a node ends: what it
put out, that it is done, and which nodes come next. So a run can be killed anywhere and be taken
up again: the nodes that were under way go on from their own cursors.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.names import WaitingReason
from queenright.instrumentation.redaction import masked_traceback, redact
from queenright.runtime.breakers import BreakerKind
from queenright.runtime.deadline import all_ended
from queenright.runtime.events import EventType
from queenright.runtime.graphs.goal import GoalProgress, progress
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.llm.model import ToolCall
from queenright.runtime.memory import SharedMemory
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.event_loop import EventLoopNode, NodeResult
from queenright.runtime.nodes.function_node import call_function
from queenright.runtime.nodes.inbox import Inbox, Note
from queenright.runtime.nodes.node_judge import judge_for
from queenright.runtime.nodes.reporting import Origin, Reporter
from queenright.runtime.nodes.routing import RouteJudge, routing_node
from queenright.runtime.nodes.visit import CURSOR_FILE
from queenright.runtime.parts import LoadedGraph, Surroundings
from queenright.runtime.plan import Advance, add_nodes, advance, ready
from queenright.runtime.storage.checkpoint_queue import CheckpointDraft, CheckpointQueue
from queenright.runtime.storage.checkpoint_store import Checkpoint, CheckpointStore, Reason
from queenright.runtime.storage.conversation import Conversation, conversations_in, last_seq
from queenright.runtime.storage.files import UnusableFileError, read_json
from queenright.runtime.storage.runtime_logger import RuntimeLogger, VisitRow
from queenright.runtime.storage.session_store import (
    ExecutionState,
    PendingNode,
    Session,
    SessionState,
    SessionStatus,
    SessionStore,
    execution_key,
)
from queenright.runtime.tooling.approval import ApprovalRequest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    """A node under way, and since when."""

    pending: PendingNode
    since: float


_STOPPED: Final[Mapping[SessionStatus, Reason]] = {
    SessionStatus.PAUSED: "pause",
    SessionStatus.TERMINATED: "terminate",
}
"""Runs that end so are to go on some day: their state is saved as it is."""

_ENDED: Final[Mapping[str, str]] = {
    "no_answer": "got no answer",
    "incomplete": "was not done",
    "escalated": "was given up",
}


class NodeFailed(Exception):
    """Ends a run: a node failed and no edge leads on from there."""

    def __init__(self, node_id: str, result: NodeResult) -> None:
        ended = _ENDED.get(result.outcome, result.outcome)
        super().__init__(f"node {node_id!r} {ended}: {result.error}")
        self.node_id = node_id
        self.result = result


class GraphExecutor:
    """
    One run of a graph.

    Args:
        graph: The graph.
        around: The runtime.
        session: Where the run has its files; the caller has claimed it.
        store: Keeps the session's state.
        origin: Who the run is, for events.
        entry_point: The entry point's id: with the graph's, the name of the run in ``state.json``.
        entry_node: The node that it starts; the thread of a continuous conversation is its.
        reporter: Tells everybody what goes on.
        logger: Keeps a row a visit.
        fresh: Each visit starts with an empty conversation.
        begun_by_user: Whether the entry point is for users; an event or a timer fires it otherwise.
        on_waiting: Is called when nothing goes on any more before a user has answered.
    """

    def __init__(
        self,
        graph: LoadedGraph,
        around: Surroundings,
        *,
        session: Session,
        store: SessionStore,
        origin: Origin,
        entry_point: str,
        entry_node: str,
        reporter: Reporter,
        logger: RuntimeLogger,
        fresh: bool,
        begun_by_user: bool,
        on_waiting: Callable[[], None],
    ) -> None:
        self.graph_id = graph.spec.id
        self.nodes: dict[str, EventLoopNode] = {}
        """The nodes that talk with a model now."""
        self.goal: GoalProgress | None = None
        self.last: NodeResult | None = None
        """How the node ended that ended last."""
        self.stopped_at: str | None = None
        """The checkpoint that was made when the run was stopped."""
        self.state: ExecutionState
        self._graph = graph
        self._around = around
        self._session = session
        self._store = store
        self._origin = origin
        self._entry_point = entry_point
        self._entry_node = entry_node
        self._reporter = reporter
        self._logger = logger
        self._fresh = fresh
        self._begun_by_user = begun_by_user
        self._on_waiting = on_waiting
        # Who runs alone goes on talking in the thread that began at the entry node.
        self._thread = "" if fresh else entry_node
        self._key = execution_key(graph.spec.id, entry_point)
        self._memory = SharedMemory()
        self._running: dict[asyncio.Task[NodeResult], _Running] = {}
        breaker = None
        if around.breakers is not None and graph.agent_id:
            breaker = around.breakers.get(BreakerKind.CHECKPOINT_WRITE, graph.agent_id)
        self._checkpoints = CheckpointQueue(
            CheckpointStore(session.checkpoints, clock=around.clock, ids=around.ids),
            session_id=session.id,
            disk=around.disk,
            sleep=around.sleep,
            breaker=breaker,
            on_saved=self._checkpoint_saved,
        )

    # -- beginning and end ----------------------------------------------------------------------

    async def begin(self, given: Mapping[str, Any], *, enters: bool) -> None:
        """
        Write down that a run begins, and put what it was given into the memory.

        Args:
            given: The run's input.
            enters: Whether the entry node is the next to run, with that as its input; else see ``enter``.

        Raises:
            MemoryAccessError: What was given is no JSON.
        """
        known = SharedMemory(given).read_all()
        now = self._around.clock()

        def change(state: SessionState) -> None:
            state.memory.update(known)
            state.executions[self._key] = ExecutionState(
                execution_id=self._origin.execution_id,
                graph_id=self._graph.spec.id,
                entry_point=self._entry_point,
                status=SessionStatus.ACTIVE,
                incarnation_id=self._origin.incarnation_id,
                started_at=now,
                updated_at=now,
                input=known,
            )
            if enters:
                add_nodes(state.executions[self._key], [(self._entry_node, known)], thread=self._thread)

        await self._save(change)

    async def enter(self, given: Mapping[str, Any]) -> None:
        """Let the entry node be the next to run, with ``given`` as its input."""
        known = SharedMemory(given).read_all()

        def change(state: SessionState) -> None:
            mine = state.executions[self._key]
            mine.pending = []  # what an entry's run before this one left
            add_nodes(mine, [(self._entry_node, known)], thread=self._thread)

        await self._save(change)

    async def take_up(self, checkpoint: Checkpoint | None = None) -> None:
        """
        Go on with a run that was interrupted: its nodes go on from their cursors.

        What they had put out and not handed over yet is in the memory from here on.

        Args:
            checkpoint: Go back to this first; its nodes start anew.
        """
        if checkpoint is not None:
            await self._rewind(checkpoint)

        def change(state: SessionState) -> None:
            now = state.executions[self._key]
            if checkpoint is not None:
                state.memory.clear()
                state.memory.update(checkpoint.memory)
                visits = {**checkpoint.execution.visits, **now.visits}
                now = state.executions[self._key] = checkpoint.execution.model_copy(deep=True)
                now.visits = visits
                now.execution_id = self._origin.execution_id
                again, now.pending = [(p.node_id, p.input) for p in now.pending], []
                add_nodes(now, again, thread=self._thread)
            elif not now.visits:
                # It was interrupted between being written down and entering its first node.
                add_nodes(now, [(self._entry_node, now.input)], thread=self._thread)
            for pending in now.pending:
                state.memory.update(self._unfinished_outputs(now, pending))
            now.status = SessionStatus.ACTIVE
            now.incarnation_id = self._origin.incarnation_id
            now.ended_at = None
            now.error = now.error_type = ""

        await self._save(change)

    async def forget_run(self, execution_id: str) -> None:
        """Forget what was said in an earlier run of this graph, and since."""
        for _, conversation in await self._conversations():
            mine = (e.seq for e in conversation.entries if e.visit_id.startswith(f"{execution_id}:"))
            first = min(mine, default=None)
            if first is not None:
                await conversation.rewind(first - 1)

    async def tell(self, text: str) -> None:
        """Leave the nodes that come next a note, for this incarnation only."""
        around, life = self._around, self._origin.incarnation_id
        for pending in self.state.pending:
            if not self._graph.spec.node(pending.node_id).function:
                folder = self._session.conversations / pending.node_id / "inbox"
                inbox = Inbox(folder, disk=around.disk, clock=around.clock, random=around.random)
                note = Note(note_id=f"{life}:{pending.node_id}", content=text, incarnation_id=life)
                await inbox.put_note(note)

    async def _rewind(self, checkpoint: Checkpoint) -> None:
        """Forget what was said after a checkpoint, in every conversation of the graph."""
        for name, conversation in await self._conversations():
            await conversation.rewind(checkpoint.conversations.get(name, 0))

    async def _conversations(self) -> list[tuple[str, Conversation]]:
        """Return the conversations of the graph in this session, with their names."""
        around, folder = self._around, self._session.conversations
        opened = []
        for name in await around.disk.run(lambda: conversations_in(folder)):
            conversation = partial(Conversation.open, folder / name, disk=around.disk, clock=around.clock)
            opened.append((name, await around.disk.run(conversation)))
        return opened

    async def run(self) -> NodeResult | None:
        """
        Run nodes until none is left, and return how the last one ended.

        Raises:
            NodeFailed: A node failed and no edge leads on; every other node has been stopped.
            CancelledError: Cancelled; every node has stopped before this is raised.
        """
        try:
            while True:
                self._launch()
                if not self._running:
                    return self.last
                self._tell_waiting()
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._running if task in done]:
                    # A run that is stopped meanwhile still writes down and tells what was done.
                    ended = asyncio.create_task(self._ended(self._running.pop(task), _result(task)))
                    await all_ended([ended])
                    ended.result()
        finally:
            await self._stop_nodes()

    async def close(self, status: SessionStatus, *, error: str = "", error_type: str = "") -> ExecutionState:
        """Write down how the run ended, what its unfinished nodes had put out included, and return it."""
        now = self._around.clock()
        goal = self._graph.goal

        def change(state: SessionState) -> None:
            mine = state.executions[self._key]
            for pending in mine.pending:
                state.memory.update(self._unfinished_outputs(mine, pending))
            mine.status = status
            mine.ended_at = None if status is SessionStatus.PAUSED else now
            mine.error, mine.error_type = redact(error), error_type
            if goal is not None:
                self.goal = progress(goal, state.memory, finished=status is SessionStatus.COMPLETED)
                mine.goal_progress = self.goal.fraction

        before = self.goal
        try:
            await self._save(change)
            if self.goal is not None and self.goal != before:
                await self._reporter.emit(EventType.GOAL_PROGRESS, self.goal.model_dump(mode="json"))
            if status in _STOPPED:
                await self._checkpoint("", _STOPPED[status])
        finally:
            await self._checkpoints.close()
        try:
            await self._around.disk.run(lambda: self._logger.execution_ended(self.state))
        except OSError:
            _log.exception("the end of run %s could not be logged", self._origin.execution_id)
        return self.state

    # -- nodes ----------------------------------------------------------------------------------

    @property
    def waits_for_user(self) -> bool:
        """Whether every node under way waits for its user."""
        under_way = [self.nodes.get(running.pending.node_id) for running in self._running.values()]
        return bool(under_way) and all(node is not None and node.waiting_for_user for node in under_way)

    def _tell_waiting(self) -> None:
        if self.waits_for_user:
            self._on_waiting()

    def _launch(self) -> None:
        under_way = [running.pending for running in self._running.values()]
        waiting = [pending for pending in self.state.pending if pending not in under_way]
        for pending in ready(self._graph.spec, waiting, {node.node_id for node in under_way}):
            task = asyncio.create_task(self._visit(pending), name=f"node:{self._key}:{pending.node_id}")
            self._running[task] = _Running(pending, self._around.clock())

    async def _stop_nodes(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await all_ended(self._running)
        self._running.clear()

    async def _visit(self, pending: PendingNode) -> NodeResult:
        spec = self._graph.spec.node(pending.node_id)
        try:
            given = self._inputs(spec, pending)
            if spec.function:
                return await call_function(
                    spec,
                    self._graph.functions[spec.function],
                    given,
                    visit=pending.visit,
                    context=self._context(spec.id),
                    reporter=self._reporter,
                    threads=self._graph.tools.threads,
                    sleep=self._around.sleep,
                )
            return await self._talk(spec, pending, given)
        except Exception as error:
            # The words of an OSError (a full disk, say) are all that is needed to mend it.
            if not isinstance(error, QueenrightError | OSError):
                _log.error("node %s of %s failed: %s", spec.id, self._key, masked_traceback(error))
            return NodeResult(outcome="failed", error=redact(str(error)), error_type=type(error).__name__)

    def _inputs(self, spec: NodeSpec, pending: PendingNode) -> dict[str, Any]:
        given = {**self._memory.view(spec.input_keys), **pending.input}
        missing = [key for key in spec.input_keys if key not in given]
        if missing:
            have = ", ".join(sorted(self._memory.read_all())) or "nothing"
            raise MissingInput(f"it needs {missing[0]!r}, which nobody has set; there is: {have}")
        return {key: given[key] for key in spec.input_keys} if spec.input_keys else given

    async def _talk(self, spec: NodeSpec, pending: PendingNode, given: Mapping[str, Any]) -> NodeResult:
        around, graph = self._around, self._graph
        folder = self._session.conversations / spec.id
        thread = self._session.conversations / (pending.thread or spec.id)
        conversation = await around.disk.run(
            lambda: Conversation.open(thread, disk=around.disk, clock=around.clock)
        )
        node = self.nodes[spec.id] = EventLoopNode(
            routing_node(spec) if spec.node_type == "router" else spec,
            model=graph.model_of(spec),
            tools=graph.tools,
            conversation=conversation,
            folder=folder,
            reporter=self._reporter,
            disk=around.disk,
            clock=around.clock,
            sleep=around.sleep,
            judge=RouteJudge(spec.routes)
            if spec.node_type == "router"
            else judge_for(spec, graph.model_of(spec), graph.judges),
            guard=around.guards(self._origin, spec.id) if around.guards and graph.agent_id else None,
            breakers=around.breakers,
            context=self._context(spec.id),
            random=around.random,
            fresh=self._fresh,
            begun_by_user=self._begun_by_user,
            on_waiting=self._tell_waiting,
            approve=partial(self._approve, spec.id) if around.approvals.callback is not None else None,
        )
        try:
            return await node.run(self._visit_id(pending), _message(given))
        finally:
            del self.nodes[spec.id]

    async def _approve(self, node_id: str, call: ToolCall) -> None:
        """Ask whether a tool may run; the worker waits for a person meanwhile. Raises ``NotApproved``."""
        request = ApprovalRequest(
            tool=call.name,
            arguments=call.arguments,
            call_id=call.id,
            graph_id=self._graph.spec.id,
            node_id=node_id,
            session_id=self._session.id,
            agent_id=self._graph.agent_id,
        )
        async with self._reporter.waiting(WaitingReason.USER_INPUT, node_id=node_id, tool=call.name):
            await self._around.approvals.check(request)

    def _context(self, node_id: str) -> dict[str, object]:
        return {
            **self._around.context,
            "graph_id": self._graph.spec.id,
            "session_id": self._session.id,
            "agent_id": self._graph.agent_id,
            "node_id": node_id,
            "data_dir": self._session.artifacts,
        }

    # -- from node to node ----------------------------------------------------------------------

    async def _ended(self, running: _Running, result: NodeResult) -> None:
        """Take in how a node ended: one write, and then it is told."""
        pending, spec = running.pending, self._graph.spec.node(running.pending.node_id)
        self.last = result
        moved: list[Advance] = []

        def change(state: SessionState) -> None:
            mine = state.executions[self._key]
            under_way = {other.pending.node_id for other in self._running.values()}
            moved[:] = [
                advance(
                    self._graph.spec,
                    mine,
                    state.memory,
                    pending,
                    result,
                    running=under_way,
                    thread=self._thread,
                )
            ]
            if self._graph.goal is not None:
                self.goal = progress(self._graph.goal, state.memory, finished=False)
                mine.goal_progress = self.goal.fraction

        before = self.goal
        await self._save(change)
        await self._log_visit(running, result)
        [step] = moved
        for edge in step.taken:
            told = {"edge": edge.id, "source": edge.source, "target": edge.target}
            await self._reporter.emit(EventType.EDGE_TRAVERSED, told, node_id=spec.id)
        if self.goal is not None and self.goal != before:
            await self._reporter.emit(EventType.GOAL_PROGRESS, self.goal.model_dump(mode="json"))
        if step.failure is not None:
            raise NodeFailed(spec.id, step.failure)
        if result.outcome == "done":
            await self._checkpoint(spec.id, "node")

    # -- what is written ------------------------------------------------------------------------

    async def _save(self, change: Callable[[SessionState], None]) -> None:
        now = self._around.clock()

        def timed(state: SessionState) -> None:
            change(state)
            state.executions[self._key].updated_at = now

        state = await self._around.disk.run(lambda: self._store.update(self._session, timed))
        self.state = state.executions[self._key]
        self._memory = SharedMemory(state.memory)

    async def _checkpoint(self, node_id: str, reason: Reason) -> None:
        # A graph that is no worker has no work that could be taken up elsewhere.
        if not self._graph.agent_id:
            return
        folder = self._session.conversations
        try:
            seqs = await self._around.disk.run(
                lambda: {name: last_seq(folder / name) for name in conversations_in(folder)}
            )
        except OSError:
            _log.exception("a checkpoint of session %s could not be made", self._session.id)
            return
        await self._checkpoints.put(
            CheckpointDraft(
                execution_id=self._origin.execution_id,
                graph_id=self._graph.spec.id,
                node_id=node_id,
                reason=reason,
                memory=self._memory.read_all(),
                execution=self.state,
                conversations=seqs,
            )
        )

    async def _checkpoint_saved(self, checkpoint_id: str, draft: CheckpointDraft) -> None:
        if draft.reason == "node":
            await self._reporter.checkpoint(checkpoint_id, node_id=draft.node_id)
        else:
            self.stopped_at = checkpoint_id

    async def _log_visit(self, running: _Running, result: NodeResult) -> None:
        row = VisitRow(
            execution_id=self._origin.execution_id,
            node_id=running.pending.node_id,
            visit=running.pending.visit,
            outcome=result.outcome,
            verdicts=Counter(result.verdicts),
            turns=result.turns,
            tool_calls=result.tool_calls,
            input_tokens=result.input_tokens,
            output_tokens=result.output_tokens,
            cost=result.cost,
            started_at=running.since,
            ended_at=self._around.clock(),
            error=redact(result.error),
        )
        try:
            await self._around.disk.run(lambda: self._logger.visit_ended(row))
        except OSError:
            _log.exception("the visit of node %s could not be logged", running.pending.node_id)

    def _visit_id(self, pending: PendingNode) -> str:
        return f"{self._origin.execution_id}:{pending.node_id}:{pending.visit}"

    def _unfinished_outputs(self, mine: ExecutionState, pending: PendingNode) -> dict[str, Any]:
        """Return what a node under way has put out so far, by its cursor on disk."""
        spec = self._graph.spec.node(pending.node_id)
        if spec.function:
            return {}
        visit_id = f"{mine.execution_id}:{pending.node_id}:{pending.visit}"
        try:
            cursor = NodeCursor.from_dict(
                read_json(self._session.conversations / pending.node_id / CURSOR_FILE)
            )
        except (FileNotFoundError, UnusableFileError, ValueError):
            return {}
        outputs = cursor.outputs if cursor.visit_id == visit_id else {}
        return {key: outputs[key] for key in spec.output_keys if key in outputs}


class MissingInput(QueenrightError):
    """Raised inside a run for a node whose input keys are not all set."""


def _message(given: Mapping[str, Any]) -> str:
    """Return a node's input in words: a message as it is, anything else as JSON."""
    if set(given) == {"message"} and isinstance(given["message"], str):
        return given["message"]
    return json.dumps(given, ensure_ascii=False, indent=1)


def _result(task: asyncio.Task[NodeResult]) -> NodeResult:
    if task.cancelled():
        # Not by us: something that the node waited for was cancelled.
        return NodeResult(outcome="failed", error="cancelled from inside", error_type="CancelledError")
    return task.result()
