"""Executions: one run of a graph, from its trigger to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from queenright.runtime.events import AgentEvent
from queenright.runtime.graphs.goal import GoalProgress
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.storage.checkpoint_store import Checkpoint
from queenright.runtime.storage.session_state import SessionStatus

if TYPE_CHECKING:
    from queenright.runtime.executor import GraphExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """The reason why an entry point fires: a call with ``input_data``, a timer tick, or an event."""

    input_data: Mapping[str, Any] = field(default_factory=dict)
    tick: int | None = None
    """Number of the timer tick."""
    event: AgentEvent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Result of a run."""

    execution_id: str
    session_id: str
    graph_id: str
    entry_point: str
    status: SessionStatus
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """Outputs of the nodes from which no edge was taken; ``text`` if a node produced only text."""
    error: str = ""
    error_type: str = ""
    path: tuple[str, ...] = ()
    """Ids of the completed nodes, in order."""
    node: NodeResult | None = None
    """Result of the last node."""
    goal: GoalProgress | None = None
    value: Any = None
    """Return value of the entry point's handler, if it has one."""
    checkpoint_id: str | None = None
    """Checkpoint saved when the run was stopped."""

    @property
    def succeeded(self) -> bool:
        """Whether the run completed."""
        return self.status is SessionStatus.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Respawn:
    """Details of a respawn: the new incarnation, and a note for the nodes."""

    incarnation_id: str
    note: str = ""
    restarts: str = ""
    """The run that this one restarts from the beginning; its conversation is discarded. Empty: resume."""


@dataclass(eq=False, kw_only=True)
class Execution:
    """A requested run: queued, running or finished."""

    id: str
    graph_id: str
    trigger: Trigger
    session_id: str | None = None
    is_resume: bool = False
    checkpoint: Checkpoint | None = None
    respawn: Respawn | None = None
    stop_status: SessionStatus | None = field(default=None, init=False)
    """The requested final status, once the run was asked to stop."""
    stop_reason: str = field(default="", init=False)
    """Why the run was asked to stop."""
    is_finishing: bool = field(default=False, init=False)
    """Whether its end is being recorded."""
    task: asyncio.Task[None] | None = field(default=None, init=False)
    executor: GraphExecutor | None = field(default=None, init=False)
    is_waiting_for_turn: bool = field(default=False, init=False)
    """Whether it waits for another run of its graph in the same session."""
    has_begun: bool = field(default=False, init=False)
    """Whether it has its session and has started."""

    def __post_init__(self) -> None:
        self.incarnation_id = self.respawn.incarnation_id if self.respawn is not None else ""
        """The worker's incarnation; empty until the run has its session."""
        self._start_event = asyncio.Event()
        self._schedule_event = asyncio.Event()
        self._result: asyncio.Future[ExecutionResult] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"Execution({self.id!r}, session {self.session_id!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self._result.done()

    @property
    def result(self) -> ExecutionResult | None:
        """The result, or None while the run is unfinished."""
        return self._result.result() if self._result.done() else None

    @property
    def is_queued(self) -> bool:
        """Whether it has not started because of other runs."""
        return not self.done and (self.task is None or self.is_waiting_for_turn)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a user, or for another run of its session."""
        return self.is_waiting_for_turn or (self.executor is not None and self.executor.waits_for_user)

    @property
    def goal(self) -> GoalProgress | None:
        """Progress towards the graph's goal."""
        if self.executor is not None:
            return self.executor.goal
        return self._result.result().goal if self._result.done() else None

    def add_done_callback(self, callback: Callable[[Execution], None]) -> None:
        """Call ``callback`` soon after the run has ended."""
        self._result.add_done_callback(lambda _: callback(self))

    def finish(self, result: ExecutionResult) -> None:
        """Set the result; only the first one counts."""
        if not self._result.done():
            self._result.set_result(result)
        self._start_event.set()
        self._schedule_event.set()
        # Results are kept for long; release the executor.
        self.executor = None

    def mark_started(self) -> None:
        """Record that it has its session and runs."""
        self.has_begun = True
        self._start_event.set()
        self._schedule_event.set()

    async def wait_for_turn(self, turn: Awaitable[object], on_waiting: Callable[[], None]) -> None:
        """Wait for ``turn``, which another run of the session holds; call ``on_waiting`` first."""
        self.is_waiting_for_turn = True
        self._schedule_event.set()
        on_waiting()
        try:
            await turn
        finally:
            self.is_waiting_for_turn = False

    async def wait_until_scheduled(self) -> None:
        """Wait until it runs, waits for another run of its session, or ended without starting."""
        await self._schedule_event.wait()

    async def wait_started(self) -> None:
        """Wait until it runs, or ended without starting."""
        await self._start_event.wait()

    async def wait(self) -> ExecutionResult:
        """Wait for the result. Cancelling the wait does not cancel the run."""
        return await asyncio.shield(self._result)
