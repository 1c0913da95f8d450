"""A monitor and an intervention service on a real store and a simulated clock."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import WorkerKey
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.interventions.escalation import Escalation, EscalationAnswer, escalation_table
from queenright.health.interventions.intervention import Intervention, intervention_table
from queenright.health.interventions.intervention_service import InterventionService
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.storm import StormWatch
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, StopResult, WorkerUnreachableError
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType
from tests.runtime.conftest import FakeTime

STALL = 240.0
"""Seconds of silence between steps after which a worker is stuck."""


class FakeControl:
    """A stand-in for agents that records the actions on them."""

    def __init__(self) -> None:
        self.is_reachable = True
        self.confirms_stop = True
        self.delivery = NudgeDelivery.INJECTED
        self.nudges: list[tuple[Target, str]] = []
        self.stopped_targets: list[Target] = []
        self.on_terminate: Callable[[], None] = lambda: None
        self.before_terminate: Callable[[], Awaitable[object]] | None = None

    def can_reach(self, target: Target) -> bool:
        return self.is_reachable

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        if not self.is_reachable:
            raise WorkerUnreachableError("gone")
        self.nudges.append((target, message))
        return self.delivery

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        self.stopped_targets.append(target)
        if self.before_terminate is not None:
            await self.before_terminate()
        self.on_terminate()
        return StopResult(
            is_confirmed=self.confirms_stop, checkpoint_id="0000000001-c" if self.confirms_stop else None
        )


@dataclass
class FakeRecovery:
    """A stand-in for the recovery service that records requests."""

    requests: list[Target] = field(default_factory=list)
    should_accept: bool = True
    is_reachable: bool = True
    accepted: bool = True
    reason: str = ""

    def is_recovering(self, key: tuple[str, str]) -> bool:
        return False

    def can_reach(self, target: Target) -> bool:
        return self.is_reachable

    async def request(self, target: Target, reason: str, *, by: str) -> FakeRecovery:
        self.requests.append(target)
        return FakeRecovery(
            accepted=self.should_accept, reason="" if self.should_accept else "3 attempts were made"
        )


class MonitoredFleet:
    """The monitor and the interventions, connected as in the service."""

    def __init__(self, store: Store, settings: HealthSettings | None = None, **intervention: Any) -> None:
        settings = settings or HealthSettings.model_validate({"intervention": intervention})
        self.store = store
        self.settings = settings
        self.time = FakeTime()
        self.published_events: list[AgentEvent] = []
        self.control = FakeControl()
        self.recovery = FakeRecovery()
        self.questions: list[Escalation] = []
        self.answer: EscalationAnswer | None = None
        self._numbers = itertools.count(1)
        self._incarnations: dict[str, str] = {}
        self.monitor = HealthMonitor(settings, is_stopping=self._is_stopping)
        self._make()

    def _make(self) -> None:
        self.stop = EmergencyStop(self.store, clock=self.time, publish=self.publish)
        self.storm = StormWatch(self.settings.intervention.storm, ids=self.make_id)
        self.ledger = InterventionLedger(self.store, publish=self.publish)
        self.service = InterventionService(
            self.store,
            self.ledger,
            settings=self.settings,
            monitor=self.monitor,
            controls=[self.control],
            recovery=self.recovery,
            stop=self.stop,
            storm=self.storm,
            clock=self.time,
            sign=lambda event: event,
            orchestrator=self._orchestrate,
            ids=self.make_id,
        )

    def _is_stopping(self, key: WorkerKey, incarnation_id: str) -> bool:
        return self.ledger.is_stopping(key, incarnation_id)

    async def restart(self) -> None:
        """Let another process take over the database and the workers."""
        await self.service.close()
        self._make()
        await self.stop.load()
        await self.service.load()

    async def list_interventions(self) -> list[Intervention]:
        """Return the interventions in the store, newest first."""
        return await self.store.read(lambda conn: intervention_table.newest(conn, 100))

    async def list_escalations(self) -> list[Escalation]:
        """Return the escalations in the store, newest first."""
        return await self.store.read(lambda conn: escalation_table.newest(conn, 100))

    def make_id(self) -> str:
        return f"id{next(self._numbers):06d}"

    async def _orchestrate(self, question: Escalation) -> EscalationAnswer | None:
        self.questions.append(question)
        return self.answer

    def publish(self, *events: AgentEvent) -> None:
        for event in events:
            self.published_events.append(event)
            self._apply_monitor_events(self.monitor.apply(event, self.time.now))
            worker = self.monitor.get(event.agent_id, event.session_id)
            if worker is not None:
                self.service.consider(worker)

    def _apply_monitor_events(self, events: list[AgentEvent]) -> None:
        for event in events:
            self.published_events.append(event)
            if event.type is EventType.HEALTH_STATE_CHANGED:
                self.service.note_worse(event)
            worker = self.monitor.get(event.agent_id, event.session_id)
            if worker is not None:
                self.service.consider(worker)

    def make_event(self, type_: EventType, agent: str = "bee", **data: Any) -> AgentEvent:
        """Return an event of a worker at the current time."""
        return AgentEvent(
            type=type_,
            time=self.time.now,
            agent_id=agent,
            session_id=f"{agent}-1",
            incarnation_id=self._incarnations.get(agent, "i1"),
            node_id="n",
            data=data,
        )

    async def publish_event(self, type_: EventType, agent: str = "bee", **data: Any) -> None:
        """Publish an event of a worker, and let the service act on it."""
        self.publish(self.make_event(type_, agent, **data))
        await self.settle()

    async def start_worker(self, agent: str = "bee", incarnation: str = "i1") -> None:
        self._incarnations[agent] = incarnation
        await self.publish_event(EventType.EXECUTION_STARTED, agent, start_records=True)

    async def change_breaker(self, state: str, agent: str = "bee") -> None:
        """Change the state of a worker's circuit breaker."""
        name = f"tool_execution:{agent}:t"
        status = {
            "name": name,
            "kind": "tool_execution",
            "from": "closed",
            "to": state,
            "reason": "",
            "failures": 5,
        }
        event = self.make_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, agent, **status)
        self.publish(event)
        await self.settle()

    async def accept_step(self, agent: str = "bee") -> None:
        await self.publish_event(EventType.STEP_COMPLETED, agent, verdict="ACCEPT")

    async def settle(self) -> None:
        await self.service.wait_until_idle()
        while (deadline := self.service.next_deadline()) is not None and deadline <= self.time.now:
            await self.service.advance(self.time.now)
            await self.service.wait_until_idle()

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock, and let the service act when something is due."""
        end_time = self.time.now + seconds
        while True:
            deadlines = [
                deadline
                for deadline in (self.monitor.next_deadline(), self.service.next_deadline())
                if deadline is not None
            ]
            if not deadlines or min(deadlines) > end_time:
                break
            self.time.now = max(self.time.now, min(deadlines))
            self._apply_monitor_events(self.monitor.advance(self.time.now))
            await self.settle()
        self.time.now = end_time
        self._apply_monitor_events(self.monitor.advance(end_time))
        await self.settle()

    def get_worker(self, agent: str = "bee") -> WorkerHealth:
        worker = self.monitor.get(agent)
        assert worker is not None
        return worker

    def get_state(self, agent: str = "bee") -> HealthState:
        return self.get_worker(agent).state

    def list_events(self, type_: EventType) -> list[AgentEvent]:
        """Return the published events of one type."""
        return [event for event in self.published_events if event.type is type_]

    def list_actions(self, agent: str = "bee") -> list[str]:
        """Return the kind and outcome of each action on a worker, in order."""
        return [
            f"{event.data['kind']} {event.data['outcome']}"
            for event in self.list_events(EventType.INTERVENTION_RECORDED)
            if event.agent_id == agent
        ]
