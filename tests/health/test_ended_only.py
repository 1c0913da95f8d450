"""Workers whose calls are reported only when they end, so that silence may be a running call."""

from __future__ import annotations

from queenright.health.findings import FindingKind, Severity
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

PAGING_SEVERITIES = {Severity.HIGH, Severity.CRITICAL}


def make_worker() -> WorkerScript:
    """Return a worker of a framework that exports spans when they end."""
    script = WorkerScript()
    script.report_event(EventType.EXECUTION_STARTED, {"start_records": False}, after=0.0)
    for number in range(20):
        report_answer(script)
        script.report_call("bash", f"a{number}", f"r{number}", after=10.0, duration=9.0)
    return script


def report_answer(script: WorkerScript, after: float = 10.0) -> None:
    data = {"input_tokens": 900, "output_tokens": 100, "duration": after - 1.0}
    script.report_event(EventType.LLM_CALL_COMPLETED, data, after=after)


def test_silence_of_a_long_call_pages_no_one() -> None:
    script = make_worker()
    report_answer(script)

    for _ in range(90):
        script.stay_silent(30.0)

    opened_findings = [
        event.data for event in script.monitor_events if event.type is EventType.FINDING_OPENED
    ]
    assert [(finding["kind"], finding["severity"]) for finding in opened_findings] == [("stall", "medium")]
    assert not {finding.severity for finding in script.health.findings} & PAGING_SEVERITIES


def test_late_span_of_a_long_call_clears_what_its_silence_opened() -> None:
    script = make_worker()
    report_answer(script)
    for _ in range(90):
        script.stay_silent(30.0)

    script.report_call("bash", "make", "built", after=0.0, duration=2_700.0)
    script.stay_silent(5.0)

    assert script.list_finding_kinds() == set()


def test_turns_without_a_tool_call_are_found_by_their_own_time() -> None:
    script = make_worker()
    for _ in range(12):
        report_answer(script, after=160.0)

    finding = script.get_finding(FindingKind.NO_TOOL_CALLS)
    assert finding is not None
    assert finding.severity is Severity.HIGH

    for _ in range(90):
        script.stay_silent(30.0)

    finding_after = script.get_finding(FindingKind.NO_TOOL_CALLS)
    assert finding_after is not None
    assert finding_after.severity is Severity.HIGH
