"""Findings about breakers, failed recoveries, error rate, tokens, output and late heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import EventType
from tests.health.worker_script import START, WorkerScript

BREAKER_OPEN = FindingKind.CIRCUIT_BREAKER_OPEN
RECOVERY_FAILED = FindingKind.RECOVERY_FAILED
ERROR_RATE = FindingKind.ERROR_RATE
NO_TOKENS = FindingKind.NO_TOKENS
OUTPUT = FindingKind.OUTPUT_UNCHANGED
HEARTBEAT_MISSING = FindingKind.HEARTBEAT_MISSING


def make_worker(**start: Any) -> WorkerScript:
    return WorkerScript().start(**start)


def report_breaker(script: WorkerScript, state: str, name: str = "tool_execution:agent:search") -> None:
    session, script.session = script.session, ""  # a breaker belongs to an agent, not to a session
    script.report_event(EventType.CIRCUIT_BREAKER_STATE_CHANGED, {"name": name, "to": state})
    script.session = session


def report_lost_worker(script: WorkerScript) -> None:
    script.report_event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
    script.report_event(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": "3 attempts failed"})


# -- circuit breakers ---------------------------------------------------------------------------


def test_open_breaker_is_failing_and_half_open_one_is_degraded() -> None:
    """002 §11: a worker's state reflects its circuit breakers."""
    script = make_worker()
    states = []
    for new_state in ("open", "half_open", "open", "half_open", "closed"):
        report_breaker(script, new_state)
        states.append(script.state)

    assert states == [HealthState.FAILING, HealthState.DEGRADED] * 2 + [HealthState.HEALTHY]


def test_one_open_breaker_among_half_open_ones_is_failing() -> None:
    script = make_worker()
    report_breaker(script, "half_open", "tool_execution:agent:a")
    report_breaker(script, "open", "tool_execution:agent:b")

    finding = script.get_finding(BREAKER_OPEN)
    assert finding is not None
    assert finding.evidence == "circuit breaker open: tool_execution:agent:b"
    states = [script.state]
    report_breaker(script, "half_open", "tool_execution:agent:b")
    states.append(script.state)

    assert states == [HealthState.FAILING, HealthState.DEGRADED]


def test_b73_half_open_breaker_finding_ends_with_progress() -> None:
    """B73: the timeout is over and the worker makes progress without the call, so it is healthy."""
    script = make_worker()
    report_breaker(script, "open")
    script.report_step("ACCEPT")
    states = [script.state]
    report_breaker(script, "half_open")
    states.append(script.state)
    finding = script.get_finding(BREAKER_OPEN)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.LOW, False)
    assert "half open" in finding.evidence
    script.report_step("CONTINUE", times=3)
    states.append(script.state)
    script.report_step("ACCEPT")
    states.append(script.state)
    assert script.list_finding_kinds() == set()
    report_breaker(script, "open")
    states.append(script.state)

    failing, degraded, healthy = HealthState.FAILING, HealthState.DEGRADED, HealthState.HEALTHY
    assert states == [failing, degraded, degraded, healthy, failing]


def test_open_breaker_is_a_warning_and_names_itself() -> None:
    script = make_worker()
    report_breaker(script, "open")

    finding = script.get_finding(BREAKER_OPEN)
    assert finding is not None
    assert (finding.severity, finding.ticket) == (Severity.MEDIUM, False)
    assert "tool_execution:agent:search" in finding.evidence


def test_session_started_while_a_breaker_is_open_has_its_finding() -> None:
    script = make_worker()
    report_breaker(script, "open")
    later_session = WorkerScript(monitor=script.monitor, session="later", at=script.now).start()
    other = WorkerScript(monitor=script.monitor, agent="other", at=script.now).start()

    assert (later_session.state, other.state) == (HealthState.FAILING, HealthState.HEALTHY)
    report_breaker(later_session, "closed")
    assert (script.state, later_session.state) == (HealthState.HEALTHY, HealthState.HEALTHY)


def test_breaker_report_is_not_activity() -> None:
    script = make_worker()
    before = script.health.vitals.last_activity
    report_breaker(script, "open")
    other_worker = WorkerScript(agent="stranger")
    report_breaker(other_worker, "open")

    assert script.health.vitals.last_activity == before
    assert list(other_worker.monitor.workers()) == []


# -- recovery -----------------------------------------------------------------------------------


def test_failed_recovery_is_critical_for_an_ended_session() -> None:
    script = make_worker()
    report_lost_worker(script)

    finding = script.get_finding(RECOVERY_FAILED)
    assert finding is not None
    assert (finding.severity, finding.ticket, script.state) == (Severity.CRITICAL, True, HealthState.FAILING)
    assert "3 attempts failed" in finding.evidence


def test_recovery_in_progress_is_not_a_finding() -> None:
    script = make_worker()
    script.report_event(EventType.RECOVERY_FAILED, {"exhausted": False, "reason": "one attempt failed"})

    assert script.list_finding_kinds() == set()


def test_new_incarnation_is_not_failing_and_its_progress_ends_the_finding() -> None:
    script = make_worker()
    report_lost_worker(script)
    script.incarnation = "i2"
    script.start()
    state_and_finding = (script.state, script.get_finding(RECOVERY_FAILED))
    script.report_event(EventType.CHECKPOINT_SAVED)

    assert state_and_finding[0] is HealthState.DEGRADED
    assert state_and_finding[1] is not None
    assert state_and_finding[1].ticket
    assert (script.list_finding_kinds(), script.state) == (set(), HealthState.HEALTHY)


def test_completed_or_cancelled_work_ends_the_finding() -> None:
    """B70: finished or closed work does not count as lost."""
    for end_event in (
        {"type_": EventType.EXECUTION_COMPLETED},
        {"type_": EventType.EXECUTION_FAILED, "data": {"error_type": "CancelledError"}},
    ):
        script = make_worker()
        script.report_event(**end_event)
        script.report_event(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": "late"})

        assert script.list_finding_kinds() == set()
        assert script.state is HealthState.HEALTHY


def test_unknown_lost_worker_becomes_known() -> None:
    script = WorkerScript()
    script.report_event(EventType.RECOVERY_FAILED, {"exhausted": True, "reason": "no checkpoint is left"})

    assert script.health.vitals.status is WorkerStatus.FAILED
    assert script.list_finding_kinds() == {RECOVERY_FAILED}


def test_operator_resolution_ends_the_finding() -> None:
    script = make_worker()
    report_lost_worker(script)
    script.report_event(EventType.TICKET_RESOLVED, {"status": "worker_gone", "ticket_id": "1"})
    kinds_after = script.list_finding_kinds()
    script.report_event(EventType.TICKET_RESOLVED, {"status": "resolved", "ticket_id": "2", "by": "ann"})

    assert (kinds_after, script.list_finding_kinds()) == ({RECOVERY_FAILED}, set())


def test_worker_recovered_under_another_name_is_monitored() -> None:
    script = make_worker()
    script.report_event(EventType.EXECUTION_FAILED, {"error_type": "OSError"})
    new = {"new_agent_id": "agent", "new_session_id": "again", "new_incarnation_id": "i7"}
    script.report_event(EventType.RECOVERY_COMPLETED, new)

    recovered_worker = script.monitor.get("agent", "again")
    assert recovered_worker is not None
    assert (recovered_worker.vitals.recovered_at, recovered_worker.vitals.incarnation_id) == (
        script.now,
        "i7",
    )
    script.stay_silent(900)
    assert recovered_worker.state is HealthState.STUCK


def test_action_on_an_old_incarnation_begins_no_new_one() -> None:
    """B67: an event that names another incarnation does not change this one."""
    script = make_worker()
    script.incarnation = "i2"
    script.start()
    for stale in ("i1", "i0"):
        script.incarnation = stale
        script.report_event(EventType.AGENT_TERMINATED)
        script.report_event(EventType.RECOVERY_COMPLETED)

    assert script.health.vitals.incarnation_id == "i2"
    assert script.state is HealthState.HEALTHY


def test_lost_worker_is_remembered_longer_than_others() -> None:
    script = make_worker()
    report_lost_worker(script)
    script.stay_silent(4000)
    assert script.monitor.get("agent") is not None
    script.report_event(EventType.TICKET_RESOLVED, {"status": "resolved", "by": "ann"})
    script.stay_silent(4000)

    assert script.monitor.get("agent") is None


# -- error rate ---------------------------------------------------------------------------------


def end_call(script: WorkerScript, n: int, *, has_failed: bool) -> None:
    if has_failed:
        script.report_call(args=str(n), result=str(n), outcome="error", error_type=str(n))
    else:
        script.report_call(args=str(n), result=str(n))


def test_error_rate_above_a_quarter_of_eight_calls_is_degraded() -> None:
    script = make_worker()
    for n in range(7):
        end_call(script, n, has_failed=n in (1, 3, 5))
    assert script.get_finding(ERROR_RATE) is None
    script.report_call(args="8", result="8")

    finding = script.get_finding(ERROR_RATE)
    assert finding is not None
    assert (finding.severity, finding.ticket, script.state) == (Severity.LOW, False, HealthState.DEGRADED)
    assert all(part in finding.evidence for part in ("38%", "8 calls"))


def test_error_rate_of_exactly_a_quarter_is_not_a_finding() -> None:
    script = make_worker()
    for n in range(40):
        end_call(script, n, has_failed=n % 4 == 3)

    assert script.get_finding(ERROR_RATE) is None


def test_error_rate_at_the_border_does_not_flap() -> None:
    script = make_worker()
    for n in range(200):  # between 22 % and 28 % of every 18: a single threshold would be crossed repeatedly
        has_failed = n % 4 == 0 or n in (1, 2)
        end_call(script, n, has_failed=has_failed)

    changes = [event for event in script.monitor_events if event.type is EventType.HEALTH_STATE_CHANGED]
    assert len(changes) == 1
    for n in range(20):
        script.report_call(args=f"good {n}", result=f"good {n}")
    assert script.get_finding(ERROR_RATE) is None


def test_new_incarnation_is_not_judged_by_the_errors_of_the_last() -> None:
    script = make_worker()
    for n in range(10):
        script.report_call(args=str(n), result=str(n), outcome="error", error_type=str(n))
    assert script.get_finding(ERROR_RATE) is not None
    script.incarnation = "i2"
    script.start()

    assert script.list_finding_kinds() == set()


# -- tokens -------------------------------------------------------------------------------------


def report_llm_call(script: WorkerScript, tokens: int | None = 100, after: float = 1.0) -> None:
    script.report_event(
        EventType.LLM_CALL_COMPLETED, {"input_tokens": tokens, "output_tokens": tokens}, after=after
    )


def report_activity(script: WorkerScript, seconds: int, *, progress: bool = False) -> None:
    for _ in range(seconds // 60):
        script.report_event(EventType.GOAL_PROGRESS, after=60)
        if progress:
            script.report_event(EventType.CHECKPOINT_SAVED, after=0)
        script.stay_silent(0)


def test_worker_without_tokens_and_progress_for_15_minutes_is_stuck() -> None:
    script = make_worker()
    report_llm_call(script)
    report_activity(script, 840)
    assert script.list_finding_kinds() == set()
    report_activity(script, 60)

    finding = script.get_finding(NO_TOKENS)
    assert finding is not None
    assert (finding.ticket, script.state) == (True, HealthState.STUCK)
    assert finding.evidence == "no tokens used for 15 min, no progress for 15 min"


def test_time_without_progress_counts_from_the_last_progress() -> None:
    script = make_worker()
    report_llm_call(script)
    report_activity(script, 300)
    script.report_event(EventType.CHECKPOINT_SAVED, after=0)
    report_activity(script, 900)

    finding = script.get_finding(NO_TOKENS)
    assert finding is not None
    assert finding.evidence == "no tokens used for 20 min, no progress for 15 min"


def test_worker_progressing_without_tokens_is_only_shown() -> None:
    script = make_worker()
    report_llm_call(script)
    report_activity(script, 900, progress=True)

    finding = script.get_finding(NO_TOKENS)
    assert finding is not None
    assert (finding.ticket, script.state) == (False, HealthState.DEGRADED)


def test_worker_that_never_reported_tokens_has_no_finding() -> None:
    script = make_worker()
    report_llm_call(script, None)
    report_activity(script, 3600)

    assert script.list_finding_kinds() == set()


def test_call_without_tokens_counts() -> None:
    script = make_worker()
    report_llm_call(script)
    for _ in range(30):
        report_llm_call(script, None, after=120)

    assert script.get_finding(NO_TOKENS) is None


def test_tool_time_is_excluded_and_the_deadline_still_met() -> None:
    script = make_worker()
    report_llm_call(script)
    script.report_event(
        EventType.TOOL_CALL_STARTED, {"tool": "build", "call_id": "1", "timeout": 3600}, after=100
    )
    script.report_event(EventType.TOOL_CALL_COMPLETED, {"tool": "build", "call_id": "1"}, after=3000)
    assert script.get_finding(NO_TOKENS) is None
    report_activity(script, 780)
    assert script.get_finding(NO_TOKENS) is None
    script.stay_silent(20)

    assert script.get_finding(NO_TOKENS) is not None


def test_token_count_of_heartbeats_is_token_use() -> None:
    script = make_worker()
    for n in range(40):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 60, "token_count": 10 + n}, after=60)
        script.report_event(EventType.GOAL_PROGRESS, after=0)
    assert script.get_finding(NO_TOKENS) is None
    for _ in range(16):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 60, "token_count": 49}, after=60)
        script.report_event(EventType.GOAL_PROGRESS, after=0)
        script.stay_silent(0)

    assert script.get_finding(NO_TOKENS) is not None


def test_spike_at_the_border_does_not_flap() -> None:
    script = make_worker()
    for _ in range(5):
        report_llm_call(script, 6_000)
    spikes = []
    for input_tokens in (24_000, 23_900, 24_100):
        report_llm_call(script, input_tokens)
        spikes.append(script.get_finding(FindingKind.TOKEN_SPIKE) is not None)

    assert spikes == [True, True, True]
    assert (
        len([event for event in script.monitor_events if event.type is EventType.HEALTH_STATE_CHANGED]) == 1
    )


# -- output -------------------------------------------------------------------------------------


def report_output(script: WorkerScript, after: float = 60.0, **counts: Any) -> None:
    script.report_event(EventType.OUTPUT_REPORTED, counts, after=after)


def test_same_output_for_half_an_hour_and_three_reports_is_a_warning() -> None:
    script = make_worker()
    for _ in range(31):
        report_output(script, files_changed=2, tests_passed=5, tests_failed=1)
        script.stay_silent(0)
        if script.list_finding_kinds():
            break

    finding = script.get_finding(OUTPUT)
    assert finding is not None
    assert script.now - finding.since == 1800
    assert (finding.ticket, script.state) == (False, HealthState.DEGRADED)
    assert "2 files changed, 5 tests passed, 1 tests failed" in finding.evidence


def test_new_output_ends_the_finding_and_is_progress() -> None:
    script = make_worker()
    for _ in range(40):
        report_output(script, tests_passed=5)
    report_output(script, tests_passed=6)

    assert script.list_finding_kinds() == set()
    assert script.health.vitals.last_progress == script.now


def test_alternating_output_is_not_lasting_progress() -> None:
    script = make_worker()
    report_output(script, tests_passed=5)
    report_output(script, tests_passed=6)
    first = script.health.vitals.last_progress
    for n in range(20):
        report_output(script, tests_passed=5 + n % 2)

    assert script.health.vitals.last_progress == first


@pytest.mark.parametrize("counts", [{}, {"tests_passed": "many"}, {"files_changed": -1}, {"x": 1}])
def test_empty_output_is_only_activity(counts: dict[str, Any]) -> None:
    script = make_worker()
    report_output(script, **counts)

    assert script.health.vitals.output is None
    assert script.health.vitals.last_activity == script.now


# -- heartbeats ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configured", "declared_interval", "limit"),
    [
        ({}, None, 600),
        ({}, 30, 60),
        ({"timeout_seconds": 900}, None, 900),
        ({"timeout_seconds": 900}, 300, 900),
        ({"timeout_seconds": 900}, 30, 90),
        ({"interval_seconds": 60, "timeout_seconds": 180}, None, 180),
        ({"interval_seconds": 60, "timeout_seconds": 180}, 10, 30),
    ],
)
def test_silence_limit_is_a_multiple_of_the_heartbeat_interval(
    configured: dict[str, Any], declared_interval: float | None, limit: float
) -> None:
    settings = HealthSettings.model_validate({"heartbeat": configured})
    script = WorkerScript(settings=settings).start()
    fields = {} if declared_interval is None else {"interval": declared_interval}
    script.report_event(EventType.AGENT_HEARTBEAT, fields)
    script.stay_silent(limit - 1)
    assert HEARTBEAT_MISSING not in script.list_finding_kinds()

    script.stay_silent(1)
    assert HEARTBEAT_MISSING in script.list_finding_kinds()

    script.report_event(EventType.AGENT_HEARTBEAT, fields, after=0)
    script.report_event(EventType.AGENT_HEARTBEAT, fields, after=limit - 1)
    assert not script.health.vitals.heartbeat_late
    script.report_event(EventType.AGENT_HEARTBEAT, fields, after=limit)
    assert script.health.vitals.heartbeat_late


def test_timeout_shorter_than_the_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"timeout_seconds 60.* must not be below interval_seconds 300"):
        HealthSettings.model_validate({"heartbeat": {"timeout_seconds": 60}})


def test_heartbeats_that_are_always_slightly_late_degrade_a_worker_once() -> None:
    script = make_worker(heartbeat_interval=30)
    for _ in range(20):
        script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30}, after=61)
        script.report_event(EventType.GOAL_PROGRESS, after=0)
    late_finding = script.get_finding(HEARTBEAT_MISSING)
    script.report_event(EventType.AGENT_HEARTBEAT, {"interval": 30}, after=30)

    assert late_finding is not None
    assert (late_finding.severity, late_finding.ticket) == (Severity.LOW, False)
    assert script.state is HealthState.HEALTHY
    assert (
        len([event for event in script.monitor_events if event.type is EventType.HEALTH_STATE_CHANGED]) == 2
    )


@pytest.mark.parametrize(
    "fields",
    [{}, {"interval": None}, {"interval": "soon", "token_count": -5, "error_count": [], "phase": 7.5}],
)
def test_torn_heartbeat_changes_no_state(fields: dict[str, Any]) -> None:
    """B68: a truncated or empty heartbeat changes no state."""
    script = make_worker(heartbeat_interval=30)
    before = script.state
    script.report_event(EventType.AGENT_HEARTBEAT, fields)

    vitals = script.health.vitals
    assert (script.state, vitals.heartbeat_interval, vitals.token_count) == (before, 30, 0)


def test_heartbeat_fields_are_in_the_signal() -> None:
    """002 §11: the fields of a heartbeat are kept: task, phase, last tool call, tokens, errors, progress."""
    script = make_worker(task_id="t-1", control=True)
    fields = {
        "interval": 30,
        "task_id": "t-2",
        "phase": "tool",
        "last_tool_call": START,
        "token_count": 700,
        "error_count": 2,
        "progress_indicator": "7 of 9",
    }
    script.report_event(EventType.AGENT_HEARTBEAT, fields)

    vitals = script.health.vitals
    assert vitals.beat == ("tool", START, 700, 2, "7 of 9")
    assert (vitals.task_id, vitals.fetches) == ("t-2", True)
    assert (vitals.token_count, vitals.all_errors) == (700, 2)
