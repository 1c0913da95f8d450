"""Limits of silence that are learned from an agent's usual durations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.findings import FindingKind, Severity
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings, LearnedClockSettings
from queenright.health.vitals.learned_clocks import SAMPLES, LearnedClocks
from queenright.runtime.events import AgentEvent, EventType
from tests.health.worker_script import WorkerScript

STALL = FindingKind.STALL
BOUNDS = LearnedClockSettings(mode="on")


def make_settings(mode: str) -> HealthSettings:
    return HealthSettings.model_validate(
        {"learned_clocks": {"mode": mode}, "judge": {"start_grace_seconds": 0}}
    )


def report_builds(script: WorkerScript, seconds: float, times: int = 40) -> WorkerScript:
    """Run a tool ``times`` times, for ``seconds`` each time."""
    for n in range(times):
        script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": f"{n}"})
        script.report_call("build", args=f"{n}", result=f"{n}", after=seconds, call_id=f"{n}")
    return script


def hang_in_build(script: WorkerScript, seconds: float) -> str:
    """Return the finding that another call has after ``seconds``, and check that it has none just before."""
    script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "last"})
    script.stay_silent(seconds - 1)
    assert script.get_finding(STALL) is None
    script.stay_silent(1)
    finding = script.get_finding(STALL)
    assert finding is not None
    assert (finding.severity, finding.shadow) == (Severity.CRITICAL, False)
    return finding.evidence


@given(st.lists(st.floats(0, 1e7), max_size=200), st.floats(1, 1e5))
def test_learned_limit_stays_within_its_bounds(durations: list[float], configured: float) -> None:
    """B98: this holds for any samples; with too few, there is no learned limit."""
    learned_clocks = LearnedClocks()
    for seconds in durations:
        learned_clocks.learn("tool:build", seconds)

    limit = learned_clocks.limit("tool:build", configured, BOUNDS)
    assert (limit is None) == (len(durations) < SAMPLES)
    if limit is not None:
        assert BOUNDS.shortest * configured <= limit.limit <= BOUNDS.longest * configured
        assert (limit.configured_limit, limit.calls) == (configured, len(durations))


def test_usual_duration_is_the_95th_percentile() -> None:
    learned_clocks = LearnedClocks()
    for n in range(1_000):
        learned_clocks.learn("tool:build", 300.0 if n % 50 == 0 else 40.0)

    limit = learned_clocks.limit("tool:build", 600.0, BOUNDS)
    assert limit is not None
    assert 40 <= limit.usual < 60
    assert limit.limit > 600  # three times the 98th percentile


def test_configured_limit_applies_without_history() -> None:
    """B98: the limit for this tool of this agent applies."""
    script = WorkerScript(settings=make_settings("on")).start()
    report_builds(script, 2.0, times=10)

    assert "usual" not in hang_in_build(script, 600)


def test_fast_tool_is_found_sooner_with_the_reason_in_the_evidence() -> None:
    """B98: the evidence names the limit and its origin."""
    script = report_builds(WorkerScript(settings=make_settings("on")).start(), 40.0)

    evidence = hang_in_build(script, 300)
    assert "in a call of build" in evidence
    assert all(part in evidence for part in ("45 s", "40 times", "5 min", "10 min"))


def test_slow_tool_has_a_longer_limit() -> None:
    script = report_builds(WorkerScript(settings=make_settings("on")).start(), 500.0)

    assert "26 min" in hang_in_build(script, 3 * 512)


def test_shadow_keeps_the_configured_limit_and_shows_the_learned_one() -> None:
    shadow_findings: list[Any] = []
    script = WorkerScript(settings=make_settings("shadow")).start()
    script.monitor._on_shadow = lambda key, finding: shadow_findings.append(finding)
    report_builds(script, 40.0)

    hang_in_build(script, 600)
    assert [(finding.kind, finding.shadow, finding.ticket) for finding in shadow_findings] == [
        (STALL, True, False)
    ]
    assert "45 s" in shadow_findings[0].evidence


def test_sessions_share_learned_clocks_and_off_learns_nothing() -> None:
    script = report_builds(WorkerScript(settings=make_settings("on")).start(), 40.0)
    script.report_event(EventType.EXECUTION_COMPLETED)
    monitor, now = script.monitor, script.now
    for type_, data in ((EventType.EXECUTION_STARTED, {}), (EventType.TOOL_CALL_STARTED, {"tool": "build"})):
        monitor.apply(AgentEvent(type=type_, time=now, agent_id="agent", session_id="next", data=data), now)
    monitor.advance(now + 301)

    worker = monitor.get("agent", "next")
    assert worker is not None
    assert [finding.kind for finding in worker.findings] == [STALL]
    monitor.replace_settings(make_settings("off"))
    assert worker.vitals.clocks is None


def test_learned_clocks_are_rebuilt_from_the_log() -> None:
    """B98: the clocks are learned again from the recalled events."""
    before = WorkerScript(settings=make_settings("on"))
    result: list[tuple[AgentEvent, float]] = []
    apply = before.monitor.apply

    def record_event(event: AgentEvent, now: float) -> list[AgentEvent]:
        result.append((event, now))
        return apply(event, now)

    before.monitor.apply = record_event  # type: ignore[method-assign]
    report_builds(before.start(), 40.0)
    after = HealthMonitor(make_settings("on"))
    for event, now in result:
        after.replay(event, now)

    workers = [monitor.get("agent", "session") for monitor in (before.monitor, after)]
    worker_clocks = [worker.vitals.clocks for worker in workers if worker is not None]
    assert len(worker_clocks) == 2
    limits = [clocks.limit("tool:build", 600, BOUNDS) for clocks in worker_clocks if clocks is not None]
    assert limits[0] == limits[1] is not None


def test_waiting_for_a_person_is_not_learned() -> None:
    script = WorkerScript(settings=make_settings("on")).start()
    for n in range(40):
        script.report_event(EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": f"{n}"})
        script.report_wait("user_input")
        script.report_wait(None, after=3_000)
        script.report_call("build", args=f"{n}", result=f"{n}", after=2, call_id=f"{n}")

    learned_clocks = script.health.vitals.clocks
    assert learned_clocks is not None
    assert learned_clocks.limit("tool:build", 600, BOUNDS) is None


@pytest.mark.parametrize("bounds", [{"shortest": 0}, {"shortest": 1.1}, {"longest": 0.5}, {"mode": "maybe"}])
def test_bounds_that_make_no_sense_are_refused(bounds: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(bounds))):
        HealthSettings.model_validate({"learned_clocks": bounds})


@pytest.mark.parametrize(("mode", "stale"), [("on", False), ("shadow", True)])
def test_no_checkpoint_is_expected_during_a_usually_slow_tool(mode: str, stale: bool) -> None:
    """B98: such a tool is treated like one with a declared timeout."""
    script = WorkerScript(settings=make_settings(mode)).start()
    report_builds(script, 1_200.0)
    script.report_event(EventType.CHECKPOINT_SAVED)
    for _ in range(2):
        report_builds(script, 1_200.0, times=1)

    finding = script.get_finding(FindingKind.CHECKPOINT_STALE)
    assert (finding is not None) is stale


@pytest.mark.parametrize("usual_seconds", [5.0, 40.0])
@pytest.mark.parametrize("hangs", [1, 2])
@pytest.mark.parametrize("calls", [30, 60, 150])
def test_single_hangs_do_not_change_the_usual_duration(usual_seconds: float, hangs: int, calls: int) -> None:
    """B98: the two longest samples do not change the limit."""
    learned_clocks, settings = LearnedClocks(), LearnedClockSettings(mode="on")
    for _ in range(calls):
        learned_clocks.learn("tool:build", usual_seconds)
    before = learned_clocks.limit("tool:build", 600.0, settings)

    for _ in range(hangs):
        learned_clocks.learn("tool:build", 3_600.0)

    after = learned_clocks.limit("tool:build", 600.0, settings)
    assert before is not None
    assert after is not None
    assert after.limit == before.limit
    assert after.usual == before.usual <= 2 * usual_seconds
