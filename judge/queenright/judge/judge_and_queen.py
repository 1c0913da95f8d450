"""Judge and queen at work: both graphs on one runtime, wired to the bus that workers' events are on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from queenright.health.findings import FindingKind, Severity
from queenright.health.interventions.record import Escalation
from queenright.health.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.ticket_service import TicketService
from queenright.judge.budget import BUDGET_FILE, Budget
from queenright.judge.chat import OPERATOR_CHAT, DoneTo, OperatorChat
from queenright.judge.desk import by_node
from queenright.judge.judge import HEALTH_CHECK, JUDGE_GRAPH, HealthJudge
from queenright.judge.metered import Metered
from queenright.judge.metrics import FallbackReason, JudgeMetrics
from queenright.judge.models import load_model
from queenright.judge.orchestrator import DECISION_NODE, ESCALATION_RECEIVER, Decide, Orchestrator
from queenright.judge.queen import QUEEN_GRAPH, TICKET_RECEIVER, TRIAGE_NODE, Queen
from queenright.judge.queen_actions import QueenActions
from queenright.judge.redacting_model import RedactingModel
from queenright.judge.settings import RULES, JudgeSettings
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.breakers import Breakers
from queenright.runtime.bus import EventBus, Subscription
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.runtime.execution import Trigger
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.nodes.guard import GuardFactory
from queenright.runtime.tooling.tools import Tool

_REASONS: Final[dict[FallbackReason, str]] = {
    "budget": "its budget is spent",
    "timeout": "it took too long again and again",
    "error": "it failed again and again",
    "invalid": "its answers were invalid again and again",
}


class JudgeAndQueen:
    """
    The two graphs between a finding and a person.

    Args:
        bus: Carries findings here, and tickets from judge to queen.
        monitor: Knows the workers.
        tickets: Keeps the tickets.
        settings: The health layer's.
        judge: Which models think.
        clock: Seconds since the epoch.
        storage: Where conversations are kept (``graphs/...``), and sessions of other graphs.
        registry: Where the metrics go.
        tracer: Makes the spans.
        monotonic: The clock of timers.
        sleep: Waits on that clock.
        models: Models to use in place of those named in ``judge``: (judge's, queen's).
        guards: Makes the guards that watch nodes on the runtime from inside.
        breakers: Gives the circuit breakers of the runtime.
        decide: Carries out what the queen decides on an escalation. Without it, or where the settings name
            another orchestrator, she is asked about none.
        hands: Carries out what the queen does to a worker; without, she has no tools for it.
        looks: Tools that show judge and queen more than the health summary does.
        done_to: Tells the queen what was done to workers, for when an operator asks.

    Raises:
        ModelUnavailableError: A model is set that cannot be used here.
    """

    def __init__(
        self,
        *,
        bus: EventBus,
        monitor: HealthMonitor,
        tickets: TicketService,
        settings: HealthSettings,
        judge: JudgeSettings,
        clock: Clock,
        storage: Path,
        registry: CollectorRegistry,
        tracer: Tracer,
        monotonic: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        models: tuple[LLMProvider, LLMProvider] | None = None,
        guards: GuardFactory | None = None,
        breakers: Breakers | None = None,
        decide: Decide | None = None,
        hands: QueenActions | None = None,
        looks: Sequence[Tool] = (),
        done_to: DoneTo | None = None,
    ) -> None:
        self.metrics = JudgeMetrics(registry, tickets.open_counts)
        budget = Budget(judge.budget, clock=clock, file=storage / BUDGET_FILE)
        self.metrics.watch(budget)
        load = partial(load_model, metrics=self.metrics, budget=budget, monotonic=monotonic, sleep=sleep)
        judges, queens = models or (load(judge.judge, "judge"), load(judge.queen, "queen"))
        self._models: tuple[LLMProvider, ...] = (judges, queens)
        self.runtime = AgentRuntime(
            bus=bus,
            storage=storage,
            clock=clock,
            monotonic=monotonic,
            sleep=sleep,
            guards=guards,
            breakers=breakers,
        )
        """Where both run, and where other graphs may."""
        self._bus = bus
        self._monitor = monitor
        self._tickets = tickets
        self._started = False
        self._subscriptions: list[Subscription] = []
        self._judge = HealthJudge(
            monitor=monitor,
            tickets=tickets,
            settings=settings,
            model=judge.judge,
            clock=clock,
            sleep=sleep,
            metrics=self.metrics,
            tracer=tracer,
            publish=bus.publish,
            disk=self.runtime.disk,
            trend_file=storage / "graphs" / JUDGE_GRAPH / "trend.json",
            looks=looks,
            answering=partial(_answering, judges),
            no_decision=partial(_count_invalid, judges),
        )
        self._queen = Queen(
            monitor=monitor,
            tickets=tickets,
            settings=settings,
            model=judge.queen,
            clock=clock,
            sleep=sleep,
            metrics=self.metrics,
            tracer=tracer,
            retry=self._triage,
            hands=hands,
            looks=looks,
            answering=partial(_answering, queens),
            no_decision=partial(_count_invalid, queens),
        )
        self.chat = OperatorChat(
            runtime=self.runtime,
            bus=bus,
            tickets=tickets,
            monitor=monitor,
            model=judge.queen,
            clock=clock,
            done_to=done_to,
            hands=hands,
            looks=looks,
            replaced=partial(_replaced, queens),
        )
        """Where operators talk with the queen about a ticket."""
        self._orchestrator: Orchestrator | None = None
        if decide is not None and settings.intervention.escalation.orchestrator == "queen":
            self._orchestrator = Orchestrator(
                monitor=monitor,
                model=judge.queen,
                clock=clock,
                sleep=sleep,
                tracer=tracer,
                decide=decide,
                retry=self._ask,
                no_decision=partial(_count_invalid, queens),
            )
        self.runtime.add_graph(
            self._judge.graph(),
            model=RedactingModel(judges),
            tools=self._judge.tools(),
            entries={HEALTH_CHECK: self._judge.check},
        )
        self._add_queen(RedactingModel(queens))

    def _add_queen(self, model: LLMProvider) -> None:
        nodes = [self._queen.node(), self.chat.node()]
        entry_points = [self._queen.entry(), self.chat.entry()]
        tools = {TRIAGE_NODE: self._queen.tools(), OPERATOR_CHAT: self.chat.tools()}
        entries = {TICKET_RECEIVER: self._queen.receive}
        if self._orchestrator is not None:
            nodes.append(self._orchestrator.node())
            entry_points.append(self._orchestrator.entry())
            tools[DECISION_NODE] = self._orchestrator.tools()
            entries[ESCALATION_RECEIVER] = self._orchestrator.receive
        self.runtime.add_graph(
            GraphSpec(id=QUEEN_GRAPH, nodes=tuple(nodes), entry_points=tuple(entry_points)),
            model=model,
            tools=by_node(tools),
            entries=entries,
        )

    async def start(self) -> None:
        """Start judging, and triage the tickets that an earlier life left open."""
        # Before the queen's own subscription: the bypass time runs from a ticket's arrival.
        self._subscriptions = [
            self._bus.subscribe(
                self._ticket_arrived, name="triage-clock", types={EventType.WORKER_ESCALATION_TICKET}
            ),
            self._bus.subscribe(
                self._worker_changed,
                name="judge",
                types={EventType.FINDING_OPENED, EventType.HEALTH_STATE_CHANGED},
            ),
        ]
        if self._orchestrator is not None:
            self._subscriptions.append(
                self._bus.subscribe(
                    self._orchestrator.heard,
                    name="escalation-clock",
                    types={EventType.ESCALATION_TRIGGERED, EventType.ESCALATION_DECIDED},
                )
            )
        left_over = await self._tickets.load()
        self._judge.adopt(self._tickets.open_tickets())
        await self._judge.recall()
        await self.runtime.start()
        self._started = True
        for ticket in left_over:
            self._queen.expect(ticket.ticket_id)
            self._triage(ticket.ticket_id)
        await self.chat.take_up()

    async def stop(self) -> None:
        """Stop both graphs; whatever is open is found again at the next start."""
        self._started = False
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []
        await self.runtime.stop()
        await self.chat.stop()
        await self._queen.stop()
        if self._orchestrator is not None:
            await self._orchestrator.stop()

    def take_up(self, escalations: Iterable[Escalation]) -> None:
        """Have the queen decide what an earlier life was asked and did not answer; after the start."""
        if self._orchestrator is not None and self._started:
            for escalation in escalations:
                self._orchestrator.expect(escalation)
                self._ask(escalation.escalation_id)

    def replacements(self) -> list[str]:
        """Return a sentence about each model in whose place the rules answer now."""
        models = [model for model in self._models if isinstance(model, Metered)]
        return [
            f"The {model.role}'s model {model.name} is not asked ({_REASONS[reason]}); the rules answer."
            for model in models
            if (reason := model.replaced) is not None
        ]

    def wake(self, agent_id: str | None = None, reason: str = "") -> None:
        """Have the judge look now: at one worker, or at all. From the loop's thread; does not wait."""
        self._wake(agent_id, None, reason or "woken")

    def _wake(self, agent_id: str | None, session_id: str | None, reason: str) -> None:
        if self._started and self._judge.note(agent_id, session_id, reason):
            self.runtime.get_stream(HEALTH_CHECK, graph_id=JUDGE_GRAPH).fire(Trigger())

    def _triage(self, ticket_id: str) -> None:
        if self._started:
            stream = self.runtime.get_stream(TICKET_RECEIVER, graph_id=QUEEN_GRAPH)
            stream.fire(Trigger(input_data={"ticket_id": ticket_id}))

    def _ask(self, escalation_id: str) -> None:
        if self._started:
            stream = self.runtime.get_stream(ESCALATION_RECEIVER, graph_id=QUEEN_GRAPH)
            stream.fire(Trigger(input_data={"escalation_id": escalation_id}))

    def _worker_changed(self, event: AgentEvent) -> None:
        health = self._monitor.get(event.agent_id, event.session_id)
        if health is not None and self._judge.is_news(health):
            self._wake(event.agent_id, event.session_id, event.type.value)

    def _ticket_arrived(self, event: AgentEvent) -> None:
        ticket = event.data["ticket"]
        self._queen.expect(ticket["ticket_id"])
        if event.data.get("change") == "opened":
            self.metrics.ticket_opened(Severity(ticket["severity"]), FindingKind(ticket["kind"]))


def _answering(model: LLMProvider) -> str:
    """Return who answers now: the rules, while they stand in for a model."""
    return RULES if _replaced(model) else model.name


def _replaced(model: LLMProvider) -> FallbackReason | None:
    return model.replaced if isinstance(model, Metered) else None


def _count_invalid(model: LLMProvider, why: str) -> None:
    if isinstance(model, Metered):
        model.count_invalid(why)
