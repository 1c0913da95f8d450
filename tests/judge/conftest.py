import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from sqlalchemy import Connection

from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import EscalationTicket
from queenright.judge.agent_workspace import AgentWorkspaces
from queenright.judge.chat import ListInterventions
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.judge.orchestrator import Decide
from queenright.judge.queen_actions import QueenActions
from queenright.judge.rules_model import RulesModel
from queenright.judge.settings import JudgeSettings
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import LLMProvider, Message, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.tooling.tools import Tool
from tests.waiting import idle

AGENT = "deep_research_agent"
SESSION = "session_1"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

T = TypeVar("T")
Speak = Callable[[Sequence[Message], Sequence[ToolSpec]], ModelReply | Awaitable[ModelReply]]


class FakeTime:
    """A clock that stands until it is moved, and sleepers that wake as it passes them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        waking = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, waking))
        await waking

    def due(self, until: float) -> tuple[float, asyncio.Future[None]] | None:
        self._sleepers = [s for s in self._sleepers if not s[1].done()]
        first = min(self._sleepers, key=lambda s: s[0], default=None)
        return first if first is not None and first[0] <= until else None


class TalkingModel:
    """A model that is a function of what it is shown; what it was shown is kept."""

    name = "talking"

    def __init__(self, speak: Speak) -> None:
        self.speak = speak
        self.shown: list[list[Message]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.shown.append(list(messages))
        reply = self.speak(messages, tools)
        return await reply if isinstance(reply, Awaitable) else reply


def call(tool: str, **arguments: Any) -> ModelReply:
    return ModelReply(
        tool_calls=(ToolCall("c", tool, json.dumps(arguments)),), input_tokens=100, output_tokens=10
    )


class WatchedStore(Store):
    """A store that knows how many readers wait for it."""

    reading = 0

    async def read(self, fn: Callable[[Connection], T]) -> T:
        self.reading += 1
        try:
            return await super().read(fn)
        finally:
            self.reading -= 1


class JudgedFleet:
    """Everything from an event of a worker to a decided ticket: real store, monitor, tickets, graphs."""

    def __init__(self, path: Path, time: FakeTime, settings: HealthSettings) -> None:
        self.path, self.time, self.settings = path, time, settings
        self.exporter = InMemorySpanExporter()
        self.changes: list[EscalationTicket] = []
        self.events: list[AgentEvent] = []
        self.judge_model: LLMProvider = RulesModel()
        self.queen_model: LLMProvider = RulesModel()
        self.judge_settings = JudgeSettings()
        self.given_models = True
        """False: those that the settings name."""
        self.decide: Decide | None = None
        self.actions: QueenActions | None = None
        self.list_interventions: ListInterventions | None = None
        self.workspaces: AgentWorkspaces | None = None
        self.read_tools: Sequence[Tool] = ()
        self.cause = ""
        """What all workers share."""
        self.running = False

    async def start(self, *, keep_monitor: bool = False, log: bool = True) -> None:
        self.registry = CollectorRegistry()
        self.store = WatchedStore.open(f"sqlite:///{self.path / 'queenright.db'}")
        self.bus = EventBus(log=self.store if log else None)
        self.bus.subscribe(self.events.append, name="test")
        if not keep_monitor:
            self.monitor = HealthMonitor(self.settings)
        self.tickets = TicketService(
            self.store,
            settings=self.settings,
            clock=self.time,
            publish=self.bus.fan_out,
            group=lambda health, finding: self.cause,
            find_worker=self.monitor.get,
            on_change=lambda _, ticket: self.changes.append(ticket),
        )
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.judging = JudgeAndQueen(
            bus=self.bus,
            monitor=self.monitor,
            tickets=self.tickets,
            settings=self.settings,
            judge=self.judge_settings,
            clock=self.time,
            storage=self.path,
            registry=self.registry,
            tracer=provider.get_tracer("test"),
            monotonic=self.time,
            sleep=self.time.sleep,
            models=(self.judge_model, self.queen_model) if self.given_models else None,
            decide=self.decide,
            actions=self.actions,
            list_interventions=self.list_interventions,
            read_tools=self.read_tools,
            workspaces=self.workspaces,
        )
        await self.judging.start()
        self.running = True

    async def stop(self) -> None:
        if self.running:
            self.running = False
            await self.judging.stop()
            await self.bus.close()
            await self.store.close()

    # -- what workers do ------------------------------------------------------------------------

    async def worker(
        self, event_type: EventType, agent: str = AGENT, session: str = SESSION, **data: Any
    ) -> None:
        event = AgentEvent(
            type=event_type,
            time=self.time.now,
            agent_id=agent,
            session_id=session,
            incarnation_id="life-1",
            node_id="researcher",
            graph_id="deep-research",
            trace_id=TRACE,
            span_id=SPAN,
            data=data,
        )
        emitted = self.monitor.apply(event, self.time.now)
        self.bus.fan_out(event)
        if emitted:
            await self.bus.publish(*emitted)

    async def begin(self, agent: str = AGENT, session: str = SESSION) -> None:
        """Start a worker and let its start grace pass."""
        await self.worker(EventType.EXECUTION_STARTED, agent, session, start_records=True)
        await self.worker(EventType.STEP_STARTED, agent, session)
        await self.pass_time(self.settings.judge.start_grace_seconds + 1)

    async def bad_steps(
        self, count: int, agent: str = AGENT, session: str = SESSION, text: str = "same error"
    ) -> None:
        for _ in range(count):
            await self.worker(EventType.STEP_COMPLETED, agent, session, verdict="RETRY", text=text)
        await self.settle()

    async def good_step(self, agent: str = AGENT, session: str = SESSION) -> None:
        await self.worker(EventType.STEP_COMPLETED, agent, session, verdict="ACCEPT", text="done")
        await self.update_tickets_of_worker(agent, session)
        await self.settle()

    async def update_tickets_of_worker(self, agent: str = AGENT, session: str = SESSION) -> None:
        """What the service does when a worker's findings changed."""
        health = self.monitor.get(agent, session)
        assert health is not None
        await self.tickets.observe(health)

    def health(self, agent: str = AGENT) -> WorkerHealth:
        health = self.monitor.get(agent)
        assert health is not None
        return health

    async def look(self) -> None:
        """What the service does when a deadline has come."""
        await self.bus.publish(*self.monitor.advance(self.time.now))
        await self.settle()

    # -- time -----------------------------------------------------------------------------------

    @property
    def working(self) -> int:
        """What is with the threads of the store and of the disk."""
        return self.store.depth + self.store.reading + self.judging.runtime.disk.pending

    async def settle(self) -> None:
        """Let everything come to rest: the loop idle, the database written, no run in progress."""
        async with asyncio.timeout(60):
            while True:
                before = (len(self.events), len(self.exporter.get_finished_spans()))
                await self.bus.drain()
                # Threads of the store and of the disk answer in their own time.
                await idle(lambda: self.working)
                if before == (len(self.events), len(self.exporter.get_finished_spans())):
                    return

    async def pass_time(self, seconds: float) -> None:
        until = self.time.now + seconds
        await self.settle()
        while (sleeper := self.time.due(until)) is not None:
            self.time.now = max(self.time.now, sleeper[0])
            sleeper[1].set_result(None)
            await self.settle()
        self.time.now = until
        await self.settle()

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            await self.pass_time(self.settings.judge.interval_seconds)

    # -- what came of it ------------------------------------------------------------------------

    def of(self, event_type: EventType) -> list[AgentEvent]:
        return [event for event in self.events if event.type is event_type]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def span(self, name: str) -> ReadableSpan:
        [span] = [s for s in self.exporter.get_finished_spans() if s.name == name]
        return span

    async def ticket(self) -> EscalationTicket:
        [ticket] = await self.tickets.history(10)
        return ticket


@pytest.fixture
def settings() -> HealthSettings:
    return HealthSettings()


@pytest.fixture
async def fleet(tmp_path: Path, settings: HealthSettings) -> AsyncIterator[JudgedFleet]:
    """Everything, not started yet, so that a test may choose the models."""
    fleet = JudgedFleet(tmp_path, FakeTime(), settings)
    yield fleet
    await fleet.stop()
