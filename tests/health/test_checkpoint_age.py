"""The age of a worker's checkpoint while it runs slow tools."""

from __future__ import annotations

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

CHECKPOINT_STALE = FindingKind.CHECKPOINT_STALE


def make_saved_worker(*, before: float = 0.0) -> WorkerScript:
    """Return a worker that saved a checkpoint and then worked for ``before`` seconds."""
    script = WorkerScript().start()
    script.report_event(EventType.CHECKPOINT_SAVED)
    while before > 0:
        script.report_step("CONTINUE", after=min(60.0, before))
        before -= 60
    return script


def test_checkpoint_age_stops_within_a_declared_tool_timeout() -> None:
    """B19: a build with a declared timeout of 50 min is healthy, although it saves no checkpoint."""
    script = make_saved_worker(before=300)
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 3600})

    script.stay_silent(3000)
    assert script.state is HealthState.HEALTHY
    script.report_event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": "1", "outcome": "ok"})

    assert script.state is HealthState.HEALTHY


def test_checkpoint_age_continues_after_a_tool_call() -> None:
    script = make_saved_worker(before=300)
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 3600})
    script.stay_silent(3000)
    script.report_event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": "1", "outcome": "ok"})

    for _ in range(4):
        script.report_step("CONTINUE", after=60)
    script.stay_silent(57)
    assert script.get_finding(CHECKPOINT_STALE) is None
    script.stay_silent(3)
    assert script.get_finding(CHECKPOINT_STALE) is not None


def test_call_beyond_its_declared_time_makes_the_checkpoint_older_again() -> None:
    script = make_saved_worker()
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 100})
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "other", "call_id": "2", "timeout": 9000})

    script.stay_silent(697)
    assert script.get_finding(CHECKPOINT_STALE) is None
    script.stay_silent(1)

    assert script.get_finding(CHECKPOINT_STALE) is not None


@pytest.mark.parametrize("timeout", [60, 3600])
def test_old_checkpoint_stays_old_during_a_tool_call(timeout: float) -> None:
    script = make_saved_worker(before=1860)
    assert script.state is HealthState.STUCK

    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": timeout})
    assert script.state is HealthState.STUCK
    script.stay_silent(1)
    script.report_event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": "1", "outcome": "ok"})

    assert script.state is HealthState.STUCK
