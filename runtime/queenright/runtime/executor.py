"""
The graph executor: one run of a graph in one session, from node to node.

``state.json`` says which nodes are under way, and is changed in one write when a node ends: what it
put out, that it is done, and which nodes come next. So a run can be killed anywhere and be taken
up again: the nodes that were under way go on from their own cursors.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from queenright.instrumentation.names import Verdict
from queenright.instrumentation.redaction import redact
from queenright.runtime.checkpoint_store import CheckpointStore
from queenright.runtime.conditions import ConditionError
from queenright.runtime.conversation import Conversation
from queenright.runtime.cursor import NodeCursor
from queenright.runtime.event_loop import EventLoopNode, NodeResult
from queenright.runtime.events import EventType
from queenright.runtime.files import FileUnusable, read_json
from queenright.runtime.goal import GoalProgress, progress
from queenright.runtime.graph import EdgeSpec, NodeSpec
from queenright.runtime.memory import MemoryRefused, SharedMemory
from queenright.runtime.node_judge import ImplicitJudge, LlmJudge, NodeJudge
from queenright.runtime.parts import LoadedGraph, Surroundings
from queenright.runtime.plan import edges_taken, ready
from queenright.runtime.reporting import Origin, Reporter
from queenright.runtime.routing import ROUTE, RouteJudge, routing_node
from queenright.runtime.runtime_logger import RuntimeLogger, VisitRow
from queenright.runtime.session_store import (
    ExecutionState,
    PendingNode,
    Session,
    SessionState,
    SessionStatus,
    SessionStore,
)

_log = logging.getLogger(__name__)

CHECKPOINTS_KEPT: Final = 20
_PATH_KEPT: Final = 200


@dataclass(frozen=True, slots=True)
class _Running:
    """A node under way, and since when."""

    pending: PendingNode
    since: float


class NodeFailed(Exception):
    """Ends a run: a node failed and no edge leads on from there."""

    def __init__(self, node_id: str, result: NodeResult) -> None:
        super().__init__(f"node {node_id!r} {result.outcome}: {result.error}")
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
    ) -> None:
        self.graph_id = graph.spec.id
        self.nodes: dict[str, EventLoopNode] = {}
        """The nodes that talk with a model now."""
        self.goal: GoalProgress | None = None
        self.last: NodeResult | None = None
        """How the node ended that ended last."""
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
        self._key = f"{graph.spec.id}::{entry_point}"
        self._memory = SharedMemory()
        self._running: dict[asyncio.Task[NodeResult], _Running] = {}
        self._said: dict[str, int] = {}
        # A graph that is no worker has no work that could be taken up elsewhere.
        self._checkpoints = (
            CheckpointStore(session.checkpoints, clock=around.clock, ids=around.ids)
            if graph.agent_id
            else None
        )

    # -- beginning and end ----------------------------------------------------------------------

    async def begin(self, given: Mapping[str, Any]) -> None:
        """
        Write down that a run begins, and put what it was given into the memory.

        Raises:
            MemoryRefused: What was given is no JSON.
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

        await self._save(change)

    async def enter(self, given: Mapping[str, Any]) -> None:
        """Let the entry node be the next to run, with ``given`` as its input."""
        known = SharedMemory(given).read_all()

        def change(state: SessionState) -> None:
            mine = state.executions[self._key]
            mine.pending = []  # what an entry's run before this one left
            self._add(mine, [(self._entry_node, known)])

        await self._save(change)

    async def take_up(self, checkpoint_id: str | None = None) -> None:
        """
        Go on with a run that was interrupted: its nodes go on from their cursors.

        What they had put out and not handed over yet is in the memory from here on.

        Args:
            checkpoint_id: Go back to this checkpoint first; its nodes start anew.

        Raises:
            CheckpointBroken: The checkpoint cannot be used.
        """
        checkpoint = None
        if checkpoint_id is not None:
            store = CheckpointStore(self._session.checkpoints, clock=self._around.clock, ids=self._around.ids)
            checkpoint = await self._around.disk.run(lambda: store.load(checkpoint_id))

        def change(state: SessionState) -> None:
            now = state.executions[self._key]
            if checkpoint is not None:
                state.memory.clear()
                state.memory.update(checkpoint.memory)
                visits = {**checkpoint.execution.visits, **now.visits}
                now = state.executions[self._key] = checkpoint.execution.model_copy(deep=True)
                now.visits = visits
                again, now.pending = [(p.node_id, p.input) for p in now.pending], []
                self._add(now, again)
            elif now.status is SessionStatus.FAILED:
                # The nodes that failed have ended: they are visited anew.
                again, now.pending = [(p.node_id, p.input) for p in now.pending], []
                self._add(now, again)
            elif not now.visits:
                # It was interrupted between being written down and entering its first node.
                self._add(now, [(self._entry_node, now.input)])
            for pending in now.pending:
                state.memory.update(self._unfinished_outputs(now, pending))
            now.status = SessionStatus.ACTIVE
            now.incarnation_id = self._origin.incarnation_id
            now.ended_at = None
            now.error = now.error_type = ""

        await self._save(change)

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
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._running if task in done]:
                    await self._ended(self._running.pop(task), _result(task))
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
            mine.status, mine.updated_at = status, now
            mine.ended_at = None if status is SessionStatus.PAUSED else now
            mine.error, mine.error_type = redact(error), error_type
            if goal is not None:
                self.goal = progress(goal, state.memory, finished=status is SessionStatus.COMPLETED)
                mine.goal_progress = self.goal.fraction

        before = self.goal
        await self._save(change)
        if self.goal is not None and self.goal != before:
            await self._reporter.emit(EventType.GOAL_PROGRESS, self.goal.model_dump(mode="json"))
        if status is SessionStatus.PAUSED:
            await self._checkpoint("", "pause")
        try:
            await self._around.disk.run(lambda: self._logger.execution_ended(self.state))
        except OSError:
            _log.exception("the end of run %s could not be logged", self._origin.execution_id)
        return self.state

    # -- nodes ----------------------------------------------------------------------------------

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
            await _all_ended(list(self._running))
        self._running.clear()

    async def _visit(self, pending: PendingNode) -> NodeResult:
        spec = self._graph.spec.node(pending.node_id)
        try:
            given = self._inputs(spec, pending)
            if spec.function:
                return await self._call(spec, pending, given)
            return await self._talk(spec, pending, given)
        except Exception as error:
            if not isinstance(error, _Unusable | MemoryRefused):
                _log.exception("node %s of %s failed", spec.id, self._key)
            return NodeResult(outcome="failed", error=redact(str(error)), error_type=type(error).__name__)

    def _inputs(self, spec: NodeSpec, pending: PendingNode) -> dict[str, Any]:
        given = {**self._memory.view(spec.input_keys), **pending.input}
        missing = [key for key in spec.input_keys if key not in given]
        if missing:
            have = ", ".join(sorted(self._memory.read_all())) or "nothing"
            raise _Unusable(f"it needs {missing[0]!r}, which nobody has set; there is: {have}")
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
            judge=self._judge(spec),
            guard=around.guards(self._origin, spec.id) if around.guards and graph.agent_id else None,
            context=self._context(spec.id),
            random=around.random,
            fresh=self._fresh,
        )
        try:
            return await node.run(self._visit_id(pending), _message(given))
        finally:
            self._said[thread.name] = conversation.last_seq
            del self.nodes[spec.id]

    def _judge(self, spec: NodeSpec) -> NodeJudge:
        if spec.node_type == "router":
            return RouteJudge(spec.routes)
        if spec.conversation_judge == "llm":
            return LlmJudge(self._graph.model_of(spec), spec.success_criteria)
        if spec.conversation_judge:
            return self._graph.judges[spec.conversation_judge]
        return ImplicitJudge()

    async def _call(self, spec: NodeSpec, pending: PendingNode, given: Mapping[str, Any]) -> NodeResult:
        """Run a function: one step, accepted if it returns."""
        function = self._graph.functions[spec.function]
        arguments = {**_wanted(function, given, spec), **_wanted(function, self._context(spec.id))}
        await self._reporter.emit(EventType.NODE_LOOP_STARTED, {"messages": 0}, node_id=spec.id)
        result = NodeResult(outcome="failed")
        try:
            async with self._reporter.step(spec.id, pending.visit) as step:
                if inspect.iscoroutinefunction(function):
                    value = await function(**arguments)
                else:
                    threads = self._graph.tools.threads
                    value = await threads.run(self._session.id, lambda: function(**arguments))
                outputs = _outputs(spec, value)
                step.verdict(Verdict.ACCEPT)
            result = NodeResult(outcome="done", outputs=outputs, turns=1, verdicts=(Verdict.ACCEPT.value,))
        except Exception as error:
            result = NodeResult(
                outcome="failed", turns=1, error=redact(str(error)), error_type=type(error).__name__
            )
        finally:
            ended = {"outcome": result.outcome, "turns": result.turns, "error": result.error}
            await self._reporter.emit(
                EventType.NODE_LOOP_COMPLETED, {**ended, "outputs": sorted(result.outputs)}, node_id=spec.id
            )
        return result

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
        taken: list[EdgeSpec] = []
        failure: list[NodeResult] = []

        def change(state: SessionState) -> None:
            taken.clear()
            failure.clear()
            mine = state.executions[self._key]
            outcome = self._go_on(state, mine, pending, result, taken)
            if outcome is not None:
                failure.append(outcome)

        before = self.goal
        await self._save(change)
        await self._log_visit(running, result)
        for edge in taken:
            told = {"edge": edge.id, "source": edge.source, "target": edge.target}
            await self._reporter.emit(EventType.EDGE_TRAVERSED, told, node_id=spec.id)
        if self.goal is not None and self.goal != before:
            await self._reporter.emit(EventType.GOAL_PROGRESS, self.goal.model_dump(mode="json"))
        if failure:
            raise NodeFailed(spec.id, failure[0])
        if result.outcome == "done":
            await self._checkpoint(spec.id, "node")

    def _go_on(
        self,
        state: SessionState,
        mine: ExecutionState,
        pending: PendingNode,
        result: NodeResult,
        taken: list[EdgeSpec],
    ) -> NodeResult | None:
        """Move the state past a node that has ended; return a result if that ends the run as failed."""
        spec = self._graph.spec.node(pending.node_id)
        outputs = {key: result.outputs[key] for key in spec.output_keys if key in result.outputs}
        state.memory.update(outputs)
        mine.results[spec.id] = result.outcome
        mine.steps += result.turns
        mine.input_tokens += result.input_tokens
        mine.output_tokens += result.output_tokens
        mine.cost += result.cost
        if self._graph.goal is not None:
            self.goal = progress(self._graph.goal, state.memory, finished=False)
            mine.goal_progress = self.goal.fraction
        succeeded = result.outcome == "done"
        try:
            taken += edges_taken(
                self._graph.spec,
                spec.id,
                succeeded=succeeded,
                route=str(result.outputs.get(ROUTE, "")),
                memory=state.memory,
            )
            self._check_visits(mine, taken)
        except (ConditionError, _Unusable) as error:
            taken.clear()
            return NodeResult(outcome="failed", error=str(error), error_type=type(error).__name__)
        if not succeeded and not taken:
            return result  # it stays pending: a resumed run visits it anew
        mine.pending = [other for other in mine.pending if other != pending]
        mine.path = [*mine.path, spec.id][-_PATH_KEPT:]
        if not taken:
            mine.outputs.update(outputs or ({"text": result.text} if result.text else {}))
        self._add(mine, [(edge.target, self._carried(edge, outputs, result, state.memory)) for edge in taken])
        return None

    def _check_visits(self, mine: ExecutionState, taken: Sequence[EdgeSpec]) -> None:
        for edge in taken:
            limit = self._graph.spec.node(edge.target).max_node_visits
            if limit and mine.visits.get(edge.target, 0) >= limit:
                raise _Unusable(
                    f"edge {edge.id!r} leads to node {edge.target!r} once more, which was visited "
                    f"{limit} times; raise max_node_visits if that is right"
                )

    def _carried(
        self, edge: EdgeSpec, outputs: Mapping[str, Any], result: NodeResult, memory: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what goes along an edge: what it maps, else what the node put out if no keys are named."""
        if edge.input_mapping:
            return {target: memory[key] for target, key in edge.input_mapping.items() if key in memory}
        if self._graph.spec.node(edge.target).input_keys:
            return {}
        if result.outcome != "done":
            return {"error": result.error, "outcome": result.outcome}
        return dict(outputs) or ({"text": result.text} if result.text else {})

    def _add(self, mine: ExecutionState, nodes: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Put nodes among those under way; one that waits already is given the rest of its input."""
        running = {running.pending.node_id for running in self._running.values()}
        for node_id, given in nodes:
            waits = [p for p in mine.pending if p.node_id == node_id and p.node_id not in running]
            if waits:
                waits[0].input.update(given)
                continue
            mine.visits[node_id] = mine.visits.get(node_id, 0) + 1
            mine.pending.append(PendingNode(node_id=node_id, visit=mine.visits[node_id], input=given))
        if len(mine.pending) == 1 and not self._fresh and nodes:
            # Who runs alone goes on talking in the thread that began at the entry node.
            mine.pending[0].thread = self._entry_node

    # -- what is written ------------------------------------------------------------------------

    async def _save(self, change: Callable[[SessionState], None]) -> None:
        state = await self._around.disk.run(lambda: self._store.update(self._session, change))
        self.state = state.executions[self._key]
        self._memory = SharedMemory(state.memory)

    async def _checkpoint(self, node_id: str, reason: Literal["node", "pause"]) -> None:
        checkpoints = self._checkpoints
        if checkpoints is None:
            return

        def save() -> str:
            saved = checkpoints.save(
                session_id=self._session.id,
                graph_id=self._graph.spec.id,
                execution_id=self._origin.execution_id,
                node_id=node_id,
                reason=reason,
                memory=self._memory.read_all(),
                execution=self.state,
                conversations=dict(self._said),
            )
            checkpoints.prune(CHECKPOINTS_KEPT)
            return saved.checkpoint_id

        try:
            checkpoint_id = await self._around.disk.run(save)
        except OSError:
            # The run does not depend on it, and state.json has just been written.
            _log.exception("a checkpoint of session %s could not be saved", self._session.id)
            return
        if reason == "node":
            await self._reporter.checkpoint(checkpoint_id, node_id=node_id)

    async def _log_visit(self, running: _Running, result: NodeResult) -> None:
        verdicts: dict[str, int] = {}
        for verdict in result.verdicts:
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
        row = VisitRow(
            execution_id=self._origin.execution_id,
            node_id=running.pending.node_id,
            visit=running.pending.visit,
            outcome=result.outcome,
            verdicts=verdicts,
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
                read_json(self._session.conversations / pending.node_id / "cursor.json")
            )
        except (FileNotFoundError, FileUnusable, ValueError):
            return {}
        outputs = cursor.outputs if cursor.visit_id == visit_id else {}
        return {key: outputs[key] for key in spec.output_keys if key in outputs}


class _Unusable(Exception):
    """Raised inside a run for what its graph cannot go on with."""


def _message(given: Mapping[str, Any]) -> str:
    """Return a node's input in words: a message as it is, anything else as JSON."""
    if set(given) == {"message"} and isinstance(given["message"], str):
        return given["message"]
    return json.dumps(given, ensure_ascii=False, indent=1)


def _wanted(
    function: Callable[..., Any], given: Mapping[str, Any], spec: NodeSpec | None = None
) -> Mapping[str, Any]:
    """Return what a function has parameters for; all of it where its node says what its inputs are."""
    if spec is not None and spec.input_keys:
        return given
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # some builtins have none that can be read, and take what they are given
        return given if spec is not None else {}
    if spec is not None and any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return given
    return {key: value for key, value in given.items() if key in parameters}


def _outputs(spec: NodeSpec, value: Any) -> dict[str, Any]:
    """
    Return what a function returned as outputs of its node.

    Raises:
        _Unusable: A key is missing, or a router chose a route that is not there.
    """
    if spec.node_type == "router":
        if value not in spec.routes:
            have = ", ".join(spec.routes)
            raise _Unusable(f"router {spec.id!r} chose {value!r}, which is no route; there are: {have}")
        return {ROUTE: value}
    known = isinstance(value, Mapping) and any(key in value for key in spec.output_keys)
    outputs = dict(value) if known else {spec.output_keys[0]: value} if len(spec.output_keys) == 1 else {}
    missing = [key for key in spec.output_keys if key not in outputs and key not in spec.nullable_output_keys]
    if missing:
        raise _Unusable(
            f"function {spec.function!r} of node {spec.id!r} did not return {missing[0]!r}; "
            f"it must return an object with: {', '.join(spec.output_keys)}"
        )
    return SharedMemory({key: outputs[key] for key in spec.output_keys if key in outputs}).read_all()


def _result(task: asyncio.Task[NodeResult]) -> NodeResult:
    if task.cancelled():
        # Not by us: something that the node waited for was cancelled.
        return NodeResult(outcome="failed", error="cancelled from inside", error_type="CancelledError")
    return task.result()


async def _all_ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until all have ended, also if the waiter is cancelled meanwhile; then that is passed on."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # it has been looked at
    if cancelled is not None:
        raise cancelled
