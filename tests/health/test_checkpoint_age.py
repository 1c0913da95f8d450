"""The age of a worker's checkpoint while it runs slow tools."""

from __future__ import annotations

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

STALE = FindingKind.CHECKPOINT_STALE


def saved(*, before: float = 0.0) -> WorkerScript:
    """Return a worker that saved a checkpoint and then worked for ``before`` seconds."""
    script = WorkerScript().start()
    script.event(EventType.CHECKPOINT_SAVED)
    while before > 0:
        script.step("CONTINUE", after=min(60.0, before))
        before -= 60
    return script


def test_checkpoint_age_stops_within_a_declared_tool_timeout() -> None:
    """B19: a build with a declared timeout of 50 min is healthy, although it saves no checkpoint."""
    script = saved(before=300)
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 3600})

    script.silence(3000)
    assert script.state is HealthState.HEALTHY
    script.event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": "1", "outcome": "ok"})

    assert script.state is HealthState.HEALTHY


def test_checkpoint_age_continues_after_a_tool_call() -> None:
    script = saved(before=300)
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 3600})
    script.silence(3000)
    script.event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": "1", "outcome": "ok"})

    for _ in range(4):
        script.step("CONTINUE", after=60)
    script.silence(57)
    assert script.finding(STALE) is None
    script.silence(3)
    assert script.finding(STALE) is not None


def test_call_beyond_its_declared_time_makes_the_checkpoint_older_again() -> None:
    script = saved()
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 100})
    script.event(EventType.TOOL_CALL_STARTED, {"tool": "other", "call_id": "2", "timeout": 9000})

    script.silence(697)
    assert script.finding(STALE) is None
    script.silence(1)

    assert script.finding(STALE) is not None


@pytest.mark.parametrize("timeout", [60, 3600])
def test_old_checkpoint_stays_old_during_a_tool_call(timeout: float) -> None:
    script = saved(before=1860)
    assert script.state is HealthState.STUCK

    script.event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": timeout})
    assert script.state is HealthState.STUCK
    script.silence(1)
    script.event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": "1", "outcome": "ok"})

    assert script.state is HealthState.STUCK
