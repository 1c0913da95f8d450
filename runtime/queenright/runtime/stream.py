"""A stream: the runs that one entry point starts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from queenright.instrumentation import Worker
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import masked_traceback, redact
from queenright.instrumentation.worker import HEARTBEAT_SECONDS
from queenright.runtime.bus import Subscription
from queenright.runtime.deadline import all_ended
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import Execution, ExecutionResult, Respawn, Trigger
from queenright.runtime.executor import GraphExecutor, NodeFailed
from queenright.runtime.graphs.graph import EntryPointSpec
from queenright.runtime.inputs import INPUT_REFUSED, InputRefused
from queenright.runtime.llm.model import RUN
from queenright.runtime.nodes.event_loop import EventLoopNode, NodeResult
from queenright.runtime.nodes.reporting import Origin, Reporter
from queenright.runtime.parts import LoadedGraph
from queenright.runtime.storage.checkpoint_store import Checkpoint
from queenright.runtime.storage.runtime_logger import RuntimeLogger
from queenright.runtime.storage.session_store import (
    Session,
    SessionStatus,
    SessionStore,
    execution_key,
)
from queenright.runtime.stream_surroundings import StreamSurroundings
from queenright.runtime.timers import Tick, cron_ticks, interval_ticks

_log = logging.getLogger(__name__)

FRAMEWORK = "queenright"
CANCELLED = "cancelled"
"""The error type of a run that somebody cancelled: it ended, and did not fail."""
TERMINATED = "terminated"
"""The error type of a run that was stopped by who watches over it."""

_ERROR_TYPES: Final = {SessionStatus.CANCELLED: CANCELLED, SessionStatus.TERMINATED: TERMINATED}
_GRACE_SECONDS: Final = 5.0

RunNode = Callable[[str], Awaitable[NodeResult]]
"""Runs the entry point's node once on a message."""

Entry = Callable[[Trigger, RunNode], Awaitable[Any]]
"""What an entry point does when it fires, in place of one run of its graph."""


class TooManyWaitingError(QueenrightError):
    """Raised for a run that is asked for while as many wait as may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A run that has its session."""

    session: Session
    executor: GraphExecutor
    reporter: Reporter


@dataclass(slots=True)
class _Opening:
    """What has been opened for a run so far, and how to close it."""

    worker: Worker | None = None
    session_id: str = ""
    holds: list[Callable[[], None]] = field(default_factory=list)
    """What keeps others out of the session, as functions that let them in."""
    opened: _Open | None = None

    def let_go(self) -> None:
        while self.holds:
            self.holds.pop()()


class ExecutionStream:
    """
    One entry point at work.

    At most ``max_concurrent`` runs go on at a time, the others wait in order: at most ``max_waiting``, and
    those that events start or that are brought back, which are never refused. A run that waits for its
    user, or for another one in its session, takes no place: of these, too, ``max_waiting`` may be.
    A tick of a timer that comes while a run goes on is skipped and counted. Runs of one graph in one
    session take turns, whoever started them; a session that another process writes in is refused.
    """

    def __init__(
        self, graph: LoadedGraph, spec: EntryPointSpec, *, entry: Entry | None, around: StreamSurroundings
    ) -> None:
        self.id = execution_key(graph.spec.id, spec.id)
        self.spec = spec
        self.ticks_skipped = 0
        self._graph = graph
        self._entry = entry
        self._around = around
        self._queue: deque[Execution] = deque()
        self._active: dict[str, Execution] = {}
        self._timer: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._freeing: set[asyncio.Task[None]] = set()

    @property
    def graph_id(self) -> str:
        """The graph that the entry point is of."""
        return self._graph.spec.id

    @property
    def has_entry(self) -> bool:
        """Whether something else than one run of its graph is done when it fires."""
        return self._entry is not None

    @property
    def pending(self) -> int:
        """Runs that wait, and those going on."""
        return len(self._queue) + len(self._active)

    @property
    def executions(self) -> list[Execution]:
        """The runs going on, oldest first, then those that wait."""
        return [*self._active.values(), *self._queue]

    @property
    def _places_taken(self) -> int:
        """Runs that others have to wait for: none that itself waits, as long as those are not too many."""
        waiting = sum(execution.is_waiting for execution in self._active.values())
        return len(self._active) - min(waiting, self.spec.max_waiting)

    def start(self) -> None:
        """Begin to listen to the entry point's timer or events."""
        if self.spec.trigger_type == "timer":
            self._timer = asyncio.create_task(self._tick(), name=f"graph:{self.id}:timer")
        elif self.spec.trigger_type == "event":
            self._subscription = self._around.bus.subscribe(
                self._on_event,
                name=self.id,
                types=self.spec.event_types,
                filter_graph=self.spec.filter_graph,
                filter_stream=self.spec.filter_stream,
                filter_node=self.spec.filter_node,
                filter_agent=self.spec.filter_agent,
            )

    async def stop(self) -> None:
        """Listen no more, pause what runs, cancel what waits, and return when all has ended."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
            self._timer = None
        await asyncio.gather(*(self.end(e.id, SessionStatus.PAUSED) for e in self.executions))
        if freeing := list(self._freeing):
            # A thread cannot be stopped; whoever stops the runtime is not kept waiting for it for ever.
            await asyncio.wait(freeing, timeout=_GRACE_SECONDS)
            for task in freeing:
                task.cancel()
            await asyncio.gather(*freeing, return_exceptions=True)

    def fire(self, trigger: Trigger, *, session_id: str | None = None) -> Execution:
        """
        Queue a run, and return it.

        Args:
            trigger: Why it runs.
            session_id: The session to run in; else as the entry point's isolation says.

        Raises:
            TooManyWaitingError: It is asked for by somebody, and no more may wait.
        """
        if trigger.event is None:
            self.check_room()
        return self._enqueue(
            Execution(id=self._around.ids(), graph_id=self.graph_id, trigger=trigger, session_id=session_id)
        )

    def take_up(
        self,
        execution_id: str,
        session_id: str,
        checkpoint: Checkpoint | None,
        *,
        respawn: Respawn | None = None,
    ) -> Execution:
        """
        Queue the continuation of an interrupted run, and return it.

        Raises:
            TooManyWaitingError: It is asked for by somebody, and no more may wait.
        """
        if respawn is None:
            self.check_room()
        return self._enqueue(
            Execution(
                id=execution_id,
                graph_id=self.graph_id,
                trigger=Trigger(),
                session_id=session_id,
                resumes=True,
                checkpoint=checkpoint,
                respawn=respawn,
            )
        )

    def begin_anew(self, given: Mapping[str, Any], session_id: str, respawn: Respawn) -> Execution:
        """Queue a run of what an interrupted one was given, from the start, and return it."""
        return self._enqueue(
            Execution(
                id=self._around.ids(),
                graph_id=self.graph_id,
                trigger=Trigger(input_data=given),
                session_id=session_id,
                respawn=respawn,
            )
        )

    def check_room(self) -> None:
        """Raise ``TooManyWaitingError`` if no more runs may wait."""
        waiting = sum(execution.is_queued for execution in self.executions)
        if waiting >= self.spec.max_waiting:
            raise TooManyWaitingError(
                f"{waiting} runs of entry point {self.spec.id!r} of graph {self.graph_id!r} wait "
                "for their turn, and no more may; ask again when some are over, stop some, or raise its "
                "max_concurrent or max_waiting"
            )

    async def end(self, execution_id: str, status: SessionStatus, reason: str = "") -> bool:
        """
        Stop a run: for good, or to be resumed; return whether there was one to stop.

        It has ended when this returns, unless it is the run itself that asks. ``reason`` is written down.
        """
        execution = next((e for e in self.executions if e.id == execution_id), None)
        if execution is None:
            return False
        if execution.ending:
            if execution.task is not asyncio.current_task():
                await execution.ended()
            return False
        execution.ends_as, execution.end_reason = status, reason
        if execution.task is None:
            self._queue.remove(execution)
            execution.finish(self._result(execution, SessionStatus.CANCELLED, error_type=CANCELLED))
            return True
        execution.task.cancel()
        if execution.task is not asyncio.current_task():
            await execution.ended()
        return True

    def nodes(self) -> list[tuple[Execution, str, EventLoopNode]]:
        """Return the nodes that are talking with a model now, with the runs they are in."""
        found: list[tuple[Execution, str, EventLoopNode]] = []
        for execution in self._active.values():
            if execution.executor is not None:
                found += [(execution, node_id, node) for node_id, node in execution.executor.nodes.items()]
        return found

    # -- what fires -----------------------------------------------------------------------------

    def _on_event(self, event: AgentEvent) -> None:
        if not (self.spec.exclude_own_graph and event.graph_id == self.graph_id):
            self.fire(Trigger(event=event))

    async def _tick(self) -> None:
        async for tick in self._ticks():
            self.ticks_skipped += tick.skipped
            if self.pending:
                self.ticks_skipped += 1
            else:
                self.fire(Trigger(tick=tick.number))

    def _ticks(self) -> AsyncIterator[Tick]:
        around, spec = self._around, self.spec
        if spec.cron:
            return cron_ticks(spec.cron, spec.timezone, clock=around.clock, sleep=around.sleep)
        assert spec.interval_seconds is not None  # the spec saw to it
        return interval_ticks(spec.interval_seconds, monotonic=around.monotonic, sleep=around.sleep)

    # -- runs -----------------------------------------------------------------------------------

    def _enqueue(self, execution: Execution) -> Execution:
        self._around.remember(execution)
        self._queue.append(execution)
        self._pump()
        return execution

    def _pump(self) -> None:
        while self._queue and self._places_taken < self.spec.max_concurrent:
            execution = self._queue.popleft()
            self._active[execution.id] = execution
            execution.task = asyncio.create_task(self._execute(execution), name=f"graph:{self.id}")
            # Not at the end of the coroutine: one that is cancelled before it began has none.
            execution.task.add_done_callback(partial(self._over, execution))

    def _over(self, execution: Execution, _: asyncio.Task[None]) -> None:
        self._active.pop(execution.id, None)
        if not execution.done:
            execution.finish(self._result(execution, SessionStatus.CANCELLED, error_type=CANCELLED))
        self._pump()

    async def _execute(self, execution: Execution) -> None:
        opening = _Opening()
        status, value, error = SessionStatus.COMPLETED, None, ""
        error_type = ""
        RUN.set(execution.id)  # the task's own context
        try:
            if self._entry is not None and not execution.resumes:
                value = await self._entry(execution.trigger, self._runner(execution, opening))
            else:
                run = await self._open(execution, opening)
                await run.executor.run()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if execution.ends_as is None and (task is None or not task.cancelling()):
                status, error, error_type = SessionStatus.FAILED, "cancelled from inside", "CancelledError"
            else:
                status = execution.ends_as or SessionStatus.PAUSED
                error, error_type = execution.end_reason, _ERROR_TYPES.get(status, "")
        except NodeFailed as failed:
            status, error = SessionStatus.FAILED, str(failed)
            error_type = failed.result.error_type or failed.result.outcome
            if error_type == InputRefused.__name__ and failed.node_id == self.spec.node_id:
                status, error_type = SessionStatus.CANCELLED, INPUT_REFUSED
        except Exception as fault:
            status, error, error_type = SessionStatus.FAILED, redact(str(fault)), type(fault).__name__
            self._log_fault("a run of %s failed", fault)
        execution.ending = True
        # Whoever cancels it now comes too late: how it ended is written down and told first.
        await all_ended(
            [
                asyncio.create_task(
                    self._close(execution, opening, status, value, error, error_type),
                    name=f"graph:{self.id}:end",
                )
            ]
        )

    async def _close(
        self,
        execution: Execution,
        opening: _Opening,
        status: SessionStatus,
        value: Any,
        error: str,
        error_type: str,
    ) -> None:
        """Write down and tell how a run ended; whatever happens then, its session is free afterwards."""
        self._around.heartbeats.leave(execution)
        run = opening.opened
        result = self._result(execution, status, value=value, error=error, error_type=error_type)
        try:
            if run is not None:
                state = await run.executor.close(status, error=error, error_type=error_type)
                result = self._result(
                    execution, status, value=value, error=state.error, error_type=error_type, run=run
                )
                await self._tell_end(run, result)
            elif status is SessionStatus.FAILED:
                await self._tell_never_began(execution, result)
        except Exception as fault:
            self._log_fault("the end of a run of %s could not be written down", fault)
            result = self._result(
                execution, SessionStatus.FAILED, error=redact(str(fault)), error_type=type(fault).__name__
            )
        finally:
            if opening.worker is not None:
                opening.worker.close(_as_error(result), paused=result.status is SessionStatus.PAUSED)
            self._free(opening)
            execution.finish(result)

    def _log_fault(self, what: str, fault: Exception) -> None:
        """Log what ended a run: with a traceback, unless its words are all that is needed to mend it."""
        if isinstance(fault, QueenrightError | OSError):
            _log.error(f"{what}: %s", self.id, redact(str(fault)))
        else:
            _log.error(f"{what}: %s", self.id, masked_traceback(fault))

    def _free(self, opening: _Opening) -> None:
        """Let others into the session: at once, or when the threads that still work for it have ended."""
        if not self._graph.tools.threads.running(opening.session_id):
            opening.let_go()
            return
        _log.warning("a function of %s still runs; until it ends, nobody else gets its session", self.id)
        task = asyncio.create_task(self._free_later(opening), name=f"graph:{self.id}:threads")
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _free_later(self, opening: _Opening) -> None:
        try:
            await self._graph.tools.threads.ended(opening.session_id)
        finally:
            opening.let_go()

    def _runner(self, execution: Execution, opening: _Opening) -> RunNode:
        async def run_node(message: str) -> NodeResult:
            run = opening.opened or await self._open(execution, opening)
            await run.executor.enter({"message": message})
            with suppress(NodeFailed):
                await run.executor.run()
            assert run.executor.last is not None  # a node was entered
            return run.executor.last

        return run_node

    async def _open(self, execution: Execution, opening: _Opening) -> _Open:
        """Take a session, and begin the run in it."""
        around, graph = self._around, self._graph
        of_event = execution.trigger.event.session_id if execution.trigger.event is not None else ""
        session, store = await around.disk.run(
            partial(around.sessions.find, graph, self.spec, execution.session_id, of_event)
        )
        if graph.primary and self.spec.isolation_level != "isolated":
            around.sessions.entered(session)
        execution.session_id = opening.session_id = session.id
        await self._take_turn(execution, session, store, opening)
        telemetry, registry = (around.telemetry, around.registry) if graph.agent_id else around.muted
        logger = RuntimeLogger(session, store.base / "runtime_logs")
        first_step = await around.disk.run(logger.next_step) if execution.resumes else 0
        life = execution.incarnation_id = around.lives.of(session.path, execution.incarnation_id)
        worker = Worker(
            graph.agent_id or graph.spec.id,
            session_id=session.id,
            incarnation_id=life,
            first_step=first_step,
            repeatable=graph.spec.repeatable,
            graph_id=graph.spec.id,
            framework=FRAMEWORK,
            telemetry=telemetry,
            registry=registry,
            step_log=session.logs / "tool_logs.jsonl",
            heartbeat_interval=around.heartbeats.interval or HEARTBEAT_SECONDS,
            clock=around.clock,
        )
        worker.start()
        worker.make_current()
        opening.worker = worker
        origin = Origin(
            agent_id=graph.agent_id,
            session_id=session.id,
            incarnation_id=life,
            graph_id=self.graph_id,
            stream_id=self.id,
            execution_id=execution.id,
        )
        reporter = Reporter(bus=around.bus, worker=worker, origin=origin, clock=around.clock)
        executor = execution.executor = GraphExecutor(
            graph,
            around,
            session=session,
            store=store,
            origin=origin,
            entry_point=self.spec.id,
            entry_node=self.spec.node_id,
            reporter=reporter,
            logger=logger,
            fresh=self.spec.conversation_mode == "fresh",
            begun_by_user=self.spec.trigger_type == "manual",
            on_waiting=self._pump,
        )
        about: dict[str, Any] = {"framework": FRAMEWORK, "start_records": True, "entry_point": self.spec.id}
        if graph.spec.repeatable:
            about["repeatable"] = True
        if graph.agent_id and around.heartbeats.interval is not None:
            about["heartbeat_interval"] = around.heartbeats.interval
        again = execution.respawn
        if again is not None and again.restarts:
            await executor.forget_run(again.restarts)
        if execution.resumes:
            await executor.take_up(execution.checkpoint)
        else:
            await executor.begin(_input(execution.trigger), enters=self._entry is None)
        if again is not None and again.note:
            await executor.tell(again.note)
        opening.opened = _Open(session=session, executor=executor, reporter=reporter)
        await reporter.emit(EventType.EXECUTION_STARTED, about)
        around.heartbeats.join(execution, reporter)
        if execution.resumes:
            await reporter.emit(EventType.EXECUTION_RESUMED, {})
        execution.began()
        return opening.opened

    async def _take_turn(
        self, execution: Execution, session: Session, store: SessionStore, opening: _Opening
    ) -> None:
        """Wait for runs of this graph in this session, and keep other processes out of it."""
        locks = self._around.locks
        lock = locks.setdefault(str(session.path), asyncio.Lock())
        if lock.locked():
            await execution.wait_for_turn(lock.acquire(), self._pump)
        else:
            await lock.acquire()
        opening.holds.append(lock.release)
        claim = await self._around.disk.run(lambda: store.claim(session))
        opening.holds.append(claim.release)

    async def _tell_end(self, run: _Open, result: ExecutionResult) -> None:
        tell = run.reporter.emit
        match result.status:
            case SessionStatus.COMPLETED:
                ended = {"entry_point": self.spec.id, "outputs": sorted(result.outputs)}
                await tell(EventType.EXECUTION_COMPLETED, ended)
            case SessionStatus.PAUSED:
                await tell(EventType.EXECUTION_PAUSED, {"entry_point": self.spec.id})
            case _:
                failed = {"error_type": result.error_type, "error": result.error[-500:]}
                await tell(EventType.EXECUTION_FAILED, {"entry_point": self.spec.id, **failed})

    async def _tell_never_began(self, execution: Execution, result: ExecutionResult) -> None:
        """Tell of a run that failed before it had a session: it is nobody's work yet, so no worker's."""
        failed = {"error_type": result.error_type, "error": result.error[-500:]}
        await self._around.bus.publish(
            AgentEvent(
                type=EventType.EXECUTION_FAILED,
                time=self._around.clock(),
                graph_id=self.graph_id,
                stream_id=self.id,
                execution_id=execution.id,
                data={"entry_point": self.spec.id, **failed},
            )
        )

    def _result(
        self,
        execution: Execution,
        status: SessionStatus,
        *,
        value: Any = None,
        error: str = "",
        error_type: str = "",
        run: _Open | None = None,
    ) -> ExecutionResult:
        executor = None if run is None else run.executor
        return ExecutionResult(
            execution_id=execution.id,
            session_id=execution.session_id or "",
            graph_id=self.graph_id,
            entry_point=self.spec.id,
            status=status,
            outputs={} if executor is None else dict(executor.state.outputs),
            error=error,
            error_type=error_type,
            path=() if executor is None else tuple(executor.state.path),
            node=None if executor is None else executor.last,
            goal=None if executor is None else executor.goal,
            value=value,
            checkpoint_id=None if executor is None else executor.stopped_at,
        )


def _as_error(result: ExecutionResult) -> BaseException | None:
    """Return how a run ended as instrumentation wants it; one that was stopped did not fail."""
    if result.status in _ERROR_TYPES:
        return asyncio.CancelledError()
    if result.status is not SessionStatus.FAILED:
        return None
    # The kind of error is told by the name of its class.
    kind: type[Exception] = type(result.error_type or "RunFailed", (Exception,), {})
    return kind(result.error)


def _input(trigger: Trigger) -> Mapping[str, Any]:
    if trigger.event is not None:
        return {"event": trigger.event.to_dict()}
    return trigger.input_data if trigger.tick is None else {"tick": trigger.tick}
