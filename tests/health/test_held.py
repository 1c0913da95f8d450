"""A run that its guard holds is stalled only after the time that the judge and interventions may take."""

from __future__ import annotations

import pytest

from queenright.health.detection.stall_clock import compute_ladder_seconds
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

LIMIT = compute_ladder_seconds(HealthSettings()) + HealthSettings().stall.idle_seconds


@pytest.mark.parametrize("data", [{}, {"finding": "doom_loop"}])
def test_endless_hold_is_a_stall(data: dict[str, str]) -> None:
    """The process may have been killed during the hold, in which case there is no other finding."""
    script = WorkerScript().start()
    script.report_event(EventType.WORKER_WAITING, {"reason": "held", **data})

    script.stay_silent(LIMIT - 1)
    assert script.get_finding(FindingKind.STALL) is None
    script.stay_silent(1)

    stall = script.get_finding(FindingKind.STALL)
    assert stall is not None
    assert stall.severity is Severity.CRITICAL
    assert "held by its guard" in stall.evidence


def test_released_hold_is_not_a_stall() -> None:
    script = WorkerScript().start()
    script.report_event(EventType.WORKER_WAITING, {"reason": "held", "finding": "doom_loop"})
    script.stay_silent(LIMIT)
    script.report_event(EventType.WORKER_WAITING, {"reason": None})

    assert script.get_finding(FindingKind.STALL) is None


def test_hold_follows_a_rename() -> None:
    script = WorkerScript().start()
    script.report_event(EventType.WORKER_WAITING, {"reason": "held", "finding": "doom_loop"})
    script.stay_silent(LIMIT - 10)
    script.report_event(EventType.AGENT_RENAMED, {"agent_id": "scout", "session_id": "c-1"}, after=0.0)
    script.agent, script.session = "scout", "c-1"

    script.stay_silent(10)

    assert script.get_finding(FindingKind.STALL) is not None
