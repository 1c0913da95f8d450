"""Executions: one run of a graph, from the trigger that asked for it to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from queenright.runtime.events import AgentEvent
from queenright.runtime.graphs.goal import GoalProgress
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.storage.checkpoint_store import Checkpoint
from queenright.runtime.storage.session_store import SessionStatus

if TYPE_CHECKING:
    from queenright.runtime.executor import GraphExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Why an entry point fires: a call with ``input_data``, a tick of its timer, or an event."""

    input_data: Mapping[str, Any] = field(default_factory=dict)
    tick: int | None = None
    """Of a timer: the number of the moment at which it was due."""
    event: AgentEvent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """How a run ended."""

    execution_id: str
    session_id: str
    graph_id: str
    entry_point: str
    status: SessionStatus
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """What the nodes put out that no edge led on from; ``text`` where they only spoke."""
    error: str = ""
    error_type: str = ""
    path: tuple[str, ...] = ()
    """The nodes that ended, in that order."""
    node: NodeResult | None = None
    """How the last of them ended."""
    goal: GoalProgress | None = None
    value: Any = None
    """What the entry point's own function returned, where it has one."""
    checkpoint_id: str | None = None
    """Where its state was saved when it was stopped."""

    @property
    def succeeded(self) -> bool:
        """Whether the run got to its end."""
        return self.status is SessionStatus.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Respawn:
    """That a run is brought back: under which incarnation, and what its nodes are told of it."""

    incarnation_id: str
    note: str = ""
    restarts: str = ""
    """The run that this one begins anew: what was said in that is forgotten. Empty: it is taken up."""


class Execution:
    """A run that was asked for: waiting, going on, or over."""

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - what it is called everywhere
        graph_id: str,
        trigger: Trigger,
        session_id: str | None = None,
        resumes: bool = False,
        checkpoint: Checkpoint | None = None,
        respawn: Respawn | None = None,
    ) -> None:
        self.id = id
        self.graph_id = graph_id
        self.trigger = trigger
        self.session_id = session_id
        self.resumes = resumes
        self.checkpoint = checkpoint
        self.respawn = respawn
        self.incarnation_id = respawn.incarnation_id if respawn is not None else ""
        """Which life of its worker it is; empty before it has its session."""
        self.ends_as: SessionStatus | None = None
        """How it is to end, once somebody has asked it to."""
        self.end_reason = ""
        """And why."""
        self.ending = False
        """Whether its end is being written down."""
        self.task: asyncio.Task[None] | None = None
        self.executor: GraphExecutor | None = None
        self.waits_for_turn = False
        """Whether it waits for another run of its graph in its session."""
        self.has_begun = False
        """Whether it had its session and went on."""
        self._begun = asyncio.Event()
        self._placed = asyncio.Event()
        self._result: asyncio.Future[ExecutionResult] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"Execution({self.id!r}, session {self.session_id!r}, done={self.done})"

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._result.done()

    @property
    def result(self) -> ExecutionResult | None:
        """How it ended, or None while it has not."""
        return self._result.result() if self._result.done() else None

    @property
    def is_queued(self) -> bool:
        """Whether it has not begun, as other runs come before it."""
        return not self.done and (self.task is None or self.waits_for_turn)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing goes on in it before a user has answered, or another run of its session is over."""
        return self.waits_for_turn or (self.executor is not None and self.executor.waits_for_user)

    @property
    def goal(self) -> GoalProgress | None:
        """How far it has got towards its graph's goal."""
        if self.executor is not None:
            return self.executor.goal
        return self._result.result().goal if self._result.done() else None

    def finish(self, result: ExecutionResult) -> None:
        """Say how it ended; the first word counts."""
        if not self._result.done():
            self._result.set_result(result)
        self._begun.set()
        self._placed.set()
        # Results are kept for long; what it took to get there is not.
        self.executor = None

    def began(self) -> None:
        """Note that it has its session and goes on."""
        self.has_begun = True
        self._begun.set()
        self._placed.set()

    async def wait_for_turn(self, turn: Awaitable[object], on_waiting: Callable[[], None]) -> None:
        """Wait for ``turn``, which comes when another run of the session is over; tell that it waits."""
        self.waits_for_turn = True
        self._placed.set()
        on_waiting()
        try:
            await turn
        finally:
            self.waits_for_turn = False

    async def placed(self) -> None:
        """Wait until it goes on, waits for another run of its session, or is over without having begun."""
        await self._placed.wait()

    async def begun(self) -> None:
        """Wait until it goes on, or is over without having begun."""
        await self._begun.wait()

    async def ended(self) -> ExecutionResult:
        """Wait until it is over, and return how it ended; whoever waits may be cancelled, the run is not."""
        return await asyncio.shield(self._result)
