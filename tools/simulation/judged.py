"""The simulated fleet with the real judge and queen, and a model that counts its calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry

from queenright.health.findings import WorkerKey
from queenright.health.interventions.escalation import Escalation, EscalationAnswer
from queenright.judge.judge import HEALTH_CHECK, JUDGE_GRAPH
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.judge.orchestrator import ESCALATION_RECEIVER
from queenright.judge.queen_triage import QUEEN_GRAPH, TICKET_RECEIVER
from queenright.judge.rules_model import DECIDE, EMIT, NOTIFY, RulesModel
from queenright.judge.scenarios.virtual_time import VirtualTime
from queenright.judge.settings import JudgeSettings
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent
from queenright.runtime.llm.model import LLMProvider, Message, ModelReply, OnText, ToolSpec
from tools.simulation.fleet import Fleet, Tally

_ROLES: Final = {EMIT: "judge", NOTIFY: "triage", DECIDE: "escalation"}
_STREAMS: Final = (
    (HEALTH_CHECK, JUDGE_GRAPH),
    (TICKET_RECEIVER, QUEEN_GRAPH),
    (ESCALATION_RECEIVER, QUEEN_GRAPH),
)
_IDLE_ROUNDS: Final = 12
_MAX_ROUNDS: Final = 2_000


class CountingModel:
    """A model that wraps another, with its own name, and counts its calls by role."""

    name = "counting/model"

    def __init__(self, model: LLMProvider | None = None) -> None:
        self._model = model or RulesModel()
        self.calls: Counter[str] = Counter()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.calls[self.identify_role(tools)] += 1
        return await self._model.complete(messages, tools, on_text)

    @staticmethod
    def identify_role(tools: Sequence[ToolSpec]) -> str:
        """Return the role that calls, which the offered tools show."""
        tool_names = {tool.name for tool in tools}
        return next((role for tool, role in _ROLES.items() if tool in tool_names), "other")


class JudgedFleet(Fleet):
    """
    A fleet whose tickets the judge writes and the queen triages, as in the service.

    Args:
        folder: Folder of their conversations.
        model: The model of both.
    """

    def __init__(self, *arguments: Any, folder: Path, model: CountingModel, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.model = model
        self._outgoing_events: list[AgentEvent] = []
        self.time = VirtualTime(self.now)
        self.registry = CollectorRegistry()
        self.bus = EventBus()
        self.judging = JudgeAndQueen(
            bus=self.bus,
            monitor=self.monitor,
            tickets=self.tickets,
            settings=self.settings,
            judge=JudgeSettings(),
            clock=self.clock,
            storage=folder,
            registry=self.registry,
            tracer=NoOpTracer(),
            monotonic=self.clock,
            sleep=self._sleep,
            models=(model, model),
            decide=self.acting.decide,
        )

    async def run(self, days: float) -> Tally:
        """Simulate ``days`` with judge and queen."""
        await self.judging.start()
        await self._wait_until_idle()
        try:
            return await super().run(days)
        finally:
            await self.judging.stop()
            await self.bus.close()

    def count_checks(self, outcome: str) -> int:
        """Return how many checks of the judge had ``outcome``."""
        name = "queenright_judge_checks_total"
        return int(self.registry.get_sample_value(name, {"outcome": outcome}) or 0)

    # -- replace the stand-ins of judge and queen -----------------------------------------------------

    async def _judge(self, key: WorkerKey) -> None:
        """Do nothing: the judge receives the events on the bus."""

    async def _orchestrate(self, question: Escalation) -> EscalationAnswer | None:
        """Do nothing: the queen receives the events on the bus."""
        return None

    # -- clock and bus --------------------------------------------------------------------------------

    async def _sleep(self, seconds: float) -> None:
        self.time.now = self.now
        await self.time.sleep(seconds)

    def _next_wakeup(self) -> float:
        return min(super()._next_wakeup(), self.time.next_waking())

    async def _advance(self) -> None:
        if self.time.move_to(self.now):
            await self._wait_until_idle()
            await self._publish_pending()
        await super()._advance()
        if self._outgoing_events:
            await self._publish_pending()

    def _record_outcome(self, event: AgentEvent) -> None:
        super()._record_outcome(event)
        self._outgoing_events.append(event)

    async def _publish_pending(self) -> None:
        await super()._publish_pending()
        while self._outgoing_events:
            events, self._outgoing_events = self._outgoing_events, []
            self.time.now = self.now
            self.bus.fan_out(*events)
            await self._wait_until_idle()
            await super()._publish_pending()

    async def _wait_until_idle(self) -> None:
        """Wait until judge and queen are idle."""
        idle_rounds, rounds = 0, 0
        while idle_rounds < _IDLE_ROUNDS and rounds < _MAX_ROUNDS:
            await self.bus.drain()
            busy = self.store.depth + self.judging.runtime.disk.pending + self._count_pending()
            await asyncio.sleep(0.0005 if busy else 0)
            idle_rounds, rounds = (0, rounds + 1) if busy else (idle_rounds + 1, rounds)

    def _count_pending(self) -> int:
        runtime = self.judging.runtime
        return sum(runtime.get_stream(entry, graph_id=graph).pending for entry, graph in _STREAMS)
