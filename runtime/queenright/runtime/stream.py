"""A stream: the runs that one entry point started, one after another."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from queenright.instrumentation.identity import new_id
from queenright.runtime.bus import EventBus, Subscription
from queenright.runtime.conversation import Conversation
from queenright.runtime.deadline import Sleep
from queenright.runtime.event_loop import EventLoopNode, NodeResult
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.runtime.graph import EntryPointSpec, GraphSpec
from queenright.runtime.model import LLMProvider
from queenright.runtime.sessions import Session
from queenright.runtime.tools import ToolRegistry

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """Why an entry point fires: a call with ``input_data``, a tick of its timer, or an event."""

    input_data: Mapping[str, Any] = field(default_factory=dict)
    tick: int | None = None
    """Of a timer: the k of ``t0 + k * interval``."""
    event: AgentEvent | None = None


RunNode = Callable[[str], Awaitable[NodeResult]]
"""Runs the entry point's node once on a message."""

Entry = Callable[[Trigger, RunNode], Awaitable[Any]]
"""What an entry point does when it fires: runs its node as often as there is something to say to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """What a run that raised comes back as."""

    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a stream needs of the runtime that it runs on."""

    bus: EventBus
    clock: Clock
    monotonic: Callable[[], float]
    sleep: Sleep


class Stream:
    """
    One entry point at work: a queue of triggers, and at most one run at a time.

    Nothing waits in front of a run that is going on but its own queue: events are queued and never
    lost, ticks that come meanwhile are skipped and counted.
    """

    def __init__(
        self,
        graph: GraphSpec,
        spec: EntryPointSpec,
        *,
        session: Session,
        model: LLMProvider,
        tools: ToolRegistry,
        entry: Entry,
        around: Surroundings,
    ) -> None:
        self.id = f"{graph.id}::{spec.id}"
        self.spec = spec
        self.session = session
        self.ticks_skipped = 0
        self._graph = graph
        self._node = graph.node(spec.node_id)
        self._model = model
        self._tools = tools
        self._entry = entry
        self._around = around
        self._queue: deque[tuple[Trigger, asyncio.Future[Any]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._subscription: Subscription | None = None
        self._conversation: Conversation | None = None

    @property
    def pending(self) -> int:
        """Triggers that wait, and the one being worked on."""
        return len(self._queue) + (self._worker is not None)

    def start(self) -> None:
        """Begin to listen to the entry point's timer or events."""
        name = f"graph:{self.id}"
        if self.spec.trigger_type == "timer":
            self._timer = asyncio.create_task(self._tick(), name=f"{name}:timer")
        elif self.spec.trigger_type == "event":
            self._subscription = self._around.bus.subscribe(
                self._on_event, name=self.id, types=self.spec.event_types
            )

    async def stop(self) -> None:
        """Listen no more, cancel what runs and what waits, and return when it has ended."""
        if self._subscription is not None:
            self._subscription.cancel()
        tasks = [t for t in (self._timer, self._worker) if t is not None and t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._worker = self._timer = self._subscription = None
        while self._queue:
            self._queue.popleft()[1].cancel()

    def fire(self, trigger: Trigger) -> asyncio.Future[Any]:
        """Queue a run; the future is what the entry returns, or ``Failed``."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((trigger, done))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name=f"graph:{self.id}")
        return done

    def _on_event(self, event: AgentEvent) -> None:
        if not (self.spec.exclude_own_graph and event.graph_id == self._graph.id):
            self.fire(Trigger(event=event))

    async def _tick(self) -> None:
        """Fire at ``t0 + k * interval``; a run that is late moves no later tick."""
        interval = self.spec.interval_seconds
        assert interval is not None  # the spec saw to it
        t0 = self._around.monotonic()
        k = 0
        while True:
            k += 1
            late = int((self._around.monotonic() - t0) // interval)
            if late > k:
                # The process itself was held up past whole intervals.
                self.ticks_skipped += late - k
                k = late
            await self._around.sleep(max(0.0, t0 + k * interval - self._around.monotonic()))
            if self._worker is None:
                self.fire(Trigger(tick=k))
            else:
                self.ticks_skipped += 1

    async def _work(self) -> None:
        try:
            while self._queue:
                trigger, done = self._queue.popleft()
                try:
                    result = await self._run(trigger)
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        done.cancel()
                        raise
                    # Something that the run waited for was cancelled, not the run.
                    result = Failed(error=error)
                if not done.done():
                    done.set_result(result)
        finally:
            self._worker = None

    async def _run(self, trigger: Trigger) -> Any:
        execution_id = new_id()

        async def emit(event_type: EventType, data: Mapping[str, Any]) -> None:
            await self._emit(event_type, data, execution_id)

        async def run_node(message: str) -> NodeResult:
            node = EventLoopNode(
                self._node,
                model=self._model,
                tools=self._tools,
                conversation=self._open_conversation(),
                emit=emit,
                sleep=self._around.sleep,
            )
            return await node.run(message)

        try:
            return await self._entry(trigger, run_node)
        except Exception as error:
            _log.exception("a run of %s failed", self.id)
            await emit(
                EventType.EXECUTION_FAILED, {"error_type": type(error).__name__, "error": str(error)[-500:]}
            )
            return Failed(error=error)

    def _open_conversation(self) -> Conversation:
        if self._conversation is None:
            self._conversation = self.session.conversation(self._node)
        if self.spec.conversation_mode == "fresh":
            self._conversation.clear()
        return self._conversation

    async def _emit(self, event_type: EventType, data: Mapping[str, Any], execution_id: str) -> None:
        # Without an agent_id: a graph of the service itself is no worker, and its own trouble
        # must not look like a worker's.
        event = AgentEvent(
            type=event_type,
            time=self._around.clock(),
            graph_id=self._graph.id,
            stream_id=self.id,
            node_id=self._node.id,
            session_id=self.session.id,
            execution_id=execution_id,
            data=data,
        )
        try:
            await self._around.bus.publish(event)
        except Exception:
            # What a node says about itself is not worth the run; what is decided in it is kept elsewhere.
            _log.exception("could not publish %s of %s", event_type, self.id)
