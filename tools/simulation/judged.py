"""The simulated fleet with the real judge and queen over it, and a model whose every call is counted."""

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

_DESKS: Final = {EMIT: "judge", NOTIFY: "triage", DECIDE: "escalation"}
_STREAMS: Final = (
    (HEALTH_CHECK, JUDGE_GRAPH),
    (TICKET_RECEIVER, QUEEN_GRAPH),
    (ESCALATION_RECEIVER, QUEEN_GRAPH),
)
_QUIET_ROUNDS: Final = 12
_EXIT_SECONDS: Final = 2_000


class Counting:
    """A model that answers as another does, under a name of its own, and counts who asked it what."""

    name = "counting/model"

    def __init__(self, model: LLMProvider | None = None) -> None:
        self._model = model or RulesModel()
        self.calls: Counter[str] = Counter()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.calls[self.desk(tools)] += 1
        return await self._model.complete(messages, tools, on_text)

    @staticmethod
    def desk(tools: Sequence[ToolSpec]) -> str:
        """Return who asks, by what is offered."""
        tool_names = {tool.name for tool in tools}
        return next((desk for tool, desk in _DESKS.items() if tool in tool_names), "other")


class JudgedFleet(Fleet):
    """
    A fleet whose tickets are written by the judge, and triaged by the queen, as they are in the service.

    Args:
        folder: Where they keep their conversations.
        model: Who thinks in both.
    """

    def __init__(self, *more: Any, folder: Path, model: Counting, **options: Any) -> None:
        super().__init__(*more, **options)
        self.model = model
        self._out: list[AgentEvent] = []
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
        """Let days go by, with judge and queen at work."""
        await self.judging.start()
        await self._rest()
        try:
            return await super().run(days)
        finally:
            await self.judging.stop()
            await self.bus.close()

    def checks(self, outcome: str) -> int:
        """Return how many checks of the judge came to ``outcome``."""
        name = "queenright_judge_checks_total"
        return int(self.registry.get_sample_value(name, {"outcome": outcome}) or 0)

    # -- in place of the rules that stand in for judge and queen --------------------------------------

    async def _judge(self, key: WorkerKey) -> None:
        """Leave it to the judge, who hears of it on the bus."""

    async def _orchestrate(self, question: Escalation) -> EscalationAnswer | None:
        """Leave it to the queen, who hears of it on the bus."""
        return None

    # -- their clock and their bus --------------------------------------------------------------------

    async def _sleep(self, seconds: float) -> None:
        self.time.now = self.now
        await self.time.sleep(seconds)

    def _next_look(self) -> float:
        return min(super()._next_look(), self.time.next_waking())

    async def _look(self) -> None:
        if self.time.move_to(self.now):
            await self._rest()
            await self._speak()
        await super()._look()
        if self._out:
            await self._speak()

    def _note(self, event: AgentEvent) -> None:
        super()._note(event)
        self._out.append(event)

    async def _speak(self) -> None:
        await super()._speak()
        while self._out:
            out, self._out = self._out, []
            self.time.now = self.now
            self.bus.fan_out(*out)
            await self._rest()
            await super()._speak()

    async def _rest(self) -> None:
        """Let judge and queen come to rest."""
        quiet, rounds = 0, 0
        while quiet < _QUIET_ROUNDS and rounds < _EXIT_SECONDS:
            await self.bus.drain()
            busy = self.store.depth + self.judging.runtime.disk.pending + self._running()
            await asyncio.sleep(0.0005 if busy else 0)
            quiet, rounds = (0, rounds + 1) if busy else (quiet + 1, rounds)

    def _running(self) -> int:
        runtime = self.judging.runtime
        return sum(runtime.get_stream(entry, graph_id=graph).pending for entry, graph in _STREAMS)
