"""The queen and the interventions, each for real: from the question to the worker that is stopped."""

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
class Outside:
    """Where agents are: takes what is done to them, and who is to be brought back."""

    nudged: list[str] = field(default_factory=list)
    stopped: list[Target] = field(default_factory=list)
    wanted: list[Target] = field(default_factory=list)
    accepted: bool = True
    reason: str = ""

    def can_reach(self, target: Target) -> bool:
        return True

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        self.nudged.append(message)
        return NudgeDelivery.INJECTED

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        self.stopped.append(target)
        return StopResult(is_confirmed=True, checkpoint_id="0000000001-c")

    async def request(self, target: Target, reason: str, *, by: str) -> Outside:
        self.wanted.append(target)
        return self

    def is_recovering(self, key: WorkerKey) -> bool:
        return False


@dataclass
class Acting:
    """The hive with interventions that the queen decides on."""

    fleet: JudgedFleet
    outside: Outside
    service: InterventionService | None = None

    async def start(self) -> None:
        async def decide(*given: Any, **named: Any) -> object:
            assert self.service is not None
            return await self.service.decide(*given, **named)

        fleet = self.fleet
        fleet.decide = decide
        await fleet.start()
        stop = EmergencyStop(fleet.store, clock=fleet.time, publish=fleet.bus.fan_out)
        self.service = InterventionService(
            fleet.store,
            InterventionLedger(fleet.store, publish=fleet.bus.fan_out),
            settings=fleet.settings,
            monitor=fleet.monitor,
            controls=[self.outside],
            recovery=self.outside,
            stop=stop,
            storm=StormWatch(fleet.settings.intervention.storm, ids=new_id),
            clock=fleet.time,
            sign=lambda event: event,
        )
        await stop.load()
        await self.service.load()

    async def escalate(self) -> Escalation:
        """Have the worker escalated, wait until all is quiet, and return what is kept of the question."""
        assert self.service is not None
        await self.service.escalate(AGENT, "it gets nowhere", by="operator")
        for _ in range(3):
            await self.fleet.settle()
            await self.service.wait_until_idle()
        [records] = await self.fleet.store.read(lambda conn: escalation_table.newest(conn, 10))
        return records


@pytest.fixture
async def acting(fleet: JudgedFleet) -> AsyncIterator[Acting]:
    acting = Acting(fleet, Outside())
    await acting.start()
    yield acting
    if acting.service is not None:
        await acting.service.close()


async def test_worker_that_hangs_is_stopped_and_to_be_brought_back(acting: Acting) -> None:
    """002 §11: the orchestrator is asked with all that is known, and what it says is done."""
    fleet = acting.fleet
    await fleet.worker(EventType.EXECUTION_STARTED, start_records=True)
    await fleet.worker(EventType.STEP_STARTED)
    await fleet.pass_time(1000)
    await fleet.look()

    records = await acting.escalate()

    assert (records.status, records.decision, records.decided_by) == (
        EscalationStatus.DECIDED,
        "terminate",
        "queen",
    )
    assert "has been stalled since" in records.decision_reason
    assert [t.incarnation_id for t in acting.outside.stopped] == ["life-1"]
    [events] = fleet.of(EventType.ESCALATION_TRIGGERED)
    assert events.data["context"]["agent_id"] == AGENT
    [result] = fleet.of(EventType.ESCALATION_DECIDED)
    assert (result.data["decision"], result.data["by"]) == ("terminate", "queen")


async def test_worker_not_helped_by_a_restart_is_ordered_to_hand_off(acting: Acting) -> None:
    fleet = acting.fleet
    await fleet.begin()
    await fleet.bad_steps(20)

    records = await acting.escalate()

    assert (records.decision, records.decided_by) == ("hand_off", "queen")
    assert acting.outside.stopped == []
    [message] = acting.outside.nudged
    assert message.startswith("HAND OFF NOW")
