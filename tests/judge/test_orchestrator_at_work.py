"""The real queen with the real interventions: from an escalation to the stopped worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from queenright.health.findings import WorkerKey
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.interventions.escalation import Escalation, EscalationStatus, escalation_table
from queenright.health.interventions.intervention_service import InterventionService
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.storm import StormWatch
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, StopResult
from queenright.instrumentation.identity import new_id
from queenright.runtime.events import EventType
from tests.judge.conftest import AGENT, JudgedFleet


@dataclass
class AgentProcesses:
    """
    Stands in for the agents' processes and for recovery: records nudges, terminations and recovery requests.
    """

    nudges: list[str] = field(default_factory=list)
    stopped_targets: list[Target] = field(default_factory=list)
    recovery_requests: list[Target] = field(default_factory=list)
    accepted: bool = True
    reason: str = ""

    def can_reach(self, target: Target) -> bool:
        return True

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        self.nudges.append(message)
        return NudgeDelivery.INJECTED

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        self.stopped_targets.append(target)
        return StopResult(is_confirmed=True, checkpoint_id="0000000001-c")

    async def request(self, target: Target, reason: str, *, by: str) -> AgentProcesses:
        self.recovery_requests.append(target)
        return self

    def is_recovering(self, key: WorkerKey) -> bool:
        return False


@dataclass
class OrchestratedFleet:
    """A fleet with interventions that the queen decides on."""

    fleet: JudgedFleet
    processes: AgentProcesses
    service: InterventionService | None = None

    async def start(self) -> None:
        async def decide(*args: Any, **kwargs: Any) -> object:
            assert self.service is not None
            return await self.service.decide(*args, **kwargs)

        fleet = self.fleet
        fleet.decide = decide
        await fleet.start()
        stop = EmergencyStop(fleet.store, clock=fleet.time, publish=fleet.bus.fan_out)
        self.service = InterventionService(
            fleet.store,
            InterventionLedger(fleet.store, publish=fleet.bus.fan_out),
            settings=fleet.settings,
            monitor=fleet.monitor,
            controls=[self.processes],
            recovery=self.processes,
            stop=stop,
            storm=StormWatch(fleet.settings.intervention.storm, ids=new_id),
            clock=fleet.time,
            sign=lambda event: event,
        )
        await stop.load()
        await self.service.load()

    async def escalate(self) -> Escalation:
        """Escalate the worker, wait until all is idle, and return the stored escalation."""
        assert self.service is not None
        await self.service.escalate(AGENT, "it gets nowhere", by="operator")
        for _ in range(3):
            await self.fleet.settle()
            await self.service.wait_until_idle()
        [escalation] = await self.fleet.store.read(lambda conn: escalation_table.newest(conn, 10))
        return escalation


@pytest.fixture
async def orchestrated_fleet(fleet: JudgedFleet) -> AsyncIterator[OrchestratedFleet]:
    orchestrated_fleet = OrchestratedFleet(fleet, AgentProcesses())
    await orchestrated_fleet.start()
    yield orchestrated_fleet
    if orchestrated_fleet.service is not None:
        await orchestrated_fleet.service.close()


async def test_hanging_worker_is_stopped_and_recovered(orchestrated_fleet: OrchestratedFleet) -> None:
    """002 §11: the orchestrator gets the worker's state, and its decision is carried out."""
    fleet = orchestrated_fleet.fleet
    await fleet.report_event(EventType.EXECUTION_STARTED, start_records=True)
    await fleet.report_event(EventType.STEP_STARTED)
    await fleet.pass_time(1000)
    await fleet.advance_monitor()

    escalation = await orchestrated_fleet.escalate()

    assert (escalation.status, escalation.decision, escalation.decided_by) == (
        EscalationStatus.DECIDED,
        "terminate",
        "queen",
    )
    assert "has been stalled since" in escalation.decision_reason
    assert [target.incarnation_id for target in orchestrated_fleet.processes.stopped_targets] == ["life-1"]
    [escalation_event] = fleet.list_events(EventType.ESCALATION_TRIGGERED)
    assert escalation_event.data["context"]["agent_id"] == AGENT
    [decision_event] = fleet.list_events(EventType.ESCALATION_DECIDED)
    assert (decision_event.data["decision"], decision_event.data["by"]) == ("terminate", "queen")


async def test_worker_not_helped_by_a_restart_is_ordered_to_hand_off(
    orchestrated_fleet: OrchestratedFleet,
) -> None:
    fleet = orchestrated_fleet.fleet
    await fleet.start_worker()
    await fleet.report_bad_steps(20)

    escalation = await orchestrated_fleet.escalate()

    assert (escalation.decision, escalation.decided_by) == ("hand_off", "queen")
    assert orchestrated_fleet.processes.stopped_targets == []
    [message] = orchestrated_fleet.processes.nudges
    assert message.startswith("HAND OFF NOW")
