"""Workers whose telemetry names the worker or session after its start."""

from __future__ import annotations

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType
from tests.health.worker_script import WorkerScript

NEW_IDENTITY = {"agent_id": "scout", "session_id": "c-1"}


def rename_worker(script: WorkerScript) -> list[AgentEvent]:
    """Rename a worker, and return the published events."""
    before = len(script.monitor_events)
    script.report_event(EventType.AGENT_RENAMED, NEW_IDENTITY, after=0.0)
    script.agent, script.session = NEW_IDENTITY["agent_id"], NEW_IDENTITY["session_id"]
    return script.monitor_events[before:]


def test_renamed_worker_keeps_its_history() -> None:
    """B86: a name that arrives late renames the worker everywhere."""
    script = WorkerScript().start()
    script.report_step("CONTINUE", times=3)
    script.report_call()

    rename_worker(script)
    script.report_step("CONTINUE")

    assert list(script.monitor.keys()) == [("scout", "c-1")]
    assert script.monitor.get("agent") is None
    assert [health.key for health in script.monitor.of_agent("scout")] == [("scout", "c-1")]
    vitals = script.health.vitals
    assert (vitals.steps_total, vitals.tool_calls_total, vitals.task_id) == (4, 1, "c-1")
    assert vitals.start_records


def test_findings_move_to_the_new_name() -> None:
    """B86: otherwise a ticket would stay open under a name that no worker has."""
    script = WorkerScript().start()
    script.stay_silent(300)
    assert script.get_finding(FindingKind.STALL) is not None

    events = rename_worker(script)

    renamed_events = [(event.type, event.agent_id, event.session_id) for event in events]
    assert renamed_events == [
        (EventType.FINDING_CLEARED, "agent", "session"),
        (EventType.HEALTH_STATE_CHANGED, "agent", "session"),
        (EventType.FINDING_OPENED, "scout", "c-1"),
        (EventType.HEALTH_STATE_CHANGED, "scout", "c-1"),
    ]
    assert script.state is HealthState.STUCK


def test_silence_continues_after_a_rename() -> None:
    script = WorkerScript().start()
    script.stay_silent(200)
    rename_worker(script)

    script.stay_silent(100)

    assert script.get_finding(FindingKind.STALL) is not None


def test_worker_known_under_both_names_is_merged_with_summed_totals() -> None:
    """B84: events that arrive under the new name before the rename also count."""
    script = WorkerScript().start()
    script.report_step("CONTINUE", times=3)
    script.report_call("read")
    early_worker = WorkerScript(
        agent="scout", session="c-1", monitor=script.monitor, at=script.now - 60
    ).start()
    early_worker.report_step("CONTINUE", times=2)
    early_worker.report_call("search")

    rename_worker(script)

    vitals = script.health.vitals
    assert (vitals.steps_total, vitals.tool_calls_total) == (5, 2)
    assert vitals.last_activity == script.now
    assert vitals.started_at == early_worker.now - 3


def test_ended_run_stays_ended_when_renamed() -> None:
    script = WorkerScript().start()
    script.report_event(EventType.EXECUTION_COMPLETED)

    assert rename_worker(script) == []

    assert script.health.vitals.status is WorkerStatus.COMPLETED
    script.stay_silent(4_000)
    assert script.monitor.get("scout", "c-1") is None


def test_unknown_or_unchanged_name_changes_nothing() -> None:
    script = WorkerScript(agent="scout", session="c-1").start()
    assert rename_worker(script) == []

    other = WorkerScript(agent="nobody", monitor=script.monitor)
    other.report_event(EventType.AGENT_RENAMED, NEW_IDENTITY)

    assert list(script.monitor.keys()) == [("scout", "c-1")]


def test_replay_gives_the_same_renamed_worker() -> None:
    """B86: the rename survives a restart."""
    script = WorkerScript().start()
    script.report_step("CONTINUE", times=3)
    rename_worker(script)
    script.report_step("CONTINUE")
    replayed_monitor = HealthMonitor(HealthSettings())

    for event in script.worker_events:
        replayed_monitor.replay(event, event.time)

    assert list(replayed_monitor.keys()) == [("scout", "c-1")]
    [worker] = replayed_monitor.workers()
    assert worker.vitals.steps_total == script.health.vitals.steps_total


@pytest.mark.parametrize("later", [0.0, 600.0])
def test_late_work_counts_and_reopens_nothing(later: float) -> None:
    """B84, B85: log records arrive after the hook that ends a session."""
    script = WorkerScript().start()
    script.report_step("CONTINUE")
    script.now += 10
    script.report_event(EventType.EXECUTION_COMPLETED, after=0.0)
    end_time = script.health.vitals.ended_at
    script.now += later
    script.lag = 5.0 + later

    script.report_step("CONTINUE")
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 10, "output_tokens": 2})
    script.report_call("read", outcome="error")

    vitals = script.health.vitals
    assert (vitals.steps_total, vitals.tokens, vitals.tool_calls_total, vitals.error_count) == (2, 12, 1, 1)
    assert vitals.ended_at == end_time
    assert vitals.status is WorkerStatus.COMPLETED


@pytest.mark.parametrize("expected", ["in order", "end first"])
def test_late_failures_count_equally(expected: str) -> None:
    """B84, B85: the hook that ends a session arrives before the log records of its failed calls."""
    script = WorkerScript().start()
    script.report_step("CONTINUE")
    if expected == "end first":
        script.now += 60.0
        script.report_event(EventType.EXECUTION_FAILED, {"error_type": "overloaded"}, after=0.0)
        script.lag = 60.0

    script.report_call("read", outcome="error")
    for _ in range(4):
        script.report_event(
            EventType.LLM_CALL_COMPLETED, {"error_type": "overloaded", "error": "529 overloaded"}
        )
        script.report_step(error_type="overloaded")
    if expected == "in order":
        script.now += 60.0
        script.report_event(EventType.EXECUTION_FAILED, {"error_type": "overloaded"}, after=0.0)

    vitals = script.health.vitals
    assert (vitals.error_count, vitals.llm_errors, vitals.evidence) == (6, 4, "overloaded")
    assert [finding.kind for finding in script.health.findings] == [FindingKind.PROVIDER_FAILURE]
    assert script.health.findings[0].evidence == "the run ended in 4 failed LLM calls, last with overloaded"


def test_last_reported_end_wins() -> None:
    """B84: a failed model call arrives after the root that ended the run."""
    script = WorkerScript().start()
    script.report_event(EventType.EXECUTION_COMPLETED)
    end_time = script.health.vitals.ended_at

    script.report_event(EventType.EXECUTION_FAILED, {"error_type": "overloaded"}, after=0.0)

    assert (script.health.vitals.status, script.health.vitals.ended_at) == (WorkerStatus.FAILED, end_time)
    assert script.monitor.failed_runs("agent").count == 1


def test_chain_of_renames_leads_to_the_last_name() -> None:
    script = WorkerScript().start()

    for name in ("b", "c"):
        script.report_event(EventType.AGENT_RENAMED, {"agent_id": name, "session_id": f"of {name}"})
        script.agent, script.session = name, f"of {name}"

    monitor = script.monitor
    assert monitor.current_key(("agent", "session")) == ("c", "of c")
    assert monitor.find("agent") is monitor.find("agent", "session") is monitor.get("c")
    assert monitor.find("nobody") is None
    assert monitor.get("agent") is None


def test_name_in_use_again_is_not_a_former_name() -> None:
    script = WorkerScript().start()
    rename_worker(script)

    script.report_event(EventType.AGENT_RENAMED, {"agent_id": "agent", "session_id": "session"})

    assert script.monitor.current_key(("agent", "session")) == ("agent", "session")
    assert script.monitor.current_key(("scout", "c-1")) == ("agent", "session")


def test_spending_of_the_day_follows_a_rename() -> None:
    settings = HealthSettings.model_validate({"spending": {"agent_day_usd": 5.0}})
    script = WorkerScript(settings=settings).start()
    script.report_event(EventType.LLM_CALL_COMPLETED, {"cost_usd": 4.0})
    rename_worker(script)

    script.report_event(EventType.LLM_CALL_COMPLETED, {"cost_usd": 2.0})

    assert script.health.vitals.spent_today is not None
    assert script.health.vitals.spent_today.agent == 6.0
