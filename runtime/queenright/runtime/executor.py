"""
The graph executor: one run of a graph in one session, node by node.

``state.json`` lists the nodes in progress. When a node ends, one write records its outputs, its outcome and
the nodes that come next. A run can therefore be killed at any point and resumed: the nodes in progress
continue from their own cursors.
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
from queenright.instrumentation.redaction import mask_traceback, redact
from queenright.runtime.breaker_protocols import BreakerKind
from queenright.runtime.deadline import wait_all
from queenright.runtime.events import EventType
from queenright.runtime.graphs.goal import GoalProgress, measure_progress
from queenright.runtime.graphs.graph import EntryPointSpec, NodeSpec
from queenright.runtime.llm.model import ToolCall
from queenright.runtime.memory import SharedMemory
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.event_loop import EventLoopNode, NodeResult
from queenright.runtime.nodes.function_node import call_function
from queenright.runtime.nodes.inbox import Inbox, Note
from queenright.runtime.nodes.node_judge import select_judge
from queenright.runtime.nodes.reporting import Origin, Reporter
from queenright.runtime.nodes.routing import make_routing_node, route_judge
from queenright.runtime.nodes.visit import CURSOR_FILE
from queenright.runtime.plan import Advance, add_nodes, advance, find_ready_nodes
from queenright.runtime.services import LoadedGraph, RuntimeServices
from queenright.runtime.storage.checkpoint_queue import CheckpointQueue
from queenright.runtime.storage.checkpoint_store import (
    Checkpoint,
    CheckpointDraft,
    CheckpointStore,
    SaveReason,
)
from queenright.runtime.storage.conversation import Conversation, list_conversations, read_last_seq
from queenright.runtime.storage.files import UnusableFileError, read_json
from queenright.runtime.storage.runtime_logger import RuntimeLogger, VisitRow
from queenright.runtime.storage.session_state import (
    ExecutionState,
    PendingNode,
    SessionState,
    SessionStatus,
    make_execution_key,
)
from queenright.runtime.storage.session_store import Session, SessionStore
from queenright.runtime.tooling.approval import ApprovalRequest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    """A running node and its start time."""

    pending: PendingNode
    since: float


_STOP_REASONS: Final[Mapping[SessionStatus, SaveReason]] = {
    SessionStatus.PAUSED: "pause",
    SessionStatus.TERMINATED: "terminate",
}
"""Final statuses of runs that can be resumed: their state is saved in a checkpoint."""

_OUTCOME_TEXTS: Final[Mapping[str, str]] = {
    "no_answer": "got no answer",
    "incomplete": "did not finish",
    "escalated": "was escalated",
}


class NodeFailedError(Exception):
    """Ends a run: a node failed and no edge handles the failure."""

    def __init__(self, node_id: str, result: NodeResult) -> None:
        description = _OUTCOME_TEXTS.get(result.outcome, result.outcome)
        super().__init__(f"node {node_id!r} {description}: {result.error}")
        self.node_id = node_id
        self.result = result


class GraphExecutor:
    """
    One run of a graph.

    Args:
        session: The session of the run; the caller has claimed it.
        entry: The entry point; its id and the graph's are the run's key in ``state.json``.
        on_waiting: Called when all running nodes wait for a user.
    """

    def __init__(
        self,
        graph: LoadedGraph,
        services: RuntimeServices,
        *,
        session: Session,
        store: SessionStore,
        origin: Origin,
        entry: EntryPointSpec,
        reporter: Reporter,
        logger: RuntimeLogger,
        on_waiting: Callable[[], None],
    ) -> None:
        self.nodes: dict[str, EventLoopNode] = {}
        """The model-driven nodes that are running now."""
        self.goal: GoalProgress | None = None
        self.last_result: NodeResult | None = None
        """Result of the node that ended last."""
        self.stop_checkpoint_id: str | None = None
        """Checkpoint saved when the run was stopped."""
        self.state: ExecutionState
        self.reporter = reporter
        self._graph = graph
        self._services = services
        self._session = session
        self._store = store
        self._origin = origin
        self._entry = entry
        self._logger = logger
        self._on_waiting = on_waiting
        self._fresh = entry.conversation_mode == "fresh"
        # A node that runs alone continues the thread that started at the entry node.
        self._thread = "" if self._fresh else entry.node_id
        self._key = make_execution_key(graph.spec.id, entry.id)
        self._memory = SharedMemory()
        self._running: dict[asyncio.Task[NodeResult], _Running] = {}
        breaker = None
        if services.breakers is not None and graph.agent_id:
            breaker = services.breakers.get(BreakerKind.CHECKPOINT_WRITE, graph.agent_id)
        self._checkpoints = CheckpointQueue(
            CheckpointStore(session.checkpoints, clock=services.clock, ids=services.ids),
            session_id=session.id,
            disk=services.disk,
            sleep=services.sleep,
            breaker=breaker,
            on_saved=self._on_checkpoint_saved,
        )

    # -- start and end --------------------------------------------------------------------------

    async def begin(self, input_data: Mapping[str, Any], *, queue_entry: bool) -> None:
        """
        Record the start of a run and write its input to the memory.

        Args:
            queue_entry: Whether to queue the entry node with that input; otherwise call ``queue_entry_node``.

        Raises:
            MemoryAccessError: The input is not JSON.
        """
        values = SharedMemory(input_data).read_all()
        now = self._services.clock()

        def change(state: SessionState) -> None:
            state.memory.update(values)
            state.executions[self._key] = ExecutionState(
                execution_id=self._origin.execution_id,
                graph_id=self._graph.spec.id,
                entry_point=self._entry.id,
                status=SessionStatus.ACTIVE,
                incarnation_id=self._origin.incarnation_id,
                started_at=now,
                updated_at=now,
                input=values,
            )
            if queue_entry:
                add_nodes(state.executions[self._key], [(self._entry.node_id, values)], thread=self._thread)

        await self._save(change)

    async def queue_entry_node(self, input_data: Mapping[str, Any]) -> None:
        """Queue the entry node with ``input_data``."""
        values = SharedMemory(input_data).read_all()

        def change(state: SessionState) -> None:
            run = state.executions[self._key]
            run.pending = []  # nodes left over by an earlier call of the entry handler
            add_nodes(run, [(self._entry.node_id, values)], thread=self._thread)

        await self._save(change)

    async def resume(self, checkpoint: Checkpoint | None = None) -> None:
        """
        Resume an interrupted run: its nodes continue from their cursors.

        Outputs that they set but did not pass on yet are written to the memory.

        Args:
            checkpoint: Restore this first; its nodes then start over.
        """
        if checkpoint is not None:
            await self._rewind(checkpoint)

        def change(state: SessionState) -> None:
            run = state.executions[self._key]
            if checkpoint is not None:
                state.memory.clear()
                state.memory.update(checkpoint.memory)
                visits = {**checkpoint.execution.visits, **run.visits}
                run = state.executions[self._key] = checkpoint.execution.model_copy(deep=True)
                run.visits = visits
                run.execution_id = self._origin.execution_id
                first_nodes, run.pending = [(p.node_id, p.input) for p in run.pending], []
                add_nodes(run, first_nodes, thread=self._thread)
            elif not run.visits:
                # It was interrupted between being recorded and entering its first node.
                add_nodes(run, [(self._entry.node_id, run.input)], thread=self._thread)
            for pending in run.pending:
                state.memory.update(self._read_unfinished_outputs(run, pending))
            run.status = SessionStatus.ACTIVE
            run.incarnation_id = self._origin.incarnation_id
            run.ended_at = None
            run.error = run.error_type = ""

        await self._save(change)

    async def remove_run(self, execution_id: str) -> None:
        """Remove the entries of an earlier run, and everything after them, from the graph's conversations."""
        for _, conversation in await self._open_conversations():
            visit_seqs = (e.seq for e in conversation.entries if e.visit_id.startswith(f"{execution_id}:"))
            first_seq = min(visit_seqs, default=None)
            if first_seq is not None:
                await conversation.rewind(first_seq - 1)

    async def leave_note(self, text: str) -> None:
        """Leave a note for the pending nodes, valid for this incarnation only."""
        services, incarnation_id = self._services, self._origin.incarnation_id
        for pending in self.state.pending:
            if not self._graph.spec.node(pending.node_id).function:
                folder = self._session.conversations / pending.node_id / "inbox"
                inbox = Inbox(folder, disk=services.disk, clock=services.clock, random=services.random)
                note_id = f"{incarnation_id}:{pending.node_id}"
                await inbox.put_note(Note(note_id=note_id, content=text, incarnation_id=incarnation_id))

    async def _rewind(self, checkpoint: Checkpoint) -> None:
        """Remove what was added after a checkpoint from every conversation of the graph."""
        for name, conversation in await self._open_conversations():
            await conversation.rewind(checkpoint.conversations.get(name, 0))

    async def _open_conversations(self) -> list[tuple[str, Conversation]]:
        """Open the conversations of the graph in this session, with their names."""
        services, folder = self._services, self._session.conversations
        conversations = []
        for name in await services.disk.run(lambda: list_conversations(folder)):
            open_ = partial(Conversation.open, folder / name, disk=services.disk, clock=services.clock)
            conversations.append((name, await services.disk.run(open_)))
        return conversations

    async def run(self) -> NodeResult | None:
        """
        Run nodes until none is left, and return the result of the last one.

        Raises:
            NodeFailedError: A node failed and no edge handles it; every other node has been stopped.
            CancelledError: Cancelled; every node has been stopped.
        """
        try:
            while True:
                self._launch_nodes()
                if not self._running:
                    return self.last_result
                self._notify_waiting()
                done_tasks, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._running if task in done_tasks]:
                    # A cancelled run still records and reports the node that ended.
                    record_task = asyncio.create_task(
                        self._record_result(self._running.pop(task), _get_result(task))
                    )
                    await wait_all([record_task])
                    record_task.result()
        finally:
            await self._stop_nodes()

    async def close(self, status: SessionStatus, *, error: str = "", error_type: str = "") -> ExecutionState:
        """Record how the run ended, including outputs of unfinished nodes, and return its state."""
        now = self._services.clock()

        def change(state: SessionState) -> None:
            run = state.executions[self._key]
            for pending in run.pending:
                state.memory.update(self._read_unfinished_outputs(run, pending))
            run.status = status
            run.ended_at = None if status is SessionStatus.PAUSED else now
            run.error, run.error_type = redact(error), error_type
            self._measure_goal(state, has_succeeded=status is SessionStatus.COMPLETED)

        previous_goal = self.goal
        try:
            await self._save(change)
            await self._report_goal(previous_goal)
            if status in _STOP_REASONS:
                await self._save_checkpoint("", _STOP_REASONS[status])
        finally:
            await self._checkpoints.close()
        try:
            await self._services.disk.run(lambda: self._logger.log_execution(self.state))
        except OSError:
            _log.exception("could not log the end of run %s", self._origin.execution_id)
        return self.state

    # -- nodes ----------------------------------------------------------------------------------

    @property
    def waits_for_user(self) -> bool:
        """Whether every running node waits for a user."""
        nodes = [self.nodes.get(running.pending.node_id) for running in self._running.values()]
        return bool(nodes) and all(node is not None and node.is_waiting_for_user for node in nodes)

    def _notify_waiting(self) -> None:
        if self.waits_for_user:
            self._on_waiting()

    def _launch_nodes(self) -> None:
        in_progress = [running.pending for running in self._running.values()]
        unstarted_nodes = [pending for pending in self.state.pending if pending not in in_progress]
        for pending in find_ready_nodes(
            self._graph.spec, unstarted_nodes, {node.node_id for node in in_progress}
        ):
            task = asyncio.create_task(self._run_visit(pending), name=f"node:{self._key}:{pending.node_id}")
            self._running[task] = _Running(pending, self._services.clock())

    async def _stop_nodes(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await wait_all(self._running)
        self._running.clear()

    async def _run_visit(self, pending: PendingNode) -> NodeResult:
        spec = self._graph.spec.node(pending.node_id)
        try:
            inputs = self._collect_inputs(spec, pending)
            if spec.function:
                return await call_function(
                    spec,
                    self._graph.functions[spec.function],
                    inputs,
                    visit=pending.visit,
                    context=self._build_context(spec.id),
                    reporter=self.reporter,
                    threads=self._graph.tools.threads,
                    sleep=self._services.sleep,
                )
            return await self._run_event_loop(spec, pending, inputs)
        except Exception as error:
            # The text of an OSError, such as a full disk, is enough to fix it.
            if not isinstance(error, QueenrightError | OSError):
                _log.error("node %s of %s failed: %s", spec.id, self._key, mask_traceback(error))
            return NodeResult(outcome="failed", error=redact(str(error)), error_type=type(error).__name__)

    def _collect_inputs(self, spec: NodeSpec, pending: PendingNode) -> dict[str, Any]:
        available = {**self._memory.view(spec.input_keys), **pending.input}
        missing = [key for key in spec.input_keys if key not in available]
        if missing:
            keys = ", ".join(sorted(self._memory.read_all())) or "nothing"
            raise MissingInputError(f"input {missing[0]!r} is not set; the memory has: {keys}")
        return {key: available[key] for key in spec.input_keys} if spec.input_keys else available

    async def _run_event_loop(
        self, spec: NodeSpec, pending: PendingNode, inputs: Mapping[str, Any]
    ) -> NodeResult:
        services, graph = self._services, self._graph
        folder = self._session.conversations / spec.id
        thread = self._session.conversations / (pending.thread or spec.id)
        conversation = await services.disk.run(
            lambda: Conversation.open(thread, disk=services.disk, clock=services.clock)
        )
        node = self.nodes[spec.id] = EventLoopNode(
            make_routing_node(spec) if spec.node_type == "router" else spec,
            model=graph.get_model(spec),
            tools=graph.tools,
            conversation=conversation,
            folder=folder,
            reporter=self.reporter,
            disk=services.disk,
            clock=services.clock,
            sleep=services.sleep,
            judge=route_judge(spec.routes)
            if spec.node_type == "router"
            else select_judge(spec, graph.get_model(spec), graph.judges),
            guard=services.guards(self._origin, spec.id) if services.guards and graph.agent_id else None,
            breakers=services.breakers,
            context=self._build_context(spec.id),
            random=services.random,
            fresh=self._fresh,
            started_by_user=self._entry.trigger_type == "manual",
            on_waiting=self._notify_waiting,
            approve=partial(self._approve, spec.id) if services.approvals.callback is not None else None,
        )
        try:
            return await node.run(self._make_visit_id(pending), _format_message(inputs))
        finally:
            del self.nodes[spec.id]

    async def _approve(self, node_id: str, call: ToolCall) -> None:
        """Ask for approval of a tool call while the worker waits. Raises ``NotApprovedError``."""
        request = ApprovalRequest(
            tool=call.name,
            arguments=call.arguments,
            call_id=call.id,
            graph_id=self._graph.spec.id,
            node_id=node_id,
            session_id=self._session.id,
            agent_id=self._graph.agent_id,
        )
        async with self.reporter.waiting(WaitingReason.USER_INPUT, node_id=node_id, tool=call.name):
            await self._services.approvals.check(request)

    def _build_context(self, node_id: str) -> dict[str, object]:
        return {
            **self._services.context,
            "graph_id": self._graph.spec.id,
            "session_id": self._session.id,
            "agent_id": self._graph.agent_id,
            "node_id": node_id,
            "data_dir": self._session.artifacts,
        }

    # -- transitions ----------------------------------------------------------------------------

    async def _record_result(self, running: _Running, result: NodeResult) -> None:
        """Record a node's result in one write, then report it."""
        pending, spec = running.pending, self._graph.spec.node(running.pending.node_id)
        self.last_result = result
        advances: list[Advance] = []

        def change(state: SessionState) -> None:
            run = state.executions[self._key]
            in_progress = {other.pending.node_id for other in self._running.values()}
            advances[:] = [
                advance(
                    self._graph.spec,
                    run,
                    state.memory,
                    pending,
                    result,
                    running=in_progress,
                    thread=self._thread,
                )
            ]
            self._measure_goal(state, has_succeeded=False)

        previous_goal = self.goal
        await self._save(change)
        await self._log_visit(running, result)
        [step] = advances
        for edge in step.edges:
            data = {"edge": edge.id, "source": edge.source, "target": edge.target}
            await self.reporter.emit(EventType.EDGE_TRAVERSED, data, node_id=spec.id)
        await self._report_goal(previous_goal)
        if step.failure is not None:
            raise NodeFailedError(spec.id, step.failure)
        if result.outcome == "done":
            await self._save_checkpoint(spec.id, "node")

    def _measure_goal(self, state: SessionState, *, has_succeeded: bool) -> None:
        if self._graph.goal is not None:
            self.goal = measure_progress(self._graph.goal, state.memory, has_succeeded=has_succeeded)
            state.executions[self._key].goal_progress = self.goal.fraction

    async def _report_goal(self, previous_goal: GoalProgress | None) -> None:
        if self.goal is not None and self.goal != previous_goal:
            await self.reporter.emit(EventType.GOAL_PROGRESS, self.goal.model_dump(mode="json"))

    # -- persistence ----------------------------------------------------------------------------

    async def _save(self, change: Callable[[SessionState], None]) -> None:
        now = self._services.clock()

        def change_and_stamp(state: SessionState) -> None:
            change(state)
            state.executions[self._key].updated_at = now

        state = await self._services.disk.run(lambda: self._store.update(self._session, change_and_stamp))
        self.state = state.executions[self._key]
        self._memory = SharedMemory(state.memory)

    async def _save_checkpoint(self, node_id: str, reason: SaveReason) -> None:
        # A graph that is not a worker is never respawned.
        if not self._graph.agent_id:
            return
        folder = self._session.conversations
        try:
            seqs = await self._services.disk.run(
                lambda: {name: read_last_seq(folder / name) for name in list_conversations(folder)}
            )
        except OSError:
            _log.exception("could not make a checkpoint of session %s", self._session.id)
            return
        await self._checkpoints.put(
            CheckpointDraft(
                session_id=self._session.id,
                execution_id=self._origin.execution_id,
                graph_id=self._graph.spec.id,
                node_id=node_id,
                reason=reason,
                memory=self._memory.read_all(),
                execution=self.state,
                conversations=seqs,
            )
        )

    async def _on_checkpoint_saved(self, checkpoint_id: str, draft: CheckpointDraft) -> None:
        if draft.reason == "node":
            await self.reporter.checkpoint(checkpoint_id, node_id=draft.node_id)
        else:
            self.stop_checkpoint_id = checkpoint_id

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
            ended_at=self._services.clock(),
            error=redact(result.error),
        )
        try:
            await self._services.disk.run(lambda: self._logger.log_visit(row))
        except OSError:
            _log.exception("could not log the visit of node %s", running.pending.node_id)

    def _make_visit_id(self, pending: PendingNode) -> str:
        return f"{self._origin.execution_id}:{pending.node_id}:{pending.visit}"

    def _read_unfinished_outputs(self, run: ExecutionState, pending: PendingNode) -> dict[str, Any]:
        """Return the outputs that an unfinished node has set so far, from its cursor on disk."""
        spec = self._graph.spec.node(pending.node_id)
        if spec.function:
            return {}
        visit_id = f"{run.execution_id}:{pending.node_id}:{pending.visit}"
        try:
            row = read_json(self._session.conversations / pending.node_id / CURSOR_FILE)
            cursor = NodeCursor.model_validate(row)
        except (FileNotFoundError, UnusableFileError, ValueError):
            return {}
        outputs = cursor.outputs if cursor.visit_id == visit_id else {}
        return {key: outputs[key] for key in spec.output_keys if key in outputs}


class MissingInputError(QueenrightError):
    """Raised when an input key of a node is not set."""


def _format_message(inputs: Mapping[str, Any]) -> str:
    """Return a node's input as text: a message as it is, anything else as JSON."""
    if set(inputs) == {"message"} and isinstance(inputs["message"], str):
        return inputs["message"]
    return json.dumps(inputs, ensure_ascii=False, indent=1)


def _get_result(task: asyncio.Task[NodeResult]) -> NodeResult:
    if task.cancelled():
        # Cancelled by something that the node waited for, not by the executor.
        return NodeResult(outcome="failed", error="cancelled within the node", error_type="CancelledError")
    return task.result()
