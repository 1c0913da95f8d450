"""Streams: the runs of one entry point."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from queenright.instrumentation import Worker
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import mask_traceback, redact
from queenright.instrumentation.worker import HEARTBEAT_SECONDS
from queenright.runtime.bus import Subscription
from queenright.runtime.deadline import TaskSet, wait_all
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.execution import Execution, ExecutionResult, Respawn, Trigger
from queenright.runtime.executor import GraphExecutor, NodeFailedError
from queenright.runtime.graphs.graph import EntryPointSpec
from queenright.runtime.inputs import INPUT_REFUSED, InvalidInputError
from queenright.runtime.llm.model import CURRENT_RUN_ID
from queenright.runtime.nodes.event_loop import EventLoopNode, NodeResult
from queenright.runtime.nodes.reporting import Origin, Reporter
from queenright.runtime.services import LoadedGraph
from queenright.runtime.storage.checkpoint_store import Checkpoint
from queenright.runtime.storage.runtime_logger import RuntimeLogger
from queenright.runtime.storage.session_state import SessionStatus, make_execution_key
from queenright.runtime.storage.session_store import Session, SessionStore
from queenright.runtime.stream_services import StreamServices
from queenright.runtime.timers import Tick, iterate_cron_ticks, iterate_interval_ticks

_log = logging.getLogger(__name__)

FRAMEWORK = "queenright"
CANCELLED = "cancelled"
"""Error type of a cancelled run, which did not fail."""
TERMINATED = "terminated"
"""Error type of a run that an intervention terminated."""

_ERROR_TYPES: Final = {SessionStatus.CANCELLED: CANCELLED, SessionStatus.TERMINATED: TERMINATED}
_GRACE_SECONDS: Final = 5.0

RunNode = Callable[[str], Awaitable[NodeResult]]
"""Runs the entry point's node once with a message."""

EntryHandler = Callable[[Trigger, RunNode], Awaitable[Any]]
"""Handles the trigger of an entry point, instead of one run of its graph."""


class TooManyWaitingError(QueenrightError):
    """Raised when a run is requested while the queue is full."""


@dataclass(slots=True)
class _RunResources:
    """Resources of a run that is being opened, to be released at its end."""

    worker: Worker | None = None
    session_id: str = ""
    session_locks: ExitStack = field(default_factory=ExitStack)
    executor: GraphExecutor | None = None
    """Set once the run has started."""


class ExecutionStream:
    """
    The runs of one entry point.

    At most ``max_concurrent`` runs are active; others are queued in order, at most ``max_waiting``. Runs
    started by events and respawned runs are never rejected. A run that waits for its user, or for another
    run of its session, does not count as active, up to ``max_waiting`` such runs. A timer tick during a run
    is skipped and counted. Runs of one graph in one session take turns, also across entry points; a session
    that another process is using is rejected.
    """

    def __init__(
        self,
        graph: LoadedGraph,
        spec: EntryPointSpec,
        *,
        handler: EntryHandler | None,
        services: StreamServices,
    ) -> None:
        self.id = make_execution_key(graph.spec.id, spec.id)
        self.spec = spec
        self.ticks_skipped = 0
        self._graph = graph
        self._handler = handler
        self._services = services
        self._queue: deque[Execution] = deque()
        self._active: dict[str, Execution] = {}
        self._timer: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._releases = TaskSet()

    @property
    def graph_id(self) -> str:
        """The entry point's graph."""
        return self._graph.spec.id

    @property
    def has_handler(self) -> bool:
        """Whether a handler replaces the run of the graph."""
        return self._handler is not None

    @property
    def pending(self) -> int:
        """Number of queued and active runs."""
        return len(self._queue) + len(self._active)

    @property
    def executions(self) -> list[Execution]:
        """The active runs, oldest first, then the queued ones."""
        return [*self._active.values(), *self._queue]

    @property
    def _active_slots(self) -> int:
        """Number of active runs that do not wait; at most ``max_waiting`` waiting ones are excluded."""
        waiting_count = sum(execution.is_waiting for execution in self._active.values())
        return len(self._active) - min(waiting_count, self.spec.max_waiting)

    def start(self) -> None:
        """Start the entry point's timer or event subscription."""
        if self.spec.trigger_type == "timer":
            self._timer = asyncio.create_task(self._run_timer(), name=f"graph:{self.id}:timer")
        elif self.spec.trigger_type == "event":
            self._subscription = self._services.bus.subscribe(
                self._on_event,
                name=self.id,
                types=self.spec.event_types,
                filter_graph=self.spec.filter_graph,
                filter_stream=self.spec.filter_stream,
                filter_node=self.spec.filter_node,
                filter_agent=self.spec.filter_agent,
            )

    async def stop(self) -> None:
        """Stop listening, pause active runs, cancel queued ones, and wait for all of them."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)
            self._timer = None
        await asyncio.gather(*(self._stop_execution(e, SessionStatus.PAUSED) for e in self.executions))
        # A thread cannot be stopped; do not wait for it forever.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._releases.wait(), _GRACE_SECONDS)
        await self._releases.cancel()

    def fire(self, trigger: Trigger, *, session_id: str | None = None) -> Execution:
        """
        Queue a run and return it.

        Args:
            session_id: The session to run in; by default the entry point's isolation level decides.

        Raises:
            TooManyWaitingError: The queue is full, and the trigger is not an event.
        """
        if trigger.event is None:
            self.check_capacity()
        return self._enqueue(
            Execution(id=self._services.ids(), graph_id=self.graph_id, trigger=trigger, session_id=session_id)
        )

    def resume(
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
            TooManyWaitingError: The queue is full, and this is not a respawn.
        """
        if respawn is None:
            self.check_capacity()
        return self._enqueue(
            Execution(
                id=execution_id,
                graph_id=self.graph_id,
                trigger=Trigger(),
                session_id=session_id,
                is_resume=True,
                checkpoint=checkpoint,
                respawn=respawn,
            )
        )

    def restart(self, input_data: Mapping[str, Any], session_id: str, respawn: Respawn) -> Execution:
        """Queue a new run with the input of an interrupted one, and return it."""
        return self._enqueue(
            Execution(
                id=self._services.ids(),
                graph_id=self.graph_id,
                trigger=Trigger(input_data=input_data),
                session_id=session_id,
                respawn=respawn,
            )
        )

    def check_capacity(self) -> None:
        """Raise ``TooManyWaitingError`` if the queue is full."""
        queued_count = sum(execution.is_queued for execution in self.executions)
        if queued_count >= self.spec.max_waiting:
            raise TooManyWaitingError(
                f"{queued_count} runs of entry point {self.spec.id!r} of graph {self.graph_id!r} are queued, "
                "which is the maximum; retry when some have ended, stop some, or raise its "
                "max_concurrent or max_waiting"
            )

    async def stop_execution(self, execution_id: str, status: SessionStatus, reason: str = "") -> bool:
        """
        Stop a run with a final status; return whether there was one to stop.

        Waits until the run has ended, unless called by the run itself. ``reason`` is recorded.
        """
        execution = next((e for e in self.executions if e.id == execution_id), None)
        return execution is not None and await self._stop_execution(execution, status, reason)

    async def _stop_execution(self, execution: Execution, status: SessionStatus, reason: str = "") -> bool:
        if execution.is_finishing:
            if execution.task is not asyncio.current_task():
                await execution.wait()
            return False
        execution.stop_status, execution.stop_reason = status, reason
        if execution.task is None:
            self._queue.remove(execution)
            execution.finish(self._build_result(execution, SessionStatus.CANCELLED, error_type=CANCELLED))
            return True
        execution.task.cancel()
        if execution.task is not asyncio.current_task():
            await execution.wait()
        return True

    def nodes(self) -> list[tuple[Execution, str, EventLoopNode]]:
        """Return the model-driven nodes that are running, with their runs."""
        return [
            (execution, node_id, node)
            for execution in self._active.values()
            if execution.executor is not None
            for node_id, node in execution.executor.nodes.items()
        ]

    # -- triggers -------------------------------------------------------------------------------

    def _on_event(self, event: AgentEvent) -> None:
        if not (self.spec.exclude_own_graph and event.graph_id == self.graph_id):
            self.fire(Trigger(event=event))

    async def _run_timer(self) -> None:
        async for tick in self._create_ticks():
            self.ticks_skipped += tick.skipped_ticks
            if self.pending:
                self.ticks_skipped += 1
            else:
                self.fire(Trigger(tick=tick.number))

    def _create_ticks(self) -> AsyncIterator[Tick]:
        services, spec = self._services, self.spec
        if spec.cron:
            return iterate_cron_ticks(spec.cron, spec.timezone, clock=services.clock, sleep=services.sleep)
        assert spec.interval_seconds is not None  # validated by the specification
        return iterate_interval_ticks(
            spec.interval_seconds, monotonic=services.monotonic, sleep=services.sleep
        )

    # -- runs -----------------------------------------------------------------------------------

    def _enqueue(self, execution: Execution) -> Execution:
        self._services.remember(execution)
        self._queue.append(execution)
        self._start_queued()
        return execution

    def _start_queued(self) -> None:
        while self._queue and self._active_slots < self.spec.max_concurrent:
            execution = self._queue.popleft()
            self._active[execution.id] = execution
            execution.task = asyncio.create_task(self._execute(execution), name=f"graph:{self.id}")
            # A callback, since a coroutine that is cancelled before it starts never runs.
            execution.task.add_done_callback(partial(self._on_task_done, execution))

    def _on_task_done(self, execution: Execution, _: asyncio.Task[None]) -> None:
        self._active.pop(execution.id, None)
        if not execution.done:
            execution.finish(self._build_result(execution, SessionStatus.CANCELLED, error_type=CANCELLED))
        self._start_queued()

    async def _execute(self, execution: Execution) -> None:
        resources = _RunResources()
        status, value, error = SessionStatus.COMPLETED, None, ""
        error_type = ""
        CURRENT_RUN_ID.set(execution.id)  # the task's own context
        try:
            if self._handler is not None and not execution.is_resume:
                value = await self._handler(execution.trigger, self._make_node_runner(execution, resources))
            else:
                executor = await self._open_run(execution, resources)
                await executor.run()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if execution.stop_status is None and (task is None or not task.cancelling()):
                status, error, error_type = SessionStatus.FAILED, "cancelled from inside", "CancelledError"
            else:
                status = execution.stop_status or SessionStatus.PAUSED
                error, error_type = execution.stop_reason, _ERROR_TYPES.get(status, "")
        except NodeFailedError as failure:
            status, error = SessionStatus.FAILED, str(failure)
            error_type = failure.result.error_type or failure.result.outcome
            if error_type == InvalidInputError.__name__ and failure.node_id == self.spec.node_id:
                status, error_type = SessionStatus.CANCELLED, INPUT_REFUSED
        except Exception as fault:
            status, error, error_type = SessionStatus.FAILED, redact(str(fault)), type(fault).__name__
            self._log_error("a run of %s failed", fault)
        execution.is_finishing = True
        # From here on a cancellation is too late: record and report the end first.
        await wait_all(
            [
                asyncio.create_task(
                    self._close(execution, resources, status, value, error, error_type),
                    name=f"graph:{self.id}:end",
                )
            ]
        )

    async def _close(
        self,
        execution: Execution,
        resources: _RunResources,
        status: SessionStatus,
        value: Any,
        error: str,
        error_type: str,
    ) -> None:
        """Record and report how a run ended, and release its session in any case."""
        self._services.heartbeats.remove(execution)
        executor = resources.executor
        result = self._build_result(execution, status, value=value, error=error, error_type=error_type)
        try:
            if executor is not None:
                state = await executor.close(status, error=error, error_type=error_type)
                result = self._build_result(
                    execution,
                    status,
                    value=value,
                    error=state.error,
                    error_type=error_type,
                    executor=executor,
                )
                await self._report_end(executor.reporter, result)
            elif status is SessionStatus.FAILED:
                await self._report_failed_start(execution, result)
        except Exception as fault:
            self._log_error("could not record the end of a run of %s", fault)
            result = self._build_result(
                execution, SessionStatus.FAILED, error=redact(str(fault)), error_type=type(fault).__name__
            )
        finally:
            if resources.worker is not None:
                resources.worker.close(_to_error(result), paused=result.status is SessionStatus.PAUSED)
            self._release_session(resources)
            execution.finish(result)

    def _log_error(self, message: str, error: Exception) -> None:
        """Log an error that ended a run, with a traceback unless its message is enough to fix it."""
        if isinstance(error, QueenrightError | OSError):
            _log.error(f"{message}: %s", self.id, redact(str(error)))
        else:
            _log.error(f"{message}: %s", self.id, mask_traceback(error))

    def _release_session(self, resources: _RunResources) -> None:
        """Release the session, at once or when the threads that still work in it have ended."""
        if not self._graph.tools.threads.count_running(resources.session_id):
            resources.session_locks.close()
            return
        _log.warning("a function of %s is still running; its session stays locked until it ends", self.id)
        self._releases.start(self._release_session_later(resources))

    async def _release_session_later(self, resources: _RunResources) -> None:
        with resources.session_locks:
            await self._graph.tools.threads.wait_idle(resources.session_id)

    def _make_node_runner(self, execution: Execution, resources: _RunResources) -> RunNode:
        async def run_node(message: str) -> NodeResult:
            executor = resources.executor or await self._open_run(execution, resources)
            await executor.queue_entry_node({"message": message})
            with suppress(NodeFailedError):
                await executor.run()
            assert executor.last_result is not None  # a node was entered
            return executor.last_result

        return run_node

    async def _open_run(self, execution: Execution, resources: _RunResources) -> GraphExecutor:
        """Find and lock the run's session, and start the run in it."""
        services, graph = self._services, self._graph
        event_session_id = execution.trigger.event.session_id if execution.trigger.event is not None else ""
        session, store = await services.disk.run(
            partial(services.sessions.find, graph, self.spec, execution.session_id, event_session_id)
        )
        if graph.primary and self.spec.isolation_level != "isolated":
            services.sessions.set_current(session)
        execution.session_id = resources.session_id = session.id
        await self._take_turn(execution, session, store, resources)
        telemetry, registry = (
            (services.telemetry, services.registry) if graph.agent_id else services.null_telemetry
        )
        logger = RuntimeLogger(session, store.base / "runtime_logs")
        first_step = await services.disk.run(logger.read_next_step) if execution.is_resume else 0
        incarnation_id = services.incarnations.resolve(session.path, execution.incarnation_id)
        execution.incarnation_id = incarnation_id
        worker = Worker(
            graph.agent_id or graph.spec.id,
            session_id=session.id,
            incarnation_id=incarnation_id,
            first_step=first_step,
            repeatable=graph.spec.repeatable,
            graph_id=graph.spec.id,
            framework=FRAMEWORK,
            telemetry=telemetry,
            registry=registry,
            step_log=session.logs / "tool_logs.jsonl",
            heartbeat_interval=services.heartbeats.interval or HEARTBEAT_SECONDS,
            clock=services.clock,
        )
        worker.start()
        worker.make_current()
        resources.worker = worker
        origin = Origin(
            agent_id=graph.agent_id,
            session_id=session.id,
            incarnation_id=incarnation_id,
            graph_id=self.graph_id,
            stream_id=self.id,
            execution_id=execution.id,
        )
        reporter = Reporter(bus=services.bus, worker=worker, origin=origin, clock=services.clock)
        executor = execution.executor = GraphExecutor(
            graph,
            services,
            session=session,
            store=store,
            origin=origin,
            entry=self.spec,
            reporter=reporter,
            logger=logger,
            on_waiting=self._start_queued,
        )
        data: dict[str, Any] = {"framework": FRAMEWORK, "start_records": True, "entry_point": self.spec.id}
        if graph.spec.repeatable:
            data["repeatable"] = True
        if graph.agent_id and services.heartbeats.interval is not None:
            data["heartbeat_interval"] = services.heartbeats.interval
        respawn = execution.respawn
        if respawn is not None and respawn.restarts:
            await executor.remove_run(respawn.restarts)
        if execution.is_resume:
            await executor.resume(execution.checkpoint)
        else:
            await executor.begin(_get_input(execution.trigger), queue_entry=self._handler is None)
        if respawn is not None and respawn.note:
            await executor.leave_note(respawn.note)
        resources.executor = executor
        await reporter.emit(EventType.EXECUTION_STARTED, data)
        services.heartbeats.add(execution, reporter)
        if execution.is_resume:
            await reporter.emit(EventType.EXECUTION_RESUMED, {})
        execution.mark_started()
        return executor

    async def _take_turn(
        self, execution: Execution, session: Session, store: SessionStore, resources: _RunResources
    ) -> None:
        """Wait for other runs of this graph in this session, and lock out other processes."""
        locks = self._services.locks
        lock = locks.setdefault(str(session.path), asyncio.Lock())
        if lock.locked():
            await execution.wait_for_turn(lock.acquire(), self._start_queued)
        else:
            await lock.acquire()
        resources.session_locks.callback(lock.release)
        claim = await self._services.disk.run(lambda: store.claim(session))
        resources.session_locks.callback(claim.release)

    async def _report_end(self, reporter: Reporter, result: ExecutionResult) -> None:
        emit = reporter.emit
        match result.status:
            case SessionStatus.COMPLETED:
                data = {"entry_point": self.spec.id, "outputs": sorted(result.outputs)}
                await emit(EventType.EXECUTION_COMPLETED, data)
            case SessionStatus.PAUSED:
                await emit(EventType.EXECUTION_PAUSED, {"entry_point": self.spec.id})
            case _:
                await emit(EventType.EXECUTION_FAILED, self._build_failure_data(result))

    def _build_failure_data(self, result: ExecutionResult) -> dict[str, Any]:
        return {
            "entry_point": self.spec.id,
            "error_type": result.error_type,
            "error": result.error[-500:],
        }

    async def _report_failed_start(self, execution: Execution, result: ExecutionResult) -> None:
        """Report a run that failed before it had a session, without a worker's ids."""
        await self._services.bus.publish(
            AgentEvent(
                type=EventType.EXECUTION_FAILED,
                time=self._services.clock(),
                graph_id=self.graph_id,
                stream_id=self.id,
                execution_id=execution.id,
                data=self._build_failure_data(result),
            )
        )

    def _build_result(
        self,
        execution: Execution,
        status: SessionStatus,
        *,
        value: Any = None,
        error: str = "",
        error_type: str = "",
        executor: GraphExecutor | None = None,
    ) -> ExecutionResult:
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
            node=None if executor is None else executor.last_result,
            goal=None if executor is None else executor.goal,
            value=value,
            checkpoint_id=None if executor is None else executor.stop_checkpoint_id,
        )


def _to_error(result: ExecutionResult) -> BaseException | None:
    """Return the error for instrumentation; a stopped run did not fail."""
    if result.status in _ERROR_TYPES:
        return asyncio.CancelledError()
    if result.status is not SessionStatus.FAILED:
        return None
    # Instrumentation reads the error type from the class name.
    kind: type[Exception] = type(result.error_type or "RunFailed", (Exception,), {})
    return kind(result.error)


def _get_input(trigger: Trigger) -> Mapping[str, Any]:
    if trigger.event is not None:
        return {"event": trigger.event.to_dict()}
    return trigger.input_data if trigger.tick is None else {"tick": trigger.tick}
