"""A worker whose call is carried out by a child worker waits for it, and only the child can stall."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.runtime.events import EventType
from tests.health.worker_script import START, WorkerScript

STALL = FindingKind.STALL
TRACE = "5b8efff798038103d269b633813fc60c"


class WorkerFamily:
    """A parent in a call, and its child, on one clock."""

    def __init__(self, *, start_records: bool = True, **call: Any) -> None:
        self.monitor = HealthMonitor(HealthSettings())
        self.parent = WorkerScript(agent="lead", session="s1", monitor=self.monitor)
        self.child = WorkerScript(agent="scout", session="s2", monitor=self.monitor)
        self.child.incarnation = "i2"
        self.parent.trace = self.child.trace = TRACE
        self.parent.report_event(EventType.EXECUTION_STARTED, {"start_records": start_records}, after=0.0)
        self.parent.report_event(EventType.LLM_CALL_COMPLETED, {"duration": 1.0})
        if start_records:
            self.parent.report_event(
                EventType.TOOL_CALL_STARTED, {"tool": "ask_scout", "call_id": "c", **call}
            )
        self.wait(2.0)
        self.child.report_event(EventType.EXECUTION_STARTED, {"start_records": True}, after=0.0)

    def wait(self, seconds: float) -> None:
        self.child.now = self.parent.now = max(self.parent.now, self.child.now) + seconds
        self.parent.monitor_events += self.monitor.advance(self.parent.now)

    def let_child_work(self, minutes: int) -> None:
        for _ in range(minutes):
            self.wait(59.0)
            self.child.report_call("search", str(self.child.now), str(self.child.now))

    def list_stalled_agents(self) -> list[str]:
        opened_findings = (
            event for event in self.parent.monitor_events if event.type is EventType.FINDING_OPENED
        )
        return [event.agent_id for event in opened_findings if event.data["kind"] == STALL]


@pytest.mark.parametrize("start_records", [True, False])
def test_parent_is_not_stalled_while_its_child_works(start_records: bool) -> None:
    family = WorkerFamily(start_records=start_records)

    family.let_child_work(60)

    assert family.list_stalled_agents() == []


def test_child_whose_start_arrives_after_the_last_check_ends_the_stall() -> None:
    """The child started before the parent was stalled."""
    monitor = HealthMonitor(HealthSettings())
    parent = WorkerScript(agent="lead", session="s1", monitor=monitor)
    parent.trace = TRACE
    parent.start()
    parent.report_event(EventType.TOOL_CALL_STARTED, {"tool": "ask_scout", "call_id": "c"})
    parent.stay_silent(604)
    assert parent.get_finding(STALL) is not None

    child = WorkerScript(agent="scout", session="s2", monitor=monitor, at=parent.now)
    child.trace, child.incarnation, child.lag = TRACE, "i2", 7
    child.start()

    assert parent.get_finding(STALL) is None


def test_silent_child_is_the_only_stall() -> None:
    family = WorkerFamily()
    family.let_child_work(20)

    for _ in range(60):
        family.wait(60.0)

    assert family.list_stalled_agents() == ["scout"]


def test_parent_that_stays_silent_after_its_child_is_stalled() -> None:
    family = WorkerFamily()
    family.let_child_work(25)
    family.child.report_event(EventType.EXECUTION_COMPLETED)

    family.wait(599.0)
    assert family.list_stalled_agents() == []
    family.wait(1.0)

    assert family.list_stalled_agents() == ["lead"]


def test_child_that_begins_after_the_stall_ends_it() -> None:
    family = WorkerFamily()
    family.child.report_event(EventType.EXECUTION_COMPLETED)
    family.wait(700.0)
    assert family.list_stalled_agents() == ["lead"]

    family.child.report_event(EventType.EXECUTION_STARTED, {"start_records": True})

    assert family.parent.get_finding(STALL) is None


def test_declared_timeout_of_the_call_holds() -> None:
    family = WorkerFamily(timeout=900.0)

    family.let_child_work(16)

    assert family.list_stalled_agents() == ["lead"]


def test_worker_that_began_earlier_is_not_a_child() -> None:
    family = WorkerFamily()
    family.child.report_event(EventType.TOOL_CALL_STARTED, {"tool": "bash", "call_id": "d"})
    for _ in range(30):
        family.parent.report_event(EventType.LLM_TEXT_DELTA, after=60.0)
        family.wait(0.0)

    assert family.list_stalled_agents() == ["scout"]


def test_worker_between_calls_waits_for_no_one() -> None:
    family = WorkerFamily()
    family.parent.report_call("ask_scout", call_id="c")

    family.let_child_work(10)

    assert family.list_stalled_agents() == ["lead"]
    assert family.parent.now > START
