"""The judge and the queen: both graphs on one runtime, which subscribe to the workers' events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from opentelemetry.trace import Tracer
from prometheus_client import CollectorRegistry

from queenright.health.cluster.fleet import FleetState
from queenright.health.findings import FindingKind, Severity
from queenright.health.interventions.escalation import Escalation
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.ticket_service import TicketService
from queenright.judge.agent_workspace import AgentWorkspaces
from queenright.judge.chat import OPERATOR_CHAT, ListInterventions, OperatorChat
from queenright.judge.decision_context import DecisionContext, merge_node_tools
from queenright.judge.judge import HEALTH_CHECK, JUDGE_GRAPH, HealthJudge
from queenright.judge.judging_budget import BUDGET_FILE, ModelBudget
from queenright.judge.metrics import FallbackReason, JudgeMetrics
from queenright.judge.models import AssignedModel, load_model
from queenright.judge.orchestrator import DECISION_NODE, ESCALATION_RECEIVER, Decide, Orchestrator
from queenright.judge.queen_actions import QueenActions
from queenright.judge.queen_triage import QUEEN_GRAPH, TICKET_RECEIVER, TRIAGE_NODE, Queen
from queenright.judge.redacting_model import RedactingModel
from queenright.judge.settings import JudgeSettings
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus, Subscription
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.runtime.execution import Trigger
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.llm.model import LLMProvider
from queenright.runtime.tooling.tools import Tool

_FALLBACK_CAUSES: Final[dict[FallbackReason, str]] = {
    "budget": "its budget is spent",
    "timeout": "it timed out too often",
    "error": "it failed too often",
    "invalid": "its replies were invalid too often",
}


class JudgeAndQueen:
    """
    The graphs that turn findings into tickets, and tickets into decisions.

    Args:
        storage: The folder for conversations (``graphs/...``).
        runtime: Runs the graphs; a new one by default.
        models: The judge's and the queen's model, to use instead of those in ``judge``.
        decide: Carries out the queen's decision on an escalation. If None, or if the settings name another
            orchestrator, the queen decides no escalations.
        actions: Nudges and stops workers for the queen. If None, she has no tools for this.
        read_tools: Read-only tools in addition to the health summary.
        list_interventions: Returns the interventions on an agent's workers, for the operator chat.
        fleet: The services that monitor other parts of the fleet.

    Raises:
        ModelUnavailableError: A configured model cannot be used.
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
        runtime: AgentRuntime | None = None,
        monotonic: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        models: tuple[LLMProvider, LLMProvider] | None = None,
        decide: Decide | None = None,
        actions: QueenActions | None = None,
        read_tools: Sequence[Tool] = (),
        list_interventions: ListInterventions | None = None,
        workspaces: AgentWorkspaces | None = None,
        fleet: FleetState | None = None,
    ) -> None:
        self._bus = bus
        self._monitor = monitor
        self._tickets = tickets
        self._is_running = False
        self._subscriptions: list[Subscription] = []
        self.metrics = JudgeMetrics(registry, tickets.open_counts)
        self.runtime = runtime or AgentRuntime(
            bus=bus, storage=storage, clock=clock, monotonic=monotonic, sleep=sleep
        )
        budget = ModelBudget(
            judge.budget, clock=clock, file=storage / BUDGET_FILE, disk=self.runtime.disk, fleet=fleet
        )
        self.budget = budget
        """The budget of the judge and the queen, which all services of the fleet share."""
        self.metrics.watch(budget)
        load = partial(load_model, metrics=self.metrics, budget=budget, monotonic=monotonic, sleep=sleep)
        judge_provider, queen_provider = models or (load(judge.judge, "judge"), load(judge.queen, "queen"))
        judge_model = AssignedModel(judge_provider, judge.judge)
        queen_model = AssignedModel(queen_provider, judge.queen)
        self._models = (judge_model, queen_model)
        context = DecisionContext(
            monitor=monitor,
            tickets=tickets,
            settings=settings,
            metrics=self.metrics,
            tracer=tracer,
            clock=clock,
            sleep=sleep,
            read_tools=tuple(read_tools),
        )
        self._judge = HealthJudge(
            context,
            judge_model,
            publish=bus.publish,
            disk=self.runtime.disk,
            trend_file=storage / "graphs" / JUDGE_GRAPH / "trend.json",
        )
        self._queen = Queen(context, queen_model, retry=self._request_triage, actions=actions)
        self.chat = OperatorChat(
            context,
            queen_model,
            runtime=self.runtime,
            bus=bus,
            list_interventions=list_interventions,
            actions=actions,
            workspaces=workspaces,
        )
        """The chats between operators and the queen about tickets and workers."""
        self._orchestrator: Orchestrator | None = None
        if decide is not None and settings.intervention.escalation.orchestrator == "queen":
            self._orchestrator = Orchestrator(
                context, queen_model, decide=decide, retry=self._request_escalation_decision
            )
        self.runtime.add_graph(
            self._judge.graph(),
            model=RedactingModel(judge_provider),
            tools=self._judge.tools(),
            entries={HEALTH_CHECK: self._judge.check},
        )
        self._add_queen_graph(RedactingModel(queen_provider))

    def _add_queen_graph(self, model: LLMProvider) -> None:
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
            tools=merge_node_tools(tools),
            entries=entries,
        )

    async def start(self) -> None:
        """Start judging, and triage the tickets that were open before a restart."""
        # Subscribe before the queen does, because the bypass time starts when a ticket arrives.
        self._subscriptions = [
            self._bus.subscribe(
                self._expect_ticket, name="triage-clock", types={EventType.WORKER_ESCALATION_TICKET}
            ),
            self._bus.subscribe(
                self._check_worker,
                name="judge",
                types={EventType.FINDING_OPENED, EventType.HEALTH_STATE_CHANGED},
            ),
        ]
        if self._orchestrator is not None:
            self._subscriptions.append(
                self._bus.subscribe(
                    self._orchestrator.handle_event,
                    name="escalation-clock",
                    types={EventType.ESCALATION_TRIGGERED, EventType.ESCALATION_DECIDED},
                )
            )
        waiting_tickets = await self._tickets.load()
        self._judge.adopt(self._tickets.open_tickets())
        await self._judge.load_trends()
        await self.runtime.start()
        self._is_running = True
        for ticket in waiting_tickets:
            self._queen.expect(ticket.ticket_id)
            self._request_triage(ticket.ticket_id)
        await self.chat.resume()

    async def stop(self) -> None:
        """Stop the graphs. Unfinished work resumes after the next start."""
        self._is_running = False
        for subscription in self._subscriptions:
            subscription.cancel()
        self._subscriptions = []
        await self.runtime.stop()
        await self.chat.stop()
        await self._queen.stop()
        if self._orchestrator is not None:
            await self._orchestrator.stop()

    def resume_escalations(self, escalations: Iterable[Escalation]) -> None:
        """Let the queen decide escalations that were pending before a restart. Call it after ``start``."""
        if self._orchestrator is not None and self._is_running:
            for escalation in escalations:
                self._orchestrator.expect(escalation)
                self._request_escalation_decision(escalation.escalation_id)

    def replacements(self) -> list[str]:
        """Return a sentence for each model that the rules currently replace."""
        return [
            f"The {role}'s model {model.provider.name} is not called "
            f"({_FALLBACK_CAUSES[reason]}); rules apply."
            for role, model in zip(("judge", "queen"), self._models, strict=True)
            if (reason := model.fallback_reason) is not None
        ]

    def wake(self, agent_id: str | None = None, reason: str = "") -> None:
        """
        Let the judge check one agent's workers, or all workers, now. Call it from the event loop's thread.
        """
        self._wake(agent_id, None, reason or "woken")

    def _wake(self, agent_id: str | None, session_id: str | None, reason: str) -> None:
        if self._is_running and self._judge.note(agent_id, session_id, reason):
            self.runtime.get_stream(HEALTH_CHECK, graph_id=JUDGE_GRAPH).fire(Trigger())

    def _request_triage(self, ticket_id: str) -> None:
        self._trigger_queen(TICKET_RECEIVER, ticket_id=ticket_id)

    def _request_escalation_decision(self, escalation_id: str) -> None:
        self._trigger_queen(ESCALATION_RECEIVER, escalation_id=escalation_id)

    def _trigger_queen(self, entry_point: str, **inputs: str) -> None:
        if self._is_running:
            self.runtime.get_stream(entry_point, graph_id=QUEEN_GRAPH).fire(Trigger(input_data=inputs))

    def _check_worker(self, event: AgentEvent) -> None:
        health = self._monitor.get(event.agent_id, event.session_id)
        if health is not None and self._judge.is_news(health):
            self._wake(event.agent_id, event.session_id, event.type.value)

    def _expect_ticket(self, event: AgentEvent) -> None:
        ticket = event.data["ticket"]
        self._queen.expect(ticket["ticket_id"])
        if event.data.get("change") == "opened":
            self.metrics.count_ticket(Severity(ticket["severity"]), FindingKind(ticket["kind"]))
