"""Workers whose calls are reported only when they end, so that silence may be a running call."""

from __future__ import annotations

from queenright.health.findings import FindingKind, Severity
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

PAGES = {Severity.HIGH, Severity.CRITICAL}


def worker() -> WorkerScript:
    """Return a worker of a framework that exports spans when they end."""
    script = WorkerScript()
    script.event(EventType.EXECUTION_STARTED, {"start_records": False}, after=0.0)
    for number in range(20):
        answer(script)
        script.call("bash", f"a{number}", f"r{number}", after=10.0, duration=9.0)
    return script


def answer(script: WorkerScript, after: float = 10.0) -> None:
    data = {"input_tokens": 900, "output_tokens": 100, "duration": after - 1.0}
    script.event(EventType.LLM_CALL_COMPLETED, data, after=after)


def test_silence_of_a_long_call_pages_no_one() -> None:
    script = worker()
    answer(script)

    for _ in range(90):
        script.silence(30.0)

    opened = [event.data for event in script.said if event.type is EventType.FINDING_OPENED]
    assert [(finding["kind"], finding["severity"]) for finding in opened] == [("stall", "medium")]
    assert not {finding.severity for finding in script.health.findings} & PAGES


def test_late_span_of_a_long_call_clears_what_its_silence_opened() -> None:
    script = worker()
    answer(script)
    for _ in range(90):
        script.silence(30.0)

    script.call("bash", "make", "built", after=0.0, duration=2_700.0)
    script.silence(5.0)

    assert script.kinds() == set()


def test_turns_without_a_tool_call_are_found_by_their_own_time() -> None:
    script = worker()
    for _ in range(12):
        answer(script, after=160.0)

    finding = script.finding(FindingKind.NO_TOOL_CALLS)
    assert finding is not None
    assert finding.severity is Severity.HIGH

    for _ in range(90):
        script.silence(30.0)

    after = script.finding(FindingKind.NO_TOOL_CALLS)
    assert after is not None
    assert after.severity is Severity.HIGH
