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
AnswerFunction = Callable[[Sequence[Message], Sequence[ToolSpec]], ModelReply | Awaitable[ModelReply]]


class FakeTime:
    """A clock that only the test advances. Sleepers wake when it passes their time."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        wake_up = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, wake_up))
        await wake_up

    def due(self, end_time: float) -> tuple[float, asyncio.Future[None]] | None:
        self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[1].done()]
        first = min(self._sleepers, key=lambda sleeper: sleeper[0], default=None)
        return first if first is not None and first[0] <= end_time else None


class TalkingModel:
    """A model whose replies a function computes. It keeps the conversations that it receives."""

    name = "talking"

    def __init__(self, answer: AnswerFunction) -> None:
        self.answer = answer
        self.conversations: list[list[Message]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.conversations.append(list(messages))
        reply = self.answer(messages, tools)
        return await reply if isinstance(reply, Awaitable) else reply


def reply_with_call(tool: str, **arguments: Any) -> ModelReply:
    return ModelReply(
        tool_calls=(ToolCall("c", tool, json.dumps(arguments)),), input_tokens=100, output_tokens=10
    )


class WatchedStore(Store):
    """A store that counts the reads in progress."""

    active_reads = 0

    async def read(self, fn: Callable[[Connection], T]) -> T:
        self.active_reads += 1
        try:
            return await super().read(fn)
        finally:
            self.active_reads -= 1


class JudgedFleet:
    """
    The path from a worker's event to a decided ticket, with the real store, monitor, tickets and graphs.
    """

    def __init__(self, path: Path, time: FakeTime, settings: HealthSettings) -> None:
        self.path, self.time, self.settings = path, time, settings
        self.exporter = InMemorySpanExporter()
        self.changes: list[EscalationTicket] = []
        self.events: list[AgentEvent] = []
        self.judge_model: LLMProvider = RulesModel()
        self.queen_model: LLMProvider = RulesModel()
        self.judge_settings = JudgeSettings()
        self.use_given_models = True
        """False uses the models from the settings."""
        self.decide: Decide | None = None
        self.actions: QueenActions | None = None
        self.list_interventions: ListInterventions | None = None
        self.workspaces: AgentWorkspaces | None = None
        self.read_tools: Sequence[Tool] = ()
        self.cause = ""
        """The cause that all workers have in common; empty for none."""
        self.is_running = False

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
            models=(self.judge_model, self.queen_model) if self.use_given_models else None,
            decide=self.decide,
            actions=self.actions,
            list_interventions=self.list_interventions,
            read_tools=self.read_tools,
            workspaces=self.workspaces,
        )
        await self.judging.start()
        self.is_running = True

    async def stop(self) -> None:
        if self.is_running:
            self.is_running = False
            await self.judging.stop()
            await self.bus.close()
            await self.store.close()

    # -- workers --------------------------------------------------------------------------------

    async def report_event(
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
        events = self.monitor.apply(event, self.time.now)
        self.bus.fan_out(event)
        if events:
            await self.bus.publish(*events)

    async def start_worker(self, agent: str = AGENT, session: str = SESSION) -> None:
        """Start a worker and wait until its start grace has passed."""
        await self.report_event(EventType.EXECUTION_STARTED, agent, session, start_records=True)
        await self.report_event(EventType.STEP_STARTED, agent, session)
        await self.pass_time(self.settings.judge.start_grace_seconds + 1)

    async def report_bad_steps(
        self, count: int, agent: str = AGENT, session: str = SESSION, text: str = "same error"
    ) -> None:
        for _ in range(count):
            await self.report_event(EventType.STEP_COMPLETED, agent, session, verdict="RETRY", text=text)
        await self.settle()

    async def report_good_step(self, agent: str = AGENT, session: str = SESSION) -> None:
        await self.report_event(EventType.STEP_COMPLETED, agent, session, verdict="ACCEPT", text="done")
        await self.update_tickets(agent, session)
        await self.settle()

    async def update_tickets(self, agent: str = AGENT, session: str = SESSION) -> None:
        """Update the tickets of a worker, as the service does when the worker's findings change."""
        health = self.monitor.get(agent, session)
        assert health is not None
        await self.tickets.observe(health)

    def get_health(self, agent: str = AGENT) -> WorkerHealth:
        health = self.monitor.get(agent)
        assert health is not None
        return health

    async def advance_monitor(self) -> None:
        """Advance the monitor, as the service does at a deadline."""
        await self.bus.publish(*self.monitor.advance(self.time.now))
        await self.settle()

    # -- time -----------------------------------------------------------------------------------

    @property
    def pending_operations(self) -> int:
        """The number of operations in the threads of the store and of the disk."""
        return self.store.depth + self.store.active_reads + self.judging.runtime.disk.pending

    async def settle(self) -> None:
        """Wait until the loop is idle, the database is written and no run is in progress."""
        async with asyncio.timeout(60):
            while True:
                before = (len(self.events), len(self.exporter.get_finished_spans()))
                await self.bus.drain()
                # Threads of the store and of the disk finish at any time.
                await idle(lambda: self.pending_operations)
                if before == (len(self.events), len(self.exporter.get_finished_spans())):
                    return

    async def pass_time(self, seconds: float) -> None:
        end_time = self.time.now + seconds
        await self.settle()
        while (sleeper := self.time.due(end_time)) is not None:
            self.time.now = max(self.time.now, sleeper[0])
            sleeper[1].set_result(None)
            await self.settle()
        self.time.now = end_time
        await self.settle()

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            await self.pass_time(self.settings.judge.interval_seconds)

    # -- results --------------------------------------------------------------------------------

    def list_events(self, event_type: EventType) -> list[AgentEvent]:
        return [event for event in self.events if event.type is event_type]

    def get_metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def find_span(self, name: str) -> ReadableSpan:
        [span] = [
            finished_span
            for finished_span in self.exporter.get_finished_spans()
            if finished_span.name == name
        ]
        return span

    async def get_ticket(self) -> EscalationTicket:
        [ticket] = await self.tickets.history(10)
        return ticket


@pytest.fixture
def settings() -> HealthSettings:
    return HealthSettings()


@pytest.fixture
async def fleet(tmp_path: Path, settings: HealthSettings) -> AsyncIterator[JudgedFleet]:
    """Return a fleet that is not started, so that a test can choose the models."""
    fleet = JudgedFleet(tmp_path, FakeTime(), settings)
    yield fleet
    await fleet.stop()
